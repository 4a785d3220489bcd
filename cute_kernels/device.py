"""Which GPU is this, what can it run, how many CTAs and clusters fit. Answers are kept per device."""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Exact compute capability -> compile target. sm_90a and sm_100a code runs on these and on nothing else.
TARGETS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_100a"}


class UnsupportedDevice(RuntimeError):
    """The GPU, or the lack of one, rules the kernel out; the message says what is there and what is supported."""


def index_of(device: Any) -> int:
    """torch.device, string or index -> CUDA device index. Raises UnsupportedDevice for a device that is not CUDA's."""
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise UnsupportedDevice(f"{device} is not a CUDA device")
    return torch.cuda.current_device() if device.index is None else device.index


def target(device: Any = "cuda") -> str:
    """The compile target of a device by its exact capability: "sm_90a" or "sm_100a". Raises UnsupportedDevice."""
    if not torch.cuda.is_available():
        raise UnsupportedDevice("there is no CUDA GPU here; kernels can be compiled (compile_only), not called")
    return _target(index_of(device))


@functools.cache
def _target(index: int) -> str:
    capability = tuple(torch.cuda.get_device_capability(index))
    if capability not in TARGETS:
        raise UnsupportedDevice(
            f"{torch.cuda.get_device_name(index)} has compute capability {capability[0]}.{capability[1]}; supported are "
            "9.0 (H100, H200: sm_90a) and 10.0, 10.3 (B200, B300: sm_100a). swiglu(..., kernel='torch') runs everywhere"
        )
    return TARGETS[capability]


def sm_count(device: Any = "cuda") -> int:
    """Multiprocessors of a device."""
    return _sm_count(index_of(device))


@functools.cache
def _sm_count(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def max_clusters(device: Any, size: int) -> int:
    """How many clusters of `size` CTAs, one CTA per multiprocessor, are resident at once: the persistent grid."""
    return _max_clusters(index_of(device), size)


@functools.cache
def _max_clusters(index: int, size: int) -> int:
    if size == 1:
        return _sm_count(index)
    from cutlass.utils import HardwareInfo

    with torch.cuda.device(index):  # restored on any exit
        return HardwareInfo(index).get_max_active_clusters(size)


def forget() -> None:
    """Drop what is kept; for tests that mock a GPU."""
    for cached in (_target, _sm_count, _max_clusters):
        cached.cache_clear()


def driver_version() -> str | None:
    """CUDA version that the installed driver supports, such as "13.0"; None without a driver."""
    import ctypes

    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
