"""References in float32 and float64 by PyTorch: what every kernel is compared with. They run on any device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

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


#: the gated family: name -> function of (gate, up) in PyTorch's terms
GATED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate) * up,
    "geglu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "reglu": lambda gate, up: F.relu(gate) * up,
    "glu": lambda gate, up: torch.sigmoid(gate) * up,
    "swiglu_oai": lambda gate, up: _oai(gate.clamp(max=7.0), up.clamp(-7.0, 7.0)),
}


def _oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def swiglu(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    activation: str = "swiglu",
    bias_gate: torch.Tensor | None = None,
    bias_up: torch.Tensor | None = None,
) -> torch.Tensor:
    """silu(x @ w_gate.T + bias_gate) * (x @ w_up.T + bias_up) in `dtype`, or another of the gated family (`GATED`).

    x (M, K), weights (N, K), biases (N,) -> (M, N). The activation applies to the gate."""
    gate, up = gemm(x, w_gate, dtype), gemm(x, w_up, dtype)
    gate = gate if bias_gate is None else gate + bias_gate.to(dtype)
    up = up if bias_up is None else up + bias_up.to(dtype)
    return GATED[activation](gate, up)


def eager(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """silu(x @ w_gate.T) * (x @ w_up.T) as PyTorch runs it in the inputs' dtype: the yardstick of accuracy and speed."""
    return F.silu(F.linear(x, w_gate)) * F.linear(x, w_up)


def far_off(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Mask of elements that no rounding explains: off by more than 5 % of the larger of their reference and the reference's
    root mean square, or NaN or infinite where the reference is not the same."""
    got, want = out.double(), ref.double()
    same = (got == want) | (got.isnan() & want.isnan())
    finite = torch.isfinite(want)
    typical = want[finite].square().mean().sqrt() if finite.any() else 0.0
    near = (got - want).abs() <= FAR * torch.clamp(want.abs(), min=float(typical))
    return ~same & ~(near & torch.isfinite(got) & finite)


def off_share(out: torch.Tensor, ref: torch.Tensor, limit: float = 0.01) -> float:
    """Share of elements that differ by more than `limit` of their own reference, however small that is; NaN counts."""
    want = ref.float()
    near = (out.float() - want).abs() <= limit * want.abs()  # false for NaN
    return 1 - near.float().mean().item()
