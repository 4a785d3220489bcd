"""`gemm`: out = a @ b.T on SM90, warp-specialised and persistent, TMA in and out, bf16 or fp16 with fp32 accumulation.

Everything but the two lines below is the skeleton in hopper/kernel.py, whose docstring has the roles, the pipelines with
their arrive counts, the shared-memory budget and the timeline. Measured on the H200: notebooks/measured/h200/bench.json.
"""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32

from .config import TileConfig
from .kernel import WarpSpecializedGemm

CONFIGS = (
    TileConfig(128, 128, cluster=(2, 1), stages=6, schedule="pingpong"),
    TileConfig(128, 192, cluster=(2, 1), stages=5, epi_slots=1, schedule="pingpong"),
    TileConfig(128, 160, cluster=(2, 1), stages=5, epi_slots=1, schedule="pingpong"),
    TileConfig(64, 256, cluster=(2, 1), stages=5, epi_slots=1, schedule="pingpong"),
    TileConfig(128, 128, cluster=(1, 1), stages=6, schedule="pingpong"),
    TileConfig(64, 128, cluster=(1, 1), stages=8, epi_slots=1, schedule="pingpong"),
    TileConfig(128, 256, cluster=(2, 1), stages=4),
    TileConfig(128, 256, cluster=(1, 2), stages=4),
    TileConfig(256, 128, cluster=(2, 1), stages=4),
    TileConfig(128, 128, cluster=(1, 1), stages=6),
    TileConfig(128, 64, cluster=(1, 1), stages=8, epi_slots=1),
    TileConfig(64, 64, warp_groups=1, cluster=(1, 1), stages=12, epi_slots=1),
)


class Gemm(WarpSpecializedGemm):
    """a (M, K), b (N, K), out (M, N); all row-major with 16-byte aligned rows."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        max_clusters: Int32,
        operands: tuple,
        events,
        stream: cuda.CUstream,
    ):
        self.launch(a, (b,), out, max_clusters, operands, events, stream)
