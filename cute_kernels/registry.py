"""What there is: one `KernelSpec` per finished kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import compile as compiling
from .compile import Compiled, dtype_name, env_stream, fake_matrix
from .hopper import gemm, swiglu_stacked


@dataclass(frozen=True)
class KernelSpec:
    """A finished kernel.

    name, arch (its compile target), dtypes (names of torch dtypes), layouts (what each tensor must look like), configs
    (every configuration that a tuner may choose; each is accepted as `config=`), b_parts (B operands per accumulator),
    operands (tensors it takes, the output included), module (where it is written), evidence (recorded on which GPU,
    with how many cases and what worst error, current or stale).
    """

    name: str
    arch: str
    dtypes: tuple[str, ...]
    layouts: str
    configs: tuple[Any, ...]
    operands: int
    b_parts: int
    module: str
    factory: Callable[[Any, Any], Callable]

    def compile(self, config: Any = None, dtype: Any = "bfloat16") -> Compiled:
        """A fresh `Compiled` for one configuration and dtype; no GPU needed."""
        dtype = dtype_name(dtype)
        if dtype not in self.dtypes:
            raise ValueError(f"dtype is {dtype!r}, kernel {self.name!r} takes {', '.join(self.dtypes)}")
        config = self.check(config)
        host = self.factory(config, compiling.DTYPES[dtype])
        args = [*(fake_matrix(dtype) for _ in range(self.operands)), compiling.cutlass.Int32(1), env_stream()]
        compiled = compiling.build(host, args, arch=self.arch, name=self.name)
        compiled.config, compiled.dtype = config, dtype
        return compiled

    def check(self, config: Any = None) -> Any:
        """The configuration to use (the first when None), validated. Raises TypeError or ConfigError."""
        if config is None:
            return self.configs[0]
        if not isinstance(config, type(self.configs[0])):
            raise TypeError(
                f"config is a {type(config).__name__}, kernel {self.name!r} takes a {type(self.configs[0]).__name__}"
            )
        return config.validate(self.b_parts)

    @property
    def evidence(self):
        from .evidence import of_kernel

        return of_kernel(self)


_KERNELS = (
    KernelSpec(
        "gemm",
        "sm_90a",
        ("bfloat16", "float16"),
        "a (M, K), b (N, K), out (M, N): last dimension contiguous, rows 16-byte aligned; any M, N and K multiples of 8",
        gemm.CONFIGS,
        3,
        1,
        gemm.__name__,
        gemm.Gemm,
    ),
    KernelSpec(
        "swiglu_stacked",
        "sm_90a",
        ("bfloat16", "float16"),
        "x (M, K), w_gate and w_up (N, K), out (M, N): last dimension contiguous, rows 16-byte aligned; any M, "
        "N and K multiples of 8",
        swiglu_stacked.CONFIGS,
        4,
        2,
        swiglu_stacked.__name__,
        swiglu_stacked.SwigluStacked,
    ),
)


def kernels() -> tuple[KernelSpec, ...]:
    """Every finished kernel, one entry each."""
    return _KERNELS


def get(name: str) -> KernelSpec:
    """The kernel called `name`; ValueError with the names that exist."""
    for spec in _KERNELS:
        if spec.name == name:
            return spec
    raise ValueError(f"kernel is {name!r}, allowed: {', '.join(spec.name for spec in _KERNELS)}")
