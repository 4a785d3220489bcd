"""What one CTA tile needs: a tiled WGMMA, swizzled shared-memory layouts, TMA load atoms.

Notebook 01 draws these layouts, notebook 02 uses them for the first kernel; every later kernel calls them from here.
All operands are K-major (the K index is contiguous in memory), 16-bit, with fp32 accumulators.
"""

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

TILE_K = 64  # 64 elements of 16 bits are 128 bytes: one row of the 128-byte swizzle
MMA_K = 16  # K extent of one 16-bit WGMMA
WARP_GROUP = 128  # threads that issue a WGMMA together


def tiled_mma(dtype, n: int, warp_groups: int = 1) -> cute.TiledMma:
    """WGMMA m64 x n x k16, `warp_groups` of them stacked along M, both operands K-major in shared memory."""
    return sm90.make_trivial_tiled_mma(
        dtype,
        dtype,
        OperandMajorMode.K,
        OperandMajorMode.K,
        cutlass.Float32,
        (warp_groups, 1, 1),
        tiler_mn=(64, n),
    )


def operand_layout(dtype, rows: int, stages: int | None = None) -> cute.ComposedLayout:
    """K-major shared-memory layout (rows, TILE_K[, stages]) under the 128-byte swizzle.

    It is a column of 8-row atoms, so a stage of 2T rows occupies the same bytes as two stages of T rows: the stacked
    SwiGLU kernel loads through one view and multiplies through the other.
    """
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    shape = (rows, TILE_K) if stages is None else (rows, TILE_K, stages)
    return cute.tile_to_shape(atom, shape, order=tuple(range(len(shape))))


def tma_load(tensor: cute.Tensor, rows: int, multicast: int = 1):
    """(copy atom, coordinate tensor) that bring a (rows, TILE_K) box of a 2-D K-major tensor into shared memory.

    With multicast > 1 each of that many CTAs loads rows / multicast of them and sends its share to all.
    Rows and columns beyond the tensor arrive as zeros, and still count as transferred bytes.
    """
    op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    layout = operand_layout(tensor.element_type, rows)
    return cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, TILE_K), num_multicast=multicast)


def tile_bytes(dtype, rows: int) -> int:
    """Bytes that one (rows, TILE_K) load adds to its barrier's transaction count."""
    return rows * TILE_K * dtype.width // 8


def partition_load(atom, smem: cute.Tensor, tensor: cute.Tensor, rows: int, rank=0, peers: int = 1):
    """Views for `cute.copy`: shared memory as (box, stage), the tensor as (box, row tile, k tile)."""
    tiles = cute.local_tile(tensor, (rows, TILE_K), (None, None))
    return cpasync.tma_partition(
        atom, rank, cute.make_layout(peers), cute.group_modes(smem, 0, 2), cute.group_modes(tiles, 0, 2)
    )
