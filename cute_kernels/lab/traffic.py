"""What SwiGLU costs in bytes: which kernel reads and writes which tensor, and what follows from it; and the same measured.

A variant is a list of kernels in launch order. Passes, bytes, operations, intensity and floors are counted from that list, so
picture, prediction and table cannot disagree. Shapes are (M, N, K): x (M, K), weights (N, K), h (M, N), all of 2 bytes.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import reference
from ..models import QWEN25
from ..validate import relative_error
from . import bench, style

Shape = tuple[int, int, int]
ITEM = 2  # bytes of bf16 and fp16
OFF = 0.01  # the paper's limit: an element is off when it differs by more than this share of its own reference

#: tensor -> its dimensions
TENSORS = {
    "x": "MK",
    "w_gate": "NK",
    "w_up": "NK",
    "gate": "MN",
    "up": "MN",
    "silu": "MN",
    "h": "MN",
    "w_down": "KN",
    "out": "MK",
}


@dataclass(frozen=True)
class Kernel:
    """One launch: the tensors that it reads and writes, and how many products of 2 M N K operations it computes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    products: int = 0


_GATE = Kernel("gate GEMM", ("x", "w_gate"), ("gate",), 1)
_UP = Kernel("up GEMM", ("x", "w_up"), ("up",), 1)
_POINTWISE = Kernel("silu(gate) * up", ("gate", "up"), ("h",))

#: variant of silu(x @ w_gate.T) * (x @ w_up.T) -> its kernels, in order
VARIANTS: dict[str, tuple[Kernel, ...]] = {
    "eager": (_GATE, _UP, Kernel("silu", ("gate",), ("silu",)), Kernel("product", ("silu", "up"), ("h",))),
    "one pointwise kernel": (_GATE, _UP, _POINTWISE),
    "stacked weights": (Kernel("GEMM on [gate; up]", ("x", "w_gate", "w_up"), ("gate", "up"), 2), _POINTWISE),
    "epilogue of one GEMM": (_GATE, Kernel("up GEMM, silu(gate) * up", ("x", "w_up", "gate"), ("h",), 1)),
    "fused": (Kernel("both products, silu(gate) * up", ("x", "w_gate", "w_up"), ("h",), 2),),
}
#: what the paper compares: cuBLAS and one SwiGLU kernel, against one kernel; each operand is counted once
BEFORE, AFTER = "stacked weights", "fused"
DOWN = Kernel("down GEMM", ("h", "w_down"), ("out",), 1)


def shape_of(model: str, m: int) -> Shape:
    """(M, N, K) of a Qwen-2.5 model's gate-up half for m tokens."""
    k, n = QWEN25[model]
    return m, n, k


def passes(variant: str) -> int:
    """How often the variant's kernels read or write an M x N tensor in HBM. One is needed: h is written."""
    return sum(TENSORS[t] == "MN" for k in VARIANTS[variant] for t in (*k.reads, *k.writes))


def extra_passes(variant: str) -> int:
    """Passes over M x N tensors beyond those of the fused kernel."""
    return passes(variant) - passes(AFTER)


def tensor_bytes(tensor: str, shape: Shape) -> int:
    size = dict(zip("MNK", shape, strict=True))
    rows, columns = TENSORS[tensor]
    return ITEM * size[rows] * size[columns]


def kernel_bytes(kernel: Kernel, shape: Shape) -> int:
    """Compulsory traffic of one launch: each operand once."""
    return sum(tensor_bytes(t, shape) for t in (*kernel.reads, *kernel.writes))


def moved(variant: str, shape: Shape) -> int:
    """Bytes that the variant's kernels move, each operand of each launch once."""
    return sum(kernel_bytes(kernel, shape) for kernel in VARIANTS[variant])


def operations(variant: str, shape: Shape) -> int:
    """Operations of the products; the activation's, a few an element, do not count."""
    m, n, k = shape
    return sum(kernel.products for kernel in VARIANTS[variant]) * 2 * m * n * k


