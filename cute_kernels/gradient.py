"""Derivatives of the gated family: what a backward pass of `swiglu` multiplies the incoming gradient with.

The pre-activations are computed again from x and the weights instead of being kept from the forward pass: three (M, N)
matrices less in memory, two GEMMs more. Where `ck.gemm` is faster than cuBLAS it multiplies, and where matrices are large
swiglu's d gate is the epilogue of up's GEMM; the rest is PyTorch's operators. One kernel for all of it does not exist yet.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from cutlass import Float32
from torch.autograd import forward_ad

from . import api, plans
from . import epilogue as ep
from .device import UnsupportedDevice
from .hopper import activation as on_chip
from .reference import GATED

ALPHA, LIMIT = 1.702, 7.0  # of "swiglu_oai"
#: elements of a product's result from which `ck.gemm` is the faster one here: 1.4 waves of 128 x 256 tiles on 132 SMs. Below it
#: cuBLAS divides K among CTAs (notebook 12 measures both sides)
WORTH = 6_000_000
#: the same of an epilogue that reads dy and gate: below it they lie in L2, where separate kernels read them fast
WORTH_IN_EPILOGUE = 12_000_000


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
        value = low * open_  # first, since dy * low or ALPHA * low may be too large for float16
        d_low = dy * (bounded + 1) * (open_ + ALPHA * value * (1 - open_))
        return d_low * (gate <= LIMIT), dy * value * (up.abs() <= LIMIT)
    raise ValueError(f"activation is {activation!r}, allowed: {', '.join(map(repr, GATED))}")


def d_silu_times(dy: Float32, gate: Float32, up: Float32) -> Float32:
    """d gate of silu(gate) * up, on the accumulators of a GEMM."""
    sigmoid = on_chip.sigmoid(gate)
    return dy * up * sigmoid * (Float32(1.0) + gate * (Float32(1.0) - sigmoid))


@torch.no_grad()
def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """a @ b.T, or c + a @ b.T, by `ck.gemm` where it is faster and takes the operands, else by PyTorch. a: (M, K), b: (N, K),
    c: (M, N) or (N,), all of one dtype and device. Autograd does not follow it, autocast does not change it."""
    if a.shape[0] * b.shape[0] >= WORTH:
        tree = None if c is None else ep.acc + (ep.row(c) if c.dim() == 1 else ep.load(c))
        made = _by_ours(a, b, tree)
        if made is not None:
            return made
    with api.without_autocast(a):
        return a @ b.T if c is None else torch.addmm(c, a, b.T)


def _by_ours(a: torch.Tensor, b: torch.Tensor, epilogue: ep.Expression | None) -> torch.Tensor | None:
    """`ck.gemm`; None where it does not take these operands, or would be compiled while a CUDA graph is captured."""
    if api.DISABLED:
        return None
    try:
        return api.gemm(a, b, epilogue=epilogue)
    except (TypeError, ValueError, UnsupportedDevice):  # before any launch
        return None
    except RuntimeError as why:
        if "a CUDA graph is being captured" not in str(why):
            raise
        return None


def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """`product` as whoever looks on has to see it: a tracer an operator, autograd PyTorch's own ones."""
    if not _ours(a):
        return a @ b.T if c is None else torch.addmm(c, a, b.T)
    return torch.ops.cute_kernels.product(a, b, c) if _watched(a, b) else product(a, b, c)


def _ours(t: torch.Tensor) -> bool:
    """Whether the fused kernels are for tensors of this kind, and nobody differentiates once more; what a tracer knows, too."""
    if torch.is_grad_enabled() or forward_ad._current_level >= 0 or t.dtype not in api.DTYPES:
        return False
    return api.on_hopper(t.device)


def _watched(*tensors: torch.Tensor) -> bool:
    return plans.watched() or any(map(api.dispatches, tensors))


@torch.no_grad()
def of_preactivations(
    dy: torch.Tensor,
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    bias_gate: torch.Tensor | None,
    bias_up: torch.Tensor | None,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(d gate, d up), (M, N), from dy (M, N), gate and up computed again from x (M, K), the weights (N, K) and biases (N,), all
    of one dtype; dy and biases contiguous. Autograd does not follow it, autocast does not change it."""
    gate = product(x, w_gate, bias_gate)
    if activation == "swiglu" and dy.numel() >= WORTH_IN_EPILOGUE:
        up = ep.acc if bias_up is None else ep.acc + ep.row(bias_up)
        d_gate = _by_ours(x, w_up, ep.apply(d_silu_times, ep.load(dy), ep.load(gate), up))
        if d_gate is not None:
            return d_gate, dy * F.silu(gate)
    return of_gated(activation, gate, product(x, w_up, bias_up), dy)


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
    rows, dy = rows_of(x), rows_of(dy).contiguous()
    biases = tuple(None if b is None else b.to(x.dtype).contiguous() for b in (bias_gate, bias_up))
    given = dy, rows, w_gate, w_up, *biases
    if not _ours(rows):
        gate, up = (multiply(rows, w, b) for w, b in zip((w_gate, w_up), biases, strict=True))
        d_gate, d_up = of_gated(activation, gate, up, dy)
    elif _watched(*given):
        d_gate, d_up = torch.ops.cute_kernels.of_preactivations(*given, activation)
    else:
        d_gate, d_up = of_preactivations(*given, activation)
    found: list[torch.Tensor | None] = [None] * 5
    if wanted[0]:
        found[0] = multiply(d_up, w_up.T, multiply(d_gate, w_gate.T)).view(x.shape)
    for i, (w, b, d) in enumerate(((w_gate, bias_gate, d_gate), (w_up, bias_up, d_up))):
        if wanted[1 + i]:
            found[1 + i] = multiply(d.T, rows.T).to(w.dtype)
        if wanted[3 + i] and b is not None:
            found[3 + i] = d.sum(0, dtype=torch.promote_types(d.dtype, torch.float32)).to(b.dtype)
    return tuple(found)
