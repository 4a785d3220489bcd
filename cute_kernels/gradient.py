"""Derivatives of the gated family: what a backward pass of `swiglu` multiplies the incoming gradient with.

The pre-activations are computed again from x and the weights, in x's dtype, instead of being kept from the forward pass: two
(M, N) matrices less in memory, two GEMMs more. All of it is PyTorch's operators; a fused backward kernel does not exist yet.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .reference import GATED

ALPHA, LIMIT = 1.702, 7.0  # of "swiglu_oai"


def of_gated(
    activation: str, gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(d gate, d up) of GATED[activation](gate, up), all (M, N), from its gradient dy. ValueError for an unknown name."""
    aten = torch.ops.aten
    if activation == "swiglu" and torch.is_grad_enabled():  # silu_backward has no derivative
        open_ = torch.sigmoid(gate)
        return dy * up * (open_ * (1 + gate * (1 - open_))), dy * F.silu(gate)
    if activation == "swiglu":
        return aten.silu_backward(dy * up, gate), dy * F.silu(gate)
    if activation in ("geglu", "geglu_tanh"):
        kind = "none" if activation == "geglu" else "tanh"
        return aten.gelu_backward(dy * up, gate, approximate=kind), dy * F.gelu(gate, approximate=kind)
    if activation == "reglu":
        return aten.threshold_backward(dy * up, gate, 0), dy * F.relu(gate)
    if activation == "glu":
        open_ = torch.sigmoid(gate)
        return aten.sigmoid_backward(dy * up, open_), dy * open_
    if activation == "swiglu_oai":
        low, bounded = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        open_ = torch.sigmoid(ALPHA * low)
        d_low = dy * (bounded + 1) * (open_ + ALPHA * low * open_ * (1 - open_))
        return d_low * (gate <= LIMIT), dy * low * open_ * (up.abs() <= LIMIT)
    raise ValueError(f"activation is {activation!r}, allowed: {', '.join(map(repr, GATED))}")


def rows_of(t: torch.Tensor) -> torch.Tensor:
    """(..., columns) as a matrix, also where there are no columns."""
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def of_swiglu(
    dy: torch.Tensor,
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    bias_gate: torch.Tensor | None,
    bias_up: torch.Tensor | None,
    activation: str,
    wanted: tuple[bool, bool, bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of `swiglu` by x (..., K), w_gate and w_up (N, K), bias_gate and bias_up (N,), from dy (..., N); None where not
    `wanted`."""
    rows, dy = rows_of(x), rows_of(dy)
    gate, up = (
        F.linear(rows, w, None if b is None else b.to(x.dtype)) for w, b in ((w_gate, bias_gate), (w_up, bias_up))
    )
    d_gate, d_up = of_gated(activation, gate, up, dy)
    found: list[torch.Tensor | None] = [None] * 5
    if wanted[0]:
        found[0] = torch.addmm(d_gate @ w_gate, d_up, w_up).view(x.shape)
    for i, (w, b, d) in enumerate(((w_gate, bias_gate, d_gate), (w_up, bias_up, d_up))):
        if wanted[1 + i]:
            found[1 + i] = (d.T @ rows).to(w.dtype)
        if wanted[3 + i] and b is not None:
            found[3 + i] = d.sum(0, dtype=torch.promote_types(d.dtype, torch.float32)).to(b.dtype)
    return tuple(found)
