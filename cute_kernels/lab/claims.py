"""The paper's claims about fused SwiGLU beside what was measured here, and who wins where; all from the recorded benchmark.

The paper: "tile-level activation overlap", CUTLASS SM90 kernels on an H100, Qwen-2.5 0.5B to 72B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import benchmark
from . import bench, style, traffic

PEAK_TFLOPS = 989.0  # dense bf16 of an H100 or H200, by its datasheet
FUSED = {name: benchmark.NAMES[name] for name in ("swiglu_pingpong", "swiglu_interleaved", "swiglu_stacked")}
PAPER_WINS = {"Kernel-1": 7, "Kernel-2": 13}
COLORS = {"Kernel-1": "#8e5bd0", "Kernel-2": "#3a86ff", "stacked": "#2a9d8f", "unfused": "#8d99ae"}


def record() -> dict[str, Any] | None:
    """The recorded benchmark; says on which GPU."""
    return bench.recorded("bench", "benchmark")


def winner(row: dict[str, Any], among: Sequence[str] = tuple(FUSED)) -> str:
    """The fastest of these kernels in a row, by the paper's names."""
    found = {name: row["us"][name] for name in among if name in row["us"]}
    return FUSED[min(found, key=found.__getitem__)]


def wins(rows: Sequence[dict[str, Any]], among: Sequence[str] = tuple(FUSED)) -> Counter:
    """How many rows each kernel wins."""
    return Counter(winner(row, among) for row in rows)


def allowed(row: dict[str, Any], ceilings: dict[str, float]) -> float:
    """The speed-up over eager that the saved traffic allows: eager's time without its extra passes at the copy ceiling."""
    shape = (row["M"], row["N"], row["K"])
    saved = traffic.moved("eager", shape) - traffic.moved("fused", shape)
    left = row["us"]["eager"] - saved / ceilings["copy_tbs"] / 1e6
    return row["us"]["eager"] / left if left > 0 else float("inf")


def efficiency(row: dict[str, Any], ceilings: dict[str, float]) -> float:
    """Fusion efficiency: the speed-up over eager that was won over the one that the saved traffic allows."""
    return benchmark.speedup(row, "eager") / allowed(row, ceilings)


def utilisation(row: dict[str, Any], who: str = benchmark.AUTO) -> float:
    """Share of the datasheet's dense bf16 peak."""
    return 4.0 * row["M"] * row["N"] * row["K"] / row["us"][who] / 1e6 / PEAK_TFLOPS


def _span(values: Sequence[float], form: str = "{:.2f}") -> str:
    low, high = min(values), max(values)
    return form.format(low) if form.format(low) == form.format(high) else f"{form.format(low)} to {form.format(high)}"


def table(found: dict[str, Any] | None) -> list[dict[str, str]]:
    """One line for each claim: what the paper says, what this benchmark says. [] without a record."""
    rows = [row for row in benchmark.swiglu_rows(found) if row["M"] >= 256]
    if not rows:
        return []
    ceilings = found["ceilings"]
    small, large = ([row for row in rows if row["model"] in names] for names in (("0.5B", "1.5B"), ("32B", "72B")))
    two = [name for name in FUSED if name != "swiglu_stacked" and name in rows[0]["us"]]
    lines = [
        (
            "best speed-up over eager",
            "2.47 x (0.5B), about 1.0 x (72B, large batches)",
            _span([benchmark.speedup(row, "eager") for row in rows], "{:.2f} x"),
        ),
        (
            "Kernel-1 : Kernel-2, wins",
            " : ".join(str(PAPER_WINS[name]) for name in ("Kernel-1", "Kernel-2")),
            " : ".join(str(wins(rows, two)[name]) for name in ("Kernel-1", "Kernel-2")) if len(two) == 2 else "",
        ),
        (
            "speed-up over torch.compile",
            "3 to 7 x",
            _of(rows, "torch.compile", lambda r: benchmark.speedup(r, "torch.compile")),
        ),
        (
            "torch.compile's share of eager's speed",
            "34 to 94 %",
            _of(rows, "torch.compile", lambda r: 100 * r["us"]["eager"] / r["us"]["torch.compile"], "{:.0f} %"),
        ),
        ("use of the bf16 peak, best", "79.5 %", f"{100 * max(map(utilisation, rows)):.1f} %"),
        (
            "use of the peak, small models, over eager's",
            "nearly 2 x",
            _span([utilisation(row) / utilisation(row, "eager") for row in small or rows], "{:.2f} x"),
        ),
        (
            "arithmetic intensity, most",
            "+247 %",
            f"+{100 * max(traffic.gain((row['M'], row['N'], row['K'])) for row in rows):.0f} % (counted)",
        ),
        (
            "fusion efficiency, small models",
            "near 100 %",
            _span([100 * efficiency(row, ceilings) for row in small or rows], "{:.0f} %"),
        ),
        (
            "fusion efficiency, large models",
            "",
            _span([100 * efficiency(row, ceilings) for row in large or rows], "{:.0f} %"),
        ),
        ("elements off by over 1 %, fused", "0 %", _off(rows, benchmark.AUTO)),
        ("elements off by over 1 %, eager", "4.5 to 11 %", _off(rows, "eager")),
    ]
    return [{"claim": claim, "paper": paper, "here": here} for claim, paper, here in lines]


def _of(rows: Sequence[dict[str, Any]], needs: str, value: Any, form: str = "{:.2f} x") -> str:
    found = [value(row) for row in rows if needs in row["us"]]
    return _span(found, form) if found else ""


def _off(rows: Sequence[dict[str, Any]], who: str) -> str:
    found = [100 * row["off"][who] for row in rows if who in row.get("off", {})]
    return _span(found, "{:.3f} %") if found else ""


def win_map(found: dict[str, Any] | None):
    """Which kernel is fastest at each model and M, and auto over eager, as a matplotlib Figure; None without a record."""
    import matplotlib.pyplot as plt

    rows = benchmark.swiglu_rows(found)
    if not rows:
        return None
    style.apply()
    models, sizes = list(dict.fromkeys(r["model"] for r in rows)), sorted({r["M"] for r in rows})
    figure, axis = plt.subplots(figsize=(1.05 * len(sizes) + 2.6, 0.5 * len(models) + 1.6))
    count: Counter[str] = Counter()
    for row in rows:
        x, y = sizes.index(row["M"]), models.index(row["model"])
        who = winner(row)
        if benchmark.best_unfused(row) < min(row["us"][name] for name in FUSED if name in row["us"]):
            who = "unfused"
        count[who] += 1
        axis.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, color=COLORS[who], ec="white", lw=1.5))
        axis.text(x, y, f"{benchmark.speedup(row, 'eager'):.2f} x", ha="center", va="center", color="white", fontsize=8)
    axis.set(xlim=(-0.5, len(sizes) - 0.5), ylim=(len(models) - 0.5, -0.5), xlabel="M", ylabel="Qwen-2.5")
    axis.set_xticks(range(len(sizes)), sizes)
    axis.set_yticks(range(len(models)), models)
    marks = [plt.Rectangle((0, 0), 1, 1, color=COLORS[name]) for name in COLORS]
    names = [f"{name} ({count[name]})" if name in count else name for name in COLORS]
    axis.legend(marks, names, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    axis.set_title(f"fastest kernel, and ck.swiglu over eager; {style.recorded_label(found)}", fontsize=9)
    plt.close(figure)
    return figure
