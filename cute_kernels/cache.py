"""Compiled kernels on disk, so that a second process compiles nothing.

One file an entry, in CUTE_KERNELS_CACHE_DIR, else XDG_CACHE_HOME/cute_kernels, else ~/.cache/cute_kernels; CUTE_KERNELS_CACHE=0
keeps nothing. An entry's name is a digest of all that the kernel depends on: configuration, dtype, variant, target, versions of
CuTe DSL and TVM-FFI, the machine, and the sources it is written in. Entries are written whole or not at all; one that cannot be
read is made again; a folder that cannot be written costs a warning and the time to compile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cutlass.cute as cute

from . import evidence
from ._require import DSL_VERSION
from .compile import Compiled
from .hopper.kernel import Variant
from .spec import KernelSpec

FORMAT = 1  # of an entry
FUNCTION = "kernel"  # its name in every object file
SOURCES = ("cute_kernels.compile", "cute_kernels.spec")  # beside those of the kernel itself


def folder() -> Path | None:
    """Where entries lie, None when CUTE_KERNELS_CACHE=0."""
    if os.environ.get("CUTE_KERNELS_CACHE", "1") in ("", "0"):
        return None
    if given := os.environ.get("CUTE_KERNELS_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cute_kernels"


def compiled(spec: KernelSpec, config: Any, dtype: str, variant: Variant) -> Compiled:
    """As `spec.compile`, from disk where it can be; what had to be compiled is kept there."""
    where, name = folder(), key(spec, config, dtype, variant)
    if where is None or name is None:
        return spec.compile(config, dtype, variant)
    file = where / f"{name}.zip"
    found = load(file)
    if found is None:
        with _alone(file):  # of all threads and processes that want it, one compiles
            found = load(file)
            if found is None:
                found = spec.compile(config, dtype, variant)
                store(file, found)
    found.config, found.dtype = config, dtype
    return found


def key(spec: KernelSpec, config: Any, dtype: str, variant: Variant) -> str | None:
    """The name of an entry; None for a variant with functions that are not this package's: what they read is not known."""
    tree = None if variant.tree is None else _described(variant.tree)
    if variant.tree is not None and tree is None:
        return None
    parts = {
        "format": FORMAT,
        "kernel": spec.name,
        "arch": spec.arch,
        "config": [type(config).__qualname__, dataclasses.asdict(config)],
        "dtype": dtype,
        "variant": [variant.out_dtype, variant.majors, variant.traced, variant.early_weights, tree],
        "versions": [DSL_VERSION, importlib.metadata.version("apache-tvm-ffi")],
        "machine": [platform.system(), platform.machine()],
        "sources": _sources(spec.module),
    }
    return f"{spec.name}-{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]}"


@functools.cache
def _sources(module: str) -> list[str]:
    return [evidence.kernel_digest(module), *map(evidence.kernel_digest, SOURCES)]


def _described(value: Any) -> Any:
    """A tree as plain data that is the same in every process, None when a part of it cannot be told."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if isinstance(value, tuple):
        parts = [_described(v) for v in value]
        return None if None in parts else parts
    if isinstance(value, types.BuiltinFunctionType) and value.__module__ == "_operator":
        return value.__name__
    if isinstance(value, types.FunctionType) and (value.__module__ or "").startswith("cute_kernels."):
        held = _described(tuple(cell.cell_contents for cell in value.__closure__ or ()))
        return None if held is None else [value.__module__, value.__qualname__, held]
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("cute_kernels."):
        fields = {f.name: _described(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return None if None in fields.values() else [type(value).__qualname__, fields]
    return None


def load(file: Path) -> Compiled | None:
    """An entry, None when there is none that can be read."""
    try:
        with zipfile.ZipFile(file) as entry:
            if entry.testzip() is not None:
                return None
            about = json.loads(entry.read("about.json"))
            ptx, cubin, code = entry.read("kernel.ptx").decode(), entry.read("kernel.cubin"), entry.read("host.o")
        with tempfile.NamedTemporaryFile(suffix=".o") as object_file:
            object_file.write(code)
            object_file.flush()
            module = cute.runtime.load_module(object_file.name, enable_tvm_ffi=True)
            function = module[FUNCTION]
        made = Compiled(about["name"], about["target"], ptx, cubin, about["seconds"], about["smem_dynamic"], function)
        made.module = module  # the function's code lives as long as it does
        return made
    except FileNotFoundError:
        return None
    except Exception:  # half a file, another format: whatever it is, it is made again
        return None


def store(file: Path, made: Compiled) -> None:
    """Keep an entry; a folder that cannot be written costs a warning."""
    about = {"name": made.name, "target": made.target, "seconds": made.seconds, "smem_dynamic": made.smem_dynamic}
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".making-") as making:
            code, part = Path(making) / "host.o", Path(making) / "entry"
            made.function.export_to_c(str(code), function_name=FUNCTION)
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as entry:
                entry.writestr("about.json", json.dumps(about))
                entry.writestr("kernel.ptx", made.ptx)
                entry.writestr("kernel.cubin", made.cubin)
                entry.write(code, "host.o")
            os.replace(part, file)
    except OSError as why:
        _warn(file.parent, why)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold an entry against other threads and processes, where the folder allows it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open(file.with_suffix(".lock"), "w")
    except OSError as why:
        _warn(file.parent, why)
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clear() -> int:
    """Delete every entry; returns how many there were."""
    where, count = folder(), 0
    for file in where.glob("*.zip") if where else ():
        file.unlink(missing_ok=True)
        file.with_suffix(".lock").unlink(missing_ok=True)
        count += 1
    return count


@functools.cache
def _warn(where: Path, why: OSError) -> None:
    warnings.warn(
        f"compiled kernels are not kept in {where} ({why.strerror or why}): every process compiles them anew; set "
        "CUTE_KERNELS_CACHE_DIR to a folder that can be written, or CUTE_KERNELS_CACHE=0",
        stacklevel=2,
    )
