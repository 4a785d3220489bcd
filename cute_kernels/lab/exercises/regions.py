"""The `# FILL (about n lines)` ... `# END FILL` regions of an exercise: found, emptied, compared."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

BEGIN = re.compile(r"^\s*# FILL \(about (\d+) lines?\)\s*$")
END = re.compile(r"^\s*# END FILL\s*$")


@dataclass(frozen=True)
class Region:
    """One region: its line budget and the lines between its markers."""

    budget: int
    lines: tuple[str, ...]

    @property
    def code(self) -> list[str]:
        """Its lines without blank lines and comment lines: what the budget counts."""
        return [line for line in self.lines if line.strip() and not line.strip().startswith("#")]

    @property
    def empty(self) -> bool:
        """Nothing is filled in: every statement is `...`, `pass`, a raise, or assigns `...`."""
        try:
            statements = ast.parse(textwrap.dedent("\n".join(self.lines))).body
        except SyntaxError:
            return False
        return all(_placeholder(statement) for statement in statements)


def _placeholder(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Pass, ast.Raise)):
        return True
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Constant) and value.value is ...


def split(source: str) -> tuple[list[str], list[Region]]:
    """(lines outside of the regions, with their markers; regions). Raises ValueError for markers that do not pair."""
    outside, regions = [], []
    budget, inside = None, []
    for number, line in enumerate(source.splitlines(), 1):
        begin, end = BEGIN.match(line), END.match(line)
        if (begin and budget is not None) or (end and budget is None):
            raise ValueError(f"line {number}: {line.strip()!r} has no partner")
        if begin:
            budget, inside = int(begin[1]), []
        elif end:
            regions.append(Region(budget, tuple(inside)))
            budget = None
        elif budget is not None:
            inside.append(line)
            continue
        outside.append(line)
    if budget is not None:
        raise ValueError("the last # FILL has no # END FILL")
    return outside, regions


def regions(source: str) -> list[Region]:
    return split(source)[1]


def cells(notebook: Path | str) -> list[tuple[str, str]]:
    """(cell type, source) of a notebook's cells."""
    import nbformat

    return [(cell.cell_type, cell.source) for cell in nbformat.read(notebook, as_version=4).cells]


def differences(exercise: Path | str, solution: Path | str) -> list[str]:
    """Where a solution differs from its exercise outside of the regions; empty when the two are in step."""
    ours, theirs = cells(exercise), cells(solution)
    found = [] if len(ours) == len(theirs) else [f"{len(ours)} cells in the exercise, {len(theirs)} in the solution"]
    for index, ((kind, text), (other, reference)) in enumerate(zip(ours, theirs, strict=False)):
        if kind != other:
            found.append(f"cell {index}: {kind} in the exercise, {other} in the solution")
            continue
        (left, holes), (right, filled) = split(text), split(reference)
        if left != right:
            line = next(
                (pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), ("", "(one is longer)")
            )
            found.append(f"cell {index}: {line[0].strip()!r} against {line[1].strip()!r}")
        if [r.budget for r in holes] != [r.budget for r in filled]:
            found.append(f"cell {index}: the line budgets differ")
    return found