def intensity(variant: str, shape: Shape) -> float:
    """Operations per byte of the variant as a whole."""
    return operations(variant, shape) / moved(variant, shape)


def gain(shape: Shape) -> float:
    """By how much fusion raises the arithmetic intensity, as a share: 2.47 is +247 %."""
    return intensity(AFTER, shape) / intensity(BEFORE, shape) - 1


def kernel_us(kernel: Kernel, shape: Shape, ceilings: Mapping[str, float]) -> float:
    """Floor of one launch in microseconds: the longer of its operations and its bytes at this GPU's ceilings."""
    m, n, k = shape
    compute = kernel.products * 2.0 * m * n * k / ceilings["gemm_tflops"]
    return max(compute, kernel_bytes(kernel, shape) / ceilings["copy_tbs"]) / 1e6


def floor_us(variant: str, shape: Shape, ceilings: Mapping[str, float]) -> float:
    """Floor of a variant: its launches run one after the other, so their floors add up."""
    return sum(kernel_us(kernel, shape, ceilings) for kernel in VARIANTS[variant])


def roof_us(variant: str, shape: Shape, ceilings: Mapping[str, float]) -> float:
    """What a roofline of the whole says: all bytes under all operations, as if the launches overlapped."""
    compute = operations(variant, shape) / ceilings["gemm_tflops"]
    return max(compute, moved(variant, shape) / ceilings["copy_tbs"]) / 1e6


def activation_share(variant: str, shape: Shape, ceilings: Mapping[str, float]) -> float:
    """Predicted share of the MLP's time (gate, up, activation, down) that launches without a product take."""
    kernels = (*VARIANTS[variant], DOWN)
    times = [kernel_us(kernel, shape, ceilings) for kernel in kernels]
    return sum(us for kernel, us in zip(kernels, times, strict=True) if not kernel.products) / sum(times)


def counts(shapes: Mapping[str, Shape], ceilings: Mapping[str, float]):
    """The two counts and their floors before and after fusion, one row a shape, as a pandas table."""
    import pandas as pd

    lines = []
    for label, shape in shapes.items():
        before, after = floor_us(BEFORE, shape, ceilings), floor_us(AFTER, shape, ceilings)
        lines.append(
            {
                "shape": label,
                "GFLOP": round(operations(AFTER, shape) / 1e9, 1),
                "MB before": round(moved(BEFORE, shape) / 1e6, 1),
                "MB after": round(moved(AFTER, shape) / 1e6, 1),
                "FLOP/B before": round(intensity(BEFORE, shape)),
                "FLOP/B after": round(intensity(AFTER, shape)),
                "intensity": f"{100 * gain(shape):+.0f} %",
                "floor us, before": round(before, 1),
                "floor us, after": round(after, 1),
                "speed-up allowed": f"{before / after:.2f}x",
            }
        )
    return pd.DataFrame(lines).set_index("shape")


# Pictures


