"""The generated parts of README.md: tables and the ladder picture, from the records under notebooks/measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from . import evidence, peers, records
from .benchmark import AUTO, DECODE_ROWS, NAMES, PREFILL_ROWS, speedup, summaries, summary, swiglu_rows
from .registry import kernels

README = records.ROOT / "README.md"
PICTURE = "ladder.png"


def _stamped(record: dict) -> str:
    stamp = record["stamp"]
    return f"Recorded on {stamp['gpu']}, {stamp['date']}, torch {stamp['torch']}, CuTe DSL {stamp['cutlass_dsl']}."


def swiglu_table() -> str:
    rows = swiglu_rows(record := records.load("bench"))
    if not rows:
        return "Nothing is recorded yet.\n"
    known = ["eager", "torch.compile", "stacked + pointwise", "gemm", *(s.name for s in kernels() if s.gated)]
    names = [name for name in known if name in rows[0]["us"]]
    lines = [
        "| Qwen-2.5 | M | "
        + " | ".join(NAMES.get(name, name) for name in names)
        + " | **`ck.swiglu`** | over eager | error / eager's |",
        "|---" * (len(names) + 5) + "|",
    ]
    for row in rows:
        us, error = row["us"], row["error"]
        cells = [row["model"], str(row["M"]), *(f"{us[name]:.1f}" for name in names)]
        cells += [f"**{us[AUTO]:.1f}**", f"{speedup(row, 'eager'):.2f} x"]
        cells += [f"{error[AUTO]:.5f} / {error['eager']:.5f}"]
        lines.append("| " + " | ".join(cells) + " |")
    means = []
    for what, some in (("decode (M <= 256)", DECODE_ROWS), ("prefill (M >= 1024)", PREFILL_ROWS)):
        found = summaries([r for r in rows if r["M"] in some])
        text = ", ".join(f"{NAMES.get(over, over)} {mean:.3f} x (at least {least:.3f})" for over, mean, least in found)
        means.append(f"Geometric mean of their time over `ck.swiglu`'s, {what}: {text}.")
    text = "\n".join(lines)
    return (
        f"Microseconds, bf16, contenders in turns, cold L2. {_stamped(record)}\n"
        "*eager*: two GEMMs and two pointwise kernels; *torch.compile*: the same, compiled in its default mode; *stacked + "
        "pointwise*: one GEMM on [gate; up] and one compiled pointwise kernel; *bare GEMM*: cuBLAS on x (M, K) and the weights "
        "stacked to (2N, K), no activation, a yardstick and no contender; *Kernel-1*, *Kernel-2*, *stacked*: each of ours with "
        "the configuration that its rule chooses, the weights of Kernel-2 packed before; *over eager*: eager's time / ours; "
        "*error*: ||out - ref|| / ||ref|| against fp32, ours / eager's.\n\n"
        f"{text}\n\n" + "\n".join(means) + "\n"
    )


def peers_table() -> str:
    record = records.load(peers.RECORD)
    return peers.table(record) + (f"\n{_stamped(record)}\n" if record else "")


def gemm_table() -> str:
    record = records.load("bench")
    if not record:
        return "Nothing is recorded yet.\n"
    lines = [
        "| | M x N x K | cuBLAS TFLOP/s | **`ck.gemm`** TFLOP/s | of cuBLAS | of the ceiling | configuration |",
        "|---|---|---|---|---|---|---|",
    ]
    ceiling = record["ceilings"]["gemm_tflops"]
    rows = record["kernels"]["gemm"]["rows"]
    for row in rows:
        flops = 2.0 * math.prod(row["size"]) / 1e6
        theirs, ours = flops / row["us"]["cuBLAS"], flops / row["us"]["gemm"]
        lines.append(
            f"| {row['label']} | {' x '.join(map(str, row['size']))} | {theirs:.0f} | **{ours:.0f}** | "
            f"{100 * ours / theirs:.1f} % | {100 * ours / ceiling:.0f} % | `{row['config']}` |"
        )
    mean, least = summary(speedup(row, "cuBLAS", "gemm") for row in rows)
    return (
        f"bf16, random normal data, medians. {_stamped(record)}\nThe ceiling, {ceiling:.0f} TFLOP/s, is the fastest single "
        "sample of an 8192^3 cuBLAS GEMM in that run: what the board gives before its power limit slows it.\nRows named "
        "after a model are the gate and up projections of Qwen-2.5 as one GEMM.\n\n"
        + "\n".join(lines)
        + f"\n\ncuBLAS's time over ours: geometric mean {mean:.3f}, minimum {least:.3f}.\n"
    )


def evidence_table() -> str:
    lines = [
        "| what | GPU | date | cases | worst relative error | recorded from today's code |",
        "|---|---|---|---|---|---|",
    ]
    for e in evidence.table():
        worst = "" if e.worst_error is None else f"{e.worst_error:.5f}"
        lines.append(f"| {e.name} | {e.gpu} | {e.date} | {e.cases or ''} | {worst} | {e.status} |")
    return "\n".join(lines) + "\n"


def ladder_table() -> str:
    """The ladder's figures and the reason for each jump."""
    from .lab import bench, ladder

    record = records.load("ladder")
    if not record:
        return "Nothing is recorded yet.\n"
    rows = ladder.table(record)
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    theirs = ", ".join(f"{bench.tflops(r['size'], r['us']['cuBLAS']):.0f}" for r in record["rows"])
    return (
        f"TFLOP/s (share of cuBLAS, share of the ceiling of {record['ceiling_tflops']:.0f} TFLOP/s), bf16, all in one run; "
        f"cuBLAS: {theirs}. {_stamped(record)} Where `ck.gemm` chooses the configuration of the step above it, what lies between "
        "the two rows is the run's noise.\n\n" + "\n".join(lines) + "\n"
    )


def ladder_picture() -> str:
    return f"![TFLOP/s of each step beside cuBLAS](notebooks/measured/{records.REFERENCE_GPU}/{PICTURE})\n"


PARTS: dict[str, Callable[[], str]] = {
    "ladder": ladder_picture,
    "ladder_table": ladder_table,
    "swiglu": swiglu_table,
    "peers": peers_table,
    "gemm": gemm_table,
    "evidence": evidence_table,
}


def render(text: str) -> str:
    """README text with every generated part made anew; KeyError for a marker that nothing generates."""
    return re.sub(
        r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{PARTS[found[2]]()}{found[3]}",
        text,
        flags=re.S,
    )


def main(check: bool = False) -> int:
    """Rewrite README.md and the ladder picture; with `check` only compare, 1 when README.md is out of date."""
    text = README.read_text()
    new = render(text)
    if check:
        print("README.md is up to date" if new == text else "README.md is out of date: python -m cute_kernels readme")
        return int(new != text)
    from .lab import ladder

    figure = ladder.figure()
    if figure is not None:
        figure.savefig(records.MEASURED / records.REFERENCE_GPU / PICTURE, dpi=110)
    README.write_text(new)
    print("README.md written")
    return 0
