"""The same by PyTorch's kernels: what `kernel="torch"` runs, and everything when CUTE_KERNELS_DISABLE=1 asks for it."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from . import epilogue as epilogues
from .hopper import activation, visitor
from .reference import GATED

#: functions of an epilogue -> PyTorch's; operators such as + are their own
TORCH = {
    activation.silu: F.silu,
    activation.gelu: F.gelu,
    activation.gelu_tanh: functools.partial(F.gelu, approximate="tanh"),
    activation.relu: F.relu,
}


def gemm(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None, epilogue: Any
) -> torch.Tensor:
    """As api.gemm, for any device, shape and dtype. Raises ValueError for an epilogue's function that PyTorch does not have."""
    dtype = out_dtype or (a.dtype if out is None else out.dtype)
    if epilogue is None and dtype == a.dtype:
        y = F.linear(a, b)
    else:
        y = F.linear(a.float(), b.float())
        y = (y if epilogue is None else evaluate(epilogue, y)).to(dtype)
    return y if out is None else out.copy_(y)


def evaluate(expression: Any, acc: torch.Tensor) -> torch.Tensor:
    """An epilogue's expression over acc (..., N), which stands for the accumulator, in acc's dtype."""
    tree, operands, _ = epilogues.split(expression)
    return value(tree, operands, acc)


def value(tree: visitor.Node, operands: tuple, acc: torch.Tensor) -> torch.Tensor:
    """As `evaluate`, of an expression that is split into a tree and its operands."""

    def at(node: visitor.Node) -> Any:
        if isinstance(node, visitor.Accumulator):
            return acc
        if isinstance(node, visitor.Column):
            return operands[node.slot].to(acc.dtype).view(*acc.shape[:-1], 1)
        if isinstance(node, visitor.Scalar):
            return operands[node.slot]
        if isinstance(node, visitor.Operand):
            return operands[node.slot].to(acc.dtype)
        if isinstance(node, visitor.Cast):
            return at(node.input).to(getattr(torch, node.dtype)).to(acc.dtype)
        function = TORCH.get(node.function, node.function)
        if function is node.function and getattr(function, "__module__", "") != "_operator":
            raise ValueError(
                f"{getattr(function, '__name__', function)} in an epilogue is no PyTorch function, and CUTE_KERNELS_DISABLE=1 "
                "asks for PyTorch's kernels alone"
            )
        return function(*map(at, node.inputs))

    return at(tree)


def swiglu(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    out: torch.Tensor | None,
    activation: str,
    bias_gate: torch.Tensor | None,
    bias_up: torch.Tensor | None,
) -> torch.Tensor:
    """As api.swiglu, for any device, shape and dtype: two GEMMs and PyTorch's pointwise kernels."""
    gate, up = (F.linear(x, w, None if b is None else b.to(x.dtype)) for w, b in ((w_gate, bias_gate), (w_up, bias_up)))
    y = GATED[activation](gate, up)
    return y if out is None else out.copy_(y)
