"""`swiglu_stacked`: out = silu(x @ w_gate.T) * (x @ w_up.T) on SM90 in one kernel, from plain nn.Linear weights.

One B stage holds T rows of w_gate and under them T rows of w_up (two TMA loads, one barrier); one WGMMA of 2T columns
multiplies both. In the accumulator a thread's values v and v + T/2 of a 64-row slab are then gate and up of the same
output element, so SiLU and product stay in its registers, and the half-width result has the layout that stmatrix wants.
No weight is packed, no value crosses a thread. tests/cpu proves the map.

Roles, pipelines, shared memory and timeline: hopper/kernel.py. Measured on the H200: notebooks/measured/h200/bench.json.
"""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32

from . import visitor
from .activation import silu
from .config import TileConfig
from .kernel import WarpSpecializedGemm

CONFIGS = (
    TileConfig(128, 128, cluster=(2, 1), stages=4),
    TileConfig(128, 128, cluster=(1, 1), stages=4),
    TileConfig(128, 128, cluster=(1, 2), stages=4),
    TileConfig(128, 64, cluster=(2, 1), stages=6, epi_slots=1),
    TileConfig(128, 64, cluster=(1, 1), stages=6, epi_slots=1),
    TileConfig(64, 64, warp_groups=1, cluster=(1, 1), stages=8, epi_slots=1),
    TileConfig(64, 32, warp_groups=1, cluster=(1, 1), stages=12, epi_slots=1),
)


def silu_product(gate, up):
    return silu(gate) * up


class SwigluStacked(WarpSpecializedGemm):
    """x (M, K), w_gate and w_up (N, K), out (M, N); all row-major with 16-byte aligned rows."""

    b_parts = 2

    def default_tree(self):
        return visitor.Apply(silu_product, (visitor.Accumulator(0), visitor.Accumulator(1)))

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        w_gate: cute.Tensor,
        w_up: cute.Tensor,
        out: cute.Tensor,
        max_clusters: Int32,
        operands: tuple,
        events,
        stream: cuda.CUstream,
    ):
        self.launch(x, (w_gate, w_up), out, max_clusters, operands, events, stream)
