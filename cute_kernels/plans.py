"""Calls that were checked before: the same shapes, strides, dtypes, devices and options are launched without a second check.

What may differ from call to call is looked at every time: addresses (alignment, overlap of `out`), tensor subclasses, lazy
negation, and whether autograd, a tracer or a transform wants to see the call. Such a call, and one that is not known, takes
the long way through api.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from . import launch

ALIGN = 16  # bytes: TMA's rule for base addresses
MOST = 4096  # calls that are kept

#: without torch.cuda.current_device's check that CUDA has started: whoever has a tensor on a GPU has started it
current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

_plans: dict[tuple, Plan] = {}


class Plan:
    """How to launch one kind of call."""

    __slots__ = ("clusters", "dtype", "function", "index", "inputs", "out_view", "shape", "spans", "views")

    def __init__(self, entry: tuple, given: tuple, launched: tuple, out2d: torch.Tensor, result: torch.Tensor):
        kernel, self.clusters = entry
        self.function = kernel.function
        self.index = result.device.index
        self.shape = tuple(result.shape)
        self.dtype = None if result.dtype == given[0].dtype else result.dtype
        views = tuple(map(view, launched, given))
        self.views = views if any(views) else None
        self.out_view = view(out2d, result)
        self.spans = tuple(map(span, given)), span(result)

    def __call__(self, given: tuple, weights: int, out: torch.Tensor | None) -> torch.Tensor | None:
        """Launch; None, and nothing launched, where `out` may overlap an input."""
        if out is None:
            dtype = self.dtype
            result = given[0].new_empty(*self.shape) if dtype is None else given[0].new_empty(self.shape, dtype=dtype)
        else:
            result, first = out, out.data_ptr()
            spans, length = self.spans
            for t, size in zip(given, spans, strict=True):
                begin = t.data_ptr()
                if begin < first + length and first < begin + size:
                    return None
        if self.views is not None:
            given = tuple(t if v is None else t.as_strided(*v) for t, v in zip(given, self.views, strict=True))
        out2d = result if self.out_view is None else result.as_strided(*self.out_view)
        args = (*given[: 1 + weights], out2d, self.clusters, given[1 + weights :], None)
        if self.index == current_device():
            self.function(*args)
        else:
            launch.call(self.function, self.index, *args)
        if out is not None:
            torch.autograd.graph.increment_version(out)
        return result


def view(launched: torch.Tensor, given: torch.Tensor) -> tuple | None:
    """(shape, strides) under which the kernel sees a tensor, None for its own."""
    seen = tuple(launched.shape), launched.stride()
    return None if seen == (tuple(given.shape), given.stride()) else seen


def span(t: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def look(
    what: tuple, tensors: tuple, weights: int, out: torch.Tensor | None
) -> tuple[tuple | None, torch.Tensor | None]:
    """(key, result): the result of a call that is known, else None, and the key under which to `keep` the call.

    what: the function and its options. tensors: a, the weights (so many), and further operands or None. The key is None for a
    call that must not be kept.
    """
    if watched() or forward_ad._current_level >= 0 or frozen(out):
        return None, None
    followed = torch.is_grad_enabled()
    key, given, addresses = list(what), tensors[: 1 + weights], 0
    try:
        for t in tensors if out is None else (*tensors, out):
            if t is None:
                key.append(None)
                continue
            kind = type(t)
            if (
                (kind is not torch.Tensor and kind is not torch.nn.Parameter)
                or (followed and t.requires_grad)
                or t.is_neg()
            ):
                return None, None
            addresses |= t.data_ptr()
            key += (t.shape, t.stride(), t.dtype, t.device)
        if addresses % ALIGN:
            return None, None
        key = tuple(key)
        plan = _plans.get(key)
    except (NotImplementedError, RuntimeError, TypeError):  # no strides or no memory; options that cannot be hashed
        return None, None
    if plan is None:
        return key, None
    for t in tensors[1 + weights :]:
        if t is not None:
            given += (t,)
    return key, plan(given, weights, out)


def frozen(out: Any) -> bool:
    """Whether `out` is an inference tensor outside of inference mode, which nobody may write to."""
    return isinstance(out, torch.Tensor) and out.is_inference() and not torch.is_inference_mode_enabled()


def watched() -> bool:
    """Whether a tracer, a dispatch mode (FakeTensorMode, FlopCounterMode) or a transform (vmap, grad) has to see operators."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def keep(
    key: tuple | None, entry: Any, given: tuple, launched: tuple, out2d: torch.Tensor, result: torch.Tensor
) -> None:
    """Remember a call that went well: what `launch.launch` returned, the caller's tensors and what the kernel saw of them."""
    if key is None or entry is None:
        return
    pairs = (*zip(given, launched, strict=True), (result, out2d))
    if any(a.data_ptr() != b.data_ptr() for a, b in pairs):  # a tensor that the call made itself
        return
    while len(_plans) >= MOST:  # the oldest go
        _plans.pop(next(iter(_plans), None), None)
    _plans[key] = Plan(entry, given, launched, out2d, result)


def forget() -> None:
    """Drop what is kept."""
    _plans.clear()
