"""The one way to a compiled kernel, for finished kernels and notebook kernels alike.

`build` compiles a host function (`@cute.jit`) against fake tensors for an explicit target and returns a `Compiled`: the
callable (TVM-FFI, torch's current stream) together with PTX, cubin, SASS, registers, spills, shared memory and counts of
the instructions that matter. Nothing here needs a GPU or a driver; only calling the result does.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

ARCHS = ("sm_90a", "sm_100a")
SMEM_RESERVED = 1024  # bytes of every CTA that the system keeps, and cuobjdump counts, from SM90 on
DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16, "float32": cutlass.Float32}

#: SASS mnemonics worth counting: what each stands for in the source.
INSTRUCTIONS = {
    "HGMMA": "WGMMA, 16-bit operands (SM90)",
    "QGMMA": "WGMMA, 8-bit operands (SM90)",
    "UTMALDG": "TMA load",
    "UTMASTG": "TMA store",
    "STSM": "stmatrix",
    "SYNCS": "mbarrier operation",
    "USETMAXREG": "setmaxnreg",
    "WARPGROUP": "wgmma fence and wait",
    "UTCHMMA": "tcgen05.mma, 16-bit operands (SM100)",
    "UTCQMMA": "tcgen05.mma, 8-bit operands (SM100)",
    "UTCOMMA": "tcgen05.mma, 4-bit operands (SM100)",
    "LDTM": "tcgen05.ld (SM100)",
    "UTCBAR": "tcgen05.commit (SM100)",
    "MUFU.EX2": "ex2.approx",
    "MUFU.RCP": "rcp.approx",
    "CALL": "call of a device routine, such as a division",
    "LDL": "load from local memory (spill)",
    "STL": "store to local memory (spill)",
}

_lock = threading.RLock()  # the DSL keeps global state while it traces


class CompileError(RuntimeError):
    """The DSL refused a kernel; the message names the kernel, the target and the first cause."""


def fake_matrix(dtype: str, align: int = 16, major: str = "k") -> Any:
    """A (rows, columns) tensor of unknown extents for `build`: 16-byte aligned rows, 64-bit row pitch.

    dtype: "bfloat16", "float16" or "float32". align: bytes that the base pointer is known to be aligned to.
    major: "k", row-major; "mn", column-major (the transpose of a row-major one).
    """
    kind = DTYPES[dtype]
    step = align * 8 // kind.width
    shape = (cute.sym_int(), cute.sym_int(divisibility=step))
    stride = (cute.sym_int64(divisibility=step), 1)
    if major == "mn":  # rows of any number, only the pitch counts
        shape, stride = (cute.sym_int(), cute.sym_int()), stride[::-1]
    return make_fake_tensor(kind, shape, stride=stride, assumed_align=align)


def fake_vector(dtype: str, align: int = 16) -> Any:
    """A contiguous vector of unknown length for `build`."""
    return make_fake_tensor(DTYPES[dtype], (cute.sym_int(),), stride=(1,), assumed_align=align)


def env_stream() -> Any:
    """The stream argument of a host function: filled with torch's current stream at every call, never passed."""
    return make_fake_stream(use_tvm_ffi_env_stream=True)


