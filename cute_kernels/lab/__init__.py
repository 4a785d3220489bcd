"""What the notebooks import: check (is it right?), bench (how fast?), show (what was compiled?), draw, exercises."""

from __future__ import annotations

import importlib

import torch

from .._target import use
from . import style

MODULES = (
    "bench",
    "check",
    "child",
    "claims",
    "draw",
    "exercises",
    "host",
    "ladder",
    "profile",
    "show",
    "timeline",
    "traffic",
)

#: torch sees a Hopper GPU: notebooks run their kernels. Without one they compile them and show what was recorded.
HAS_GPU: bool = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def __getattr__(name: str):
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def start(number: str, title: str) -> None:
    """First cell of a notebook: say where it runs and set the look of the figures."""
    from ..records import REFERENCE_GPU

    style.apply()
    if not HAS_GPU:
        use()  # layouts are probed on the host, for Hopper whatever is here
    if HAS_GPU:
        where = f"running on {torch.cuda.get_device_name()}; figures below are measured here and now"
    elif torch.cuda.is_available():
        where = f"{torch.cuda.get_device_name()} is no Hopper GPU: kernels are compiled, figures are recorded ({REFERENCE_GPU})"
    else:
        where = f"no GPU here: kernels are compiled and proven, not run; figures are recorded ({REFERENCE_GPU})"
    print(f"{number} {title}: {where}")
