"""Recorded figures: JSON under notebooks/measured/<gpu>/, written by commands of this package and read by everything else.

A record is a dict; `save` adds a stamp (GPU, date, versions) to it. Without a checkout (an installed wheel) there are no
records: `load` returns None then, and callers say so.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "notebooks" / "measured"
REFERENCE_GPU = "h200"  # whose records are shown where there is no GPU


class RecordError(RuntimeError):
    """A record that cannot be read; the message names the file."""


def folder_name(gpu: str) -> str:
    """ "NVIDIA H200" -> "h200", "NVIDIA H100 80GB HBM3" -> "h100-80gb-hbm3"."""
    return gpu.lower().replace("nvidia", "").strip().replace(" ", "-")


def current_gpu() -> str | None:
    """Name of torch's current CUDA device, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def path(name: str, gpu: str | None = None) -> Path:
    """Where record `name` lies; gpu is a folder name, default: this GPU's, else the reference GPU's."""
    if gpu is None:
        here = current_gpu()
        gpu = folder_name(here) if here else REFERENCE_GPU
    return MEASURED / gpu / f"{name}.json"


def load(name: str, gpu: str = REFERENCE_GPU) -> dict[str, Any] | None:
    """The record `name` of the reference GPU (or of another folder), None when there is none."""
    file = path(name, gpu)
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text())
    except ValueError as why:
        raise RecordError(f"{file} is no JSON ({why}); restore it with git checkout, or record it again") from None


def save(name: str, record: dict[str, Any]) -> Path:
    """Write a record of this GPU, stamped. Atomic: a reader never sees half a file. RuntimeError without a GPU."""
    if current_gpu() is None:
        raise RuntimeError("records are measurements: they are written on a GPU only")
    file = path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps({"stamp": stamp(), **record}, indent=1) + "\n")
    part.replace(file)
    return file


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold record `name` of this GPU against other processes, from reading it to writing it."""
    file = path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stamp() -> dict[str, str]:
    """GPU, date (UTC) and the versions that matter, for a record's or a notebook's metadata."""
    import cutlass
    import torch

    return {
        "gpu": current_gpu() or "none",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "cutlass_dsl": cutlass.__version__,
        "python": platform.python_version(),
    }