@dataclass
class Compiled:
    """A compiled kernel. Call it with torch tensors and integers (not the stream) to launch it.

    name, target ("sm_90a", ...), ptx, cubin, seconds (compile time), and, read from the cubin on first use: sass,
    registers (per thread at launch), spill_bytes (per thread), smem_static and smem_dynamic (bytes per CTA) with their
    sum smem_bytes, of which an SM90 CTA can have 232,448, threads (per CTA) and instructions (static counts of
    `INSTRUCTIONS`). config and dtype are set for finished kernels.
    """

    name: str
    target: str
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    seconds: float
    smem_dynamic: int
    function: Callable = field(repr=False)
    config: Any = None
    dtype: str | None = None

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    @functools.cached_property
    def resources(self) -> dict[str, int]:
        """REG, STACK, LOCAL and SHARED of the cubin's kernel, as cuobjdump prints them."""
        text = _tool("cuobjdump", "--dump-resource-usage", cubin=self.cubin)
        found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text)}
        if "REG" not in found:
            raise CompileError(f"cuobjdump printed no resources for {self.name}: {text.strip()[:200]}")
        return found

    @functools.cached_property
    def sass(self) -> str:
        return _tool("nvdisasm", "-c", cubin=self.cubin)

    @property
    def registers(self) -> int:
        return self.resources["REG"]

    @property
    def spill_bytes(self) -> int:
        """Bytes of stack and local memory per thread; a kernel without local arrays has them only when it spills."""
        return self.resources.get("STACK", 0) + self.resources.get("LOCAL", 0)

    @property
    def smem_static(self) -> int:
        return max(0, self.resources.get("SHARED", 0) - SMEM_RESERVED)

    @property
    def smem_bytes(self) -> int:
        return self.smem_static + self.smem_dynamic

    @property
    def threads(self) -> int:
        found = re.search(r"\.(?:reqntid|maxntid) (\d+)(?:, (\d+))?(?:, (\d+))?", self.ptx)
        if not found:
            return 0
        x, y, z = (int(g or 1) for g in found.groups())
        return x * y * z

    @functools.cached_property
    def mnemonics(self) -> Counter:
        """Static counts of all SASS mnemonics with their modifiers."""
        return Counter(re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", self.sass, re.M))

    @property
    def instructions(self) -> dict[str, int]:
        """Static counts of the instructions that matter, those that occur only."""
        counts = {
            key: sum(n for name, n in self.mnemonics.items() if name == key or name.startswith(key + "."))
            for key in INSTRUCTIONS
        }
        return {key: n for key, n in counts.items() if n}


def build(
    host: Callable,
    args: Sequence[Any],
    *,
    arch: str = "sm_90a",
    name: str | None = None,
    options: str = "",
) -> Compiled:
    """Compile `host` (a `@cute.jit` function or an object with one as `__call__`) for `arch`, with or without a GPU.

    args: fake tensors (`fake_matrix`), integers and `env_stream()`, as the host function takes them.
    options: more DSL compile options, separated by spaces. Raises CompileError.
    """
    if arch not in ARCHS:
        raise ValueError(f"arch is {arch!r}, allowed: {', '.join(ARCHS)}")
    name = name or getattr(host, "__name__", type(host).__name__)
    with _lock, tempfile.TemporaryDirectory(prefix="cute_kernels_") as folder:
        flags = f"--gpu-arch {arch} --enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} {options}"
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Argument \w+ \(position \d+\) cannot be converted", UserWarning)
                function = cute.compile(host, *args, options=flags)  # an empty tuple of operands is what it warns of
            ptx, cubin = function.__ptx__, function.__cubin__
        except Exception as why:
            raise CompileError(f"{name} for {arch}: {_first_line(why)}") from why
        seconds = time.perf_counter() - began
        if not ptx or not cubin:
            raise CompileError(
                f"{name} for {arch}: the DSL kept no PTX or cubin; is another thread compiling past cute_kernels?"
            )
        if f".target {arch}" not in ptx:
            raise CompileError(f"{name} for {arch}: the PTX is for another target; options must not name one")
    _counter[arch] += 1
    return Compiled(name, arch, ptx, cubin, seconds, _dynamic_smem(str(function.ir_module)), function)


_counter: Counter = Counter()


def compile_counts() -> dict[str, int]:
    """How many kernels this process has compiled, per target."""
    return dict(_counter)


@contextlib.contextmanager
def count_compiles():
    """Context manager: a Counter that, after the block, holds what was compiled inside it, per target."""
    before, inside = Counter(_counter), Counter()
    yield inside
    inside.update(_counter - before)


def compile_only(
    kernel: str, *, arch: str | None = None, config: Any = None, dtype: Any = "bfloat16", epilogue: Any = None
) -> Compiled:
    """Compile a finished kernel without a GPU or a driver.

    kernel: a name from `kernels()`, such as "gemm". arch: the one that the kernel is written for, "sm_90a" for all of today's.
    config: one of the kernel's `.configs`, or another valid one; default: its first. dtype: "bfloat16", "float16" or the
    torch dtype. epilogue: for "gemm", an expression as its `epilogue=` takes it; of its tensors only the dtypes matter.
    Returns `Compiled`. Raises ValueError for what the kernel does not offer, ConfigError, CompileError.
    """
    from .epilogue import split
    from .hopper.kernel import Variant
    from .registry import get

    spec = get(kernel)
    if arch not in (None, spec.arch):
        raise ValueError(f"arch is {arch!r}, but kernel {spec.name!r} is written for {spec.arch}")
    if epilogue is not None and spec.gated:
        raise ValueError(f"kernel {spec.name!r} takes no epilogue: it has its own")
    return spec.compile(config, dtype, Variant(tree=None if epilogue is None else split(epilogue)[0]))


def dtype_name(dtype: Any) -> str:
    """torch.bfloat16 or "bfloat16" -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _dynamic_smem(module: str) -> int:
    """Bytes of dynamic shared memory that the compiled host code passes to cudaLaunchKernelEx (its config's third field)."""
    field_ = re.compile(
        r"(%\w+) = llvm\.getelementptr %\w+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, "
        r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
    )
    sizes = []
    for found in field_.finditer(module):
        stored = re.search(rf"llvm\.store (%\w+), {found[1]} : i64", module[found.end() :])
        if stored:
            constants = re.findall(rf"{stored[1]} = llvm\.mlir\.constant\((\d+) : i64\)", module[: found.start()])
            if constants:
                sizes.append(int(constants[-1]))
    return max(sizes, default=0)


def _tool(name: str, *flags: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([find_tool(name), *flags, file.name], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{name} failed ({done.returncode}): {done.stderr.strip()[:300]}")
    return done.stdout


@functools.cache
def find_tool(name: str) -> str:
    """Path of nvdisasm or cuobjdump: from the pip wheel, else from PATH."""
    for folder in sys.path:
        for candidate in (Path(folder) / "nvidia" / "cu13" / "bin" / name, Path(folder) / "nvidia" / "bin" / name):
            if candidate.is_file():
                return str(candidate)
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if not found:
        raise CompileError(f"{name} not found: pip install nvidia-cuda-{name}")
    return found


def _first_line(why: BaseException) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(why)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(why).__name__}: {' '.join(lines[:3])[:600]}"
