"""The ladder: every step of the course as a GEMM, all of them beside cuBLAS in one run, and the picture of it.

A step is built from the `# kernel` cells of its notebook, so what is timed is what the notebook shows.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import api, records
from . import bench, child, style

SIZES = (2048, 4096, 8192)
NOTEBOOKS = records.ROOT / "notebooks"
_FAKES = "[*(ck.fake_matrix('bfloat16') for _ in range(3)), ck.env_stream()]"


@dataclass(frozen=True)
class Step:
    """name: of the notebook. build: expression in the names of its kernel cells that compiles the step. walks: whether the
    kernel takes its number of clusters (bench.launcher). reason: why it is faster than the step before, in one line."""

    name: str
    build: str
    walks: bool
    reason: str


STEPS = (
    Step(
        "02_tma_gemm",
        f"ck.build(gemm, {_FAKES}, arch='sm_90a', name='02_tma_gemm')",
        False,
        "TMA and WGMMA, but one stage: load and multiply take turns",
    ),
    Step("03_pipelining", "build(3)", False, "a ring of three stages: loads run under the multiplication"),
    Step(
        "04_warp_specialisation",
        "build()",
        False,
        "a producer warp and two consumers: 128 x 256 tiles ask for a quarter fewer bytes per operation; TMA store",
    ),
    Step(
        "05_persistent_tiles",
        "build(BASE.with_(cluster=(2, 1)))",
        True,
        "CTAs stay: the next tile loads under the store, set-up and first load are paid once",
    ),
    Step("06_pingpong", "build(PINGPONG)", True, "one consumer stores under the other's multiplication"),
)
FINISHED = "ck.gemm"
FINISHED_REASON = "the configuration that suits the shape: wider tiles, waves that come out even"


def cells(step: Step) -> list[str]:
    """The kernel cells of a step's notebook."""
    notebook = json.loads((NOTEBOOKS / f"{step.name}.ipynb").read_text())
    found = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    return [cell for cell in found if cell.startswith(child.MARK)]


def build(step: Step, folder: Path) -> Any:
    """Compile a step from its notebook; `folder` must live as long as the kernel is traced. Returns the `Compiled`."""
    file = folder / f"step_{step.name}.py"
    file.write_text("\n\n".join([*cells(step), f"LADDER = {step.build}"]) + "\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LADDER


def contenders(folder: Path) -> dict[str, Callable]:
    """name -> function of (a, b, out): cuBLAS, the steps, `ck.gemm`."""
    found: dict[str, Callable] = {"cuBLAS": lambda a, b, out: torch.mm(a, b.T, out=out)}
    for step in STEPS:
        kernel = build(step, folder)
        found[step.name] = bench.launcher(kernel) if step.walks else kernel
    found[FINISHED] = lambda a, b, out: api.gemm(a, b, out=out)
    return found


def measure() -> dict[str, Any]:
    """The record "ladder": microseconds of every step and cuBLAS, in turns, and this run's ceiling. Needs a Hopper GPU."""
    from .. import evidence

    top = bench.ceilings()["gemm_tflops"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        steps = contenders(Path(folder))
        for size in SIZES:
            sets = bench.input_sets(lambda size=size: bench.operands(size, size, size), 6 * size * size, most=4)
            times = bench.turns({who: [lambda s=s, f=f: f(*s) for s in sets] for who, f in steps.items()})
            rows.append({"size": [size] * 3, "us": bench.figures(times)["us"]})
            del sets
    return {"digest": evidence.ladder_digest(), "ceiling_tflops": top, "rows": rows}


def reasons() -> dict[str, str]:
    return {**{step.name: step.reason for step in STEPS}, FINISHED: FINISHED_REASON}


def table(record: dict[str, Any]) -> list[dict[str, str]]:
    """One row per step: TFLOP/s, share of cuBLAS and of the ceiling at each size, and the reason."""
    lines = []
    for who, why in reasons().items():
        line = {"step": who.replace("_", " ")}
        for row in record["rows"]:
            speed = bench.tflops(row["size"], row["us"][who])
            theirs = 100 * row["us"]["cuBLAS"] / row["us"][who]
            line[bench.size_name(row["size"])] = (
                f"{speed:.0f} ({theirs:.0f} %, {100 * speed / record['ceiling_tflops']:.0f} %)"
            )
        lines.append({**line, "what makes the difference": why})
    return lines


def figure():
    """The recorded ladder as a matplotlib Figure; None when none is recorded."""
    import matplotlib.pyplot as plt

    record = records.load("ladder")
    if not record:
        print("the ladder is not recorded yet")
        return None
    style.apply()
    names = list(reasons())
    top = record["ceiling_tflops"]
    figure, axes = plt.subplots(1, len(record["rows"]), figsize=(12.6, 0.5 * len(names) + 1.7), sharey=True)
    for axis, row in zip(axes, record["rows"], strict=True):
        theirs = bench.tflops(row["size"], row["us"]["cuBLAS"])
        for y, who in enumerate(names):
            speed = bench.tflops(row["size"], row["us"][who])
            axis.barh(y, speed, color=style.COLORS["ours"], height=0.62)
            axis.text(0.02 * top, y, f"{speed:.0f}", va="center", color="white", fontsize=8)
            axis.text(1.03 * top, y, f"{100 * speed / theirs:.0f} %", va="center", fontsize=8)
        axis.axvline(theirs, color=style.COLORS["store"], lw=2, label=f"cuBLAS {theirs:.0f}")
        axis.axvline(top, color=style.INK, lw=1, ls=":", label=f"ceiling {top:.0f}")
        axis.set_yticks(range(len(names)), [who.replace("_", " ") for who in names])
        axis.set_xlim(0, 1.18 * top)
        axis.set_title(f"{bench.size_name(row['size'])}, bf16")
        axis.set_xlabel("TFLOP/s; share of cuBLAS")
        axis.legend(loc="upper left", fontsize=7, bbox_to_anchor=(0, -0.18), ncols=2, frameon=False)
    axes[0].invert_yaxis()
    figure.suptitle(f"one run, contenders in turns; {style.recorded_label(record)}", fontsize=8)
    plt.close(figure)
    return figure
