"""How fast: contenders in turns under CUDA graphs, inputs rotating through more than L2, medians; cuBLAS always beside.

A board throttles on power, so a contender that is timed later looks slower: only ratios within one call mean something.
"""

from __future__ import annotations

import functools
import math
import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import records, reference
from ..device import max_clusters
from ..models import QWEN25
from . import style

L2_BYTES = 60 << 20  # the largest L2 of the GPUs that this course targets (H200)
SIZES = (4096, 8192)
RECORD = "CUTE_KERNELS_RECORD"  # environment variable: "1" keeps what a notebook measures


@dataclass(frozen=True)
class Timing:
    """Median of the turns in microseconds per call; spread: interquartile range over the median; samples: all turns."""

    median_us: float
    spread: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        middle = statistics.median(samples)
        low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (middle, middle, middle)
        return cls(middle, (high - low) / middle, tuple(samples))


def figures(times: dict[str, Timing]) -> dict[str, dict[str, float]]:
    """What a record keeps of `turns`: "us", medians, and "spread" by contender."""
    return {
        "us": {name: round(t.median_us, 2) for name, t in times.items()},
        "spread": {name: round(t.spread, 4) for name, t in times.items()},
    }


class CaptureError(RuntimeError):
    """A contender cannot be captured in a CUDA graph."""


