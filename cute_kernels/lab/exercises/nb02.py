"""Checkers of the exercises of notebook 02: one stage, one barrier, and the tails of the epilogue."""

from __future__ import annotations

import re

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32
from cutlass.cute.runtime import from_dlpack

from ...hopper import tiles
from . import Wrong, checker, harness
from .simulator import SCHEDULES, Barrier, Fault, Simulator, as_python

WARPS = 4


@checker("02a")
def one_stage(k_loop):
    """The main loop over one stage: announced bytes, parity, and the order of wait, multiply, wait, sync."""
    gemm = harness.GEMMS["02a"](k_loop)
    longest = 7
    for k_tiles in range(1, longest + 1):
        for schedule in SCHEDULES:
            _simulate_one_stage(k_loop, gemm.boxes, k_tiles, schedule)
    yield (
        f"1 to {longest} k-tiles, four warps, {len(SCHEDULES)} hostile schedules: every WGMMA finds its own "
        "k-tile, and nothing hangs"
    )

    compiled = harness.compile_(gemm, "02a")
    counts = compiled.instructions
    yield (
        f"compiles for sm_90a: {counts.get('UTMALDG', 0)} TMA loads, {counts.get('HGMMA', 0)} WGMMAs a k-tile, "
        f"{compiled.registers} registers, {compiled.spill_bytes} bytes spilled"
    )
    yield from harness.run_on_gpu(
        "02a", k_loop, "The usual causes: a byte count that never comes to zero, or a parity that is not flipped."
    )


def _simulate_one_stage(k_loop, boxes, k_tiles, schedule):
    simulator = Simulator(schedule, 1, {"A": boxes["a"], "B": boxes["b"]})
    full = Barrier(simulator, "the full barrier", 1)

    def body(warp):
        as_python(k_loop, simulator)(
            warp,
            full,
            k_tiles,
            lambda k, barrier: simulator.load("A", k, 0, barrier),
            lambda k, barrier: simulator.load("B", k, 0, barrier),
            lambda k: simulator.multiply(k, 0),
        )

    fault = None
    try:
        simulator.run([lambda warp=warp: body(warp) for warp in range(WARPS)])
    except Fault as found:
        fault = found
    total = sum(boxes.values())
    if simulator.expected_bytes and simulator.expected_bytes[0] != total:
        raise Wrong(
            f"You announce {simulator.expected_bytes[0]:,} bytes a k-tile, but the boxes of A ({boxes['a']:,} "
            "bytes) and B "
            f"({boxes['b']:,} bytes) bring {total:,}: "
            + (
                "the barrier waits for ever."
                if simulator.expected_bytes[0] > total
                else "the barrier opens before all have landed."
            )
        )
    if fault is not None:
        raise Wrong(_explain_one_stage(fault, simulator, k_tiles)) from None
    if missed := simulator.k_tiles_missed(range(WARPS), k_tiles):
        raise Wrong(f"{missed[0].upper()}{missed[1:]}.")


def _explain_one_stage(fault: Fault, simulator: Simulator, k_tiles: int) -> str:
    happened = f"With {k_tiles} k-tile{'s' * (k_tiles > 1)}: {fault}."
    if fault.kind == "arrivals":
        why = (
            "The barrier was initialised for one arrival: one elected thread of warp 0 announces the bytes, nobody "
            "else."
        )
    elif fault.kind == "overwrite" or (fault.kind == "stale" and fault.found > fault.k):
        why = (
            "Before warp 0 loads again, every warp must be done with the stage: wait for the WGMMA group, then "
            "sync all threads."
        )
    elif fault.kind in ("early", "stale") and not any(warp.passed for warp in simulator.warps):
        why = "No warp waits for the barrier, so nobody knows whether the bytes have landed."
    elif fault.lapped:
        why = (
            "The barrier went on by two phases before these warps had waited for the first, and one bit cannot "
            "tell two from none: "
            "before warp 0 loads again, every warp must be done with the stage. Sync all threads."
        )
    elif fault.kind == "hang" and not simulator.expected_bytes:
        why = "Nobody announces bytes, so no phase ever completes."
    elif fault.kind == "hang" and "sync_threads" in str(fault):
        why = "sync_threads must be reached by all four warps."
    elif fault.kind in ("hang", "early", "stale"):
        why = (
            "Check the parity: the barrier completes once per k-tile, so the parity to wait for changes from one "
            "k-tile to the next."
        )
        if fault.kind == "stale":
            why += " If it does, check which k-tile you load."
    else:
        why = (
            "A WGMMA group runs on after its issue: wait for it before its accumulator is read or its operands are "
            "replaced."
        )
    return f"{happened} {why}"


