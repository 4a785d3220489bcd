"""What there is: one `KernelSpec` per finished kernel."""

from __future__ import annotations

from .hopper import gemm, swiglu_interleaved, swiglu_pingpong, swiglu_stacked
from .spec import KernelSpec

_TWO_WEIGHTS = (
    "x (M, K), w_gate and w_up (N, K), out (M, N): last dimension contiguous, rows 16-byte aligned; any M, N and K multiples "
    "of 8"
)

_KERNELS = (
    KernelSpec(
        "gemm",
        "sm_90a",
        ("bfloat16", "float16"),
        "a (M, K), b (N, K), out (M, N): last dimension contiguous, a and b also the transpose of such a matrix, rows 16-byte "
        "aligned; any M, N and K multiples of 8",
        gemm.CONFIGS,
        1,
        1,
        gemm.__name__,
        gemm.Gemm,
    ),
    KernelSpec(
        "swiglu_stacked",
        "sm_90a",
        ("bfloat16", "float16"),
        _TWO_WEIGHTS,
        swiglu_stacked.CONFIGS,
        2,
        2,
        swiglu_stacked.__name__,
        swiglu_stacked.SwigluStacked,
    ),
    KernelSpec(
        "swiglu_pingpong",
        "sm_90a",
        ("bfloat16", "float16"),
        _TWO_WEIGHTS,
        swiglu_pingpong.CONFIGS,
        2,
        1,
        swiglu_pingpong.__name__,
        swiglu_pingpong.SwigluPingpong,
    ),
    KernelSpec(
        "swiglu_interleaved",
        "sm_90a",
        ("bfloat16", "float16"),
        "x (M, K), w (2N, K) of rows gate 0, up 0, gate 1, ... (cute_kernels.interleave), out (M, N): last dimension contiguous, "
        "rows 16-byte aligned; any M, N and K multiples of 8",
        swiglu_interleaved.CONFIGS,
        1,
        2,
        swiglu_interleaved.__name__,
        swiglu_interleaved.SwigluInterleaved,
        packed=True,
    ),
)


def kernels() -> tuple[KernelSpec, ...]:
    """Every finished kernel, one entry each."""
    return _KERNELS


def get(name: str) -> KernelSpec:
    """The kernel called `name`; ValueError with the names that exist."""
    for spec in _KERNELS:
        if spec.name == name:
            return spec
    raise ValueError(f"kernel is {name!r}, allowed: {', '.join(spec.name for spec in _KERNELS)}")