def passes_figure(variants: Iterable[str] = tuple(VARIANTS)):
    """Which kernel reads and writes which tensor: a row a launch, a column a tensor; a bar where a tensor lives in HBM."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    style.apply()
    columns = [t for t in TENSORS if t not in ("w_down", "out")]
    at = {t: i for i, t in enumerate(columns)}
    variants = list(variants)
    rows = sum(len(VARIANTS[v]) + 1 for v in variants)
    figure, axis = plt.subplots(figsize=(9, 0.31 * rows + 0.7))
    y = 0.0
    for variant in variants:
        kernels = VARIANTS[variant]
        axis.text(-3.3, y, variant, fontsize=9, fontweight="bold", va="center")
        extra = extra_passes(variant)
        axis.text(
            len(columns) - 0.3,
            y + (len(kernels) + 1) / 2,
            f"{extra} extra passes" if extra else "none",
            fontsize=9,
            va="center",
            color=style.COLORS["bad" if extra else "ours"],
        )
        for tensor in ("gate", "up", "silu"):
            users = [i for i, kernel in enumerate(kernels) if tensor in (*kernel.reads, *kernel.writes)]
            if users:
                top, bottom = y + 1 + users[0], y + 1 + users[-1]
                axis.plot([at[tensor]] * 2, [top, bottom], color=style.COLORS["bad"], lw=7, alpha=0.35, zorder=1)
        for kernel in kernels:
            y += 1
            axis.text(-3.1, y, kernel.name, fontsize=8, va="center")
            for tensors, letter, colour in ((kernel.reads, "R", "load"), (kernel.writes, "W", "store")):
                for t in tensors:
                    box = Rectangle((at[t] - 0.22, y - 0.36), 0.44, 0.72, facecolor=style.COLORS[colour], zorder=2)
                    axis.add_patch(box)
                    axis.text(at[t], y, letter, ha="center", va="center", fontsize=7, color="white", zorder=3)
        y += 1
    for t in columns:
        dims = " x ".join(TENSORS[t])
        axis.text(at[t], -1.1, f"{t}\n{dims}", ha="center", va="center", fontsize=8)
    axis.set(xlim=(-3.4, len(columns) + 1.2), ylim=(y - 0.3, -1.9))
    axis.axis("off")
    plt.close(figure)  # the notebook shows what a cell returns, once
    return figure


def roofline_figure(models: Iterable[str], rows: Iterable[int], ceilings: Mapping[str, float]):
    """Each model before (hollow) and after (full) fusion, a panel for each number of tokens; heights are floors, not times."""
    import matplotlib.pyplot as plt
    import numpy as np

    style.apply()
    models, rows = list(models), list(rows)
    peak, bandwidth = ceilings["gemm_tflops"], ceilings["copy_tbs"]
    figure, axes = plt.subplots(1, len(rows), figsize=(3.5 * len(rows), 3.5), sharex=True, sharey=True, squeeze=False)
    palette = [*style.CYCLE, style.COLORS["bad"]]
    ends = [
        (
            intensity(v, shape_of(model, m)),
            operations(v, shape_of(model, m)) / floor_us(v, shape_of(model, m), ceilings) / 1e6,
        )
        for model in models
        for m in rows
        for v in (BEFORE, AFTER)
    ]
    low = 0.75 * min(y for _, y in ends)
    xs = np.geomspace(low / bandwidth, 1.3 * max(x for x, _ in ends), 200)
    for axis, m in zip(axes[0], rows, strict=True):
        axis.plot(xs, np.minimum(peak, xs * bandwidth), color=style.INK, lw=1.2)
        axis.axvline(peak / bandwidth, color=style.INK, lw=0.6, ls=":")
        for i, model in enumerate(models):
            shape, colour = shape_of(model, m), palette[i % len(palette)]
            (x0, y0), (x1, y1) = (
                (intensity(v, shape), operations(v, shape) / floor_us(v, shape, ceilings) / 1e6)
                for v in (BEFORE, AFTER)
            )
            axis.plot([x0, x1], [y0, y1], color=colour, lw=1)
            axis.plot(x0, y0, "o", mec=colour, mfc="none", ms=6)
            axis.plot(x1, y1, "o", color=colour, ms=6, label=model)
        axis.set(xscale="log", yscale="log", xlabel="FLOP per byte", title=f"M = {m}", ylim=(low, 1.1 * peak))
        for side, values in (("x", (100, 200, 500, 1000, 2000, 4000)), ("y", range(100, int(peak) + 1, 100))):
            inside = [v for v in values if (xs[0] <= v <= xs[-1] if side == "x" else v >= low)]
            getattr(axis, f"set_{side}ticks")(inside, [str(v) for v in inside])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("TFLOP/s, at most")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(models), fontsize=8, loc="outside lower center")
    plt.close(figure)
    return figure


def share_figure(
    models: Iterable[str],
    rows: Iterable[int],
    ceilings: Mapping[str, float],
    record: Mapping[str, Any] | None = None,
    claim: tuple[float, float] | None = None,
):
    """Share of the MLP's time that the activation takes: predicted from counts (lines), measured in place (crosses).

    claim: a band, in percent."""
    import matplotlib.pyplot as plt

    style.apply()
    models = list(models)
    figure, axis = plt.subplots(figsize=(7.5, 3.4))
    if claim:
        axis.axhspan(*claim, color=style.INK, alpha=0.15, lw=0, label=f"paper: {claim[0]:g} to {claim[1]:g} %")
    for i, m in enumerate(rows):
        ys = [100 * activation_share("eager", shape_of(model, m), ceilings) for model in models]
        axis.plot(models, ys, lw=7 - 2.5 * i, color=style.CYCLE[i], label=f"counted, M = {m}")
        found = {r["model"]: 100 * in_place(r["us"]) for r in (record or {"rows": []})["rows"] if r["M"] == m}
        found = {model: share for model, share in found.items() if model in models}
        if found:
            axis.plot(
                list(found), list(found.values()), "x", ms=8, mew=2, color=style.CYCLE[i], label=f"measured, M = {m}"
            )
    axis.set(ylabel="% of the MLP's time", ylim=(0, None), title="silu and product, eager: the counted lines coincide")
    axis.set_xticks(range(len(models)), [f"{model}\nK = {QWEN25[model][0]}" for model in models])
    figure.legend(fontsize=8, loc="outside right upper")
    plt.close(figure)
    return figure


# Measured


class Mlp(NamedTuple):
    """One set of inputs: w_gate and w_up are the halves of `stacked`; gate, up, both and h are what earlier kernels left."""

    x: torch.Tensor
    w_gate: torch.Tensor
    w_up: torch.Tensor
    stacked: torch.Tensor
    w_down: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    both: torch.Tensor
    h: torch.Tensor


def random_mlp(shape: Shape, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Mlp:
    """Normal random numbers; weights are scaled so that gate and up are of order 1."""
    m, n, k = shape

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, device=device, dtype=dtype) * scale

    stacked = normal(2 * n, k, k**-0.5)
    gate, up = normal(m, n), normal(m, n)
    return Mlp(
        x=normal(m, k),
        w_gate=stacked[:n],
        w_up=stacked[n:],
        stacked=stacked,
        w_down=normal(k, n, n**-0.5),
        gate=gate,
        up=up,
        both=torch.cat([gate, up], 1),
        h=normal(m, n),
    )


def measure(
    name: str,
    whole: Mapping[str, Callable[[Mlp], Any]],
    parts: Mapping[str, Callable[[Mlp], Any]],
    shapes: Iterable[tuple[str, int]],
    slow: Mapping[str, Callable[[Mlp], Any]] | None = None,
    slow_seconds: float = 30.0,
    rounds: int = 5,
    device: str | None = None,
    timer: Any = None,
) -> dict[str, Any] | None:
    """Time contenders in turns at each (model, M); keep the medians as record `name`. Without a Hopper GPU: the recorded ones.

    whole: contenders that return h, compared with fp32 too. parts: pieces of the MLP, timed only. slow: contenders whose
    first call compiles for long: each shape adds them as long as all such calls together took less than `slow_seconds`.
    device, timer: for tests.
    """
    from . import HAS_GPU

    if device is None and not HAS_GPU:
        return bench.recorded(name, name)
    rows, spent = [], 0.0
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=128):  # one compilation a shape
        for model, m in shapes:
            shape = shape_of(model, m)
            sets = bench.input_sets(lambda shape=shape: random_mlp(shape, device or "cuda"), moved(AFTER, shape))
            judged = dict(whole)
            if spent < slow_seconds:
                began = time.perf_counter()
                judged.update(_compiled(slow or {}, sets[0]))
                spent += time.perf_counter() - began
            row: dict[str, Any] = {"model": model, "M": m, "N": shape[1], "K": shape[2], "sets": len(sets)}
            ref = reference.swiglu(sets[0].x, sets[0].w_gate, sets[0].w_up)
            results = {who: fn(sets[0]) for who, fn in judged.items()}
            row["error"] = {who: round(relative_error(h, ref), 6) for who, h in results.items()}
            row["off"] = {who: round(reference.off_share(h, ref, OFF), 6) for who, h in results.items()}
            del ref, results
            calls = {who: [lambda s=s, fn=fn: fn(s) for s in sets] for who, fn in {**judged, **parts}.items()}
            times = bench.turns(calls, rounds=rounds, target_ms=6.0, timer=timer)
            row.update(bench.figures(times))
            rows.append(row)
            del sets, calls
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    order = list(QWEN25)
    rows.sort(key=lambda r: (order.index(r["model"]), r["M"]))
    record = {"rows": rows}
    if device is None:
        bench.keep(name, record)
    return record


def _compiled(slow: Mapping[str, Callable[[Mlp], Any]], mlp: Mlp) -> dict[str, Callable[[Mlp], Any]]:
    """Those that compile; the others are named with their reason."""
    found = {}
    for who, fn in slow.items():
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # Inductor prints every candidate
                fn(mlp)
        except Exception as why:
            print(f"{who} is left out: {type(why).__name__}: {str(why)[:200]}")
        else:
            found[who] = fn
    return found


#: the names of `parts` that shares are computed from
GEMMS, ACTIVATION, LAST, MLP = "gate and up", "silu, product", "down", "MLP"


def by_parts(us: Mapping[str, float]) -> float:
    """Share of the activation in the sum of parts that were timed alone."""
    return us[ACTIVATION] / (us[GEMMS] + us[ACTIVATION] + us[LAST])


def in_place(us: Mapping[str, float]) -> float:
    """Share that vanishes from the whole MLP's time when only its GEMMs run: L2 then holds what it holds in real life."""
    return 1 - (us[GEMMS] + us[LAST]) / us[MLP]


