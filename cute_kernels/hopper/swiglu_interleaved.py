"""`swiglu_interleaved` (Kernel-2, PairMulStore): silu(x @ w_gate.T) * (x @ w_up.T) on SM90 from one packed weight.

The weight (2N, K) holds rows gate 0, up 0, gate 1, up 1, ... (`cute_kernels.interleave`). One ordinary GEMM of 2N columns; the
epilogue's node over pairs takes columns 2j and 2j + 1, which one thread holds side by side, and stores column j of a result of
half the width. A thread then has every fourth column of it, so the slots are written by 2-byte stores, not by stmatrix.
The store of tile t runs under the arithmetic of tile t + 1, of the other consumer under pingpong.

Roles, pipelines, shared memory and timeline: hopper/kernel.py. Measured on the H200: notebooks/measured/h200/bench.json.
"""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32

from . import gated
from .config import TileConfig
from .kernel import WarpSpecializedGemm

CONFIGS = (
    TileConfig(128, 64, cluster=(2, 1), stages=6, schedule="pingpong"),
    TileConfig(128, 72, cluster=(2, 1), stages=6, epi_slots=1, schedule="pingpong"),
    TileConfig(128, 96, cluster=(2, 1), stages=5, epi_slots=3, schedule="pingpong"),
    TileConfig(128, 80, cluster=(2, 1), stages=6, epi_slots=1),
    TileConfig(64, 72, warp_groups=1, stages=7, epi_slots=1),
    TileConfig(64, 40, warp_groups=1, stages=9, epi_slots=1),
    TileConfig(16, 72, warp_groups=1, stages=9, epi_slots=1),
    TileConfig(16, 40, warp_groups=1, stages=12, epi_slots=1),
)


class SwigluInterleaved(WarpSpecializedGemm):
    """x (M, K), w (2N, K), out (M, N); all row-major with 16-byte aligned rows."""

    def default_tree(self):
        return gated.paired()

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        w: cute.Tensor,
        out: cute.Tensor,
        max_clusters: Int32,
        operands: tuple,
        events,
        stream: cuda.CUstream,
    ):
        self.launch(x, (w,), out, max_clusters, operands, events, stream)