def input_sets(make: Callable[[], Any], bytes_per_set: int, most: int = 16) -> list[Any]:
    """As many input sets as rotate through more than twice the L2, at least 2 and at most `most`."""
    count = max(2, min(most, -(-2 * L2_BYTES // max(1, bytes_per_set))))
    return [make() for _ in range(count)]


def turns(
    contenders: dict[str, Sequence[Callable[[], Any]]],
    rounds: int = 7,
    target_ms: float = 10.0,
    timer: Callable[[str, Sequence[Callable]], Callable[[int], float]] | None = None,
) -> dict[str, Timing]:
    """Time contenders against each other.

    contenders: name -> one callable per input set. Each name becomes one CUDA graph of all its calls, replayed for about
    `target_ms` a turn; every round takes all of them in a fresh random order, so that none has a fixed neighbour.
    timer(name, calls) -> function of a replay count that returns microseconds per call; default: CUDA graphs and events.
    """
    timer = timer or _graph_timer
    timed = {name: timer(name, calls) for name, calls in contenders.items()}
    for run in timed.values():
        run(1)
    per_replay = {name: run(2) * len(contenders[name]) for name, run in timed.items()}
    replays = {name: max(1, round(target_ms * 1e3 / us)) for name, us in per_replay.items()}
    samples: dict[str, list[float]] = {name: [] for name in timed}
    order = list(timed)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(timed[name](replays[name]))
    return {name: Timing.of(found) for name, found in samples.items()}


def _graph_timer(name: str, calls: Sequence[Callable]) -> Callable[[int], float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiling and lazy set-up happen outside the capture
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except Exception as why:
        raise CaptureError(f"contender {name!r} cannot be captured in a CUDA graph: {why}") from why

    def run(replays: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / (replays * len(calls))

    return run


def keep(name: str, record: dict[str, Any]) -> None:
    if os.environ.get(RECORD) == "1":
        records.save(name, record)


def recorded(name: str, what: str) -> dict[str, Any] | None:
    record = records.load(name)
    print(f"{what}: {style.recorded_label(record)}" if record else f"{what}: nothing is recorded yet")
    return record


@functools.cache
def ceilings() -> dict[str, float]:
    """This GPU's ceilings: copy_tbs (bytes read + written), read_tbs, gemm_tflops (cuBLAS, bf16, 8192^3, random data).

    Measured once per process; without a Hopper GPU the recorded ones of the reference GPU, {} when there are none.
    """
    if not torch.cuda.is_available():
        record = recorded("ceilings", "ceilings")
        return {key: value for key, value in (record or {}).items() if key != "stamp"}
    data = torch.randn(1 << 29, device="cuda")  # 2 GiB
    into = torch.empty_like(data)
    # a pointwise kernel: a copy_ would become a memory node of the graph, which a copy engine runs more slowly
    copy = turns({"copy": [lambda: torch.neg(data, out=into)], "read": [lambda: torch.sum(data)]}, rounds=5)
    data = into = None  # their memory is wanted below
    sets = input_sets(lambda: operands(8192, 8192, 8192), 6 * 8192**2)
    gemm = turns({"gemm": [lambda s=s: torch.mm(s[0], s[1].T, out=s[2]) for s in sets]}, rounds=5)
    found = {
        "copy_tbs": 2 * (4 << 29) / copy["copy"].median_us / 1e6,
        "read_tbs": (4 << 29) / copy["read"].median_us / 1e6,
        "gemm_tflops": max(2 * 8192**3 / us / 1e6 for us in gemm["gemm"].samples),
    }
    found = {key: round(value, 3) for key, value in found.items()}
    keep("ceilings", found)
    return found


def operands(m: int, n: int, k: int) -> list[torch.Tensor]:
    """Random bf16 a (m, k), b (n, k) and an output (m, n)."""
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    return [a, b, a.new_empty(m, n)]


def swiglu_operands(m: int, n: int, k: int) -> list[torch.Tensor]:
    """Random bf16 x (m, k), rows of gate and then of up (2n, k), whose pre-activations are of order 1, and an output (m, n)."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    both = (torch.randn(2 * n, k, device="cuda") / math.sqrt(k)).bfloat16()
    return [x, both, x.new_empty(m, n)]


def size_name(size: Sequence[int]) -> str:
    """ "4096³" or "4096 x 9728 x 896"."""
    return f"{size[0]}³" if len(set(size)) == 1 else " x ".join(map(str, size))


MOST_CLUSTERS = 65_535  # of a launch, along the grid's third axis: a CTA takes a second tile where there are more


def launcher(kernel: Any, persistent: bool = True) -> Callable:
    """A compiled finished kernel as the function of its matrices that `check.gemm` and `gemm_row`, or `check.swiglu` and
    `swiglu_row` take.

    persistent: as many clusters as fit at once walk over the tiles; False: one for each tile, as in notebook 04.
    """
    along_m, along_n = kernel.config.cluster

    def run(a: torch.Tensor, *more: torch.Tensor) -> None:
        clusters = max_clusters(a.device, along_m * along_n) if persistent else MOST_CLUSTERS
        kernel(a, *more, clusters, (), None)

    return run


def gemm_row(
    kernel: Callable,
    step: str,
    sizes: Sequence[int | tuple[int, int, int]] = SIZES,
    beside: dict[str, Callable] | None = None,
    prefix: str = "ladder",
):
    """A notebook's row in the ladder: kernel(a, b, out) beside cuBLAS, bf16, in one run, as a pandas table.

    sizes: n for n^3, or (M, N, K).

    beside: more contenders of the same form, such as {"ck.gemm": lambda a, b, out: ck.gemm(a, b, out=out)}.
    Kept as record "<prefix>_<step>" while notebooks are recorded.
    Without a Hopper GPU: the recorded row, labelled, or None.
    """
    name = f"{prefix}_{step}"
    if not torch.cuda.is_available():
        record = recorded(name, f"{prefix}, {step}")
        return None if record is None else _table(record)
    top = ceilings()["gemm_tflops"]
    rows = []
    for size in sizes:
        m, n, k = shape = (size,) * 3 if isinstance(size, int) else size
        sets = input_sets(lambda shape=shape: operands(*shape), 2 * (m * k + n * k + m * n), most=4)
        contenders = {"cuBLAS": lambda a, b, out: torch.mm(a, b.T, out=out), step: kernel, **(beside or {})}
        times = turns({who: [lambda s=s, f=f: f(*s) for s in sets] for who, f in contenders.items()})
        rows.append({"size": list(shape), "us": figures(times)["us"]})
        del sets
    record = {"step": step, "ceiling_tflops": top, "rows": rows}
    keep(name, record)
    return _table(record)


def swiglu_row(step: str, contenders: dict[str, Callable], shapes: Sequence[tuple[str, int]], rounds: int = 7):
    """Fused SwiGLU kernels beside PyTorch, bf16, in one run, as a pandas table.

    contenders: name -> function of (x, w_gate, w_up, out), or (pack, function of (x, pack(w_gate, w_up), out)), packed before the
    clock starts. shapes: (Qwen-2.5 model, M). "eager" and "cuBLAS, no activation", one
    GEMM on the stacked weights, are always there. Kept as record "swiglu_<step>" while notebooks are recorded; without a Hopper
    GPU: the recorded table, labelled, or None.
    """
    import pandas as pd
    import torch.nn.functional as F

    name = f"swiglu_{step}"
    if torch.cuda.is_available():
        rows = []
        for model, m in shapes:
            k, n = QWEN25[model]

            def make(m=m, n=n, k=k) -> tuple:
                x, both, out = swiglu_operands(m, n, k)
                return both, (x, both[:n], both[n:], out)

            sets = input_sets(make, 2 * (2 * n * k + m * k + m * n), most=8)
            calls = {
                "eager": [lambda s=s: reference.eager(*s[:3]) for _, s in sets],
                "cuBLAS, no activation": [lambda b=b, s=s: F.linear(s[0], b) for b, s in sets],
            }
            for who, f in contenders.items():
                if isinstance(f, tuple):
                    pack, run = f
                    given = [(s[0], pack(s[1], s[2]), s[3]) for _, s in sets]
                    calls[who] = [lambda s=s, run=run: run(*s) for s in given]
                else:
                    calls[who] = [lambda s=s, f=f: f(*s) for _, s in sets]
            us = figures(turns(calls, rounds))["us"]
            rows.append({"model": model, "M": m, "N": n, "K": k, "us": us})
            del sets, calls
        record: dict[str, Any] | None = {"rows": rows}
        keep(name, record)
    else:
        record = recorded(name, f"SwiGLU, {step}")
        if record is None:
            return None
    lines = []
    for row in record["rows"]:
        flops = 4.0 * row["M"] * row["N"] * row["K"]
        for who, us in row["us"].items():
            lines.append(
                {
                    "Qwen-2.5": f"{row['model']} M={row['M']}",
                    "contender": who,
                    "us": us,
                    "TFLOP/s": round(flops / us / 1e6),
                    "eager's time / its": f"{row['us']['eager'] / us:.2f}",
                }
            )
    return pd.DataFrame(lines).set_index(["Qwen-2.5", "contender"])


def tflops(size: Sequence[int], us: float) -> float:
    """TFLOP/s of an M x N x K GEMM that took `us` microseconds."""
    return 2.0 * math.prod(size) / us / 1e6


def _table(record: dict[str, Any]):
    import pandas as pd

    lines = []
    for row in record["rows"]:
        theirs = row["us"]["cuBLAS"]
        for who, us in row["us"].items():
            speed = tflops(row["size"], us)
            lines.append(
                {
                    "M x N x K": size_name(row["size"]),
                    "contender": who,
                    "us": us,
                    "TFLOP/s": round(speed),
                    "of cuBLAS": f"{100 * theirs / us:.0f} %",
                    "of the ceiling": f"{100 * speed / record['ceiling_tflops']:.0f} %",
                }
            )
    return pd.DataFrame(lines).set_index(["M x N x K", "contender"])
