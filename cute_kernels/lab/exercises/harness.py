"""Whole kernels around a learner's function: compiled for sm_90a here, run on a GPU in a child process.

out = a @ b.T in bf16. Up to notebook 04 (`GEMMS`) one output tile per CTA, TMA loads, WGMMA, predicated stores from
registers; from notebook 05 on (`FINISHED`) the finished persistent gemm, in notebook 09 (`FUSED`) a finished SwiGLU kernel.
What an exercise asks for is passed in; everything else is the package's own (hopper.tiles, hopper.mainloop, hopper.kernel).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import linecache
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, memory
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.pipeline import PipelineState, pipeline_init_arrive, pipeline_init_wait

from ...compile import Compiled, CompileError, build, env_stream, fake_matrix
from ...hopper import epilogue, mainloop, tiles, visitor
from ...hopper.config import TileConfig
from ...hopper.epilogue_registers import store_predicated
from ...hopper.gemm import Gemm
from ...hopper.kernel import Variant
from ...hopper.swiglu_pingpong import SwigluPingpong
from . import NotRun, Wrong, file_of

TILE_M = 128
ORDER = 3  # named barriers 3 and 4: whose turn it is to multiply, as in notebook 06
SECONDS = 90  # for a child process on the GPU: import, compile, run
MARK = "cute_kernels exercise: "


class TileGemm:
    """One 128 x tile_n tile per CTA. Subclasses say who runs the main loop.

    stages: depth of the ring. groups: consumer warp groups. store(acc, mma_slice, out, m, n): the epilogue of one
    thread for tile (m, n); default: predicated stores.
    """

    producer_group = False

    def __init__(
        self, loop: Callable, stages: int = 1, tile_n: int = 128, groups: int = 1, store: Callable | None = None
    ):
        self.loop, self.stages, self.tile_n, self.groups = loop, stages, tile_n, groups
        self.store = store or self.store_tile

    @property
    def boxes(self) -> dict[str, int]:
        """Bytes of the boxes that one k-tile loads."""
        return {"a": tiles.tile_bytes(cutlass.BFloat16, TILE_M), "b": tiles.tile_bytes(cutlass.BFloat16, self.tile_n)}

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, stream: cuda.CUstream):
        load_a, tma_a = tiles.tma_load(a, TILE_M)
        load_b, tma_b = tiles.tma_load(b, self.tile_n)
        grid = (cute.ceil_div(a.shape[0], TILE_M), cute.ceil_div(b.shape[0], self.tile_n), 1)
        k_tiles = Int32(cute.ceil_div(a.shape[1], tiles.TILE_K))
        self.kernel(load_a, tma_a, load_b, tma_b, out, k_tiles).launch(
            grid=grid,
            block=(tiles.WARP_GROUP * (self.groups + self.producer_group), 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        load_a: cute.CopyAtom,
        tma_a: cute.Tensor,
        load_b: cute.CopyAtom,
        tma_b: cute.Tensor,
        out: cute.Tensor,
        k_tiles: Int32,
    ):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        m, n, _ = cute.arch.block_idx()

        @cute.struct
        class Storage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            a: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE_M * tiles.TILE_K * self.stages], 1024]
            b: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, self.tile_n * tiles.TILE_K * self.stages], 1024]

        smem = memory.SmemAllocator().allocate(Storage)
        layout_a = tiles.operand_layout(cutlass.BFloat16, TILE_M, self.stages)
        layout_b = tiles.operand_layout(cutlass.BFloat16, self.tile_n, self.stages)
        sA = smem.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        sB = smem.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        ring = mainloop.load_pipeline(smem.barriers.data_ptr(), self.stages, sum(self.boxes.values()), 4 * self.groups)
        pipeline_init_arrive(cluster_shape_mn=(1, 1), is_relaxed=True)
        pipeline_init_wait(cluster_shape_mn=(1, 1))

        to_a, from_a = tiles.partition_load(load_a, sA, tma_a, TILE_M)
        to_b, from_b = tiles.partition_load(load_b, sB, tma_b, self.tile_n)

        def copy_a(k, stage, full):
            cute.copy(load_a, from_a[None, m, k], to_a[None, stage], tma_bar_ptr=full)

        def copy_b(k, stage, full):
            cute.copy(load_b, from_b[None, n, k], to_b[None, stage], tma_bar_ptr=full)

        self.body(thread, warp, m, n, ring, k_tiles, copy_a, copy_b, sA, sB, out)

    @cute.jit
    def multiplier(self, thread, sA, sB):
        """(tiled MMA, its fragments of A and B, a zero accumulator) of consumer thread `thread`."""
        mma = tiles.tiled_mma(cutlass.BFloat16, self.tile_n, self.groups)
        slice_ = mma.get_slice(thread // tiles.WARP_GROUP * tiles.WARP_GROUP)
        frag_a = mma.make_fragment_A(slice_.partition_A(sA))
        frag_b = mma.make_fragment_B(slice_.partition_B(sB))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((TILE_M, self.tile_n)), cutlass.Float32)
        acc.fill(
            0.0
        )  # and every k-tile is added: were the first to overwrite by a run-time flag, ptxas would serialise
        return mma, frag_a, frag_b, acc

    @cute.jit
    def store_tile(self, acc, mma_slice, out, m, n):
        store_predicated(acc, mma_slice, out, (TILE_M, self.tile_n), m, n)


class OneStage(TileGemm):
    """Four warps and one stage: loop(warp, full, k_tiles, load_a, load_b, multiply)."""

    @cute.jit
    def body(self, thread, warp, m, n, ring, k_tiles, copy_a, copy_b, sA, sB, out):
        mma, frag_a, frag_b, acc = self.multiplier(thread, sA, sB)
        full = ring.sync_object_full.get_barrier(0)

        def load_a(k, barrier):
            copy_a(k, 0, barrier)

        def load_b(k, barrier):
            copy_b(k, 0, barrier)

        def multiply(k):
            mainloop.mma_k_tile(mma, acc, frag_a, frag_b, 0, False)

        self.loop(warp, full, k_tiles, load_a, load_b, multiply)
        self.store(acc, mma.get_slice(thread), out, m, n)


class RingOfStages(TileGemm):
    """Four warps that load and multiply: loop(warp, ring, stages, k_tiles, load, multiply)."""

    @cute.jit
    def body(self, thread, warp, m, n, ring, k_tiles, copy_a, copy_b, sA, sB, out):
        mma, frag_a, frag_b, acc = self.multiplier(thread, sA, sB)

        def load(k, stage, barrier):
            copy_a(k, stage, barrier)
            copy_b(k, stage, barrier)

        def multiply(k, stage):
            mainloop.mma_k_tile(mma, acc, frag_a, frag_b, stage, False)

        self.loop(warp, ring, self.stages, k_tiles, load, multiply)
        self.store(acc, mma.get_slice(thread), out, m, n)


class Roles(TileGemm):
    """A producer warp group and consumer warp groups: loop(warp, ring, stages, k_tiles, load, consume)."""

    producer_group = True

    @cute.jit
    def body(self, thread, warp, m, n, ring, k_tiles, copy_a, copy_b, sA, sB, out):
        def load(k, stage, barrier):
            copy_a(k, stage, barrier)
            copy_b(k, stage, barrier)

        def consume():
            self.consumer(thread - tiles.WARP_GROUP, m, n, ring, k_tiles, sA, sB, out)

        self.loop(warp, ring, self.stages, k_tiles, load, consume)

    @cute.jit
    def consumer(self, thread, m, n, ring, k_tiles, sA, sB, out):
        mma, frag_a, frag_b, acc = self.multiplier(thread, sA, sB)
        mainloop.multiply(ring, mainloop.consumer_state(self.stages), k_tiles, mma, acc, frag_a, frag_b)
        self.store(acc, mma.get_slice(thread), out, m, n)


@cute.jit
def one_stage_loop(warp, full, k_tiles, load_a, load_b, multiply):
    """The main loop of notebook 02: load, wait, multiply, wait."""
    phase = Int32(0)
    for k in cutlass.range(k_tiles, unroll=1):
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, 2 * tiles.tile_bytes(cutlass.BFloat16, TILE_M))
            load_a(k, full)
            load_b(k, full)
        cute.arch.mbarrier_wait(full, phase)
        phase ^= 1
        multiply(k)
        warpgroup.wait_group(0)
        cute.arch.sync_threads()


class Transposed:
    """A kernel that stores the transpose, called with a and b exchanged: again out = a @ b.T."""

    def __init__(self, kernel: Compiled):
        self.kernel = kernel

    def __call__(self, a, b, out) -> None:
        self.kernel(b, a, out)


class Ordered(Gemm):
    """The finished gemm, its tiles in a learner's order: tile_of(index, tiles_m, tiles_n, group) -> (row, column)."""

    def __init__(self, tile_of: Callable, *arguments: Any):
        super().__init__(*arguments)
        self.tile_of = tile_of

    def tile(self, walk, index):
        m, n = self.tile_of(index, walk.tiles_m, walk.tiles_n, Int32(self.config.group))
        return m * self.config.cluster[0] + walk.rank_m, n * self.config.cluster[1] + walk.rank_n


