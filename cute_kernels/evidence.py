"""Is what was measured still about today's code? Digests of sources against those in the records and notebooks.

A kernel's digest covers its module and every module of this package that it imports, comments, docstrings and blank lines
left out: a change of prose asks for nothing. That of its numerics covers compilation, references and the validation too,
that of its speed the choice of configurations, the calls and the benchmark. A notebook's covers its code cells, the kernel
parts (hopper/, blackwell/) that they import, compilation, and what measures and checks in it; the ladder's the cells of its
steps.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import json
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import records
from ._require import DSL_VERSION

PACKAGE = Path(__file__).resolve().parent
NOTEBOOKS = records.ROOT / "notebooks"
KERNEL_ROOMS = ("hopper", "blackwell")


@dataclass(frozen=True)
class Evidence:
    """What is recorded of one kernel or notebook.

    status: "current", "stale" (of other code, or of another CuTe DSL), "failed" (it lists failures), "missing".
    """

    name: str
    gpu: str
    date: str
    cases: int
    worst_error: float | None
    status: str

    @property
    def current(self) -> bool:
        return self.status == "current"


def code_only(source: str) -> str:
    """Source text without comments, docstrings, blank lines and trailing spaces; the same on every Python version."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not body:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            for row in range(first.lineno - 1, first.end_lineno):  # what shares a line with it stays
                raw = lines[row].encode()  # ast counts columns in bytes
                begin = first.col_offset if row == first.lineno - 1 else 0
                end = first.end_col_offset if row == first.end_lineno - 1 else len(raw)
                lines[row] = (raw[:begin] + raw[end:]).decode()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def module_file(module: str) -> Path | None:
    """ "cute_kernels.hopper.gemm" -> its file, None when it is not a module of this package."""
    base = PACKAGE.parent.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file() and PACKAGE in candidate.parents:
            return candidate
    return None


def imports(source: str, module: str = "") -> set[str]:
    """Modules of this package that `source` names in import statements; `module` resolves relative ones."""
    package = module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        found.update(name for name in names if module_file(name))
    return found


@functools.cache
def closure(module: str) -> tuple[str, ...]:
    """The module and every module of this package that it needs, sorted; package __init__ files hold no kernel code."""
    seen, todo = set(), [module]
    while todo:
        name = todo.pop()
        file = module_file(name)
        if file and name not in seen and file.name != "__init__.py":
            seen.add(name)
            todo.extend(imports(file.read_text(), name))
    return tuple(sorted(seen))


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def kernel_digest(module: str) -> str:
    """Digest of what affects the kernel written in `module`."""
    return digest([f"{name}\n{_code(name)}" for name in closure(module)])


def _code(module: str) -> str:
    return code_only(module_file(module).read_text())


MADE = (
    "cute_kernels.cache",
    "cute_kernels.compile",
    "cute_kernels.device",
    "cute_kernels.registry",
    "cute_kernels.spec",
)  # what else decides what is launched

JUDGED = (
    *MADE,
    "cute_kernels.reference",
    "cute_kernels.validate",
    "cute_kernels.weights",
)  # what else decides a figure of validation.json

TREES = ("cute_kernels.epilogue", "cute_kernels.hopper.activation")  # what users' trees are made of

TIMED = (
    *MADE,
    "cute_kernels.api",
    "cute_kernels.plans",
    "cute_kernels.launch",
    "cute_kernels.hopper.choose",
    "cute_kernels.models",
    "cute_kernels.reference",
    "cute_kernels.unfused",
    "cute_kernels.weights",
    "cute_kernels.benchmark",
    "cute_kernels.lab.bench",
)  # what else decides a figure of bench.json


CALLED = (
    *MADE,
    *TREES,
    "cute_kernels.api",
    "cute_kernels.launch",
    "cute_kernels.ops",
    "cute_kernels.plans",
    "cute_kernels.reference",
    "cute_kernels.unfused",
    "cute_kernels.weights",
)  # what else decides what a public function does


@functools.cache
def validation_digest(module: str) -> str:
    """Digest of what affects the recorded numerics of the kernel written in `module`. Trees of the user's are gemm's alone."""
    trees = TREES if module.endswith(".gemm") else ()
    return digest([kernel_digest(module), *map(_code, (*JUDGED, *trees))])


@functools.cache
def bench_digest(module: str) -> str:
    """Digest of what affects the recorded speed of the kernel written in `module`."""
    return digest([kernel_digest(module), *map(_code, TIMED)])


