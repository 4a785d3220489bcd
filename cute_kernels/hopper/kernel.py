"""The warp-specialised skeleton of the finished SM90 kernels: out = tree(a @ B_0.T, a @ B_1.T, ...).

Roles (128 threads each)
    warp group 0     producer: one warp issues TMA loads, 24 registers a thread
    warp groups 1..  consumers: WGMMA, then the epilogue of their own rows, 240 registers a thread
Schedules
    cooperative      the consumers share a tile: its rows are split between them
    pingpong         each consumer takes every second tile as a whole; one multiplies while the other stores
Pipelines
    load (TMA -> WGMMA)  full: 1 producer arrive + the stage's bytes
                         empty: 1 arrive of each warp that consumes the stage, of every CTA that multicasts into this one
    order (pingpong)     a named barrier per consumer (256 threads): "you may multiply", said by the other one when it has
                         issued its last WGMMA, and only if there is a tile to multiply
    store (stmatrix -> TMA)  per consumer warp group: a ring of slots, bulk-group counted, one named barrier (128 threads)
Shared memory
    1 KB barriers | stages x (tile_m + parts * tile_n) x 128 B | warp groups x slots x 64 x epi_n x 2 B
Timeline (persistent; tile t of a CTA)
    producer             k-tiles of t, then straight on with t + 1 while the consumers store t
    second warp          asks L2 for the first k-tiles of B while the kernel ahead ends
    consumer             k loop (one WGMMA group in flight) -> tree in registers -> slots -> TMA store, read back when reused
    pingpong             consumer 1: k loop of t | store t           | k loop of t + 2 ...
                         consumer 2: store t - 1 | k loop of t + 1   | store t + 1     ...
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, memory
from cutlass.cute.nvgpu import cpasync
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait

from . import epilogue, mainloop, scheduler, tiles, trace, visitor
from .config import ELEMENT, SMEM_HEADER, TileConfig, slot_widths

PRODUCER_REGISTERS = 24
CONSUMER_REGISTERS = 240
AHEAD_BYTES = (
    32 << 10
)  # of B, at most, that L2 is asked for while the kernel ahead ends: what DRAM delivers to a CTA then
STORE_BARRIER = 1  # named barriers 1, 2: one consumer's stores (0 is __syncthreads)
ORDER_BARRIER = 3  # 3, 4: one consumer's turn to multiply


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for beside configuration and dtype.

    out_dtype: name of the output's dtype, None for the operands'. majors: of A and B, see tiles. tree: what is stored, None for
    the kernel's own, see visitor. traced: see trace. early_weights: B is loaded before the kernel ahead in the stream has ended,
    which is right only if that one does not write B.
    """

    out_dtype: str | None = None
    majors: tuple[str, str] = ("k", "k")
    tree: visitor.Node | None = None
    traced: bool = False
    early_weights: bool = False


PLAIN = Variant()


@dataclass(frozen=True)
class Walk:
    """The tiles of one CTA: clusters of tiles number first, first + step, ... below `tiles`, of a rasterised output; divisors:
    see scheduler."""

    tiles_m: Any
    tiles_n: Any
    divisors: tuple
    first: Any
    step: Any
    rank_m: Any
    rank_n: Any

    @property
    def tiles(self):
        return self.tiles_m * self.tiles_n


@dataclass(frozen=True)
class Output:
    """One consumer warp group's way to global memory."""

    group: Any
    lane: Any
    slots: Any
    store: Any
    slabs: Any
    copy: Any
    values: visitor.Slab
    shape: Any


