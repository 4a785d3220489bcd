"""`python -m cute_kernels peers`: `ck.swiglu` beside quack's gemm_gated, autotuned, in turns, in one run.

quack (https://github.com/Dao-AILab/quack, `pip install quack-kernels`) is the fastest other fused SwiGLU on Hopper that we know
of. It is no dependency: where it is not installed the command says so. Its weights are interleaved before the clock starts.
`--record` keeps the medians in notebooks/measured/<gpu>/peers.json, from which README draws.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from . import benchmark, evidence, records
from .benchmark import AUTO, DECODE_ROWS, PREFILL_ROWS, SWIGLU_ROWS, Inputs, speedup, summary
from .models import QWEN25

QUACK = "quack"
PACKAGE = "quack-kernels"
RECORD = "peers"


class PeerMissing(RuntimeError):
    """A peer cannot be timed here; the message says why and what to do."""


def quack() -> Callable[[Inputs], torch.Tensor]:
    """quack's gated GEMM as a function of `Inputs`. Raises PeerMissing."""
    try:
        from quack.gemm_interface import gemm_act
        from quack.gemm_runtime import identity
    except ImportError as why:
        raise PeerMissing(f"quack cannot be imported ({why}): pip install {PACKAGE}") from why
    exact = identity.semantic_value_key

    def key(value: Any, seen: Any) -> Any:
        """Its cache knows no name for some objects of newer releases of CuTe DSL; any fixed one serves a benchmark."""
        try:
            return exact(value, seen)
        except TypeError:
            return type(value).__qualname__, getattr(value, "__name__", "")

    identity.semantic_value_key = key

    def call(s: Inputs) -> torch.Tensor:
        gemm_act(s.x, s.packed.tensor.T, activation="swiglu", store_preact=False, postact_out=s.out, tuned=True)
        return s.out

    return call


def main(
    record: bool = False,
    models: str = ",".join(QWEN25),
    rows: str = ",".join(map(str, SWIGLU_ROWS)),
    seconds: float = math.inf,
) -> int:
    """Time both on this GPU and print the ratios; `record` keeps them. No new shape is begun after so many seconds."""
    if not torch.cuda.is_available():
        print("peers needs a Hopper GPU; README.md shows what is recorded")
        return 2
    try:
        theirs = quack()
    except PeerMissing as why:
        print(why)
        return 2
    usual = benchmark.swiglu_contenders(compiled=False, fused=False)
    contenders = {name: usual[name] for name in ("eager", "gemm")} | {QUACK: theirs, AUTO: usual[AUTO]}
    found, began = [], time.perf_counter()
    shapes = list(itertools.product(models.split(","), map(int, rows.split(","))))
    with torch.no_grad():
        for model, m in shapes:
            if time.perf_counter() - began > seconds:
                print(f"out of time: {len(shapes) - len(found)} of {len(shapes)} shapes are left out")
                break
            found.append(benchmark.time_swiglu(model, m, contenders))
            benchmark.print_row(f"{model} M={m}", found[-1], 4.0 * m * math.prod(QWEN25[model]))
            torch.cuda.empty_cache()
    for what, mean, least in ratios(found):
        print(f"{what}: quack / auto: geometric mean {mean:.3f}, min {least:.3f}")
    print(f"{time.perf_counter() - began:.0f} s, most of it quack's tuning")
    if record:
        version = importlib.metadata.version(PACKAGE)
        file = records.save(RECORD, {"digest": evidence.peers_digest(), QUACK: version, "rows": found})
        print("recorded in", file.relative_to(records.ROOT))
    return 0


def ratios(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """("decode" or "prefill", geometric mean of quack's time over ours, minimum), where there are such rows."""
    found = []
    for what, some in (("decode", DECODE_ROWS), ("prefill", PREFILL_ROWS)):
        of = [speedup(r, QUACK) for r in rows if r["M"] in some]
        if of:
            found.append((what, *summary(of)))
    return found


def table(record: dict[str, Any] | None) -> str:
    """quack's time over ours, a row per model, a column per M, in Markdown."""
    if not record:
        return "Not recorded yet.\n"
    rows = record["rows"]
    tokens = sorted({r["M"] for r in rows})
    by = {(r["model"], r["M"]): speedup(r, QUACK) for r in rows}
    lines = ["| Qwen-2.5 | " + " | ".join(f"M = {m}" for m in tokens) + " |", "|---" * (len(tokens) + 1) + "|"]
    for model in dict.fromkeys(r["model"] for r in rows):
        lines.append(
            f"| {model} | " + " | ".join(f"{by[model, m]:.2f}" if (model, m) in by else "" for m in tokens) + " |"
        )
    said = "; ".join(f"{what}: geometric mean {mean:.3f}, minimum {least:.3f}" for what, mean, least in ratios(rows))
    return (
        f"quack {record[QUACK]}'s time over `ck.swiglu`'s (above 1: ours is faster), both in turns in one run, its configuration "
        f"found by its own tuner, its weights packed before. {said}.\n\n" + "\n".join(lines) + "\n"
    )
