"""`python -m cute_kernels doctor`: what this machine can run, and what to mend."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import _require, records

TORCH = (2, 11)
PYTHON = ((3, 10), (3, 14))  # first that works, first that does not


@dataclass(frozen=True)
class Check:
    """One finding. ok: True, False (to be mended: `mend` says how), None (worth knowing, nothing is broken)."""

    name: str
    ok: bool | None
    detail: str
    mend: str = ""


def python() -> Check:
    good = PYTHON[0] <= sys.version_info[:2] < PYTHON[1]
    return Check("Python", good, platform.python_version(), "" if good else "use Python 3.10 to 3.13")


def torch_version() -> Check:
    try:
        import torch
    except ImportError as why:
        return Check("PyTorch", False, str(why), "pip install 'torch>=2.11'")
    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    return Check(
        "PyTorch",
        numbers >= TORCH,
        f"{torch.__version__}, {built}",
        "" if numbers >= TORCH else "pip install 'torch>=2.11'",
    )


def dsl_version() -> Check:
    found = _require.installed()
    wrong = _require.problem(found)
    if not found and importlib.util.find_spec("cutlass"):
        return Check("CuTe DSL", None, "importable, but installed without metadata: its version cannot be told")
    return Check(
        "CuTe DSL",
        wrong is None,
        wrong or f"{_require.DSL_VERSION}: " + ", ".join(sorted(found)),
        _require.INSTALL if wrong else "",
    )


def dsl_files() -> Check:
    """Do the files of every CuTe DSL distribution still have the hashes that its RECORD gives?

    Two distributions that hold the same path (the cu12 and cu13 libraries of different versions, say) overwrite each other;
    whichever came last wins, and the other's RECORD no longer fits. All files are hashed, about 1 GB.
    """
    broken: dict[str, list[str]] = {}
    count = 0
    for name in _require.installed():
        for file in metadata.distribution(name).files or []:
            if file.hash is None or file.name.endswith(".pyc"):
                continue
            count += 1
            path = Path(file.locate())
            if not path.is_file():
                broken.setdefault(name, []).append(f"{file} is missing")
            elif file_hash(path, file.hash.mode) != file.hash.value:
                broken.setdefault(name, []).append(f"{file} was overwritten")
    if not count:
        return Check("CuTe DSL files", None, "no RECORD to compare with")
    if broken:
        examples = "; ".join(f"{name}: {found[0]} (and {len(found) - 1} more)" for name, found in broken.items())
        return Check("CuTe DSL files", False, f"mixed installation: {examples}", _require.INSTALL)
    return Check("CuTe DSL files", True, f"{count} files as their RECORDs say")


def file_hash(path: Path, mode: str) -> str:
    """Hash of a file as a wheel's RECORD writes it: urlsafe base64 without padding."""
    with path.open("rb") as file:
        digest = hashlib.new(mode)
        while block := file.read(1 << 22):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def launcher() -> Check:
    good = importlib.util.find_spec("tvm_ffi") is not None
    return Check(
        "TVM-FFI", good, "importable" if good else "not installed", "" if good else "pip install apache-tvm-ffi"
    )


def tools() -> Check:
    from .compile import CompileError, find_tool

    try:
        found = [find_tool(name) for name in ("nvdisasm", "cuobjdump")]
    except CompileError as why:
        return Check("SASS tools", False, str(why), "pip install nvidia-cuda-nvdisasm nvidia-cuda-cuobjdump")
    return Check("SASS tools", True, ", ".join(Path(f).name for f in found))


def load_driver():
    """The CUDA driver library; OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def has_nvidia_gpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether the PCI bus holds a display or 3D controller of NVIDIA's, with or without a driver."""

    def is_one(device: Path) -> bool:
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            return False
        return vendor == "0x10de" and kind.startswith("0x03")

    return any(map(is_one, devices.glob("*")))


def driver() -> Check:
    try:
        library = load_driver()
    except OSError:
        if has_nvidia_gpu():
            mend = (
                "install the NVIDIA driver (580 or newer); a container is to be started with its GPUs, as by --gpus all"
            )
            return Check("NVIDIA driver", False, "none, though there is an NVIDIA GPU", mend)
        return Check("NVIDIA driver", None, "none: kernels can be compiled here, not run")
    version = ctypes.c_int()
    status = library.cuInit(0) or library.cuDriverGetVersion(ctypes.byref(version))
    if status:
        return Check(
            "NVIDIA driver", False, f"it is there but answers error {status}", "reinstall or reload the NVIDIA driver"
        )
    supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
    good = version.value >= 13000
    return Check(
        "NVIDIA driver",
        good,
        f"supports CUDA {supported}",
        "" if good else "update the driver: CUDA 13 is needed (580 or newer)",
    )


def gpus() -> list[Check]:
    import torch

    from .device import UnsupportedDevice, target

    if not torch.cuda.is_available():
        why = "" if torch.version.cuda else " (this torch is a CPU build)"
        return [Check("GPU", None, f"torch sees none{why}: compile only")]
    found = []
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            arch = target(index)
        except UnsupportedDevice as why:
            found.append(Check(f"GPU {index}", None, f"{why}"))
            continue
        what = (
            "runs all finished kernels"
            if arch == "sm_90a"
            else "compiles for sm_100a; the finished kernels need sm_90a"
        )
        found.append(Check(f"GPU {index}", True, f"{name}, {arch}: {what}"))
    return found


def compiling() -> Check:
    from .compile import CompileError, compile_only

    try:
        c = compile_only("gemm", arch="sm_90a")
    except CompileError as why:
        return Check("compiling", False, str(why), _require.INSTALL)
    return Check(
        "compiling",
        c.spill_bytes == 0,
        f"gemm for {c.target} in {c.seconds:.1f} s, {c.registers} registers, {c.spill_bytes} B spilled",
    )


def recorded() -> Check:
    from . import evidence

    rows = evidence.table()
    old = [e.name for e in rows if not e.current]
    if old:
        return Check("evidence", None, f"{len(rows) - len(old)} of {len(rows)} current; not: {', '.join(old)}")
    return Check("evidence", True, f"all {len(rows)} current")


CHECKS: tuple[Callable[[], Check | list[Check]], ...] = (
    python, torch_version, dsl_version, dsl_files, launcher, tools, driver, gpus, compiling, recorded,
)  # fmt: skip


def report(without: tuple[str, ...] = ()) -> list[Check]:
    """Every check but those named; one that fails by itself is a finding, not a stack trace."""
    found: list[Check] = []
    for check in CHECKS:
        if check.__name__ in without:
            continue
        try:
            result = check()
        except Exception as why:
            text = f"{type(why).__name__}: {str(why).strip().splitlines()[0][:300]}"
            mend = "" if isinstance(why, records.RecordError) else _require.INSTALL  # its text says what to do
            result = Check(check.__name__, False, text, mend)
        found.extend(result if isinstance(result, list) else [result])
    return found


def main(without: tuple[str, ...] = ()) -> int:
    """Print the report; 1 when something needs mending."""
    found = report(without)
    for check in found:
        word = {True: "ok", False: "MEND", None: "note"}[check.ok]
        print(f"{word:<5} {check.name:<16} {check.detail}")
        if check.mend:
            print(f"{'':<5} {'':<16} -> {check.mend}")
    broken = [check.name for check in found if check.ok is False]
    print(f"to mend: {', '.join(broken)}" if broken else "nothing to mend")
    return 1 if broken else 0
