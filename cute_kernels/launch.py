"""From checked arguments to a launch: which configuration, compiled once, on which device."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from . import cache, registry
from . import device as devices
from .compile import Compiled, dtype_name
from .hopper.choose import choose, prefers_fused
from .hopper.kernel import PLAIN, Variant

_compiled: dict[tuple, tuple[Compiled, int]] = {}
_compiling = threading.Lock()


@functools.lru_cache(maxsize=4096)
def _choice(name: str, m: int, n: int, k: int, sms: int, majors: tuple[str, str]):
    spec = registry.get(name)
    return choose(spec.fitting(majors), m, n, k, spec.blocks, sms)


def chosen(name: str, m: int, n: int, k: int, device: torch.device, majors: tuple[str, str] = PLAIN.majors) -> Any:
    """The configuration that `gemm` ("gemm") or `swiglu` ("swiglu_stacked") takes for a shape on this device."""
    return _choice(name, m, n, k, devices.sm_count(device), majors)


@functools.lru_cache(maxsize=4096)
def _prefers_fused(m: int, n: int, k: int, sms: int) -> bool:
    spec = registry.get("swiglu_stacked")
    return prefers_fused(spec.configs, m, n, k, spec.blocks, sms)


def fuses(x: torch.Tensor, n: int) -> bool:
    """Whether "auto" takes the fused kernel for x (M, K) and weights of n rows."""
    return _prefers_fused(x.shape[0], n, x.shape[1], devices.sm_count(x.device))


def launch(
    name: str,
    a: torch.Tensor,
    weights: tuple,
    out: torch.Tensor,
    config: Any,
    variant: Variant = PLAIN,
    operands: tuple = (),
) -> tuple[Compiled, int]:
    """Launch; returns what a later call of the same shapes needs: the compiled kernel and its persistent grid in clusters."""
    index = a.device.index
    if config is None:
        config = chosen(name, a.shape[0], out.shape[1], a.shape[1], a.device, variant.majors)
    key = (name, config, a.dtype, index, variant)
    try:
        entry = _compiled.get(key)
    except TypeError:  # an unhashable field of the configuration: say which
        registry.get(name).check(config, variant.majors)
        raise
    if entry is None:
        entry = load(key, a.device)
    kernel, clusters = entry
    call(kernel.function, index, a, *weights, out, clusters, operands, None)
    return entry


def call(function: Any, index: int, *args: Any) -> None:
    """A compiled function on the current stream of device `index`."""
    if index == torch.cuda.current_device():
        function(*args)
    else:
        with torch.cuda.device(index):
            function(*args)


def load(key: tuple, device: torch.device) -> tuple[Compiled, int]:
    name, config, dtype, _, variant = key
    spec = registry.get(name)
    config = spec.check(config, variant.majors)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{name} with config {config.name} is not compiled yet and a CUDA graph is being captured: call "
            "cute_kernels.warmup(...) or the function itself once before the capture"
        )
    with _compiling:
        if key not in _compiled:
            along_m, along_n = config.cluster
            kernel = cache.compiled(spec, config, dtype_name(dtype), variant)
            _compiled[key] = kernel, devices.max_clusters(device, along_m * along_n)
        return _compiled[key]
