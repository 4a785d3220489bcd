"""Without a GPU, CuTe DSL takes sm_100a for whatever names no target, and then refuses WGMMA in a host-side layout probe."""

import os
import sys

import torch

DEFAULT = "sm_90a"


def default_target() -> None:
    """Make sm_90a the default on a machine without a GPU, unless CUTE_DSL_ARCH says otherwise. `build` names its own."""
    if torch.cuda.is_available() or "CUTE_DSL_ARCH" in os.environ:
        return
    os.environ["CUTE_DSL_ARCH"] = DEFAULT
    if "cutlass" in sys.modules:  # imported before us: it has read the environment already
        from cutlass.cutlass_dsl import CuTeDSL

        CuTeDSL._get_dsl().envar.arch = DEFAULT
