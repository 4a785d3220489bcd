"""What `gemm` makes of the accumulator before it is stored, written as an expression over torch tensors.

    from cute_kernels import epilogue as ep
    ck.gemm(x, w, epilogue=ep.gelu(ep.acc + ep.row(bias)) + ep.load(residual))

`acc` is a @ b.T in fp32. `row(bias)` holds one value per column (N,), `column(scale)` one per row (M,), `load(c)` a matrix.
Numbers and `scalar` are fp32 launch arguments: a new value needs no new compilation. Every operation is fp32; only `cast` and
the store round. The expression's structure is compiled once (hopper/visitor.py); its tensors are read at every launch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from .compile import dtype_name
from .hopper import activation, visitor


class Expression:
    """A value per output element. Made by the functions of this module, combined by +, -, * and `apply`."""

    __slots__ = ("function", "children", "kind", "data")

    def __init__(self, kind: Any, children: tuple[Expression, ...] = (), data: Any = None):
        self.kind, self.children, self.data = kind, children, data

    def __add__(self, other):
        return apply(operator.add, self, other)

    def __radd__(self, other):
        return apply(operator.add, other, self)

    def __sub__(self, other):
        return apply(operator.sub, self, other)

    def __rsub__(self, other):
        return apply(operator.sub, other, self)

    def __mul__(self, other):
        return apply(operator.mul, self, other)

    def __rmul__(self, other):
        return apply(operator.mul, other, self)

    def __truediv__(self, other):
        if isinstance(other, int | float) and not isinstance(other, bool):
            return self * (1.0 / other)
        raise TypeError(
            "an epilogue divides by numbers only; for anything else multiply by the reciprocal, or use apply(...)"
        )

    def __neg__(self):
        return apply(operator.neg, self)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", str(function))
        raise TypeError(
            f"torch's {name} met an epilogue expression: use this module's functions (relu, gelu, silu, cast, apply, ...) and "
            "wrap tensors in row(...), column(...) or load(...)"
        )


#: a @ b.T
acc = Expression(visitor.Accumulator)


def scalar(value: float) -> Expression:
    """One fp32 number for the whole output; a launch argument."""
    return Expression(visitor.Scalar, data=float(value))


def row(vector: torch.Tensor) -> Expression:
    """vector (N,), bf16, fp16 or fp32, contiguous: one value per column of the output, such as a bias."""
    return Expression(visitor.Row, data=vector)


def column(vector: torch.Tensor) -> Expression:
    """vector (M,), bf16, fp16 or fp32, contiguous: one value per row of the output, such as a per-token scale."""
    return Expression(visitor.Column, data=vector)


def load(matrix: torch.Tensor) -> Expression:
    """matrix (..., N) of the output's shape, bf16, fp16 or fp32, such as a residual. It may be `out` itself."""
    return Expression(visitor.Load, data=matrix)


def cast(dtype: torch.dtype, x: Any) -> Expression:
    """x rounded to torch.bfloat16 or torch.float16 and back to fp32, as a separate PyTorch operation would leave it."""
    if dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"dtype is {dtype!r}, cast takes (torch.bfloat16 or torch.float16, expression)")
    return Expression(visitor.Cast, (_expression(x),), dtype_name(dtype))


def apply(function: Callable, *arguments: Any) -> Expression:
    """function(*arguments) on fp32 values: a plain Python function of CuTe DSL numbers, such as those of hopper/activation.py.

    It is called while the kernel is traced: arithmetic, cute.math and cute.arch calls become instructions; Python's `if`, `max`
    and `and` do not, a value is not known then (cutlass.select_, cute.arch.fmax). What does not trace raises CompileError at the
    first launch. Functions are told apart by identity: define one once, at the top of a file; a lambda made anew for every call
    is compiled anew for every call, and a global that a function reads is read once, when it is compiled.
    """
    if not callable(function):
        raise TypeError(f"function is a {type(function).__name__}, must be callable")
    try:
        hash(function)
    except TypeError:
        name = type(function).__name__
        raise TypeError(f"function is a {name} that cannot be hashed: compiled kernels are kept by it") from None
    return Expression(visitor.Apply, tuple(map(_expression, arguments)), function)


def silu(x: Any) -> Expression:
    return apply(activation.silu, x)


def gelu(x: Any) -> Expression:
    """Exact GELU (error function); absolute error below 3e-7 |x|."""
    return apply(activation.gelu, x)


def gelu_tanh(x: Any) -> Expression:
    """GELU as PyTorch's approximate="tanh"."""
    return apply(activation.gelu_tanh, x)


def relu(x: Any) -> Expression:
    return apply(activation.relu, x)


def _expression(x: Any) -> Expression:
    if isinstance(x, Expression):
        return x
    if isinstance(x, int | float) and not isinstance(x, bool):
        return scalar(x)
    raise TypeError(
        f"{type(x).__name__} in an epilogue: wrap tensors in row(...), column(...) or load(...), tensors of one element in "
        "scalar(...); numbers stand as they are"
    )


def split(expression: Any) -> tuple[visitor.Node, tuple[Any, ...], tuple[str, ...]]:
    """An expression -> (static tree, its operands in the order of their slots, their kinds).

    Equal structures give equal trees, whatever their tensors; a tensor used twice is one operand.
    """
    operands: list[Any] = []
    kinds: list[str] = []
    slots: dict[Any, int] = {}
    known: dict[int, visitor.Node] = {}

    def node(e: Expression) -> visitor.Node:
        if id(e) not in known:  # a shared part is one node
            known[id(e)] = visitor.unique(made(e))
        return known[id(e)]

    def made(e: Expression) -> visitor.Node:
        if e.kind is visitor.Accumulator:
            return visitor.Accumulator()
        if e.kind is visitor.Apply:
            return visitor.Apply(e.data, tuple(node(child) for child in e.children))
        if e.kind is visitor.Cast:
            return visitor.Cast(e.data, node(e.children[0]))
        key = (e.kind, id(e.data) if isinstance(e.data, torch.Tensor) else id(e))
        if key not in slots:
            slots[key] = len(operands)
            operands.append(e.data)
            kinds.append(e.kind.__name__)
        dtype = dtype_name(e.data.dtype) if isinstance(e.data, torch.Tensor) else "float32"
        return e.kind(slots[key], dtype)

    return node(_expression(expression)), tuple(operands), tuple(kinds)
