"""Without a GPU, CuTe DSL takes sm_100a for whatever names no target, and then refuses WGMMA in a host-side layout probe."""

import os

import torch


def default_target() -> None:
    """Make sm_90a the default on a machine without a GPU, unless the caller set CUTE_DSL_ARCH. `build` names its own."""
    if not torch.cuda.is_available():
        os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