def shares(record: Mapping[str, Any] | None, ceilings: Mapping[str, float]):
    """Share of the activation in the MLP's time: counted, by parts, in place; None without a record."""
    import pandas as pd

    if record is None:
        return None
    lines = []
    for row in record["rows"]:
        us, shape = row["us"], (row["M"], row["N"], row["K"])
        lines.append(
            {
                "model": row["model"],
                "M": row["M"],
                **{f"{part}, us": us[part] for part in (GEMMS, ACTIVATION, LAST, MLP)},
                "counted": f"{100 * activation_share('eager', shape, ceilings):.0f} %",
                "by parts": f"{100 * by_parts(us):.0f} %",
                "in place": f"{100 * in_place(us):.0f} %",
                "gate + up, MB": round(2 * tensor_bytes("gate", shape) / 1e6, 1),
            }
        )
    return pd.DataFrame(lines).set_index(["model", "M"])


def speeds(record: Mapping[str, Any] | None, ceilings: Mapping[str, float], beside: str = "eager"):
    """Microseconds of every contender that returns h, and its speed as a share of eager's; None without a record.

    The last columns are the floors: of the variant with one pointwise kernel, and of the fused kernel."""
    import pandas as pd

    if record is None:
        return None
    lines = []
    for row in record["rows"]:
        us, shape = row["us"], (row["M"], row["N"], row["K"])
        line = {"model": row["model"], "M": row["M"]}
        for who in dict.fromkeys(who for r in record["rows"] for who in r["error"]):
            theirs = us.get(who)
            line[who] = "" if theirs is None else f"{theirs:.1f} us, {100 * us[beside] / theirs:.0f} %"
        line["floor, pointwise"] = f"{floor_us('one pointwise kernel', shape, ceilings):.1f} us"
        line["floor, fused"] = f"{floor_us(AFTER, shape, ceilings):.1f} us"
        lines.append(line)
    return pd.DataFrame(lines).set_index(["model", "M"])


