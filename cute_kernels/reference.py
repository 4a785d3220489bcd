"""References in float32 and float64 by PyTorch: what every kernel is compared with. They run on any device."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

FAR = 0.05  # beyond any rounding


@contextlib.contextmanager
def exact_matmul():
    """float32 matrix products in true float32: TF32 off inside, the caller's setting restored."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gemm(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """a (M, K) @ b (N, K).T in `dtype` (float32 or float64) -> (M, N) of that dtype."""
    with exact_matmul():
        return a.to(dtype) @ b.to(dtype).T


def swiglu(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """silu(x @ w_gate.T) * (x @ w_up.T) in `dtype`; x (M, K), weights (N, K) -> (M, N). SiLU applies to the gate."""
    return F.silu(gemm(x, w_gate, dtype)) * gemm(x, w_up, dtype)


def far_off(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Mask of elements that no rounding explains: off by more than 5 % of the larger of their reference and the reference's
    root mean square, or NaN or infinite where the reference is not the same."""
    got, want = out.double(), ref.double()
    same = (got == want) | (got.isnan() & want.isnan())
    finite = torch.isfinite(want)
    typical = want[finite].square().mean().sqrt() if finite.any() else 0.0
    near = (got - want).abs() <= FAR * torch.clamp(want.abs(), min=float(typical))
    return ~same & ~(near & torch.isfinite(got) & finite)
