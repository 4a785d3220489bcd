"""What one CTA tile needs: a tiled WGMMA, swizzled shared-memory layouts, TMA load atoms.

Notebook 01 draws these layouts, notebook 02 uses them for the first kernel; every later kernel calls them from here.
Operands are 16-bit, accumulators fp32. An operand is "k"-major when its K index is contiguous in memory, as in an nn.Linear
weight, and "mn"-major when its rows index is, as in the transpose of one.
"""

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

TILE_K = 64  # 64 elements of 16 bits are 128 bytes: one row of the 128-byte swizzle
MMA_K = 16  # K extent of one 16-bit WGMMA
WARP_GROUP = 128  # threads that issue a WGMMA together


MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}


def tiled_mma(dtype, n: int, warp_groups: int = 1, majors: tuple[str, str] = ("k", "k")) -> cute.TiledMma:
    """WGMMA m64 x n x k16, `warp_groups` of them stacked along M, both operands in shared memory; majors of A and B."""
    return sm90.make_trivial_tiled_mma(
        dtype,
        dtype,
        MAJORS[majors[0]],
        MAJORS[majors[1]],
        cutlass.Float32,
        (warp_groups, 1, 1),
        tiler_mn=(64, n),
    )


def operand_layout(dtype, rows: int, stages: int | None = None, major: str = "k") -> cute.ComposedLayout:
    """Shared-memory layout (rows, TILE_K[, stages]) under the 128-byte swizzle.

    K-major: a column of atoms of 8 rows x 64 of K. MN-major: atoms of 64 rows x 8 of K, all of K before the next 64 rows
    (rows is then a multiple of 64). Either way a stage of 2T rows occupies the same bytes as two stages of T rows: the
    stacked SwiGLU kernel loads through one view and multiplies through the other.
    """
    kind = warpgroup.SmemLayoutAtomKind.K_SW128 if major == "k" else warpgroup.SmemLayoutAtomKind.MN_SW128
    shape, order = (rows, TILE_K), (0, 1) if major == "k" else (1, 0)
    if stages is not None:
        shape, order = (*shape, stages), (*order, 2)
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, dtype), shape, order=order)


def overlapping_layout(dtype, rows: int, stages: int) -> cute.ComposedLayout:
    """`operand_layout(dtype, 64, stages)`, K-major, with stages only `rows` (8, 16, 32) rows apart.

    It is what a WGMMA reads of stages that hold fewer than its 64 rows: the rest are the rows behind, whatever they hold. They
    make accumulator rows that nobody stores.
    """
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    outer = cute.make_layout(
        ((8, 8), (TILE_K, 1), (1, stages)), stride=((TILE_K, 8 * TILE_K), (1, 0), (0, rows * TILE_K))
    )
    return cute.make_composed_layout(atom.inner, 0, outer)


def tma_load(tensor: cute.Tensor, rows: int, multicast: int = 1, major: str = "k", whole: bool = False):
    """(copy atom, coordinate tensor) that bring a (rows, TILE_K) box of a 2-D tensor into shared memory.

    With multicast > 1 each of that many CTAs loads rows / multicast of them and sends its share to all; or, `whole`, one of them
    loads all rows and sends them to all.
    Rows and columns beyond the tensor arrive as zeros, and still count as transferred bytes.
    """
    op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    layout = operand_layout(tensor.element_type, rows, major=major)
    shares = 1 if whole else multicast
    return cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, TILE_K), num_multicast=shares)


def tile_bytes(dtype, rows: int) -> int:
    """Bytes that one (rows, TILE_K) load adds to its barrier's transaction count."""
    return rows * TILE_K * dtype.width // 8


def partition_load(atom, smem: cute.Tensor, tensor: cute.Tensor, rows: int, rank=0, peers: int = 1):
    """Views for `cute.copy`: shared memory as (box, stage), the tensor as (box, row tile, k tile)."""
    tiles = cute.local_tile(tensor, (rows, TILE_K), (None, None))
    return cpasync.tma_partition(
        atom, rank, cute.make_layout(peers), cute.group_modes(smem, 0, 2), cute.group_modes(tiles, 0, 2)
    )
