"""What was compiled: tables of resources and instructions, sources, excerpts of PTX and SASS."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

from ..compile import INSTRUCTIONS, Compiled


def facts(*compiled: Compiled, labels: list[str] | None = None):
    """One column per kernel, as a pandas DataFrame: target, registers, spills, shared memory, instruction counts."""
    import pandas as pd

    columns = {}
    for index, c in enumerate(compiled):
        label = labels[index] if labels else c.name
        columns[label] = {
            "target": c.target,
            "threads per CTA": c.threads,
            "registers per thread at launch": c.registers,
            "spilled bytes per thread": c.spill_bytes,
            "shared memory, bytes per CTA": c.smem_dynamic,
            "compile time, s": round(c.seconds, 1),
            **{f"{name}: {INSTRUCTIONS[name]}": count for name, count in c.instructions.items()},
        }
    table = pd.DataFrame(columns)
    return table.where(table.notna(), 0)


def source(what: Any, doc: bool = False):
    """Source of a function, class or module of this package, highlighted in a notebook; doc=False leaves docstrings out."""
    text = source_text(what)
    if not doc:
        text = _without_docstrings(text)
    try:
        from IPython import get_ipython
        from IPython.display import Code
    except ImportError:
        return print(text)
    return Code(text, language="python") if get_ipython() else print(text)


def source_text(what: Any) -> str:
    """Source of a function, class or module of a package, decorators included, as its file has it.

    `inspect` reads a function's code object, which the DSL exchanges when it first traces it: then the decorators are gone."""
    what = inspect.unwrap(what)
    if inspect.ismodule(what):
        return inspect.getsource(what)
    text = inspect.getsource(inspect.getmodule(what))
    node: Any = ast.parse(text)
    for name in what.__qualname__.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])) + "\n"


def _without_docstrings(text: str) -> str:
    lines: list[str | None] = list(text.splitlines())
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) or not body or len(body) < 2:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines[first.lineno - 1 : first.end_lineno] = [None] * (first.end_lineno - first.lineno + 1)
    return "\n".join(line for line in lines if line is not None).strip("\n")


def excerpt(text: str, pattern: str, around: int = 0, most: int = 12) -> list[str]:
    """Lines of `text` that match `pattern`, marked with '>', with `around` lines of context; at most `most` matches."""
    lines = [line.rstrip() for line in text.splitlines()]
    hits = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    shown: list[str] = []
    last = -1
    for i in hits[:most]:
        for j in range(max(last + 1, i - around), min(len(lines), i + around + 1)):
            if last >= 0 and j > last + 1 and around:
                shown.append("  ...")
            shown.append(f"{'>' if j in hits else ' '} {lines[j].strip()[:140]}")
            last = j
    shown.append(f"({len(hits)} lines match {pattern!r})")
    return shown


def ptx(compiled: Compiled, pattern: str, around: int = 0, most: int = 12) -> None:
    """Print the PTX lines that match."""
    print("\n".join(excerpt(compiled.ptx, pattern, around, most)))


def sass(compiled: Compiled, pattern: str, around: int = 0, most: int = 12) -> None:
    """Print the SASS lines that match."""
    print("\n".join(excerpt(compiled.sass, pattern, around, most)))
