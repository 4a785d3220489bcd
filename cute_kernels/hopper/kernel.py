"""The warp-specialised skeleton of the finished SM90 kernels: out = combine(a @ B_0.T, a @ B_1.T, ...).

Roles (128 threads each)
    warp group 0     producer: one warp issues TMA loads, 24 registers a thread
    warp groups 1..  consumers: WGMMA, then the epilogue of their own rows, 240 registers a thread
Pipelines
    load (TMA -> WGMMA)  full: 1 producer arrive + the stage's bytes
                         empty: 1 arrive of each consumer warp of every CTA that multicasts into this one
    store (stmatrix -> TMA)  per consumer warp group: a ring of slots, bulk-group counted, one named barrier (128 threads)
Shared memory
    1 KB barriers | stages x (tile_m + parts * tile_n) x 128 B | warp groups x slots x 64 x epi_n x 2 B
Timeline (persistent; tile t of a CTA)
    producer   k-tiles of t, then straight on with t + 1 while the consumers store t
    consumer   k loop (one WGMMA group in flight) -> combine in registers -> slots -> TMA store, read back only when reused
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, memory
from cutlass.pipeline import pipeline_init_arrive, pipeline_init_wait

from . import epilogue, mainloop, scheduler, tiles
from .config import SMEM_HEADER, TileConfig

PRODUCER_REGISTERS = 24
CONSUMER_REGISTERS = 240
FIRST_NAMED_BARRIER = 1  # 0 is __syncthreads


class WarpSpecializedGemm:
    """Base of the finished kernels. `b_parts` B operands are stacked in one stage and one accumulator.

    A subclass says how many parts there are and what `combine` makes of them; the stage's B rows are part 0's tile_n rows,
    then part 1's, so a thread's accumulator value v of one part lies tile_n / 2 values before its partner of the next.
    """

    b_parts = 1

    def __init__(self, config: TileConfig, dtype):
        self.config = config.validate(self.b_parts)
        self.dtype = dtype

    def combine(self, parts):
        """fp32 values of one output element, one per part -> its fp32 value."""
        return parts[0]

    @cute.jit
    def launch(self, a: cute.Tensor, b: tuple, out: cute.Tensor, max_clusters: Int32, stream):
        c = self.config
        load_a, tma_a = tiles.tma_load(a, c.tile_m, c.cluster[1])
        loads_b = [tiles.tma_load(w, c.tile_n, c.cluster[0]) for w in b]
        store, tma_out = epilogue.tma_store(out, c.epi_n)
        tiles_m = cute.ceil_div(out.shape[0], c.tile_m * c.cluster[0])
        tiles_n = cute.ceil_div(out.shape[1], c.tile_n * c.cluster[1])
        self.kernel(
            load_a,
            tma_a,
            tuple(atom for atom, _ in loads_b),
            tuple(tensor for _, tensor in loads_b),
            store,
            tma_out,
            Int32(tiles_m),
            Int32(tiles_n),
            Int32(cute.ceil_div(a.shape[1], tiles.TILE_K)),
        ).launch(
            grid=(c.cluster[0], c.cluster[1], cutlass.min(Int32(tiles_m) * Int32(tiles_n), max_clusters)),
            block=(c.threads, 1, 1),
            cluster=(*c.cluster, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    def storage(self):
        c = self.config
        ring = c.stages * tiles.TILE_K

        @cute.struct
        class Storage:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * c.stages]
            a: cute.struct.Align[cute.struct.MemRange[self.dtype, c.tile_m * ring], SMEM_HEADER]
            b: cute.struct.Align[cute.struct.MemRange[self.dtype, self.b_parts * c.tile_n * ring], SMEM_HEADER]
            out: cute.struct.Align[
                cute.struct.MemRange[self.dtype, c.warp_groups * c.epi_slots * 64 * c.epi_n], SMEM_HEADER
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
        tiles_m: Int32,
        tiles_n: Int32,
        k_tiles: Int32,
    ):
        c = self.config
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank_m, rank_n, first = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()

        smem = memory.SmemAllocator().allocate(self.storage())
        layout_a = tiles.operand_layout(self.dtype, c.tile_m, c.stages)
        layout_b = tiles.operand_layout(self.dtype, self.b_parts * c.tile_n, c.stages)
        layout_part = tiles.operand_layout(self.dtype, c.tile_n, self.b_parts * c.stages)
        sA = smem.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
        sB = smem.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
        sPart = smem.b.get_tensor(layout_part.outer, swizzle=layout_part.inner)

        stage_bytes = tiles.tile_bytes(self.dtype, c.tile_m + self.b_parts * c.tile_n)
        ring = mainloop.load_pipeline(smem.barriers.data_ptr(), c.stages, stage_bytes, 4 * c.warp_groups, c.cluster)
        pipeline_init_arrive(cluster_shape_mn=c.cluster, is_relaxed=True)
        pipeline_init_wait(cluster_shape_mn=c.cluster)

        if warp < 4:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                to_a, from_a = tiles.partition_load(load_a, sA, tma_a, c.tile_m, rank_n, c.cluster[1])
                parts = [
                    tiles.partition_load(atom, sPart, tensor, c.tile_n, rank_m, c.cluster[0])
                    for atom, tensor in zip(loads_b, tmas_b, strict=True)
                ]
                mask_a, mask_b = self.multicast_masks(rank_m, rank_n)
                state = mainloop.producer_state(c.stages)
                for index in cutlass.range(first, tiles_m * tiles_n, clusters, unroll=1):
                    m, n = scheduler.grouped_tile(index, tiles_m, tiles_n, Int32(c.group))
                    m = m * c.cluster[0] + rank_m
                    n = n * c.cluster[1] + rank_n
                    for k in cutlass.range(k_tiles, unroll=1):
                        ring.producer_acquire(state)
                        full = ring.producer_get_barrier(state)
                        cute.copy(
                            load_a, from_a[None, m, k], to_a[None, state.index], tma_bar_ptr=full, mcast_mask=mask_a
                        )
                        for p in cutlass.range_constexpr(self.b_parts):
                            cute.copy(
                                loads_b[p],
                                parts[p][1][None, n, k],
                                parts[p][0][None, state.index * self.b_parts + p],
                                tma_bar_ptr=full,
                                mcast_mask=mask_b,
                            )
                        state.advance()
                ring.producer_tail(state)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            group = cute.arch.make_warp_uniform(thread // tiles.WARP_GROUP) - 1
            lane = thread % tiles.WARP_GROUP
            mma = tiles.tiled_mma(self.dtype, self.b_parts * c.tile_n, c.warp_groups)
            slice_ = mma.get_slice(group * tiles.WARP_GROUP)
            frag_a = mma.make_fragment_A(slice_.partition_A(sA))
            frag_b = mma.make_fragment_B(slice_.partition_B(sB))
            acc = cute.make_rmem_tensor(mma.partition_shape_C((c.tile_m, self.b_parts * c.tile_n)), cutlass.Float32)
            layout_slots = epilogue.slot_layout(self.dtype, c.epi_n, c.warp_groups * c.epi_slots)
            slots = smem.out.get_tensor(layout_slots.outer, swizzle=layout_slots.inner)
            copy = epilogue.stmatrix_copy(self.dtype, c.epi_n)
            out_slabs = cute.local_tile(tma_out, (epilogue.SLOT_M, c.epi_n), (None, None))

            state = mainloop.consumer_state(c.stages)
            for index in cutlass.range(first, tiles_m * tiles_n, clusters, unroll=1):
                m, n = scheduler.grouped_tile(index, tiles_m, tiles_n, Int32(c.group))
                m = m * c.cluster[0] + rank_m
                n = n * c.cluster[1] + rank_n
                state = mainloop.multiply(ring, state, k_tiles, mma, acc, frag_a, frag_b)
                self.store_tile(acc, m, n, group, lane, copy, slots, store, out_slabs)
            epilogue.drain(lane)

    @cute.jit
    def store_tile(self, acc, m, n, group, lane, copy, slots, store, out_slabs):
        """Combine and store this warp group's rows of tile (m, n), one (64, epi_n) slab after the other."""
        c = self.config
        across = c.tile_n // c.epi_n
        per_row = self.b_parts * c.tile_n // 2  # accumulators of one 64-row slab in a thread
        for slab in cutlass.range_constexpr(c.tile_m // c.warp_groups // 64 * across):
            row, column = slab // across, slab % across
            base = row * per_row + column * c.epi_n // 2

            def value(v, base=base):
                return self.combine([acc[base + p * c.tile_n // 2 + v] for p in range(self.b_parts)])

            target = out_slabs[None, None, m * (c.tile_m // 64) + row * c.warp_groups + group, n * across + column]
            slot = group * c.epi_slots + slab % c.epi_slots
            epilogue.store_slab(value, copy, slots, slot, c.epi_slots, store, target, lane, FIRST_NAMED_BARRIER + group)

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