class InTurn(Gemm):
    """The finished gemm, pingpong, whose consumers follow a learner's protocol (see `in_turn`)."""

    def __init__(self, consumer: Callable, *arguments: Any):
        super().__init__(*arguments)
        self.consumer = consumer

    @cute.jit
    def consume(self, ring, walk, k_tiles, group, lane, sA, sB, slots, store, tma_out, operands, events):
        mma, acc, frag_a, frag_b = self.accumulator(group, sA, sB)
        out = self.output(group, lane, slots, store, tma_out, operands)
        log, written = self.trace.begin(events, self.cta(walk), 1 + group)

        def multiply(index, state):
            return mainloop.issue(ring, state, k_tiles, mma, acc, frag_a, frag_b)

        def store_tile(index, done):
            m, n = self.tile(walk, index)
            mainloop.finish(ring, done)
            self.store_tile(acc, m, n, out, log, written)

        state = mainloop.consumer_state(self.config.stages)
        self.follow(group, walk, k_tiles, state, multiply, store_tile)
        epilogue.drain(lane)

    def follow(self, group, walk, k_tiles, state, multiply, store):
        self.consumer(group, walk.first, walk.step, walk.tiles, k_tiles, state, multiply, store)


class ByHand(InTurn):
    """The finished gemm, pingpong, whose consumers step over the other's stages with a learner's function:
    step_over(index, phase, k_tiles, stages) -> (index, phase)."""

    def follow(self, group, walk, k_tiles, state, multiply, store):
        def skip(state):
            index, phase = self.consumer(state.index, state.phase, k_tiles, state.stages)
            return PipelineState(state.stages, state.count + k_tiles, Int32(index), Int32(phase))

        in_turn(group, walk.first, walk.step, walk.tiles, skip, state, multiply, store)


