"""`python -m cute_kernels demo`: the fused kernels on Qwen-2.5 shapes against PyTorch; without a GPU, compiled and shown."""

from __future__ import annotations

import math

import torch

from . import compile as compiling
from . import evidence, records
from .benchmark import AUTO, speedup, swiglu_contenders, swiglu_rows, time_swiglu
from .device import UnsupportedDevice, target
from .models import QWEN25
from .registry import kernels

MODELS = ("0.5B", "7B")
ROWS = (1024, 4096)
LIMIT = 0.004  # relative error against fp32: PyTorch's own in bf16 is 0.0036


def status() -> None:
    """The evidence word of every finished kernel."""
    for spec in kernels():
        e = evidence.of_kernel(spec)
        worst = "" if e.worst_error is None else f", worst relative error {e.worst_error:.5f}"
        print(
            f"  {spec.name:<16} {spec.arch}  {len(spec.configs)} configs  "
            f"evidence: {e.status} ({e.cases} cases on {e.gpu}{worst})"
        )


def live() -> int:
    """Run on this GPU; 1 when a result is wrong or slower than eager."""
    print(f"{torch.cuda.get_device_name()}: silu(x @ w_gate.T) * (x @ w_up.T) in bf16, medians of contenders in turns")
    status()
    bad = 0
    contenders = swiglu_contenders(compiled=False, fused=False)
    with torch.no_grad():
        for model in MODELS:
            for m in ROWS:
                row = time_swiglu(model, m, contenders, rounds=5)
                error, gain = row["error"][AUTO], speedup(row, "eager")
                right, faster = error <= LIMIT, gain > 1
                bad += not (right and faster)
                tflops = 4.0 * m * math.prod(QWEN25[model]) / row["us"][AUTO] / 1e6
                print(
                    f"Qwen-2.5 {model:<5} M = {m:<5} ours {row['us'][AUTO]:8.1f} us ({tflops:.0f} TFLOP/s)   eager "
                    f"{row['us']['eager']:8.1f} us   {gain:.2f} x {'faster' if faster else 'NOT FASTER'}   "
                    f"error {error:.5f} (eager {row['error']['eager']:.5f}) {'right' if right else 'WRONG'}",
                    flush=True,
                )
    return 1 if bad else 0


def dry(why: str) -> int:
    """Compile every finished kernel and show what was recorded where there is a GPU."""
    print(f"{why}: one configuration of each kernel is compiled, none is run; figures below are recorded.")
    status()
    for spec in kernels():
        c = spec.compile()
        print(
            f"  {spec.name:<16} {c.config.name} for {c.target} in {c.seconds:.1f} s: {c.registers} registers, "
            f"{c.spill_bytes} B spilled, {c.smem_dynamic} B shared memory, {c.instructions.get('HGMMA', 0)} HGMMA, "
            f"{c.instructions.get('UTMALDG', 0)} TMA loads"
        )
    record = records.load("bench")
    if not record:
        print("nothing is recorded yet (notebooks/measured)")
        return 0
    stamp = record["stamp"]
    word = {e.name: e.status for e in evidence.of_bench()}["swiglu_stacked (bench)"]
    note = "" if word == "current" else f"; {word.upper()}: of other code than today's"
    print(f"recorded on {stamp['gpu']}, {stamp['date']}, torch {stamp['torch']}{note} (microseconds):")
    for row in swiglu_rows(record):
        if row["model"] in MODELS and row["M"] in ROWS:
            cells = "   ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
            print(f"  Qwen-2.5 {row['model']:<5} M = {row['M']:<5} {cells}   {speedup(row, 'eager'):.2f} x over eager")
    counts = ", ".join(f"{count} for {arch}" for arch, count in compiling.compile_counts().items())
    print(f"kernels compiled here: {counts}. The whole table: README.md")
    return 0


def main() -> int:
    if not torch.cuda.is_available():
        return dry("No GPU here" if not torch.version.cuda else "torch sees no GPU here")
    try:
        return (
            live()
            if target(torch.device("cuda", torch.cuda.current_device())) == "sm_90a"
            else dry("No Hopper GPU here")
        )
    except UnsupportedDevice as why:
        return dry(str(why))
