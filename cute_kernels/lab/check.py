"""Is it right, and if not, where: relative errors against fp32 and a reading of the pattern in the learner's terms."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import records, reference
from . import bench, style

#: (M, N, K): below, at and beyond tile edges, tails in every dimension, one k-tile and many.
ODD_SHAPES = (
    (1, 64, 64),
    (63, 136, 64),
    (64, 64, 128),
    (65, 8, 192),
    (127, 264, 72),
    (128, 128, 64),
    (129, 248, 520),
    (257, 8, 8),
    (1000, 1032, 520),
    (384, 512, 4096),
)
BAD = 0.01  # an element is off when it differs by more than this share of the reference's typical size


class CheckFailed(AssertionError):
    """The result is wrong; the message says how wrong and where the error sits."""


@dataclass
class Report:
    """A result beside its fp32 reference.

    rel: ||out - ref|| / ||ref|| in norm, infinite where one of them has a NaN or Inf and the other has not the same. far: number
    of elements off by more than 5 % of max(|ref|, typical |ref|), which no rounding explains. worst: (row, column), what was
    got and what was wanted. bad_share: share of elements off by more than 1 % of max(|ref|, typical |ref|). where: a
    sentence about the pattern, "" when nothing is off.
    """

    rel: float
    worst: tuple[tuple[int, int], float, float]
    bad_share: float
    where: str
    bad: torch.Tensor
    far: int = 0

    def ok(self, limit: float = 0.004) -> bool:
        """Right as a whole and in each element: a race spoils a few, which the norm of a large result does not show."""
        return self.rel <= limit and not self.far

    def __str__(self) -> str:
        (row, column), got, want = self.worst
        return (
            f"relative error {self.rel:.5f}; {100 * self.bad_share:.2f} % of the elements off by more than 1 %; "
            f"worst at ({row}, {column}): got {got:.5g}, want {want:.5g}" + (f"; {self.where}" if self.where else "")
        )

    __repr__ = __str__

    def picture(self, tile: tuple[int, int] = (128, 128)):
        """Where the wrong elements are: one pixel an element, tile borders drawn."""
        import matplotlib.pyplot as plt

        style.apply()
        rows, columns = self.bad.shape
        figure, axis = plt.subplots(figsize=(4.5, 0.8 + 3.6 * min(1.5, rows / columns)))
        axis.imshow(self.bad.float().cpu(), cmap="Reds", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        for m in range(0, rows, tile[0]):
            axis.axhline(m - 0.5, color=style.INK, lw=0.5)
        for n in range(0, columns, tile[1]):
            axis.axvline(n - 0.5, color=style.INK, lw=0.5)
        axis.set(xlabel="n", ylabel="m", title=f"wrong elements: {100 * self.bad_share:.1f} %")
        plt.close(figure)  # the notebook shows what the cell returns, once
        return figure


def compare(out: torch.Tensor, ref: torch.Tensor, tile: tuple[int, int] = (128, 128)) -> Report:
    """Compare a 2-D result with its reference (any float dtypes, any device)."""
    if out.shape != ref.shape:
        raise CheckFailed(f"out has shape {tuple(out.shape)}, the reference {tuple(ref.shape)}")
    if out.dim() != 2 or not out.numel():
        raise CheckFailed(f"out has shape {tuple(out.shape)}: compare takes two matrices with at least one element")
    got, want = out.double(), ref.double()
    difference = (got - want).abs()
    same = (got == want) | (got.isnan() & want.isnan())
    hole = ~same & ~(torch.isfinite(got) & torch.isfinite(want))
    norm = want[torch.isfinite(want)].norm().item()
    typical = norm / math.sqrt(max(1, want.numel()))
    size = torch.clamp(want.abs(), min=typical)
    bad = hole | (difference > BAD * size)
    rel = math.inf if hole.any() else torch.nan_to_num(difference).norm().item() / (norm or 1.0)
    flat = int(torch.where(hole, torch.full_like(difference, math.inf), torch.nan_to_num(difference)).argmax())
    at = (flat // out.shape[1], flat % out.shape[1])
    return Report(
        rel,
        (at, got[at].item(), want[at].item()),
        bad.double().mean().item(),
        explain(bad, got, want, tile) if bad.any() else "",
        bad,
        int(reference.far_off(out, ref).sum()),
    )


def explain(bad: torch.Tensor, got: torch.Tensor, want: torch.Tensor, tile: tuple[int, int] = (128, 128)) -> str:
    """The pattern of wrong elements as a sentence; the most specific reading that fits."""
    rows, columns = bad.shape
    holes = bool(got.isnan()[bad].all())
    tail = " (they hold NaN: never written)" if holes else ""
    row_bad, column_bad = bad.any(1), bad.any(0)
    bad_rows, bad_columns = row_bad.nonzero().flatten(), column_bad.nonzero().flatten()

    def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool(torch.isclose(a, b, rtol=0.05, atol=1e-3).double().mean() > 0.9)

    if rows == columns and rows > 1 and alike(got, want.T) and not alike(want, want.T):
        return "the result is the transpose of the right one: m and n are exchanged"
    if bad.double().mean() > 0.9:
        ratio = (got / want)[torch.isfinite(got) & (want.abs() > 1e-3)]
        if ratio.numel() > 1 and ratio.std() < 0.02 * ratio.mean().abs():
            return (
                f"every element is {ratio.mean():.3g} times the right one: a scale, or a k-tile counted twice or never"
            )
        return f"nearly every element is wrong{tail}: look at the operands' layouts, or at K (a k-tile lost, doubled or stale)"
    edge_m, edge_n = rows // tile[0] * tile[0], columns // tile[1] * tile[1]
    if rows > edge_m > 0 and bad_rows.min() >= edge_m:
        first = int(bad_rows.min())
        return f"only rows from {first} on are wrong{tail}: the M tail, behind the last whole tile of {tile[0]} rows"
    if columns > edge_n > 0 and bad_columns.min() >= edge_n:
        first = int(bad_columns.min())
        return (
            f"only columns from {first} on are wrong{tail}: the N tail, behind the last whole tile of {tile[1]} columns"
        )
    across = -(-columns // tile[1])
    total = -(-rows // tile[0]) * across
    whole = torch.nn.functional.pad(bad, (0, -columns % tile[1], 0, -rows % tile[0]))
    by_tile = whole.view(-1, tile[0], across, tile[1]).any(3).any(1)
    tiles_bad = by_tile.flatten().nonzero().flatten().tolist()
    for axis, name, index in ((0, "rows", bad_rows), (1, "columns", bad_columns)):
        if 2 * len(tiles_bad) <= total and total > 1:
            break  # "of each tile" would say more than is there
        half = tile[axis] // 2
        inside = index % tile[axis]
        if inside.numel() and (inside >= half).all() and bad.shape[axis] > half:
            who = ": the second warp group's share of a tile" if axis == 0 else ""
            return f"only {name} {half}..{tile[axis] - 1} of each tile are wrong{tail}{who}"
        if inside.numel() and (inside < half).all() and bad.shape[axis] >= tile[axis]:
            who = ": the first warp group's share of a tile" if axis == 0 else ""
            return f"only {name} 0..{half - 1} of each tile are wrong{tail}{who}"
    if len(tiles_bad) < total:
        some = ", ".join(str(divmod(t, across)) for t in tiles_bad[:4])
        return f"{len(tiles_bad)} of {total} tiles hold all wrong elements{tail}: {some}"
    return f"wrong elements are scattered over all {total} tiles{tail}: a race, or single registers in the wrong place"


def gemm(
    kernel: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any],
    name: str,
    shapes: Sequence[tuple[int, int, int]] = ODD_SHAPES,
    dtype: torch.dtype = torch.bfloat16,
    limit: float = 0.004,
    tile: tuple[int, int] = (128, 128),
    expected: Callable[..., torch.Tensor] = reference.gemm,
    weights: int = 1,
):
    """Run kernel(a, b, out) over odd shapes against fp32; returns the table, raises CheckFailed at the first wrong shape.

    expected(a, b): what the output must be, in fp32; default a @ b.T. weights: 2 for a kernel(a, b, c, out); see `swiglu`.

    Inputs are fresh normal random numbers; the output is poisoned with NaN inside a larger buffer whose rim must not change.
    Without a GPU nothing is checked: the recorded table is shown and says so.
    """
    import pandas as pd

    record_name = f"check_{name}"
    if not torch.cuda.is_available():
        record = records.load(record_name)
        if record is None:
            print(f"{name}: not checked here (no GPU), and nothing is recorded yet")
            return None
        print(f"{name}: not checked here (no GPU); {style.recorded_label(record)}")
        return pd.DataFrame(record["rows"]).set_index(["M", "N", "K"])
    rows = []
    for m, n, k in shapes:
        a = torch.randn(m, k, device="cuda").to(dtype)
        b = [(torch.randn(n, k, device="cuda") / math.sqrt(k)).to(dtype) for _ in range(weights)]
        buffer = torch.full((m + 2, n + 16), math.nan, device="cuda", dtype=dtype)
        out = buffer[1 : m + 1, 8 : n + 8]
        kernel(a, *b, out)
        torch.cuda.synchronize()
        report = compare(out, expected(a, *b), tile)
        if not report.ok(limit):
            raise CheckFailed(f"{name} at M, N, K = {m}, {n}, {k}: {report}")
        buffer[1 : m + 1, 8 : n + 8] = math.nan
        if not buffer.isnan().all():
            raise CheckFailed(f"{name} at M, N, K = {m}, {n}, {k}: it wrote outside of out; is every store predicated?")
        rows.append({"M": m, "N": n, "K": k, "relative error": round(report.rel, 6)})
    if os.environ.get(bench.RECORD) == "1":
        records.save(record_name, {"rows": rows})
    print(f"{name}: {len(rows)} shapes right, worst relative error {max(r['relative error'] for r in rows):.5f}")
    return pd.DataFrame(rows).set_index(["M", "N", "K"])


def swiglu(kernel: Callable[..., Any], name: str, **more: Any):
    """As `gemm`, for kernel(x, w_gate, w_up, out) against silu(x @ w_gate.T) * (x @ w_up.T)."""
    return gemm(kernel, name, **{"expected": reference.swiglu, "limit": 0.0025, **more}, weights=2)