class InTwoTurns(SwigluPingpong):
    """The finished Kernel-1, whose consumers follow a learner's protocol of two turns for a tile:
    consumer(group, first, step, tiles, k_tiles, state, gate, activate, up, store)."""

    def __init__(self, consumer: Callable, *arguments: Any):
        super().__init__(*arguments)
        self.consumer = consumer

    @cute.jit
    def consume(self, ring, walk, k_tiles, group, lane, sA, sB, slots, store, tma_out, operands, events):
        mma, up, frag_a, frag_b = self.accumulator(group, sA, sB)
        gate = cute.make_rmem_tensor(up.shape, cutlass.Float32)
        held = cute.make_rmem_tensor((cute.size(up) // 2,), Int32) if self.config.packed else gate
        out = self.output(group, lane, slots, store, tma_out, operands)
        log, written = self.trace.begin(events, self.cta(walk), 1 + group)

        def multiply_gate(index, state):
            return mainloop.issue(ring, state, k_tiles, mma, gate, frag_a, frag_b)

        def activate(index, done):
            m, n = self.tile(walk, index)
            mainloop.finish(ring, done)
            self.activate(gate, held, operands, lane, m, n, out.shape)

        def multiply_up(index, state):
            return mainloop.issue(ring, state, k_tiles, mma, up, frag_a, frag_b)

        def store_tile(index, done):
            m, n = self.tile(walk, index)
            mainloop.finish(ring, done)
            self.store_tile((held, up), m, n, out, log, written)

        state = mainloop.consumer_state(self.config.stages)
        self.follow(group, walk, k_tiles, state, multiply_gate, activate, multiply_up, store_tile)
        epilogue.drain(lane)

    def follow(self, group, walk, k_tiles, state, gate, activate, up, store):
        self.consumer(group, walk.first, walk.step, walk.tiles, k_tiles, state, gate, activate, up, store)


class BySlab(Gemm):
    """The finished gemm, its slabs stored by a learner's protocol:
    store_slab(warp, slot, in_ring, wait_stores, sync, write, fence, send)."""

    def __init__(self, protocol: Callable, *arguments: Any):
        super().__init__(*arguments)
        self.protocol = protocol

    def store_tile(self, *arguments):
        with replaced(epilogue, "store_slab", slab_by(self.protocol)):
            return super().store_tile(*arguments)


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """module.name is `value` while a kernel is traced (under the compiler's lock), then what it was."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def slab_by(protocol: Callable) -> Callable:
    """`hopper.epilogue.store_slab` with what it does to a slab in a learner's order."""

    @cute.jit
    def store_slab(
        value,
        copy: cute.TiledCopy,
        slots: cute.Tensor,
        slot,
        in_ring: cutlass.Constexpr,
        tma_atom: cute.CopyAtom,
        target: cute.Tensor,
        thread,
        barrier_id,
    ):
        out = cute.make_rmem_tensor(((2, 2, cute.size(slots, mode=[1]) // 8), 1, 1), slots.element_type)
        for v in cutlass.range_constexpr(cute.size(out)):
            out[v] = value(v).to(slots.element_type)

        def wait_stores(left):
            cute.arch.cp_async_bulk_wait_group(left, read=True)

        def sync():
            cute.arch.barrier(barrier_id=barrier_id, number_of_threads=tiles.WARP_GROUP)

        def write(slot):
            mine = copy.get_slice(thread)
            cute.copy(copy, mine.retile(out), mine.partition_D(slots)[None, None, None, slot])

        def fence():
            cute.arch.fence_proxy("async.shared", space="cta")

        def send(slot):
            s, g = cpasync.tma_partition(
                tma_atom, 0, cute.make_layout(1), cute.group_modes(slots, 0, 2), cute.group_modes(target, 0, 2)
            )
            cute.copy(tma_atom, s[None, slot], g[None])
            cute.arch.cp_async_bulk_commit_group()

        protocol(thread // 32, slot, in_ring, wait_stores, sync, write, fence, send)

    return store_slab


@cute.jit
def in_turn(group, first, step, tiles, skip, state, multiply, store):
    """The consumer of notebook 06, reduced to its protocol: consumer `group` of the tiles first, first + step, ... below `tiles`.

    skip(state): the state behind the other's k-tiles. multiply(index, state): issue the WGMMAs of a tile; returns (state
    behind it, state of its last stage, which `store` hands back). store(index, last): the rest of the tile.
    """
    if group == 1:
        state = skip(state)
        cute.arch.barrier_arrive(barrier_id=ORDER, number_of_threads=256)
    for index in cutlass.range(first + group * step, tiles, 2 * step, unroll=1):
        cute.arch.barrier(barrier_id=ORDER + group, number_of_threads=256)
        state, last = multiply(index, state)
        if index + step < tiles:
            cute.arch.barrier_arrive(barrier_id=ORDER + 1 - group, number_of_threads=256)
        state = skip(state)
        store(index, last)


def compile_(gemm: TileGemm, name: str) -> Compiled:
    """Compile a harness for sm_90a."""
    args = [fake_matrix("bfloat16") for _ in range(3)]
    with refusals():
        return build(gemm, [*args, env_stream()], arch="sm_90a", name=name)


def finished(exercise: str, answer: Callable) -> Compiled:
    """Compile the finished kernel of an exercise with a learner's function in it, for sm_90a."""
    from ...registry import get

    name, factory, config = (*FUSED[exercise], None) if exercise in FUSED else ("gemm", FINISHED[exercise], CONFIG)
    spec = dataclasses.replace(get(name), factory=functools.partial(factory, answer))
    with refusals():
        return spec.compile(config)


def with_tree(tree: visitor.Node) -> Compiled:
    """Compile the finished gemm with an epilogue tree, for sm_90a."""
    from ...registry import get

    with refusals():
        return get("gemm").compile(CONFIG, variant=Variant(tree=tree))


@contextlib.contextmanager
def refusals():
    """What the DSL refuses is the learner's to hear."""
    try:
        yield
    except CompileError as why:
        if isinstance(why.__cause__, Wrong):
            raise why.__cause__ from None
        raise Wrong(f"It does not compile. {str(why).split(': ', 1)[-1]}") from None


def compile_for_cpu(on_host: Callable, *args: Any, lost: str = "It does not run on the CPU.") -> Callable:
    """Compile a host function around a learner's for this CPU. lost: what to say when it needs what a CPU does not have."""
    try:
        return cute.compile(on_host, *args)
    except Wrong:
        raise
    except Exception as why:
        if "Symbols not found" in str(why):
            raise Wrong(lost) from None
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(why)).split())
        raise Wrong(f"It does not compile. {type(why).__name__}: {text[:500]}") from None


def run_on_gpu(exercise: str, answer: Callable, hint: str) -> Iterator[Any]:
    """Numerics over odd shapes on this GPU, in a child process that may hang. hint: what usually makes it hang."""
    from .. import HAS_GPU

    if not HAS_GPU:
        yield NotRun("the numbers: running the kernel over odd shapes needs a Hopper GPU")
        return
    verdict = in_child("harness.judge", exercise, answer, "On the GPU", hint)
    yield f"{verdict['shapes']} shapes on {verdict['gpu']}: worst relative error {verdict['worst']:.2g}"


def in_child(
    judge: str, exercise: str, answer: Callable | tuple[Callable, ...], where: str, hint: str
) -> dict[str, Any]:
    """What the judge ("module.function" of this package, called with exercise and answers) tells in a child process, which may
    hang or crash: the dict that it handed to `tell`. Raises Wrong for its "wrong", a hang or a crash."""
    from .. import child

    answers = answer if isinstance(answer, tuple) else (answer,)
    cells = "\n".join("".join(linecache.getlines(file)) for file in dict.fromkeys(map(file_of, answers)))
    module, _ = judge.split(".")
    names = ", ".join(each.__name__ for each in answers)
    tail = f"from cute_kernels.lab.exercises import {module}\n{judge}({exercise!r}, {names})\n"
    outcome = child.run(f"{cells}\n{tail}", SECONDS)
    if not outcome.finished:
        raise Wrong(f"{where} it hangs: no result after {SECONDS} s. {hint}")
    told = [line[len(MARK) :] for line in outcome.stdout.splitlines() if line.startswith(MARK)]
    if not told:
        crash = f" (signal {-outcome.returncode}). {hint}" if outcome.returncode < 0 else ":"
        raise Wrong(f"{where} the run breaks off{crash}\n{outcome.stderr.strip()[-600:]}".strip())
    verdict = json.loads(told[-1])
    if verdict["wrong"]:
        raise Wrong(f"{where}: {verdict['wrong']}")
    return verdict


def tell(verdict: dict[str, Any]) -> None:
    """In the child process: hand the verdict to `in_child`."""
    print(MARK + json.dumps(verdict))


#: Where the finished gemm takes an exercise's answer, and its configuration.
FINISHED: dict[str, Callable[..., Gemm]] = {"05a": Ordered, "06a": InTurn, "06b": ByHand, "07b": BySlab}
CONFIG = TileConfig(128, 128, cluster=(2, 1), stages=6, group=3, schedule="pingpong")

#: M, N, K that make 1 to 199 pairs of tiles, so that CTAs get any number of tiles from 1 to 4, with K shorter and longer than
#: the ring; and 11 rows of pairs: CONFIG's last group of rows is then shorter.
TILE_COUNTS = (
    *((256, 128 * n, 64 * k) for n in (1, 2, 3, 65, 66, 67, 131, 132, 133, 197, 198, 199) for k in (1, 7)),
    (11 * 256, 5 * 128, 64),
)

#: The SwiGLU kernel of an exercise, and where it takes the answer.
FUSED: dict[str, tuple[str, Callable[..., Any]]] = {"09a": ("swiglu_pingpong", InTwoTurns)}

#: The harness of each exercise that has a kernel of its own.
GEMMS: dict[str, Callable[[Callable], TileGemm]] = {
    "02a": OneStage,
    "02b": lambda store: OneStage(one_stage_loop, store=store),
    "03b": lambda loop: RingOfStages(loop, stages=4),
    "04b": lambda roles: Roles(roles, stages=4, tile_n=256, groups=2),
}


def judge(exercise: str, answer: Callable) -> None:
    """In the child process: compile, run, compare, print one line of JSON."""
    from .. import bench, check

    run, more = check.gemm, {}
    if exercise in FUSED:
        compiled = finished(exercise, answer)
        c, kernel, run = compiled.config, bench.launcher(compiled), check.swiglu
        more = {"shapes": (*check.ODD_SHAPES, *tile_counts(c)), "tile": (c.tile_m, c.tile_n)}
    elif exercise in FINISHED:
        kernel, more = bench.launcher(finished(exercise, answer)), {"shapes": (*check.ODD_SHAPES, *TILE_COUNTS)}
    else:
        kernel = compile_(GEMMS[exercise](answer), exercise)
    if exercise == "02b":
        kernel = Transposed(kernel)
    tell_table(lambda: run(kernel, f"exercise {exercise}", **more))


def tell_table(checked: Callable[[], Any]) -> None:
    """In the child process: hand over what a check of many shapes says; checked() returns its table or raises CheckFailed."""
    import torch

    from .. import bench, check

    os.environ.pop(bench.RECORD, None)  # a learner's kernel is no evidence
    verdict: dict[str, Any] = {"wrong": None, "gpu": torch.cuda.get_device_name()}
    try:
        table = checked()
        verdict.update(shapes=len(table), worst=float(table["relative error"].max()))
    except check.CheckFailed as why:
        verdict["wrong"] = str(why)
    tell(verdict)


def tile_counts(c: TileConfig) -> list[tuple[int, int, int]]:
    """M, N, K with which CTAs get one to four tiles, K shorter and longer than the ring."""
    rows, columns = c.tile_m * c.cluster[0], c.tile_n * c.cluster[1]
    return [(rows, columns * t, 64 * k) for t in (1, 2, 3, 65, 66, 67, 132, 133, 198, 199) for k in (1, c.stages + 1)]