@functools.cache
def ladder_digest() -> str:
    """Digest of what affects the recorded ladder: the steps' kernel cells with what they import, `gemm` and the benchmark."""
    from .lab import ladder

    steps = [cell for step in ladder.STEPS for cell in (*ladder.cells(step), step.build)]
    return digest([cells_digest(steps), bench_digest("cute_kernels.hopper.gemm"), _code("cute_kernels.lab.ladder")])


@functools.cache
def fuzz_digest() -> str:
    """Digest of what affects random calls of the public functions: kernels, the way to them, how calls are drawn and judged."""
    from .registry import kernels

    file = records.ROOT / "tests" / "fuzzing.py"
    drawn = code_only(file.read_text()) if file.is_file() else ""
    judged = ("cute_kernels.hopper.choose", "cute_kernels.validate")
    return digest([*(kernel_digest(spec.module) for spec in kernels()), *map(_code, (*CALLED, *judged)), drawn])


@functools.cache
def peers_digest() -> str:
    """Digest of what affects the recorded speed beside a peer."""
    return digest([bench_digest("cute_kernels.hopper.swiglu_stacked"), _code("cute_kernels.peers")])


def notebook_digest(notebook: dict[str, Any]) -> str:
    """Digest of a notebook's code cells (outputs left out) and of the kernel parts that they import."""
    return cells_digest(["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"])


#: what a cell runs that it does not import: a call, and the modules that decide what it does; of those in the kernel rooms all
#: that they need counts too
CALLS = {
    "ck.gemm(": ("cute_kernels.hopper.gemm", "cute_kernels.hopper.choose"),
    "ck.swiglu(": ("cute_kernels.hopper.swiglu_stacked", "cute_kernels.hopper.choose"),
    "ck.swiglu_interleaved(": ("cute_kernels.hopper.swiglu_interleaved", "cute_kernels.hopper.choose"),
    'kernel="pingpong"': ("cute_kernels.hopper.swiglu_pingpong",),
    'kernel="interleaved"': ("cute_kernels.hopper.swiglu_interleaved",),
    '"swiglu_stacked"': ("cute_kernels.hopper.swiglu_stacked",),
    '"swiglu_pingpong"': ("cute_kernels.hopper.swiglu_pingpong",),
    '"swiglu_interleaved"': ("cute_kernels.hopper.swiglu_interleaved",),
    "ck.kernels()": ("cute_kernels.hopper.gemm",),
    "ep.": ("cute_kernels.hopper.visitor", "cute_kernels.hopper.activation"),
    "lab.bench.": ("cute_kernels.lab.bench", "cute_kernels.models", "cute_kernels.reference"),
    "lab.check.": ("cute_kernels.lab.check", "cute_kernels.lab.bench", "cute_kernels.reference"),
    "lab.timeline.": ("cute_kernels.lab.timeline", "cute_kernels.hopper.trace"),
    "lab.profile.": ("cute_kernels.lab.profile",),
    "lab.claims.": ("cute_kernels.lab.claims", "cute_kernels.benchmark"),
    "lab.ladder.": ("cute_kernels.lab.ladder",),
    "traffic.": ("cute_kernels.lab.traffic", "cute_kernels.validate"),
    "reference.": ("cute_kernels.reference",),
    "weights.": ("cute_kernels.weights",),
    "benchmark.": ("cute_kernels.benchmark",),
    "QWEN25": ("cute_kernels.models",),
    "lab.host.": (  # the way to the kernels: host times, operators, fusion
        *CALLED,
        "cute_kernels.fusion",
        "cute_kernels.gradient",
        "cute_kernels.modules",
        "cute_kernels.lab.host",
    ),
}


def _in_kernel_room(module: str) -> bool:
    return module.startswith(tuple(f"cute_kernels.{room}" for room in KERNEL_ROOMS))


