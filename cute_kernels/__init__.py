"""CuTe Kernel Cookbook: finished Hopper kernels in CuTe DSL, and what the notebooks that teach them stand on.

    import cute_kernels as ck
    y = ck.swiglu(x, w_gate, w_up)        # silu(x @ w_gate.T) * (x @ w_up.T), one kernel
    y = ck.gemm(a, b)                     # a @ b.T
    ck.compile_only("gemm", arch="sm_90a").registers   # no GPU needed

Importing needs no GPU and no driver; it raises ImportError with the mend when CuTe DSL is missing or of another version.
"""

from ._require import require

require()

from ._target import default_target  # noqa: E402

default_target()

from . import ops, reference  # noqa: E402, F401
from .api import gemm, swiglu, swiglu_interleaved, warmup  # noqa: E402
from .compile import (  # noqa: E402
    Compiled,
    CompileError,
    build,
    compile_counts,
    compile_only,
    count_compiles,
    env_stream,
    fake_matrix,
    fake_vector,
)
from .device import UnsupportedDevice  # noqa: E402
from .fusion import Fusion, fuse, fuse_compiled  # noqa: E402
from .hopper.config import ConfigError, TileConfig  # noqa: E402
from .modules import SwiGLU, SwiGLUMLP  # noqa: E402
from .registry import KernelSpec, kernels  # noqa: E402
from .weights import Interleaved, deinterleave, interleave  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "CompileError",
    "Compiled",
    "ConfigError",
    "Fusion",
    "Interleaved",
    "KernelSpec",
    "SwiGLU",
    "SwiGLUMLP",
    "TileConfig",
    "UnsupportedDevice",
    "build",
    "compile_counts",
    "compile_only",
    "count_compiles",
    "deinterleave",
    "env_stream",
    "fake_matrix",
    "fake_vector",
    "fuse",
    "fuse_compiled",
    "gemm",
    "interleave",
    "kernels",
    "reference",
    "swiglu",
    "swiglu_interleaved",
    "warmup",
]
