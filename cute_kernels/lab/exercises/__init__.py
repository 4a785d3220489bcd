"""Exercises: `check("02a", answer)` says what is right, what is wrong and why, and what this machine could not check.

A checker is a generator registered with `@checker("02a")`. It takes the learner's answer (functions or values),
yields one sentence for each thing that it has shown to hold, yields `NotRun(...)` for what it cannot check here, and
raises `Wrong` with the fault in the learner's terms. Checkers live in one module per notebook: nb01.py, nb02.py, ...
The tools that they share: `regions` (the FILL regions), `simulator` (mbarriers, TMA, WGMMA groups and warps in
Python), `harness` (the kernels into which a learner's functions are compiled, and their run on a GPU in a child
process).
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..._target import targeting
from . import regions

__all__ = ["ExerciseFailed", "NotRun", "Verdict", "Wrong", "check", "checker", "examine"]

_checkers: dict[str, Callable[..., Iterator[Any]]] = {}


class Wrong(Exception):
    """Raised by a checker: what is wrong, in the learner's terms."""


@dataclass(frozen=True)
class NotRun:
    """Yielded by a checker: what was not checked, and what it needs. Printed as "not run", never as passed."""

    what: str


@dataclass
class Verdict:
    """What a checker found. `right`: nothing wrong was found. `complete`: and nothing was left unchecked."""

    exercise: str
    shown: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    wrong: str | None = None

    @property
    def right(self) -> bool:
        return self.wrong is None

    @property
    def complete(self) -> bool:
        return self.right and not self.not_run

    def __str__(self) -> str:
        if self.wrong is not None:
            head = "not yet"
        else:
            head = "passed" if self.complete else "right as far as this machine can check"
        rows = [("ok", line) for line in self.shown]
        rows += [("wrong", self.wrong)] if self.wrong is not None else [("not run", line) for line in self.not_run]
        return "\n".join([f"{self.exercise}: {head}", *(f"  {word:8}{_hang(text)}" for word, text in rows)])

    __repr__ = __str__


def _hang(text: str) -> str:
    return ("\n" + " " * 10).join(part for line in text.splitlines() for part in textwrap.wrap(line, 108))


class ExerciseFailed(AssertionError):
    """The answer is not right yet. Jupyter shows the verdict alone, without a stack trace."""

    def __init__(self, verdict: Verdict):
        super().__init__(str(verdict))
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self.verdict)]


def checker(exercise: str):
    """Register a generator function as the checker of an exercise, such as "02a"."""

    def register(function: Callable[..., Iterator[Any]]):
        _checkers[exercise] = function
        return function

    return register


def check(exercise: str, *answer: Any, **named: Any) -> None:
    """Check an answer and print the verdict. Raises ExerciseFailed when something is wrong."""
    verdict = examine(exercise, *answer, **named)
    if not verdict.right:
        raise ExerciseFailed(verdict)
    print(verdict)


def examine(exercise: str, *answer: Any, **named: Any) -> Verdict:
    """Check an answer and return the verdict, whatever it is."""
    verdict = Verdict(exercise)
    values = (*answer, *named.values())
    try:
        for value in values:
            _require_filled(value)
        with targeting():
            for finding in _find(exercise)(*answer, **named):
                if isinstance(finding, NotRun):
                    verdict.not_run.append(finding.what)
                else:
                    verdict.shown.append(finding)
    except Wrong as why:
        verdict.wrong = str(why)
    except Exception as why:
        verdict.wrong = _learners_error(why, values)
        if verdict.wrong is None:
            raise
    return verdict


def _find(exercise: str) -> Callable[..., Iterator[Any]]:
    if exercise not in _checkers and re.fullmatch(r"\d\d[a-z]", exercise):
        try:
            importlib.import_module(f"{__name__}.nb{exercise[:2]}")
        except ModuleNotFoundError as why:
            if why.name != f"{__name__}.nb{exercise[:2]}":
                raise
    if exercise not in _checkers:
        raise ValueError(f"there is no exercise {exercise!r}")
    return _checkers[exercise]


def python(function: Callable) -> Callable:
    """The plain Python function under `@cute.jit` or any other wrapper."""
    return inspect.unwrap(function)


def file_of(function: Callable) -> str:
    """The file, or the notebook cell, in which a function was written; "" for what is not Python."""
    code = getattr(python(function), "__code__", None)
    return code.co_filename if code else ""


def _require_filled(value: Any) -> None:
    if value is ...:
        raise Wrong("A value is still `...`: fill in the code between # FILL and # END FILL, then run that cell again.")
    if not inspect.isfunction(value):
        return
    try:
        holes = regions.regions(inspect.getsource(python(value)))
    except (OSError, TypeError, ValueError):
        return  # no source, or a marker was lost: the checker proper will tell
    for number, hole in enumerate(holes, 1):
        if hole.empty:
            which = f"region {number} of " if len(holes) > 1 else ""
            raise Wrong(
                f"{which}`{value.__name__}` is not filled in yet (about {hole.budget} line{'s' * (hole.budget > 1)})."
            )


def _learners_error(why: BaseException, values: tuple) -> str | None:
    """An exception out of the learner's code as a sentence; None when none of his code was running."""
    files = {file_of(value) for value in values if inspect.isfunction(value)}
    frames = [frame for frame in traceback.extract_tb(why.__traceback__) if frame.filename in files]
    if not frames:
        return None
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno).strip()
    return f"`{last.name}` raised {type(why).__name__}: {why}\nat line {last.lineno} of its cell: {line}"
