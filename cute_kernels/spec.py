"""What a finished kernel is to the rest of the package, and how it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import compile as compiling
from .compile import Compiled, dtype_name, env_stream, fake_matrix, fake_vector
from .hopper import trace, visitor
from .hopper.config import ConfigError
from .hopper.kernel import PLAIN, Variant


@dataclass(frozen=True)
class KernelSpec:
    """A finished kernel.

    name, arch (its compile target), dtypes (names of torch dtypes), layouts (what each tensor must look like), configs
    (every configuration that a tuner may choose; each is accepted as `config=`), b_parts (weights that it is launched with),
    blocks (of tile_n weight rows in one stage), packed (one weight holds gate and up rows in turn), module (where it is written),
    evidence (recorded on which GPU, with how many cases and what worst error, current or stale).
    """

    name: str
    arch: str
    dtypes: tuple[str, ...]
    layouts: str
    configs: tuple[Any, ...]
    b_parts: int
    blocks: int
    module: str
    factory: Callable[[Any, Any, Variant], Callable]
    packed: bool = False

    def compile(self, config: Any = None, dtype: Any = "bfloat16", variant: Variant = PLAIN) -> Compiled:
        """A fresh `Compiled` for one configuration, dtype and variant; no GPU needed.

        It is launched with the matrices, the output, the largest number of clusters, the tuple of the tree's operands, and the
        tensor of events (None when not traced).
        """
        dtype = dtype_name(dtype)
        if dtype not in self.dtypes:
            raise ValueError(f"dtype is {dtype!r}, kernel {self.name!r} takes {', '.join(self.dtypes)}")
        config = self.check(config, variant.majors)
        host = self.factory(config, compiling.DTYPES[dtype], variant)
        matrices = [fake_matrix(dtype, major=variant.majors[0])]
        matrices += [fake_matrix(dtype, major=variant.majors[1]) for _ in range(self.b_parts)]
        operands = tuple(map(_fake_operand, visitor.leaves(variant.tree) if variant.tree else ()))
        events = fake_events() if variant.traced else None
        out = fake_matrix(variant.out_dtype or dtype)
        args = [*matrices, out, compiling.cutlass.Int32(1), operands, events, env_stream()]
        compiled = compiling.build(host, args, arch=self.arch, name=self.name)
        compiled.config, compiled.dtype = config, dtype
        return compiled

    def check(self, config: Any = None, majors: tuple[str, str] = ("k", "k")) -> Any:
        """The configuration to use (the first when None), validated. Raises TypeError or ConfigError."""
        if config is None:
            return self.configs[0]
        first = self.configs[0]
        if not isinstance(config, type(first)) or config.loops != first.loops:
            raise TypeError(
                f"config is a {type(config).__name__}, kernel {self.name!r} takes a {type(self.configs[0]).__name__}"
            )
        return config.validate(self.blocks, majors)

    def explain(self, config: Any = None) -> str:
        """One line for people: what a CTA of that configuration (default the first) owns, and what it costs."""
        return self.check(config).explain(self.blocks)

    @property
    def gated(self) -> bool:
        """Whether it is one of the SwiGLU kernels."""
        return self.packed or self.b_parts == 2

    def fitting(self, majors: tuple[str, str] = ("k", "k")) -> tuple[Any, ...]:
        """The configurations that operands of these majors allow."""

        def fits(config: Any) -> bool:
            try:
                config.validate(self.blocks, majors)
            except ConfigError:
                return False
            return True

        return tuple(filter(fits, self.configs))

    @property
    def evidence(self):
        from .evidence import of_kernel

        return of_kernel(self)


def _fake_operand(leaf: visitor.Operand) -> Any:
    if isinstance(leaf, visitor.Scalar):
        return compiling.cutlass.Float32(0.0)
    return fake_matrix(leaf.dtype) if isinstance(leaf, visitor.Load) else fake_vector(leaf.dtype)


def fake_events() -> Any:
    """The tensor of a traced launch: int64 (CTAs, roles, events)."""
    roles, capacity = len(trace.ROLES), trace.CAPACITY
    return compiling.make_fake_tensor(
        compiling.cutlass.Int64,
        (compiling.cute.sym_int(), roles, capacity),
        stride=(roles * capacity, capacity, 1),
        assumed_align=16,
    )
