"""`swiglu_stacked`: out = silu(x @ w_gate.T) * (x @ w_up.T) on SM90 in one kernel, from plain nn.Linear weights.

One B stage holds T rows of w_gate and under them T rows of w_up (two TMA loads, one barrier); one WGMMA of 2T columns
multiplies both. In the accumulator a thread's values v and v + T/2 of a 64-row slab are then gate and up of the same
output element, so SiLU and product stay in its registers, and the half-width result has the layout that stmatrix wants.
No weight is packed, no value crosses a thread. tests/cpu proves the map.

Roles, pipelines, shared memory and timeline: hopper/kernel.py. Measured on the H200: notebooks/measured/h200/bench.json.
"""

from .config import TileConfig
from .gated import TwoWeights

CONFIGS = (
    # prefill: pingpong in pairs of CTAs; the width that fills the last wave best
    *(
        TileConfig(128, t, cluster=(2, 1), stages=stages, epi_slots=slots, schedule="pingpong")
        for t, stages, slots in ((64, 6, 2), (72, 6, 1), (80, 5, 4), (88, 5, 1), (96, 5, 3), (56, 7, 1))
    ),
    # one wave of a few hundred rows: no second tile to hide an epilogue under
    TileConfig(128, 80, cluster=(2, 1), stages=6, epi_slots=1),
    TileConfig(128, 128, cluster=(2, 1), stages=4),
    TileConfig(128, 64, cluster=(1, 1), stages=6, epi_slots=1),
    # decode: one consumer, no more rows of x than there are
    *(TileConfig(64, t, warp_groups=1, stages=stages, epi_slots=1) for t, stages in ((40, 9), (56, 9), (72, 7))),
    *(TileConfig(32, t, warp_groups=1, stages=stages, epi_slots=1) for t, stages in ((40, 11), (56, 10), (72, 9))),
    *(TileConfig(16, t, warp_groups=1, stages=stages, epi_slots=1) for t, stages in ((40, 12), (56, 10), (72, 9))),
)


class SwigluStacked(TwoWeights):
    """Both weights in one stage and one accumulator: what the skeleton does with two B operands."""