def of(record: Mapping[str, Any] | None, take: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
    """take(row) of every row of a record for which it is not None; [] without a record."""
    found = [take(row) for row in (record or {"rows": []})["rows"]]
    return [value for value in found if value is not None]


def claim(what: str, low: float, high: float, found: Sequence[float], unit: str = "%") -> str:
    """A claim of the paper beside what was found here; the verdict is computed. Printed and returned."""
    said = f"{low:g} to {high:g} {unit}" if low != high else f"{high:g} {unit}"
    if not found:
        line = f"{what}: paper {said}; nothing measured yet"
    else:
        least, most = min(found), max(found)
        outside = least > high or most < low
        if low <= least and most <= high:
            verdict = "within the claim"
        elif outside:
            verdict = "all above the claim" if least > high else "all below the claim"
        else:
            share = sum(low <= value <= high for value in found) / len(found)
            verdict = f"{100 * share:.0f} % of the cases within the claim"
        cases = "one case" if len(found) == 1 else f"{len(found)} cases"
        span = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
        line = f"{what}: paper {said}; here {span} {unit} ({cases}): {verdict}"
    print(line)
    return line


# What TorchInductor generates


def kernel_list(code: str) -> list[tuple[str, str]]:
    """Inductor's wrapper code -> (kernel, the ATen operations that it stands for) of each launch, in order."""
    found, aten = [], ""
    made: dict[str, str] = {}  # kernel -> its operations, from the comment above its definition
    for line in code.splitlines():
        if origin := re.search(r"Original ATen: \[([^\]]*)\]", line):
            aten = origin[1]
        if definition := re.match(r"(\w+) = async_compile\.", line):
            made[definition[1]] = aten
        launch = re.match(r"\s+(?:\w+ = )?(extern_kernels\.\w+)\(|\s+(triton_\w+)\.run\(|\s+(cpp_\w+)\(", line)
        if launch:
            name = next(name for name in launch.groups() if name)
            found.append((name, made.get(name, aten)))
    return found


def pointwise_source(code: str) -> str:
    """The body of the first pointwise Triton kernel in Inductor's code, "" when there is none."""
    body = re.search(r"^def triton_poi_\w+\(.*?(?=^'''|\Z)", code, re.MULTILINE | re.DOTALL)
    return body[0].rstrip() if body else ""


def generated(
    name: str, functions: Mapping[str, Callable[[Mlp], Any]], shape: Shape, device: str | None = None
) -> dict[str, Any] | None:
    """Compile label -> torch.compile'd function of an `Mlp`, print its launches and the first pointwise kernel's source.

    Kept as record `name`; without a Hopper GPU the recorded text. Call it before `measure`: it resets Dynamo.
    device: for tests."""
    from . import HAS_GPU

    if device or HAS_GPU:
        from torch._inductor.utils import run_and_get_code

        record: dict[str, Any] | None = {"shape": list(shape), "launches": {}, "pointwise": ""}
        mlp = random_mlp(shape, device or "cuda")
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            for label, function in functions.items():
                _, codes = run_and_get_code(function, mlp)
                code = "\n".join(codes)
                record["launches"][label] = [list(launch) for launch in kernel_list(code)]
                record["pointwise"] = record["pointwise"] or pointwise_source(code)
        if device is None:
            bench.keep(name, record)
    else:
        record = bench.recorded(name, "what Inductor generates")
    if record is not None:
        for label, launches in record["launches"].items():
            print(f"{label}, M x N x K = {bench.size_name(record['shape'])}:")
            for kernel, aten in launches:
                print(f"    {kernel:<40} {aten}")
        print("\n" + record["pointwise"])
    return record
