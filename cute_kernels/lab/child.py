"""Code that may hang or corrupt memory runs in a child process with a time limit: a deadlock costs seconds, not the session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import records

MARK = "# kernel"  # first line of a notebook cell that `kernel_cells` collects
STOPPED = 97  # exit code of a child that ran out of the time it gave itself


@dataclass(frozen=True)
class Outcome:
    """finished: it ended by itself within the limit; returncode (None when stopped), seconds, stdout, stderr."""

    finished: bool
    returncode: int | None
    seconds: float
    stdout: str
    stderr: str

    def __str__(self) -> str:
        if not self.finished:
            return f"HANG: stopped after {self.seconds:.0f} s\n{self.stdout}"
        errors = [line for line in self.stderr.splitlines() if re.match(r"[\w.]+Error: ", line)]
        tail = "" if not self.returncode else "\n" + (errors[-1] if errors else self.stderr.strip()[-300:])
        said = self.stdout or ("" if tail or torch.cuda.is_available() else "compiled only, not run: no GPU here\n")
        return f"exit code {self.returncode} after {self.seconds:.0f} s\n{said}{tail}"


def trial(what: str, source: str, seconds: float = 60, right: bool = False) -> Outcome:
    """`run`, and print what came of it. AssertionError when it is to be `right` and is not, or, without a GPU, when it does not
    even compile: a planted fault that shows as another one teaches nothing."""
    outcome = run(source, seconds)
    print(f"{what}: {outcome}")
    sound = outcome.finished and outcome.returncode == 0
    assert sound or not right and torch.cuda.is_available(), f"{what}: {outcome.stderr[-2000:]}"
    assert "CompileError" not in outcome.stderr, outcome.stderr[-2000:]
    return outcome


def kernel_cells(history: Iterable[str]) -> str:
    """The cells of IPython's `In` that begin with '# kernel', joined: a module that the DSL can trace from a file. Of a cell that
    was run again, known by its first line, the last version stands, in the first one's place."""
    cells = {}
    for cell in history:
        if cell.startswith(MARK):
            cells[cell.splitlines()[0]] = cell
    return "\n\n".join(cells.values())


def edit(source: str, old: str, new: str) -> str:
    """source with `old`, which must stand there exactly once, replaced: a planted fault that cannot silently miss."""
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands {source.count(old)} times in the source, must be once")
    return source.replace(old, new)


def stop_after(seconds: float) -> None:
    """Called in the child when everything is imported and compiled: end this process `seconds` from now, unless it is done."""

    def stop() -> None:
        sys.stdout.flush()
        os._exit(STOPPED)  # nothing less leaves a kernel that does not end

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()


def run(source: str, seconds: float = 60) -> Outcome:
    """Run Python source as a file of its own (the DSL reads kernels from files) and stop it after `seconds`, start and
    compilation included; see `stop_after` for what comes behind them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "child.py"
        file.write_text(source)
        path = os.pathsep.join([str(records.ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", str(file)],
                capture_output=True,
                text=True,
                timeout=seconds,
                env={**os.environ, "PYTHONPATH": path},
            )
        except subprocess.TimeoutExpired as why:
            said = why.stdout.decode() if isinstance(why.stdout, bytes) else why.stdout or ""
            return Outcome(False, None, time.perf_counter() - began, said, "")
        stopped = done.returncode == STOPPED
        code = None if stopped else done.returncode
        return Outcome(not stopped, code, time.perf_counter() - began, done.stdout, done.stderr)
