"""References in float32 and float64 by PyTorch: what every kernel is compared with. They run on any device."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F


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
