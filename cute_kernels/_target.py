"""Without a GPU, CuTe DSL takes sm_100a for whatever names no target, and then refuses WGMMA in a host-side layout probe."""

import contextlib
import os
import sys
from collections.abc import Iterator

import torch

DEFAULT = "sm_90a"


def default_target() -> None:
    """Make sm_90a the default on a machine without a GPU, unless CUTE_DSL_ARCH says otherwise. `build` names its own."""
    if not torch.cuda.is_available() and not os.environ.get("CUTE_DSL_ARCH"):
        use()


def use(arch: str = DEFAULT) -> None:
    """Make `arch` what CuTe DSL takes for everything that names no target."""
    os.environ["CUTE_DSL_ARCH"] = arch
    if "cutlass" in sys.modules:  # imported already: it has read the environment
        from cutlass.cutlass_dsl import CuTeDSL

        CuTeDSL._get_dsl().envar.arch = arch


@contextlib.contextmanager
def targeting(arch: str = DEFAULT) -> Iterator[None]:
    """`use(arch)` for a while: host-side probes of Hopper layouts need sm_90a, whatever GPU or variable is there."""
    from cutlass.cutlass_dsl import CuTeDSL

    variables = CuTeDSL._get_dsl().envar
    named, before = os.environ.get("CUTE_DSL_ARCH"), variables.arch
    use(arch)
    try:
        yield
    finally:
        variables.arch = before
        os.environ.pop("CUTE_DSL_ARCH", None)
        if named is not None:
            os.environ["CUTE_DSL_ARCH"] = named
