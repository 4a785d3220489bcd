"""Checkers of the exercises of notebook 01: the owner of an accumulator element, the byte of an operand element."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from ...hopper import tiles
from .. import draw
from . import Wrong, checker


def _integers(answer, names: str, question: str) -> tuple[int, ...]:
    wanted = names.split(", ")
    values = answer if isinstance(answer, tuple) else (answer,)
    if len(values) != len(wanted) or not all(isinstance(x, int) and not isinstance(x, bool) for x in values):
        raise Wrong(f"For {question} it returns {answer!r}; wanted: {names} as plain integers.")
    return values


@checker("01a")
def owner(owner_of):
    """(thread, value) that holds element (m, n) of an accumulator, against CuTe's own map."""
    for n, groups in ((8, 1), (64, 1), (24, 2)):
        for (thread, value), (row, column) in _accumulator(n, groups).items():
            got = _integers(owner_of(row, column), "thread, value", f"element ({row}, {column})")
            if got != (thread, value):
                raise Wrong(_explain_owner(got, (thread, value), row, column, n, groups))
        yield f"all {64 * groups * n} elements of a {64 * groups} x {n} accumulator have the owner that CuTe says"


def _accumulator(n: int, groups: int) -> dict[tuple[int, int], tuple[int, int]]:
    found = []
    rows = 64 * groups

    @cute.jit
    def probe():  # comprehensions stay Python; a for statement would become a loop of the traced program
        tv = tiles.tiled_mma(cutlass.BFloat16, n, groups).tv_layout_C_tiled
        found.extend(((t, v), tv((t, v))) for t in range(128 * groups) for v in range(n // 2))

    probe()
    return {who: (at % rows, at // rows) for who, at in found}


def _explain_owner(got, want, row, column, n, groups) -> str:
    text = f"Element ({row}, {column}) of a {64 * groups} x {n} accumulator: you say thread {got[0]}, value {got[1]}. "
    if got[0] // 128 != want[0] // 128:
        return text + "Each warp group owns 64 rows: rows 64.. belong to threads 128 and up."
    if got[0] // 32 != want[0] // 32:
        return text + "Each warp owns 16 rows of its warp group's 64: 16 rows a warp, not every fourth row."
    if got[0] // 4 != want[0] // 4:
        return text + "Within a warp, row r and row r + 8 belong to the same four threads: r % 8 picks them."
    if got[0] != want[0]:
        return (
            text
            + "Four threads share a row; each holds pairs of neighbouring columns, so (n // 2) % 4 picks the thread."
        )
    if got[1] % 2 != want[1] % 2:
        return text + "The thread is right. The two columns of a pair are neighbouring values: n % 2."
    if column < 8:
        return text + "The thread is right. Rows 8 further down are two values on: bit 1 of the value."
    return text + "The thread is right. Each further 8 columns add 4 values: 4 * (n // 8)."


@checker("01b")
def swizzled_byte(byte_of):
    """Byte of element (row, k) of a K-major bf16 operand under the 128-byte swizzle, against CuTe's layout."""
    offsets = []

    @cute.jit
    def probe():
        outer = tiles.operand_layout(cutlass.BFloat16, 128).outer
        offsets.extend(((row, k), outer((row, k))) for row in range(128) for k in range(64))

    probe()
    taken: dict[int, tuple[int, int]] = {}
    for (row, k), offset in offsets:
        (got,) = _integers(byte_of(row, k), "byte", f"element ({row}, {k})")
        if got in taken:
            raise Wrong(
                f"Elements {taken[got]} and ({row}, {k}) both lie at byte {got}: a layout puts each at its own place."
            )
        taken[got] = (row, k)
        want = int(draw.swizzle_bytes(2 * offset))
        if got != want:
            raise Wrong(_explain_byte(got, want, row, k))
    yield "all 8192 elements of a 128 x 64 operand lie at the byte that the hardware expects"
    for row in range(0, 128, 8):
        for k in range(0, 64, 8):
            passes = draw.bank_conflicts([byte_of(row + i, k) for i in range(8)])
            if passes != 1:
                raise Wrong(f"Rows {row}..{row + 7} of chunk {k // 8} take {passes} passes of the banks; wanted is 1.")
    yield "every phase of 8 rows x 16 bytes is free of bank conflicts"


def _explain_byte(got: int, want: int, row: int, k: int) -> str:
    text = f"Element ({row}, {k}): you say byte {got}, it lies at byte {want}. "
    plain = 128 * row + 2 * k
    if got == plain:
        return text + "That is the plain row-major place: the 16-byte chunks of row r are XORed with r % 8."
    if got % 16 != want % 16:
        return text + "The swizzle moves whole chunks of 16 bytes: the place inside a chunk stays 2 * (k % 8)."
    if got // 128 != want // 128:
        return text + "The swizzle moves chunks within their row of 128 bytes; the row starts at 128 * row."
    element = 64 * row + k
    if got == 2 * (element ^ ((element >> 7 & 7) << 4)):
        return (
            text
            + "You swizzled element offsets. The hardware XORs byte addresses: bits 4..6 with bits 7..9 of the byte."
        )
    return text + "In its row, chunk k // 8 goes to place (k // 8) XOR (row % 8)."
