"""Accumulator to global memory: stmatrix into a swizzled slot of shared memory, then a TMA store.

Each consumer warp group has its own ring of slots and stores its own rows, so warp groups never wait for one another.
The store of one slot runs while the next is computed; TMA clips what lies beyond the tensor.
"""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

from . import tiles

SLOT_M = 64  # rows that one warp group's WGMMA covers
ATOMS = {128: "K_SW128", 64: "K_SW64", 32: "K_SW32"}  # bytes of a slot's row -> its swizzle


def slot_layout(dtype, columns: int, slots: int | None = None, rows: int = SLOT_M) -> cute.ComposedLayout:
    """Row-major shared-memory layout (rows, columns[, slots]), swizzled over the whole width where a swizzle has that width.

    config.slot_widths says which other widths have no bank conflicts. Fewer rows than 64 are the first ones of a slot.
    """
    kind = ATOMS.get(columns * dtype.width // 8)
    shape = (rows, columns) if slots is None else (rows, columns, slots)
    if kind is None:
        plain = cute.make_ordered_layout(shape, order=(1, 0, 2)[: len(shape)])
        return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, plain)
    atom = warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), dtype)
    return cute.tile_to_shape(atom, shape, order=tuple(range(len(shape))))


def tma_store(tensor: cute.Tensor, columns: int, rows: int = SLOT_M):
    """(copy atom, coordinate tensor) that send the first `rows` rows of a slot to a row-major tensor."""
    layout = slot_layout(tensor.element_type, columns, rows=rows)
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), tensor, layout, (rows, columns))


def stmatrix_copy(dtype, columns: int) -> cute.TiledCopy:
    """Tiled stmatrix copy of a 64 x columns slab whose values sit as a WGMMA leaves them; for fp32, which stmatrix cannot
    carry, one of plain 8-byte stores."""
    if dtype.width == 32:
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=64)
        return cute.make_tiled_copy_C(atom, tiles.tiled_mma(cutlass.BFloat16, columns))
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4 if columns % 16 == 0 else 2), dtype)
    return cute.make_tiled_copy_C(atom, tiles.tiled_mma(dtype, columns))


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
    """Store one (64, columns) slab through slot number `slot`: `value(v)` is the fp32 value number v of a thread's share.

    copy: of `stmatrix_copy`; None when value v sits in row 16 * warp + lane / 4 + 8 * (v % 2), column 4 * (v / 2) + lane % 4.
    slots: (64, columns, all slots) of shared memory, of which this warp group's ring has `in_ring`, used in turn.
    target: the slab's tile of the output's coordinate tensor. thread: 0..127 in the warp group. barrier_id: a named
    barrier of these 128 threads.
    """
    dtype = slots.element_type
    columns = cute.size(slots, mode=[1])
    out = cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), dtype)  # shaped as a WGMMA accumulator of 64 x columns
    for v in cutlass.range_constexpr(cute.size(out)):
        out[v] = value(v).to(dtype)
    storing = thread // 32 == 0  # one warp stores; it alone knows how many stores are in flight
    if storing:
        cute.arch.cp_async_bulk_wait_group(in_ring - 1, read=True)
    cute.arch.barrier(barrier_id=barrier_id, number_of_threads=tiles.WARP_GROUP)
    if cutlass.const_expr(copy is None):  # every second column of an accumulator: no stmatrix takes that
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4
        for v in cutlass.range_constexpr(cute.size(out)):
            slots[row + 8 * (v % 2), column + 4 * (v // 2), slot] = out[v]
    else:
        mine = copy.get_slice(thread)
        cute.copy(copy, mine.retile(out), mine.partition_D(slots)[None, None, None, slot])
    cute.arch.fence_proxy(
        "async.shared", space="cta"
    )  # stmatrix wrote by the generic proxy, TMA reads by the async one
    cute.arch.barrier(barrier_id=barrier_id, number_of_threads=tiles.WARP_GROUP)
    if storing:
        stored = cute.local_tile(slots, (cute.size(target, mode=[0]), columns), (0, 0, None))
        s, g = cpasync.tma_partition(
            tma_atom, 0, cute.make_layout(1), cute.group_modes(stored, 0, 2), cute.group_modes(target, 0, 2)
        )
        cute.copy(tma_atom, s[None, slot], g[None])
        cute.arch.cp_async_bulk_commit_group()


@cute.jit
def drain(thread):
    """Before the CTA may end: every store must have read its slot."""
    if thread // 32 == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)