class WarpSpecializedGemm:
    """Base of the finished kernels. A subclass says how many B operands (`b_parts`) there are, and how many `blocks` of them are
    stacked in one stage and one accumulator: all, unless it says otherwise.

    The stage's B rows are block 0's tile_n rows, then block 1's, so a thread's accumulator value v of one part lies tile_n / 2
    values before its partner of the next.
    """

    b_parts = 1
    blocks: int | None = None
    rows_per_column = 1  # of one B operand, for one column of the output; 2 under a node over pairs

    def __init__(self, config: TileConfig, dtype, variant: Variant = PLAIN):
        self.dtype = dtype
        self.out_dtype = visitor.DTYPES[variant.out_dtype] if variant.out_dtype else dtype
        self.majors = variant.majors
        self.tree = self.stored_tree(variant.tree or self.default_tree())
        self.trace = trace.Trace(variant.traced)
        self.early_weights = variant.early_weights
        if variant.traced and variant.early_weights:
            raise ValueError("traced and early_weights: events are written before the kernel ahead has ended")
        self.paired = visitor.halves(self.tree)
        self.fold = 2 if self.paired else self.rows_per_column
        self.stacked = self.blocks or self.b_parts
        self.columns = self.stacked * self.fold  # accumulator columns for one column of the output
        self.sharing = 1 if config.pingpong else config.warp_groups  # consumer warp groups that share a tile
        self.config = config.validate(self.columns, variant.majors)
        self.halves = (
            self.stacked == 2 and config.cluster[0] == 2
        )  # each CTA of a column of two sends one B part to both
        self.slab_m = min(epilogue.SLOT_M, config.tile_m)  # rows that a slab stores
        size = self.out_dtype.width // 8
        widths = [w for w in slot_widths(config.tile_n, size) if w * size <= config.epi_n * ELEMENT]
        config.need(bool(widths), f"tile_n is {config.tile_n}: its store slots are too narrow for {self.out_dtype}")
        self.slot_n = visitor.slot_columns(self.tree, widths, self.spare_registers())
        slabs = config.group_rows // epilogue.SLOT_M * (config.tile_n // self.slot_n)
        most = config.epi_slots * config.epi_n * ELEMENT // (self.slot_n * size)  # as many as fit into the bytes
        self.epi_slots = next(slots for slots in range(most, 0, -1) if slabs % slots == 0)

    def default_tree(self) -> visitor.Node:
        return visitor.Accumulator()

    def stored_tree(self, tree: visitor.Node) -> visitor.Node:
        """What of the whole tree is left to evaluate when a tile is stored."""
        return tree

    def spare_registers(self) -> int:
        """Registers of a consumer thread that may hold a slab's operands: the most that compiled without spills (a wide tile
        also holds the addresses of many columns)."""
        accumulators = self.config.accumulators(self.columns)
        if accumulators >= 160 and self.columns > 1:
            return 3
        if accumulators > 160:
            return 5
        return 11 if self.columns * self.config.tile_n > 192 or accumulators == 160 else 16

    @cute.jit
    def launch(self, a: cute.Tensor, b: tuple, out: cute.Tensor, max_clusters: Int32, operands: tuple, events, stream):
        c = self.config
        load_a, tma_a = tiles.tma_load(a, c.tile_m, c.cluster[1], self.majors[0])
        rows_b = self.fold * c.tile_n
        loads_b = [tiles.tma_load(w, rows_b, c.cluster[0], self.majors[1], self.halves) for w in b]
        store, tma_out = epilogue.tma_store(out, self.slot_n, self.slab_m)
        tiles_m = Int32(cute.ceil_div(out.shape[0], c.tile_m * c.cluster[0]))
        tiles_n = Int32(cute.ceil_div(out.shape[1], c.tile_n * c.cluster[1]))
        self.kernel(
            load_a,
            tma_a,
            tuple(atom for atom, _ in loads_b),
            tuple(tensor for _, tensor in loads_b),
            store,
            tma_out,
            operands,
            tiles_m,
            tiles_n,
            scheduler.divisors(tiles_m, tiles_n, c.group),
            Int32(cute.ceil_div(a.shape[1], tiles.TILE_K)),
            events,
        ).launch(
            grid=(c.cluster[0], c.cluster[1], cutlass.min(tiles_m * tiles_n, max_clusters)),
            block=(c.threads, 1, 1),
            cluster=(*c.cluster, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,  # set up while the kernel ahead still runs; griddepcontrol.wait stands before its results are read
        )

    def storage(self):
        c = self.config
        ring = c.stages * tiles.TILE_K

        @cute.struct
        class Storage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * c.stages]
            a: cute.struct.Align[cute.struct.MemRange[self.dtype, c.tile_m * ring], SMEM_HEADER]
            b: cute.struct.Align[cute.struct.MemRange[self.dtype, self.columns * c.tile_n * ring], SMEM_HEADER]
            out: cute.struct.Align[
                cute.struct.MemRange[self.out_dtype, c.warp_groups * self.epi_slots * 64 * self.slot_n], SMEM_HEADER
            ]

        return Storage

    @cute.kernel
    def kernel(
        self,
        load_a: cute.CopyAtom,
        tma_a: cute.Tensor,
        loads_b: tuple,
        tmas_b: tuple,
        store: cute.CopyAtom,
        tma_out: cute.Tensor,
        operands: tuple,
        tiles_m: Int32,
        tiles_n: Int32,
        divisors: tuple,
        k_tiles: Int32,
        events,
    ):
        c = self.config
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank_m, rank_n, first = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()

        if warp == 0:  # the descriptors are on their way while barriers are set up
            for atom in (load_a, *loads_b, store):
                cpasync.prefetch_descriptor(atom)

        smem = memory.SmemAllocator().allocate(self.storage())
        layout_a = tiles.operand_layout(self.dtype, c.tile_m, c.stages, self.majors[0])
        layout_read = tiles.overlapping_layout(self.dtype, c.tile_m, c.stages) if c.tile_m < 64 else layout_a
        layout_b = tiles.operand_layout(self.dtype, self.columns * c.tile_n, c.stages, self.majors[1])
        layout_part = tiles.operand_layout(self.dtype, self.fold * c.tile_n, self.stacked * c.stages, self.majors[1])
        sA = smem.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        read_a = smem.a.get_tensor(layout_read.outer, swizzle=layout_read.inner)
        sB = smem.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        sPart = smem.b.get_tensor(layout_part.outer, swizzle=layout_part.inner)

        stage_bytes = tiles.tile_bytes(self.dtype, c.tile_m + self.columns * c.tile_n)
        ring = mainloop.load_pipeline(smem.barriers.data_ptr(), c.stages, stage_bytes, 4 * self.sharing, c.cluster)
        pipeline_init_arrive(cluster_shape_mn=c.cluster, is_relaxed=True)
        pipeline_init_wait(cluster_shape_mn=c.cluster)
        walk = Walk(tiles_m, tiles_n, divisors, first, clusters, rank_m, rank_n)
        rank, peers = (0, 1) if self.halves else (rank_m, c.cluster[0])
        parts = [
            tiles.partition_load(atom, sPart, tensor, self.fold * c.tile_n, rank, peers)
            for atom, tensor in zip(loads_b, tmas_b, strict=True)
        ]
        if cutlass.const_expr(AHEAD_BYTES and not self.early_weights):
            if warp == 1:
                self.prefetch_weights(walk, k_tiles, loads_b, parts)
        if warp < 4:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if cutlass.const_expr(not self.early_weights):
                self.await_predecessor()
            if warp == 0:
                to_a, from_a = tiles.partition_load(load_a, sA, tma_a, c.tile_m, rank_n, c.cluster[1])
                self.produce(ring, walk, k_tiles, load_a, from_a, to_a, loads_b, parts, events)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.await_predecessor()
            layout_slots = epilogue.slot_layout(self.out_dtype, self.slot_n, c.warp_groups * self.epi_slots)
            slots = smem.out.get_tensor(layout_slots.outer, swizzle=layout_slots.inner)
            group = cute.arch.make_warp_uniform(thread // tiles.WARP_GROUP) - 1
            self.consume(
                ring,
                walk,
                k_tiles,
                group,
                thread % tiles.WARP_GROUP,
                read_a,
                sB,
                slots,
                store,
                tma_out,
                operands,
                events,
            )

    @cute.jit
    def produce(self, ring, walk, k_tiles, load_a, from_a, to_a, loads_b, parts, events):
        """The loading warp: every k-tile of every tile of this CTA, as fast as stages come back."""
        c = self.config
        mask_a, mask_b = self.multicast_masks(walk.rank_m, walk.rank_n)
        state = mainloop.producer_state(c.stages)
        log, written = self.trace.begin(events, self.cta(walk), 0)
        writes = cute.arch.lane_idx() == 0
        ahead = Int32(0)  # k-tiles of the first tile that are on their way already
        if cutlass.const_expr(self.early_weights):
            state, ahead = self.load_early(
                ring, state, walk, k_tiles, load_a, from_a, to_a, loads_b, parts, mask_a, mask_b
            )
        for index in cutlass.range(walk.first, walk.tiles, walk.step, unroll=1):
            m, n = self.tile(walk, index)
            for k in cutlass.range(ahead, k_tiles, unroll=1):
                written = self.trace.mark(log, written, trace.WAIT, writes)
                ring.producer_acquire(state)
                written = self.trace.mark(log, written, trace.LOAD, writes)
                self.send(ring, state, load_a, from_a, to_a, state.index, m, k, mask_a)
                self.send_b(ring, state, loads_b, parts, walk.rank_m, n, k, mask_b)
                state.advance()
            ahead = Int32(0)
        written = self.trace.mark(log, written, trace.WAIT, writes)
        ring.producer_tail(state)  # nobody may leave while others still arrive at its barriers
        written = self.trace.mark(log, written, trace.IDLE, writes)

    @cute.jit
    def consume(self, ring, walk, k_tiles, group, lane, sA, sB, slots, store, tma_out, operands, events):
        """A consumer warp group: multiply, evaluate the tree, store; every tile (cooperative) or every second (pingpong)."""
        c = self.config
        mma, acc, frag_a, frag_b = self.accumulator(group, sA, sB)
        out = self.output(group, lane, slots, store, tma_out, operands)
        log, written = self.trace.begin(events, self.cta(walk), 1 + group)
        state = mainloop.consumer_state(c.stages)
        start = walk.first
        step = walk.step
        if cutlass.const_expr(c.pingpong):
            start = walk.first + group * walk.step
            step = 2 * walk.step
            if group == 1:  # begins with the second tile, and gives the other one its first turn
                state.advance(k_tiles)
                self.your_turn(1 - group)
        for index in cutlass.range(start, walk.tiles, step, unroll=1):
            m, n = self.tile(walk, index)
            out.values.prefetch(
                lane if c.pingpong else lane + group * tiles.WARP_GROUP,
                tiles.WARP_GROUP * self.sharing,
                m * c.tile_m,
                n * c.tile_n,
                c.tile_m,
                c.tile_n,
                out.shape,
            )
            if cutlass.const_expr(c.pingpong):
                written = self.trace.mark(log, written, trace.ORDER, lane == 0)
                self.my_turn(group)
            written = self.mark_multiply(ring, state, log, written, lane)
            state, done = mainloop.issue(ring, state, k_tiles, mma, acc, frag_a, frag_b)
            if cutlass.const_expr(c.pingpong):
                if index + walk.step < walk.tiles:  # the other one has a tile to multiply
                    self.your_turn(1 - group)
                state.advance(k_tiles)  # its stages
            mainloop.finish(ring, done)
            written = self.store_tile(acc, m, n, out, log, written)
        written = self.trace.mark(log, written, trace.WAIT, lane == 0)
        epilogue.drain(lane)
        written = self.trace.mark(log, written, trace.IDLE, lane == 0)

    @staticmethod
    def await_predecessor():
        """Wait until the kernel ahead in the stream has ended and its writes are seen; only then may the next one be set up, so
        that at most two kernels are ever under way."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def prefetch_weights(self, walk, k_tiles, loads_b, parts):
        """Bring B of the first tile's first k-tiles into L2 before the kernel ahead has ended. It may still write them: what it
        writes goes through the same L2, and B is read only when it has ended."""
        m, n = self.tile(walk, walk.first)
        ahead = AHEAD_BYTES // tiles.tile_bytes(self.dtype, self.columns * self.config.tile_n)
        count = cutlass.min(k_tiles, Int32(ahead))
        if m >= self.config.cluster[0]:
            count = Int32(0)  # the CTAs of the first rows do it for all
        for k in cutlass.range(count, unroll=1):
            for p in cutlass.range_constexpr(self.stacked):
                if not self.halves or walk.rank_m == p:
                    _, source = parts[p]
                    with cute.arch.elect_one():
                        cute.prefetch(loads_b[p], source[None, n, k])

    @cute.jit
    def load_early(self, ring, state, walk, k_tiles, load_a, from_a, to_a, loads_b, parts, mask_a, mask_b):
        """B of the first tile's first k-tiles, as many as there are stages; when the kernel ahead has ended, A of them."""
        m, n = self.tile(walk, walk.first)
        late = state.clone()
        ahead = cutlass.min(k_tiles, Int32(self.config.stages))
        if walk.first >= walk.tiles:
            ahead = Int32(0)
        for k in cutlass.range(ahead, unroll=1):
            ring.producer_acquire(state)  # the first lap waits for nobody
            self.send_b(ring, state, loads_b, parts, walk.rank_m, n, k, mask_b)
            state.advance()
        self.await_predecessor()
        for k in cutlass.range(ahead, unroll=1):
            self.send(ring, late, load_a, from_a, to_a, late.index, m, k, mask_a)
            late.advance()
        return state, ahead

    @cute.jit
    def send(self, ring, state, load, source, target, slot, row, k, mask):
        """Load k-tile k of an operand's row tile into slot number `slot` of its ring; the barrier is that of `state`'s stage."""
        full = ring.producer_get_barrier(state)
        cute.copy(load, source[None, row, k], target[None, slot], tma_bar_ptr=full, mcast_mask=mask)

    @cute.jit
    def send_b(self, ring, state, loads, parts, rank_m, n, k, mask):
        """Load k-tile k of every B operand's row tile n, or, of two that a column of CTAs shares, this CTA's one."""
        for p in cutlass.range_constexpr(self.b_parts):
            target, source = parts[p]
            if not self.halves or rank_m == p:
                self.send(ring, state, loads[p], source, target, state.index * self.b_parts + p, n, k, mask)

    @cute.jit
    def mark_multiply(self, ring, state, log, written, lane):
        """Trace the begin of a k loop, and the wait for its first stage, if any."""
        if cutlass.const_expr(self.trace.on):
            # a clock is read while bar.sync still blocks, so first look at memory, which it holds back
            if not ring.sync_object_full.test_wait(state.index, state.phase):
                written = self.trace.mark(log, written, trace.WAIT, lane == 0)
                ring.consumer_wait(state)
        return self.trace.mark(log, written, trace.MULTIPLY, lane == 0)

    def tile(self, walk, index):
        """(row, column) of this CTA's tile of cluster number `index`."""
        m, n = scheduler.grouped_tile(index, walk.tiles_m, walk.divisors)
        return m * self.config.cluster[0] + walk.rank_m, n * self.config.cluster[1] + walk.rank_n

    def cta(self, walk):
        return (walk.first * self.config.cluster[1] + walk.rank_n) * self.config.cluster[0] + walk.rank_m

    @cute.jit
    def my_turn(self, group):
        """Wait until the other consumer has issued its last WGMMA."""
        cute.arch.barrier(barrier_id=ORDER_BARRIER + group, number_of_threads=2 * tiles.WARP_GROUP)

    @cute.jit
    def your_turn(self, group):
        """Let consumer `group` multiply. Its barrier counts 256 threads: these 128 that arrive, its own 128 that wait."""
        cute.arch.barrier_arrive(barrier_id=ORDER_BARRIER + group, number_of_threads=2 * tiles.WARP_GROUP)

    def accumulator(self, group, sA, sB):
        """(tiled WGMMA, this warp group's fp32 accumulators, its views of the operands' stages)"""
        c = self.config
        mma = tiles.tiled_mma(self.dtype, self.columns * c.tile_n, self.sharing, self.majors)
        mine = mma.get_slice(0 if c.pingpong else group * tiles.WARP_GROUP)
        acc = cute.make_rmem_tensor(
            mma.partition_shape_C((max(64, c.tile_m), self.columns * c.tile_n)), cutlass.Float32
        )
        return mma, acc, mma.make_fragment_A(mine.partition_A(sA)), mma.make_fragment_B(mine.partition_B(sB))

    def output(self, group, lane, slots, store, tma_out, operands):
        """What `store_tile` needs of this warp group, made once."""
        return Output(
            group=group,
            lane=lane,
            slots=slots,
            store=store,
            slabs=cute.local_tile(tma_out, (self.slab_m, self.slot_n), (None, None)),
            copy=None if self.paired else epilogue.stmatrix_copy(self.out_dtype, self.slot_n),
            values=visitor.Slab(self.tree, operands, self.slot_n),
            shape=tma_out.shape,
        )

    @cute.jit
    def store_tile(self, acc, m, n, out, log, written):
        """Evaluate the tree for this warp group's rows of tile (m, n) and store them, one (64, slot_n) slab after the other.

        Returns the trace's number of events.
        """
        c = self.config
        columns = self.slot_n
        across = c.tile_n // columns
        per_row = self.columns * c.tile_n // 2  # accumulators of one 64-row slab in a thread
        mine = 0 if c.pingpong else out.group  # 64-row slabs of a shared tile go round the warp groups

        def corner(slab):
            return m * (c.tile_m // self.slab_m) + slab // across * self.sharing + mine, n * across + slab % across

        def load(slab):
            row, column = corner(slab)
            return out.values.load(out.lane, row * self.slab_m, column * columns, out.shape)

        slabs = c.group_rows // 64 * across
        ahead = load(0)
        for slab in cutlass.range_constexpr(slabs):
            base = slab // across * per_row + slab % across * self.fold * columns // 2

            def accumulator(part, v, base=base):
                return self.part_of(acc, part, base, v)

            written = self.trace.mark(log, written, trace.EPILOGUE, out.lane == 0)
            values = [out.values.value(ahead, accumulator, v) for v in range(columns // 2)]
            if cutlass.const_expr(slab + 1 < slabs):
                ahead = load(slab + 1)  # arrives under the store below

            def value(v, values=values):
                return values[v]

            row, column = corner(slab)
            slot = out.group * self.epi_slots + slab % self.epi_slots
            target = out.slabs[None, None, row, column]
            written = self.trace.mark(log, written, trace.STORE, out.lane == 0)
            epilogue.store_slab(
                value, out.copy, out.slots, slot, self.epi_slots, out.store, target, out.lane, STORE_BARRIER + out.group
            )
        return written

    def part_of(self, acc, part, base, v):
        """fp32 value number v of B operand `part` in the slab whose accumulators of part 0 begin at `base`."""
        return acc[part * self.fold * self.config.tile_n // 2 + base + v]

    @cute.jit
    def multicast_masks(self, rank_m, rank_n):
        """Bit r of a mask: CTA r of the cluster (M fastest) receives. A goes along N, B along M."""
        c = self.config
        mask_a = Int32(0)
        mask_b = Int32(0)
        if cutlass.const_expr(c.cluster[1] > 1):
            mask_a = Int32(sum(1 << c.cluster[0] * j for j in range(c.cluster[1]))) << rank_m
        if cutlass.const_expr(c.cluster[0] > 1):
            mask_b = Int32((1 << c.cluster[0]) - 1) << (rank_n * c.cluster[0])
        return cutlass.Int16(mask_a), cutlass.Int16(mask_b)
