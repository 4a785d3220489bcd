"""Speed of the finished kernels beside PyTorch and, where installed, quack: contenders in turns, one run per table.

`bench --record` keeps the medians in notebooks/measured/<gpu>/bench.json, from which README and notebooks draw. Times are
microseconds with inputs that rotate through more than L2; only ratios within one run mean something, boards throttle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from . import api, evidence, records, validate
from . import launch as launching
from .models import QWEN25
from .registry import get

GEMM_SIZES = (2048, 4096, 8192)
GEMM_ROWS = (1024, 2048, 4096, 8192)  # tokens of the gate-up GEMMs
SWIGLU_ROWS = (1, 16, 64, 256, 1024, 4096)


def eager(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w_gate)) * F.linear(x, w_up)


def swiglu_contenders(compiled: bool = True) -> dict[str, Callable]:
    """name -> function of (x, w_gate, w_up). "gemm" is the bare cuBLAS GEMM of the same size, no contender."""
    found: dict[str, Callable] = {"eager": eager}
    if compiled:
        torch._dynamo.config.recompile_limit = 512
        found["torch.compile"] = torch.compile(eager, dynamic=False)
    found["stacked kernel"] = lambda x, g, u: api.swiglu(x, g, u, kernel="stacked")
    found["ours (auto)"] = api.swiglu
    return found


def time_swiglu(model: str, m: int, contenders: dict[str, Callable], rounds: int = 7) -> dict[str, Any]:
    """One row: the model's gate-up MLP on m tokens, every contender in turns, and each one's error against fp32."""
    from .lab import bench

    k, n = QWEN25[model]
    spec = get("swiglu_stacked")
    sets = bench.input_sets(
        lambda: validate.inputs(spec, m, n, k, torch.bfloat16), bytes_per_set=2 * (2 * n * k + m * k + m * n)
    )
    ref = validate.expected(spec, sets[0])
    row: dict[str, Any] = {"model": model, "M": m, "N": n, "K": k, "sets": len(sets)}
    row["error"] = {name: validate.relative_error(fn(*sets[0]), ref) for name, fn in contenders.items()}
    del ref
    calls = {name: [lambda s=s, fn=fn: fn(*s) for s in sets] for name, fn in contenders.items()}
    both = [(x, torch.cat([g, u])) for x, g, u in sets]
    calls["gemm"] = [lambda s=s: F.linear(*s) for s in both]
    times = bench.turns(calls, rounds=rounds)
    row["us"] = {name: round(t.median_us, 2) for name, t in times.items()}
    row["spread"] = {name: round(t.spread, 4) for name, t in times.items()}
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
        "us": {name: round(t.median_us, 2) for name, t in times.items()},
        "spread": {name: round(t.spread, 4) for name, t in times.items()},
    }


def speedup(row: dict[str, Any], over: str, ours: str = "ours (auto)") -> float:
    """Their time / ours: above 1 means that ours is faster."""
    return row["us"][over] / row["us"][ours]


def summary(ratios: Iterable[float]) -> tuple[float, float]:
    """(geometric mean, minimum)"""
    found = list(ratios)
    return math.exp(sum(map(math.log, found)) / len(found)), min(found)


def print_row(label: str, row: dict[str, Any], flops: float) -> None:
    cells = (f"{name} {us:.1f} us ({flops / us / 1e6:.0f} TFLOP/s)" for name, us in row["us"].items())
    print(f"{label:<14} " + "   ".join(cells), flush=True)


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
        swiglu_rows = []
        for model in wanted:
            for m in map(int, rows.split(",")):
                swiglu_rows.append(time_swiglu(model, m, contenders))
                print_row(f"{model} M={m}", swiglu_rows[-1], 4.0 * m * math.prod(QWEN25[model]))
                torch.cuda.empty_cache()
    entries = {
        spec.name: {"digest": evidence.bench_digest(spec.module), "rows": found}
        for spec, found in ((get("gemm"), gemm_rows), (get("swiglu_stacked"), swiglu_rows))
    }
    mean, least = summary(speedup(r, "cuBLAS", "gemm") for r in gemm_rows)
    print(f"gemm: cuBLAS / ours: geometric mean {mean:.3f}, min {least:.3f}")
    for over in ("eager", "torch.compile", "gemm"):
        ratios = [speedup(r, over) for r in swiglu_rows if over in r["us"]]
        if ratios:
            mean, least = summary(ratios)
            print(f"{over} / ours: geometric mean {mean:.3f}, min {least:.3f}, max {max(ratios):.3f}")
    if record:
        with torch.no_grad():
            records.save("ladder", ladder.measure())
        file = records.save("bench", {"ceilings": dict(ceilings), "kernels": entries})
        print("recorded in", file.relative_to(records.ROOT))
    return 0