@checker("02b")
def tails(store_tile):
    """The predicated, transposing epilogue: run on the CPU for all threads of several tiles, guard elements around."""
    harness.in_child(
        "nb02.judge_tails", "02b", store_tile, "On the CPU", "The usual cause: a store far outside of the output."
    )
    yield (
        f"executed on the CPU for all 128 threads of every tile of {len(TAILS)} shapes: each element in its place, "
        "nothing around the output touched"
    )
    compiled = harness.compile_(harness.GEMMS["02b"](store_tile), "02b")
    stores = len(re.findall(r"st\.global", compiled.ptx))
    yield (
        f"compiles for sm_90a: {stores} stores a thread, {compiled.registers} registers, {compiled.spill_bytes} "
        "bytes spilled"
    )
    yield from harness.run_on_gpu(
        "02b", store_tile, "An epilogue has nothing to wait for: look for a loop without end."
    )


TAILS = ((128, 128), (256, 384), (200, 136), (1, 8), (129, 128), (128, 136), (255, 264), (127, 120))


def judge_tails(exercise: str, store_tile) -> None:
    """In a child process, for a wrong store can end it: the epilogue on the CPU, over all shapes. The target is the parent's."""
    wrong = None
    try:
        for shape, results in zip(TAILS, _store_on_cpu(store_tile, TAILS), strict=True):
            _explain_tails(*shape, *results)
    except Wrong as why:
        wrong = str(why)
    harness.tell({"wrong": wrong})


GUARD = 136  # elements around the output: more than a tile, so that a store beyond it lands in them
HOLE = -1.0
FIXED = "It does not run on the CPU, where out holds fp32: convert with .to(out.element_type), not to a fixed dtype."


def _store_on_cpu(store_tile, shapes):
    """(out, what it should be, guard intact) for each shape, from the learner's own code compiled for the host."""

    @cute.jit
    def on_host(values: cute.Tensor, out: cute.Tensor, m: Int32, n: Int32):
        mma = tiles.tiled_mma(cutlass.BFloat16, 128, 1)
        for thread in cutlass.range(tiles.WARP_GROUP, unroll=1):
            slice_ = mma.get_slice(thread)
            mine = slice_.partition_C(values)
            acc = cute.make_rmem_tensor(mma.partition_shape_C((128, 128)), cutlass.Float32)
            for v in cutlass.range_constexpr(cute.size(acc)):
                acc[v] = mine[v]
            store_tile(acc, slice_, out, m, n)

    def view(tensor):
        return from_dlpack(tensor).mark_layout_dynamic(leading_dim=1)

    compiled, results = None, []
    for rows, columns in shapes:
        buffer = torch.full((columns + 2 * GUARD, rows + 2 * GUARD), HOLE)
        out = buffer[GUARD : GUARD + columns, GUARD : GUARD + rows]
        tiles_m, tiles_n = -(-rows // 128), -(-columns // 128)
        product = torch.arange(tiles_m * 128 * tiles_n * 128, dtype=torch.float32).reshape(tiles_m * 128, tiles_n * 128)
        for m in range(tiles_m):
            for n in range(tiles_n):
                values = product[m * 128 : m * 128 + 128, n * 128 : n * 128 + 128].contiguous()
                if compiled is None:
                    compiled = harness.compile_for_cpu(
                        on_host, from_dlpack(values), view(out), Int32(0), Int32(0), lost=FIXED
                    )
                compiled(from_dlpack(values), view(out), m, n)
        stored = out.clone()
        out.fill_(HOLE)
        results.append((stored, product[:rows, :columns].T, bool((buffer == HOLE).all())))
    return results


def _explain_tails(rows, columns, got, want, guard_intact):
    shape = f"M = {rows}, N = {columns}, so out is {columns} x {rows}"
    if not guard_intact:
        raise Wrong(
            f"{shape}: elements beyond the output are overwritten. The first index must stay below {columns}, the "
            f"second below {rows}."
        )
    missing = (got == HOLE) & (want != HOLE)
    if missing.all():
        raise Wrong(f"{shape}: nothing is stored.")
    several = rows > 128 or columns > 128
    if missing.any():
        i, j = missing.nonzero()[0].tolist()
        raise Wrong(
            f"{shape}: {int(missing.sum()):,} elements are never stored, the first is out[{i}, {j}]. "
            "Where do tiles other than (0, 0) start? Is the predicate too strict, or are its bounds exchanged?"
        )
    wrong = got != want
    if wrong.any():
        i, j = wrong.nonzero()[0].tolist()
        m, n = divmod(int(got[i, j]), -(-columns // 128) * 128)
        raise Wrong(
            f"{shape}: out[{i}, {j}] holds the product's element ({m}, {n}) instead of ({j}, {i}). "
            + (
                "Where do tiles other than (0, 0) start?"
                if several and (m >= 128 or n >= 128)
                else "out is the transpose: its first index is n."
            )
        )
