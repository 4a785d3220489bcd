"""The plainest epilogue, taught in notebook 02: every thread stores its own accumulators, if they lie inside the output.

Right for any M and even N, and slow: 4-byte stores scattered over rows. Finished kernels go through shared memory
(hopper/epilogue.py).
"""

import cutlass
import cutlass.cute as cute


@cute.jit
def store_predicated(acc: cute.Tensor, mma_slice, out: cute.Tensor, tile: cutlass.Constexpr, m, n):
    """Store a thread's accumulators of tile (m, n) of a row-major `out`, converted to its dtype.

    acc: as `mma_slice.partition_C` orders it. tile: (rows, columns). The coordinate tensor is cut exactly as the output
    is, so a value's own coordinates decide whether it is stored; values come in pairs of columns (2j, 2j + 1).
    """
    mine = mma_slice.partition_C(cute.local_tile(out, tile, (m, n)))
    where = mma_slice.partition_C(cute.local_tile(cute.make_identity_tensor(out.shape), tile, (m, n)))
    for i in cutlass.range_constexpr(0, cute.size(acc), 2):
        if cute.elem_less(where[i], out.shape):
            mine[i] = acc[i].to(out.element_type)
            mine[i + 1] = acc[i + 1].to(out.element_type)
