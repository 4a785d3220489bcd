"""The epilogue as a small tree: what becomes of an accumulator before it is stored.

A node says what fp32 value stands at one element of the output. Leaves: `Accumulator` (one per B operand), `Scalar`, `Row` (one
value per column, a bias), `Column` (one per row), `Load` (a matrix as large as the output). Inner nodes: `Apply` (any plain
Python function of fp32 values: activations, sums, the product of a gate and an up projection), `Cast` (rounding on the way),
`Pairs` (a function of two adjacent columns; it halves the width). The root is stored.

The tree is static: it is walked while the kernel is traced, and leaves nothing but its arithmetic. Its run-time data are the
leaves' operands, given to the launch as one tuple; a leaf knows its place in it. Loads of a slab (64 rows of one store slot) are
issued one slab ahead, so they arrive under the store of the slab before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm

DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}


def node(cls):
    """Class decorator: a frozen dataclass whose hash is made once, from its children's."""
    cls = dataclass(frozen=True)(cls)
    cls.__hash__ = lambda self: self.made_hash
    return cls


@node
class Node:
    """One node; `inputs` are its children, outermost last."""

    def __post_init__(self):
        own = (type(self).__name__, *(getattr(self, field.name) for field in fields(self)))
        object.__setattr__(self, "made_hash", hash(own))

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def walk(self):
        """Every node below and this one, each once, children first."""
        seen: dict[Node, None] = {}

        def visit(node: Node) -> None:
            if node not in seen:
                for child in node.inputs:
                    visit(child)
                seen[node] = None

        visit(self)
        return tuple(seen)


_unique: dict[Node, Node] = {}


def unique(node: Node) -> Node:
    """The one node object that equals this one, so that trees made of such nodes compare by identity, whatever they share."""
    return _unique.setdefault(node, node)


@node
class Accumulator(Node):
    """a @ B_part.T"""

    part: int = 0


@node
class Operand(Node):
    """A leaf with run-time data: number `slot` of the launch's tuple, of this dtype."""

    slot: int
    dtype: str = "float32"


class Scalar(Operand):
    """One fp32 number for the whole output."""


class Row(Operand):
    """A vector of N values, one per column."""


class Column(Operand):
    """A vector of M values, one per row."""


class Load(Operand):
    """A row-major (M, N) matrix."""


@node
class Apply(Node):
    """function(*inputs) on fp32 values. Functions are compared by identity: define them once, not in a loop."""

    function: Callable
    arguments: tuple[Node, ...]

    @property
    def inputs(self):
        return self.arguments


@node
class Cast(Node):
    """The input rounded to `dtype` ("bfloat16", "float16") and back to fp32."""

    dtype: Any
    input: Node

    @property
    def inputs(self):
        return (self.input,)


@node
class Pairs(Node):
    """function(left, right) of two adjacent columns 2j and 2j + 1 of the input: column j of a result of half the width."""

    function: Callable
    input: Node

    @property
    def inputs(self):
        return (self.input,)


def halves(root: Node) -> bool:
    """Whether the result has half as many columns as the accumulator. ValueError when the accumulator is used outside of the
    pairs, too, or pairs are made of pairs: the widths would not fit."""
    found = any(isinstance(node, Pairs) for node in root.walk())
    if found:
        inner = below_pairs(root)
        outside = set()

        def visit(node: Node) -> None:
            if node not in outside:
                outside.add(node)
                for child in () if isinstance(node, Pairs) else node.inputs:
                    visit(child)

        visit(root)
        if any(isinstance(node, Accumulator) for node in outside) or any(isinstance(node, Pairs) for node in inner):
            raise ValueError("pairs(...) halves the width: what it is combined with must have the output's width")
        if any(isinstance(node, Operand) and not isinstance(node, Scalar) and node in outside for node in inner):
            raise ValueError("an operand stands both inside and outside of pairs(...): it has one width only")
    return found


def leaves(root: Node, kind: type = Operand) -> tuple[Node, ...]:
    """The leaves of a kind, each once, in the order of their slots."""
    found = [node for node in root.walk() if isinstance(node, kind)]
    return tuple(sorted(found, key=lambda node: getattr(node, "slot", 0)))


def below_pairs(root: Node) -> frozenset[Node]:
    """The nodes whose values still have the accumulator's columns, two for each of the result's."""
    return frozenset(inner for node in root.walk() if isinstance(node, Pairs) for inner in node.input.walk())


