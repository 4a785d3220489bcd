"""Speed of the finished kernels beside PyTorch (peers.py: beside quack): contenders in turns, one run per table.

`bench --record` keeps the medians in notebooks/measured/<gpu>/bench.json, from which README and notebooks draw. Times are
microseconds with inputs that rotate through more than L2; only ratios within one run mean something, boards throttle.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from . import api, evidence, records, reference, validate
from . import launch as launching
from .models import QWEN25
from .registry import get, kernels
from .weights import Interleaved, interleave

GEMM_SIZES = (2048, 4096, 8192)
GEMM_ROWS = (1024, 2048, 4096, 8192)  # tokens of the gate-up GEMMs
DECODE_ROWS = (1, 16, 64, 256)
PREFILL_ROWS = (1024, 2048, 4096, 8192)
SWIGLU_ROWS = (*DECODE_ROWS, *PREFILL_ROWS)
AUTO = "auto"
UNFUSED = ("eager", "torch.compile", "stacked + pointwise")


#: what the tables call a contender
NAMES = {
    "gemm": "bare GEMM",
    "swiglu_pingpong": "Kernel-1",
    "swiglu_interleaved": "Kernel-2",
    "swiglu_stacked": "stacked",
}


@dataclass(frozen=True)
class Inputs:
    """One set of inputs of a SwiGLU benchmark: x (M, K); both (2N, K), rows of gate and then of up; out (M, N)."""

    x: torch.Tensor
    both: torch.Tensor
    out: torch.Tensor

    @property
    def gate(self) -> torch.Tensor:
        return self.both[: self.out.shape[1]]

    @property
    def up(self) -> torch.Tensor:
        return self.both[self.out.shape[1] :]

    @functools.cached_property
    def packed(self) -> Interleaved:
        """gate and up in turn; made when it is first asked for, in the run that warms up."""
        return interleave(self.gate, self.up)


def _pointwise(y: torch.Tensor) -> torch.Tensor:
    n = y.shape[1] // 2
    return F.silu(y[:, :n]) * y[:, n:]


def swiglu_contenders(compiled: bool = True, fused: bool = True) -> dict[str, Callable[[Inputs], torch.Tensor]]:
    """name -> function of `Inputs`. "gemm" is the bare cuBLAS GEMM of the same size, no contender. compiled: torch.compile among
    them; fused: every kernel of ours by itself, not only what "auto" picks."""
    found: dict[str, Callable[[Inputs], torch.Tensor]] = {"eager": lambda s: reference.eager(s.x, s.gate, s.up)}
    if compiled:
        torch._dynamo.config.recompile_limit = 1024
        whole, pointwise = torch.compile(reference.eager, dynamic=False), torch.compile(_pointwise, dynamic=False)
        found["torch.compile"] = lambda s: whole(s.x, s.gate, s.up)
        found["stacked + pointwise"] = lambda s: pointwise(F.linear(s.x, s.both))
    found["gemm"] = lambda s: F.linear(s.x, s.both)
    if fused:
        found["swiglu_pingpong"] = lambda s: api.swiglu(s.x, s.gate, s.up, kernel="pingpong")
        found["swiglu_interleaved"] = lambda s: api.swiglu_interleaved(s.x, s.packed)
        found["swiglu_stacked"] = lambda s: api.swiglu(s.x, s.gate, s.up, kernel="stacked")
    found[AUTO] = lambda s: api.swiglu(s.x, s.gate, s.up)
    return found


def time_swiglu(model: str, m: int, contenders: dict[str, Callable], rounds: int = 7) -> dict[str, Any]:
    """One row: the model's gate-up MLP on m tokens, every contender in turns, and each one's error against fp32."""
    from .lab import bench

    k, n = QWEN25[model]
    sets = bench.input_sets(
        lambda: Inputs(*bench.swiglu_operands(m, n, k)), bytes_per_set=2 * (2 * n * k + m * k + m * n), most=8
    )
    first = sets[0]
    ref = reference.swiglu(first.x, first.gate, first.up)
    row: dict[str, Any] = {"model": model, "M": m, "N": n, "K": k, "sets": len(sets), "error": {}, "off": {}}
    for name, fn in contenders.items():
        if name != "gemm":
            out = fn(first)
            row["error"][name] = validate.relative_error(out, ref)
            row["off"][name] = round(reference.off_share(out, ref), 7)
            del out
    del ref
    times = bench.turns({name: [lambda s=s, fn=fn: fn(s) for s in sets] for name, fn in contenders.items()}, rounds)
    row.update(bench.figures(times))
    row["configs"] = {
        spec.name: launching.chosen(spec.name, m, n, k, first.x.device).name for spec in kernels() if spec.gated
    }
    return row


def gemm_shapes() -> dict[str, tuple[int, int, int]]:
    """label -> (M, N, K): cubes, and each model's gate and up projections as one GEMM of 2N columns."""
    found = {f"{size}^3": (size, size, size) for size in GEMM_SIZES}
    for model, (k, n) in QWEN25.items():
        found.update({f"{model} M={m}": (m, 2 * n, k) for m in GEMM_ROWS})
    return found