def cells_digest(cells: list[str]) -> str:
    parts = set()
    for cell in cells:
        for call, modules in CALLS.items():
            if call in cell:
                for module in modules:
                    parts.update(closure(module) if _in_kernel_room(module) else (module,))
        code = "\n".join(line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!")))
        for name in imports(code):
            if _in_kernel_room(name):
                parts.update((*closure(name), *MADE))
    return digest([*cells, *(f"{name}\n{_code(name)}" for name in sorted(parts))])


def _status(recorded: str, today: str, stamp: dict[str, Any]) -> str:
    return "current" if recorded == today and stamp["cutlass_dsl"] == DSL_VERSION else "stale"


def of_kernel(spec: Any, gpu: str = records.REFERENCE_GPU) -> Evidence:
    """What validation.json says of a kernel on one GPU."""
    entry = ((records.load("validation", gpu) or {}).get("kernels") or {}).get(spec.name)
    if not entry:
        return Evidence(spec.name, gpu, "", 0, None, "missing")
    status = "failed" if entry["failures"] else _status(entry["digest"], validation_digest(spec.module), entry["stamp"])
    return Evidence(
        spec.name,
        entry["stamp"]["gpu"],
        entry["stamp"]["date"],
        entry["cases"],
        entry["worst_error"],
        status,
    )


def of_notebook(file: Path) -> Evidence:
    """What a notebook's metadata says: executed where, when, and on today's code or not."""
    notebook = json.loads(file.read_text())
    mark = notebook.get("metadata", {}).get("cute_kernels")
    ran = [c for c in notebook["cells"] if c["cell_type"] == "code" and c.get("outputs")]
    if not mark or not ran:
        return Evidence(file.name, "", "", 0, None, "missing")
    status = _status(mark["digest"], notebook_digest(notebook), mark)
    return Evidence(file.name, mark["gpu"], mark["date"], len(ran), None, status)


def of_bench(gpu: str = records.REFERENCE_GPU) -> list[Evidence]:
    """What bench.json says, one entry per kernel that it timed."""
    from .registry import kernels

    record = records.load("bench", gpu) or {}
    found = []
    for spec in kernels():
        entry = (record.get("kernels") or {}).get(spec.name)
        if not entry:
            found.append(Evidence(f"{spec.name} (bench)", gpu, "", 0, None, "missing"))
            continue
        stamp = record["stamp"]
        status = _status(entry["digest"], bench_digest(spec.module), stamp)
        cases = entry["cases"] if "cases" in entry else len(entry["rows"])
        found.append(Evidence(f"{spec.name} (bench)", stamp["gpu"], stamp["date"], cases, None, status))
    return found


def _of_run(
    record_name: str, what: str, gpu: str, today: Callable[[], str], cases: Callable[[list[dict[str, Any]]], int]
) -> Evidence:
    """What a record of one run and its rows says."""
    record = records.load(record_name, gpu)
    if not record:
        return Evidence(what, gpu, "", 0, None, "missing")
    stamp = record["stamp"]
    status = _status(record["digest"], today(), stamp)
    return Evidence(what, stamp["gpu"], stamp["date"], cases(record["rows"]), None, status)


def of_ladder(gpu: str = records.REFERENCE_GPU) -> Evidence:
    """What ladder.json says: every step of the course in one run."""
    return _of_run("ladder", "ladder (bench)", gpu, ladder_digest, lambda rows: sum(len(row["us"]) for row in rows))


def of_peers(gpu: str = records.REFERENCE_GPU) -> Evidence:
    """What peers.json says: `swiglu` beside quack."""
    return _of_run("peers", "swiglu beside quack", gpu, peers_digest, len)


def of_fuzz(gpu: str = records.REFERENCE_GPU) -> Evidence:
    """What fuzz.json says: random calls of the public functions, all seeds together."""
    record = records.load("fuzz", gpu)
    if not record or not record.get("seeds"):
        return Evidence("random calls (fuzz)", gpu, "", 0, None, "missing")
    seeds, stamp = record["seeds"].values(), record["stamp"]
    said = {_status(s["digest"], fuzz_digest(), s) for s in seeds}
    status = "current" if said == {"current"} else "stale"
    cases, worst = sum(s["cases"] for s in seeds), max(s["worst_error"] for s in seeds)
    return Evidence("random calls (fuzz)", stamp["gpu"], stamp["date"], cases, worst, status)


def table() -> list[Evidence]:
    """Every kernel's numerics and speed, the ladder, a peer, random calls, then every notebook."""
    from .registry import kernels

    return [
        *(of_kernel(spec) for spec in kernels()),
        *of_bench(),
        of_ladder(),
        of_peers(),
        of_fuzz(),
        *(of_notebook(file) for file in sorted(NOTEBOOKS.glob("*.ipynb"))),
    ]


def main() -> int:
    """Print the table; 1 when anything is stale or missing."""
    try:
        rows = table()
    except records.RecordError as why:
        print(why)
        return 1
    print(f"{'what':<34} {'GPU':<14} {'date':<11} {'cases':>6} {'worst error':>12}  status")
    for e in rows:
        worst = "" if e.worst_error is None else f"{e.worst_error:.5f}"
        print(f"{e.name:<34} {e.gpu:<14} {e.date:<11} {e.cases or '':>6} {worst:>12}  {e.status}")
    bad = [e for e in rows if not e.current]
    print(f"{len(rows) - len(bad)} of {len(rows)} current")
    if bad:
        print("refresh on a Hopper GPU: python -m cute_kernels validate --record, bench --record, execute")
    return 1 if bad else 0