def slot_columns(root: Node, widths: list[int], registers: int) -> int:
    """Columns of a store slot: the first of `widths` with which a slab's operands fit into `registers` of a thread, or the one
    that comes nearest."""
    inner = below_pairs(root)

    def held(columns: int) -> int:
        found = 4 * max(0, len(leaves(root, Load)) - 1)  # their addresses
        for leaf in leaves(root):
            size = DTYPES[leaf.dtype].width // 8
            across = columns // 4 * (2 if leaf in inner else 1)  # a thread's columns
            words = -(-across * size // 4)
            found += {Scalar: 0, Column: 2, Row: words, Load: 2 * words}[type(leaf)]
        return found

    return next((w for w in widths if held(w) <= registers), min(widths, key=held))


class Slab:
    """The values of one slab's operand leaves in registers, and the evaluation of the tree on them.

    A thread's value v of a 64 x columns slab sits, as WGMMA leaves it, in row 16 * warp + lane / 4 + 8 * (v / 2 % 2) and column
    8 * (v / 4) + 2 * (lane % 4) + v % 2. Value v of a result of half the width comes from values 2v and 2v + 1, so it sits in
    row 16 * warp + lane / 4 + 8 * (v % 2) and column 4 * (v / 2) + lane % 4.
    Rows and columns beyond the output are read from its last ones; nobody stores them.
    """

    def __init__(self, root: Node, operands, columns: int):
        self.root = root
        self.operands = operands
        self.columns = columns  # of the result
        self.inner = below_pairs(root)
        self.halved = halves(root)

    def load(self, thread, m0, n0, shape):
        """Issue the loads of the slab whose corner is (m0, n0); shape: (M, N) of the output. Returns leaf -> values."""
        row = m0 + thread // 32 * 16 + thread % 32 // 4
        rows = [cutlass.min(row + i, shape[0] - 1) for i in (0, 8)]
        held = {}
        for leaf in leaves(self.root):
            data = self.operands[leaf.slot]
            single = self.halved and leaf not in self.inner
            if isinstance(leaf, Scalar):
                held[leaf] = data
            elif isinstance(leaf, Column):
                held[leaf] = [data[r] for r in rows]
            elif isinstance(leaf, Row):
                # addresses that are the same for every 64 rows of a tile are not to be kept from one to the next
                places = self.places(thread, n0 if leaves(self.root, Load) else opaque(n0), shape[1], single)
                held[leaf] = [data[s] for s in places] if single else [_pair(data, (2,), (p,)) for p in places]
            else:
                places = self.places(thread, n0, shape[1], single)
                held[leaf] = [[data[r, p] if single else _pair(data, (1, 2), (r, p)) for r in rows] for p in places]
        return held

    def places(self, thread, n0, columns, single: bool) -> list:
        """What a thread reads of a row of an operand whose slab begins at column n0 of the result: columns, if `single`, else
        pairs of columns by number. columns: of the output."""
        if single:
            return [cutlass.min(n0 + thread % 4 + i, columns - 1) for i in range(0, self.columns, 4)]
        wide = 2 if self.halved else 1  # accumulator columns of one of the result's
        first = n0 * wide + thread % 4 * 2
        return [cutlass.min(first + i, columns * wide - 2) // 2 for i in range(0, self.columns * wide, 8)]

    def prefetch(self, thread, threads: int, m0, n0, rows: int, columns: int, shape):
        """Ask L2 for the matrices' share of a tile, rows x columns from (m0, n0) on; its slabs are read when it is multiplied.

        thread: 0 to threads - 1 of those that share the tile."""
        for leaf in leaves(self.root, Load):
            data = self.operands[leaf.slot]
            wide = 2 if self.halved and leaf in self.inner else 1
            line = 128 * 8 // data.element_type.width  # columns of a cache line
            lines = -(-columns * wide // line)
            for i in range(-(-rows * lines // threads)):
                item = thread + threads * i
                row = cutlass.min(m0 + item % rows, shape[0] - 1)
                column = cutlass.min(n0 * wide + line * cutlass.min(item // rows, lines - 1), shape[1] * wide - 1)
                where = data.iterator + cute.crd2idx((row, column), data.layout)
                cute.arch.prefetch(where.llvm_ptr, cache_level="L2")

    def value(self, held, accumulator: Callable, v: int):
        """fp32 value number v of a thread's share of the result; accumulator(part, v) gives the accumulators."""
        known: dict[tuple[Node, int], Any] = {}

        def at(node: Node, v: int):
            if (node, v) not in known:
                known[node, v] = self._evaluate(node, v, held, accumulator, at)
            return known[node, v]

        return at(self.root, v)

    def _evaluate(self, node, v, held, accumulator, at):
        if isinstance(node, Accumulator):
            return accumulator(node.part, v)
        if isinstance(node, Scalar):
            return held[node]
        if isinstance(node, Operand):
            single = self.halved and node not in self.inner
            block, row, side = (v // 2, v % 2, None) if single else (v // 4, v // 2 % 2, v % 2)
            if isinstance(node, Column):
                return held[node][row].to(cutlass.Float32)
            found = held[node][block] if isinstance(node, Row) else held[node][block][row]
            return (found if single else found[side]).to(cutlass.Float32)
        if isinstance(node, Cast):
            return at(node.input, v).to(DTYPES[node.dtype]).to(cutlass.Float32)
        if isinstance(node, Pairs):
            return node.function(at(node.input, 2 * v), at(node.input, 2 * v + 1))
        return node.function(*(at(child, v) for child in node.inputs))


def opaque(x: cutlass.Int32) -> cutlass.Int32:
    """x, of which the compiler knows nothing: what is computed from it for one slab is not kept in registers for another."""
    moved = llvm.inline_asm(
        cutlass.Int32.mlir_type, [x.ir_value()], "mov.b32 $0, $1;", "=r,r", has_side_effects=True, asm_dialect=0
    )
    return cutlass.Int32(moved)


def _pair(data: cute.Tensor, tile: tuple, where: tuple) -> cute.Tensor:
    """Two adjacent values of global memory in registers, by one load."""
    values = cute.make_rmem_tensor((2,), data.element_type)
    cute.autovec_copy(cute.local_tile(data, tile, where)[(None,) if len(tile) == 1 else (0, None)], values)
    return values
