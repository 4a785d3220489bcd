"""What the gated kernels share: what they store, as visitor trees, and the launch of those with two weights.

gate(a @ w_gate.T + bias_gate) * up(a @ w_up.T + bias_up)

`stacked` is for two weights, whose products are accumulators 0 and 1; the pingpong kernel evaluates its left half as soon as
accumulator 0 is there. `paired` is for one weight that holds gate and up rows in turn: PairMulStore.
"""

import functools
import operator

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32

from . import activation, visitor
from .kernel import WarpSpecializedGemm


def stacked(name: str = "swiglu", biased: tuple[str | None, str | None] = (None, None)) -> visitor.Node:
    """The tree of a gated activation (activation.GATED). biased: dtypes of the biases of gate and up, (N,) each, which are the
    launch's operands in this order."""
    branches, slot = [], 0
    for part, (function, dtype) in enumerate(zip(activation.GATED[name], biased, strict=True)):
        node: visitor.Node = visitor.Accumulator(part)
        if dtype is not None:
            node = visitor.Apply(operator.add, (node, visitor.Row(slot, dtype)))
            slot += 1
        branches.append(node if function is activation.identity else visitor.Apply(function, (node,)))
    return visitor.Apply(operator.mul, tuple(branches))


def paired(name: str = "swiglu", biased: str | None = None) -> visitor.Node:
    """The same over columns 2j (gate) and 2j + 1 (up). biased: dtype of the interleaved bias, (2N,)."""
    node: visitor.Node = visitor.Accumulator()
    if biased is not None:
        node = visitor.Apply(operator.add, (node, visitor.Row(0, biased)))
    return visitor.Pairs(product(name), node)


@functools.cache
def product(name: str):
    """gate(left) * up(right), one function object for each name: trees compare functions by identity."""
    gate, up = activation.GATED[name]

    def pair_mul(left, right):
        return gate(left) * up(right)

    return pair_mul


class TwoWeights(WarpSpecializedGemm):
    """x (M, K), w_gate and w_up (N, K), out (M, N); all row-major with 16-byte aligned rows."""

    b_parts = 2

    def default_tree(self):
        return stacked()

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        w_gate: cute.Tensor,
        w_up: cute.Tensor,
        out: cute.Tensor,
        max_clusters: Int32,
        operands: tuple,
        events,
        stream: cuda.CUstream,
    ):
        self.launch(x, (w_gate, w_up), out, max_clusters, operands, events, stream)