def time_gemm(m: int, n: int, k: int, rounds: int = 7) -> dict[str, Any]:
    """One row: a bf16 GEMM, (m, k) times (n, k) transposed, beside cuBLAS."""
    from .lab import bench

    spec = get("gemm")

    def make() -> list[torch.Tensor]:
        a, b = validate.inputs(spec, m, n, k, torch.bfloat16)
        return [a, b, a.new_empty(m, n)]

    sets = bench.input_sets(make, bytes_per_set=2 * (m * k + n * k + m * n))
    times = bench.turns(
        {
            "cuBLAS": [lambda s=s: torch.mm(s[0], s[1].T, out=s[2]) for s in sets],
            "gemm": [lambda s=s: api.gemm(s[0], s[1], out=s[2]) for s in sets],
        },
        rounds=rounds,
    )
    config = launching.chosen("gemm", m, n, k, sets[0][0].device)
    return {
        "size": [m, n, k],
        "config": config.name,
        **bench.figures(times),
    }


def speedup(row: dict[str, Any], over: str, ours: str = AUTO) -> float:
    """Their time / ours: above 1 means that ours is faster."""
    return row["us"][over] / row["us"][ours]


def summary(ratios: Iterable[float]) -> tuple[float, float]:
    """(geometric mean, minimum)"""
    found = list(ratios)
    return math.exp(sum(map(math.log, found)) / len(found)), min(found)


def print_row(label: str, row: dict[str, Any], flops: float) -> None:
    cells = (f"{name} {us:.1f} us ({flops / us / 1e6:.0f} TFLOP/s)" for name, us in row["us"].items())
    print(f"{label:<14} " + "   ".join(cells), flush=True)


def swiglu_rows(record: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows of a record's SwiGLU table, [] when there is none."""
    return (record or {}).get("swiglu", {}).get("rows", [])


def best_unfused(row: dict[str, Any]) -> float:
    """Microseconds of the fastest way without a fused kernel."""
    return min(us for name, us in row["us"].items() if name in UNFUSED)


def main(
    record: bool = False,
    models: str = ",".join(QWEN25),
    rows: str = ",".join(map(str, SWIGLU_ROWS)),
    compiled: bool = True,
) -> int:
    """Time everything on this GPU and print it; `record` keeps it."""
    from .lab import bench, ladder

    if not torch.cuda.is_available():
        print("bench needs a Hopper GPU; `python -m cute_kernels demo` shows what is recorded")
        return 2
    with torch.no_grad():
        ceilings = bench.ceilings()
        gemm_rows = []
        wanted = models.split(",")
        for label, shape in gemm_shapes().items():
            if label.endswith("^3") or label.split()[0] in wanted:
                gemm_rows.append({"label": label, **time_gemm(*shape)})
                print_row(label, gemm_rows[-1], 2.0 * math.prod(shape))
                torch.cuda.empty_cache()
        contenders = swiglu_contenders(compiled)
        found = []
        for model in wanted:
            for m in map(int, rows.split(",")):
                found.append(time_swiglu(model, m, contenders))
                print_row(f"{model} M={m}", found[-1], 4.0 * m * math.prod(QWEN25[model]))
                torch.cuda.empty_cache()
    mean, least = summary(speedup(r, "cuBLAS", "gemm") for r in gemm_rows)
    print(f"gemm: cuBLAS / ours: geometric mean {mean:.3f}, min {least:.3f}")
    for what, some in (("decode", DECODE_ROWS), ("prefill", PREFILL_ROWS)):
        for over, mean, least in summaries([r for r in found if r["M"] in some]):
            print(f"{what}: {over} / auto: geometric mean {mean:.3f}, min {least:.3f}")
    if record:
        entries: dict[str, Any] = {"gemm": {"digest": evidence.bench_digest(get("gemm").module), "rows": gemm_rows}}
        for spec in kernels():
            if spec.gated:
                entries[spec.name] = {"digest": evidence.bench_digest(spec.module), "cases": len(found)}
        with torch.no_grad():
            records.save("ladder", ladder.measure())
        kept = {"ceilings": dict(ceilings), "kernels": entries, "swiglu": {"rows": found}}
        file = records.save("bench", kept)
        print("recorded in", file.relative_to(records.ROOT))
    return 0


def summaries(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(contender, geometric mean of its time over auto's, minimum) of SwiGLU rows; last the best unfused one of each row."""
    found = []
    for over in (*UNFUSED, "gemm"):
        ratios = [speedup(r, over) for r in rows if over in r["us"]]
        if ratios:
            found.append((over, *summary(ratios)))
    if rows:
        found.append(("best unfused", *summary(best_unfused(r) / r["us"][AUTO] for r in rows)))
    return found
