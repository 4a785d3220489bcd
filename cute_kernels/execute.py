"""`python -m cute_kernels execute`: run the notebooks on this GPU, stamp them and keep their outputs and records."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import evidence, records


def run(file: Path, timeout: int = 600) -> float:
    """Execute one notebook in place in a fresh kernel, with records kept; returns seconds. Raises on a failing cell."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    began = time.perf_counter()
    os.environ["CUTE_KERNELS_RECORD"] = "1"
    NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": file.parent}}
    ).execute()
    seconds = time.perf_counter() - began
    nbformat.write(notebook, file)
    stamp(file)
    return seconds


def stamp(file: Path) -> None:
    """Say in an executed notebook where and when that was, and of which code; what differs from run to run is left out."""
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    for part in (notebook, *notebook["cells"]):
        part["metadata"].pop("execution", None)
    notebook["metadata"]["cute_kernels"] = {**records.stamp(), "digest": evidence.notebook_digest(notebook)}
    nbformat.write(notebook, file)


def main(files: list[str], force: bool = False) -> int:
    """Run the named notebooks, default all; without a GPU only with `force` (then they are stamped as run without one)."""
    if records.current_gpu() is None and not force:
        print(
            "execute keeps outputs of a Hopper GPU and there is none here; nbmake runs the notebooks without keeping them"
        )
        return 2
    bad = 0
    every = sorted(evidence.NOTEBOOKS.glob("*.ipynb"), key=lambda f: (f.name.startswith("00"), f.name))
    for file in [Path(f) for f in files] or every:  # 00 last: it draws what the others record
        try:
            print(f"{file.name:<34} {run(file):.0f} s", flush=True)
        except Exception as why:  # one broken notebook must not hide the state of the others
            bad += 1
            print(f"{file.name:<34} FAILED\n{str(why)[-3000:]}", flush=True)
    return 1 if bad else 0
