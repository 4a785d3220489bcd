"""The kernels as PyTorch operators: torch.ops.cute_kernels.gemm, .swiglu and .swiglu_interleaved; .product and
.of_preactivations are the parts of their backward passes (gradient.py).

`ck.gemm` and `ck.swiglu` call them where PyTorch has to see an operator: under torch.compile and torch.export, and when a
gradient is asked for. Shapes, dtypes, layouts and errors are those of the functions in api.py; `config` is a configuration's
name ("" lets the shape decide), `use` what `swiglu` calls kernel (Inductor has an argument of that name), `fallback` runs
PyTorch's kernels on what the fused ones do not take.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import api, gradient, plans, unfused
from .device import UnsupportedDevice
from .weights import Interleaved, split

LIBRARY = torch.library.Library("cute_kernels", "DEF")
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

LIBRARY.define("gemm(Tensor a, Tensor b, *, ScalarType? out_dtype=None, str config='') -> Tensor", tags=TAGS)
LIBRARY.define(
    "swiglu(Tensor x, Tensor w_gate, Tensor w_up, Tensor? bias_gate=None, Tensor? bias_up=None, *, str activation='swiglu', "
    "str use='auto', str config='', bool early_weights=False, bool fallback=False) -> Tensor",
    tags=TAGS,
)
LIBRARY.define(
    "swiglu_interleaved(Tensor x, Tensor w, Tensor? bias=None, *, str activation='swiglu', str config='', "
    "bool early_weights=False) -> Tensor",
    tags=TAGS,
)
LIBRARY.define("product(Tensor a, Tensor b, Tensor? c=None) -> Tensor", tags=TAGS)
LIBRARY.define(
    "of_preactivations(Tensor dy, Tensor x, Tensor w_gate, Tensor w_up, Tensor? bias_gate, Tensor? bias_up, str activation)"
    " -> (Tensor, Tensor)",
    tags=TAGS,
)


# ---- what they compute -----------------------------------------------------------------------------------------------


def _gemm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, config: str = "") -> Tensor:
    api.check_no_tangent(a=a, b=b)
    if api.DISABLED:
        api.config_named(config, ("gemm",))
        with api.without_autocast(a):
            return unfused.gemm(a, b, None, out_dtype, None)
    key, known = plans.look(("op gemm", out_dtype, config), (a, b), 1, None)
    if known is not None:
        return known
    return api.run_gemm(a, b, None, out_dtype, None, api.config_named(config, ("gemm",)), key)


def _swiglu(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    bias_gate: Tensor | None = None,
    bias_up: Tensor | None = None,
    *,
    activation: str = "swiglu",
    use: str = "auto",
    config: str = "",
    early_weights: bool = False,
    fallback: bool = False,
) -> Tensor:
    tensors = (x, w_gate, w_up, bias_gate, bias_up)
    api.check_no_tangent(x=x, w_gate=w_gate, w_up=w_up, bias_gate=bias_gate, bias_up=bias_up)
    if api.DISABLED:
        return _unfused(*tensors, activation)
    key, known = plans.look(("op swiglu", activation, use, config, early_weights), tensors, 2, None)
    if known is not None:
        return known
    try:
        api.check_kernel(use, activation, None, early_weights)
        found = api.config_named(config, api.GATED_KERNELS[use])
        with api.without_autocast(x):
            y = api.run_swiglu(*tensors, activation, None, use, found, early_weights, key)
    except (TypeError, ValueError, UnsupportedDevice):  # before any launch
        if not fallback:
            raise
        y = _unfused(*tensors, activation)
    return y.contiguous()


def _unfused(x: Tensor, w_gate: Tensor, w_up: Tensor, bias_gate: Any, bias_up: Any, activation: str) -> Tensor:
    api.check_activation(activation)
    with api.without_autocast(x):
        y = api.run_swiglu(x, w_gate, w_up, bias_gate, bias_up, activation, None, "torch", None, False)
    return y.contiguous()


def _swiglu_interleaved(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "swiglu",
    config: str = "",
    early_weights: bool = False,
) -> Tensor:
    api.check_no_tangent(x=x, w=w, bias=bias)
    if api.DISABLED:
        halves = (None, None) if bias is None else split(bias, "interleaved")
        return _unfused(x, *split(w, "interleaved"), *halves, activation)
    key, known = plans.look(("op swiglu_interleaved", activation, config, early_weights), (x, w, bias), 1, None)
    if known is not None:
        return known
    api.check_activation(activation)
    return api.run_interleaved(
        x,
        Interleaved(w),
        None if bias is None else Interleaved(bias),
        activation,
        None,
        api.config_named(config, ("swiglu_interleaved",)),
        early_weights,
        key,
    )


def _gradient_product(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    _check_product(a, b, c)
    return gradient.product(a, b, c)


def _of_preactivations(
    dy: Tensor,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    bias_gate: Tensor | None,
    bias_up: Tensor | None,
    activation: str,
) -> tuple[Tensor, Tensor]:
    _check_preactivations(dy, x, w_gate, w_up, bias_gate, bias_up)
    dy, *biases = (None if t is None else t.contiguous() for t in (dy, bias_gate, bias_up))
    return gradient.of_preactivations(dy, x, w_gate, w_up, *biases, activation)


for _name, _function in {
    "gemm": _gemm,
    "swiglu": _swiglu,
    "swiglu_interleaved": _swiglu_interleaved,
    "product": _gradient_product,
    "of_preactivations": _of_preactivations,
}.items():
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")


# ---- their shapes ----------------------------------------------------------------------------------------------------


def _check_one_device(*tensors: Tensor | None) -> None:
    devices = {str(t.device) for t in tensors if t is not None}  # one meta tensor among others brings a call here
    torch._check_value(len(devices) == 1, lambda: f"tensors are on {', '.join(sorted(devices))}, must be on one device")


def _check_alike(**tensors: Tensor | None) -> None:
    """One device, one dtype."""
    given = {who: t for who, t in tensors.items() if t is not None}
    _check_one_device(*given.values())
    dtypes = {who: str(t.dtype).removeprefix("torch.") for who, t in given.items()}
    torch._check_type(
        len(set(dtypes.values())) == 1,
        lambda: ", ".join(f"{who} is {dtype}" for who, dtype in dtypes.items()) + ": dtypes must be equal",
    )


def _check_matrices(**tensors: Tensor) -> None:
    shapes = {who: tuple(t.shape) for who, t in tensors.items()}
    torch._check_value(
        all(len(shape) == 2 for shape in shapes.values()),
        lambda: ", ".join(f"{who} has shape {shape}" for who, shape in shapes.items()) + ": must be matrices",
    )


def _check_has_shape(who: str, t: Tensor | None, *shape: Any) -> None:
    torch._check_value(
        t is None or (t.dim() == len(shape) and all(a == b for a, b in zip(t.shape, shape, strict=True))),
        lambda: f"{who} has shape {tuple(t.shape)}, must be {shape}",
    )


def _check_product(a: Tensor, b: Tensor, c: Tensor | None) -> None:
    _check_alike(a=a, b=b, c=c)
    _check_matrices(a=a, b=b)
    _check_has_shape("b", b, b.shape[0], a.shape[1])
    rows = () if c is not None and c.dim() == 1 else (a.shape[0],)
    _check_has_shape("c", c, *rows, b.shape[0])


def _check_preactivations(
    dy: Tensor, x: Tensor, w_gate: Tensor, w_up: Tensor, bias_gate: Tensor | None, bias_up: Tensor | None
) -> None:
    _check_alike(dy=dy, x=x, w_gate=w_gate, w_up=w_up, bias_gate=bias_gate, bias_up=bias_up)
    _check_matrices(x=x, w_gate=w_gate)
    (m, k), n = x.shape, w_gate.shape[0]
    for who, w in {"w_gate": w_gate, "w_up": w_up}.items():
        _check_has_shape(who, w, n, k)
    for who, b in {"bias_gate": bias_gate, "bias_up": bias_up}.items():
        _check_has_shape(who, b, n)
    _check_has_shape("dy", dy, m, n)


def _product(a: Tensor, b: Tensor, columns, dtype: torch.dtype | None = None, others: tuple = ()) -> Tensor:
    _check_one_device(a, b, *others)
    torch._check_value(b.dim() == 2, lambda: f"a weight has shape {tuple(b.shape)}, must be (N, K)")
    torch._check_value(
        a.shape[-1] == b.shape[1], lambda: f"a weight has K = {b.shape[1]} columns, the rows have K = {a.shape[-1]}"
    )
    return a.new_empty((*a.shape[:-1], columns), dtype=dtype or a.dtype)


@torch.library.register_fake("cute_kernels::gemm", lib=LIBRARY)
def _(a, b, *, out_dtype=None, config=""):
    return _product(a, b, b.shape[0], out_dtype)


@torch.library.register_fake("cute_kernels::product", lib=LIBRARY)
def _(a, b, c=None):
    _check_product(a, b, c)
    return a.new_empty((a.shape[0], b.shape[0]))


@torch.library.register_fake("cute_kernels::of_preactivations", lib=LIBRARY)
def _(dy, x, w_gate, w_up, bias_gate, bias_up, activation):
    _check_preactivations(dy, x, w_gate, w_up, bias_gate, bias_up)
    return dy.new_empty(dy.shape), dy.new_empty(dy.shape)


@torch.library.register_fake("cute_kernels::swiglu", lib=LIBRARY)
def _(x, w_gate, w_up, bias_gate=None, bias_up=None, **how):
    torch._check_value(
        w_gate.shape == w_up.shape,
        lambda: f"w_gate has shape {tuple(w_gate.shape)}, w_up has {tuple(w_up.shape)}: must be equal",
    )
    return _product(x, w_gate, w_gate.shape[0], others=(w_up, bias_gate, bias_up))


@torch.library.register_fake("cute_kernels::swiglu_interleaved", lib=LIBRARY)
def _(x, w, bias=None, **how):
    return _product(x, w, w.shape[0] // 2, others=(bias,))


# ---- their gradients -------------------------------------------------------------------------------------------------


def _keep_operands(ctx, inputs, output, keyword_only_inputs=None):
    ctx.save_for_backward(*inputs)
    ctx.activation = (keyword_only_inputs or {}).get("activation", "swiglu")


def _padded(values: tuple, length: int) -> tuple:
    """Operands, or what is wanted of them; the last ones may be left out of a call."""
    return (*values, *(None,) * (length - len(values)))


def _gemm_backward(ctx, dy):
    a, b = ctx.saved_tensors[:2]
    rows, dy = gradient.rows_of(a), gradient.rows_of(dy).to(a.dtype).contiguous()
    da = gradient.multiply(dy, b.T).view(a.shape) if ctx.needs_input_grad[0] else None
    return da, gradient.multiply(dy.T, rows.T) if ctx.needs_input_grad[1] else None


def _product_backward(ctx, dy):
    return (*_gemm_backward(ctx, dy), dy)[: len(ctx.needs_input_grad)]


def _no_backward(ctx, *dy):
    raise NotImplementedError("of_preactivations has no derivative; with create_graph=True it is not called")


def _swiglu_backward(ctx, dy):
    wanted = _padded(ctx.needs_input_grad, 5)
    found = gradient.of_swiglu(dy, *_padded(ctx.saved_tensors, 5), ctx.activation, wanted)
    return found[: len(ctx.needs_input_grad)]


def _interleaved_backward(ctx, dy):
    x, w, bias = _padded(ctx.saved_tensors, 3)
    halves = (None, None) if bias is None else (bias[0::2], bias[1::2])
    of_x, of_w, of_bias = _padded(ctx.needs_input_grad, 3)
    wanted = (of_x, of_w, of_w, of_bias, of_bias)
    dx, *both = gradient.of_swiglu(dy, x, w[0::2], w[1::2], *halves, ctx.activation, wanted)
    both = (both[:2], w), (both[2:], bias)
    dw, db = (torch.stack(pair, 1).reshape(t.shape) if pair[0] is not None else None for pair, t in both)
    return (dx, dw, db)[: len(ctx.needs_input_grad)]


for _name, _backward in {
    "gemm": _gemm_backward,
    "product": _product_backward,
    "of_preactivations": _no_backward,
    "swiglu": _swiglu_backward,
    "swiglu_interleaved": _interleaved_backward,
}.items():
    _keep = None if _backward is _no_backward else _keep_operands
    torch.library.register_autograd(f"cute_kernels::{_name}", _backward, setup_context=_keep, lib=LIBRARY)


# ---- their operations, for torch.utils.flop_counter ------------------------------------------------------------------


def _flops_of_product(a, b, *rest, out_shape=None, **how) -> int:
    return 2 * math.prod(a) * b[0]


for _name, _flops in {
    "gemm": _flops_of_product,
    "product": _flops_of_product,
    "swiglu": lambda x, w, *rest, **how: 2 * _flops_of_product(x, w),
    "swiglu_interleaved": _flops_of_product,
    "of_preactivations": lambda dy, x, w, *rest, **how: 2 * _flops_of_product(x, w),
}.items():
    register_flop_formula(getattr(torch.ops.cute_kernels, _name))(_flops)
