"""Is the CuTe DSL that this package was written for installed? Asked at import, before anything of the DSL is imported."""

from __future__ import annotations

import sys
from importlib import metadata

DSL_VERSION = "4.8.1"
#: Distributions that make up one CuTe DSL; all must have the same version. The cu13 libraries may be missing on CUDA 12.
DISTRIBUTIONS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core")
OPTIONAL = ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")
INSTALL = f"pip install --force-reinstall 'nvidia-cutlass-dsl[cu13]=={DSL_VERSION}'"


def installed() -> dict[str, str]:
    """Version of each part of CuTe DSL that is installed."""
    found = {}
    for name in (*DISTRIBUTIONS, *OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def problem(found: dict[str, str]) -> str | None:
    """What is wrong with these versions, None when nothing is."""
    if "nvidia-cutlass-dsl" not in found:
        return "CuTe DSL (nvidia-cutlass-dsl) is not installed"
    wrong = {name: version for name, version in found.items() if version != DSL_VERSION}
    if len(wrong) == len(found):
        return f"CuTe DSL {found['nvidia-cutlass-dsl']} is installed, {DSL_VERSION} is needed"
    if wrong:
        parts = ", ".join(f"{name} {version}" for name, version in wrong.items())
        return f"the CuTe DSL installation is mixed: {parts} beside {DSL_VERSION}"
    missing = [name for name in DISTRIBUTIONS if name not in found]
    if not any(name in found for name in OPTIONAL):
        missing.append(" or ".join(OPTIONAL))
    return f"the CuTe DSL installation lacks {', '.join(missing)}" if missing else None


def asked_for_doctor() -> bool:
    """Is this process `python -m cute_kernels doctor`?"""
    return sys.orig_argv[-3:] == ["-m", "cute_kernels", "doctor"]


def require() -> None:
    """Raise ImportError with the mend when CuTe DSL is missing, of another version, mixed or incomplete.

    `python -m cute_kernels doctor` imports the package before it reaches its command; so that it can speak where the
    import fails, it runs here, before anything of the DSL is imported, and ends the process with its exit code.
    """
    import importlib.util

    if asked_for_doctor():
        from . import doctor

        sys.exit(doctor.main())
    found = installed()
    if not found and importlib.util.find_spec("cutlass") is not None:
        return  # unpacked without metadata: the version is checked where it can be read, by the doctor
    wrong = problem(found)
    if wrong:
        raise ImportError(f"cute_kernels: {wrong}. Mend it with: {INSTALL}")
