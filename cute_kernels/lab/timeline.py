"""What the warps of one CTA really did: traced launches, their records, a Gantt chart and a Perfetto file.

`capture` runs a finished kernel built with its trace switched on (hopper/trace.py) and keeps one CTA's spans as a record;
without a GPU it loads the record. A trace costs a clock read and a store per event, so it shows an order of things and
proportions; speeds are measured without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import registry
from ..hopper import trace
from ..hopper.kernel import Variant
from . import bench, draw

Span = tuple[int, int, str]  # first cycle, last cycle, one of trace.KINDS


@dataclass(frozen=True)
class Timeline:
    """Spans of one CTA in cycles since its first event: role -> spans. title: kernel, configuration, problem, and where from."""

    title: str
    rows: dict[str, list[Span]]

    @property
    def end(self) -> int:
        return max((end for spans in self.rows.values() for _, end, _ in spans), default=0)

    def busy(self, kind: str, roles: str = "consumer") -> float:
        """Share of the time during which at least one of the roles was in a span of this kind."""
        spans = sorted(
            (start, end)
            for role, found in self.rows.items()
            if role.startswith(roles)
            for start, end, k in found
            if k == kind
        )
        total, reached = 0, 0
        for start, end in spans:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return total / self.end if self.end else 0.0

    def figure(self, start: int = 0, end: int | None = None, label: str = ""):
        """Gantt chart of the cycles from start to end (default: all), which are the scale's, too. label: what the title begins
        with."""
        end = self.end if end is None else end
        rows = {
            role: [
                (max(a, start), min(b, end), "", kind)
                for a, b, kind in spans
                if b > start and a < end and kind != "idle"
            ]
            for role, spans in self.rows.items()
        }
        title = f"{label}: {self.title}" if label else self.title
        return draw.timeline(rows, title, "cycles of this multiprocessor", (start, end))

    def perfetto(self, file: str | Path) -> Path:
        """Write the spans as Chrome trace events, for ui.perfetto.dev; one cycle is shown as one nanosecond."""
        events = [
            {"name": kind, "ph": "X", "ts": a / 1e3, "dur": (b - a) / 1e3, "pid": self.title, "tid": role}
            for role, spans in self.rows.items()
            for a, b, kind in spans
            if kind != "idle"
        ]
        file = Path(file)
        file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
        return file


def decode(events: np.ndarray) -> dict[str, list[Span]]:
    """One CTA's slice of the trace tensor, (roles, CAPACITY), -> its spans in cycles since the first event of any role."""
    found = {}
    for role, entries in zip(trace.ROLES, events, strict=True):
        written = int(np.count_nonzero(entries))
        if written > 3:
            clocks, kinds = entries[2:written] >> 8, entries[2:written] & 255
            found[role] = [
                (int(a), int(b), trace.KINDS[int(k)]) for a, b, k in zip(clocks, clocks[1:], kinds, strict=False)
            ]
    first = min((spans[0][0] for spans in found.values()), default=0)
    return {role: [(a - first, b - first, kind) for a, b, kind in spans] for role, spans in found.items()}


def run(name: str, config: Any, m: int, n: int, k: int, cta: int = 0, persistent: bool = True) -> dict[str, list[Span]]:
    """Launch a traced kernel twice on random bf16 operands (the first launch warms up) and decode one CTA of the second.

    persistent: see bench.launcher.
    """
    from .. import validate
    from ..device import max_clusters

    spec = registry.get(name)
    kernel = spec.compile(config, "bfloat16", Variant(traced=True))
    args = validate.packed(spec, validate.inputs(spec, m, n, k, torch.bfloat16))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    size = config.cluster[0] * config.cluster[1]
    clusters = max_clusters(out.device, size)
    if not persistent:
        clusters = -(-m // (config.tile_m * config.cluster[0])) * -(-n // (config.tile_n * config.cluster[1]))
        clusters = min(clusters, bench.MOST_CLUSTERS)
    ctas = clusters * size
    for _ in range(2):
        events = torch.zeros(ctas, len(trace.ROLES), trace.CAPACITY, device="cuda", dtype=torch.int64)
        kernel.function(*args, out, clusters, (), events)
    torch.cuda.synchronize()
    return decode(events[cta].cpu().numpy())


def capture(
    step: str, name: str, config: Any, m: int, n: int, k: int, cta: int = 0, persistent: bool = True
) -> Timeline | None:
    """The timeline of one CTA: measured here and, while notebooks are recorded, kept as "timeline_<step>"; without a Hopper GPU
    the recorded one, None when there is none."""
    if torch.cuda.is_available():
        record = {
            "kernel": name,
            "config": config.name,
            "shape": [m, n, k],
            "cta": cta,
            "rows": run(name, config, m, n, k, cta, persistent),
        }
        bench.keep(f"timeline_{step}", record)
        where = torch.cuda.get_device_name()
    else:
        record = bench.recorded(f"timeline_{step}", f"timeline of {step}")
        if record is None:
            return None
        where = "recorded on " + record["stamp"]["gpu"]
    title = (
        f"{record['kernel']} {record['config']}, {' x '.join(map(str, record['shape']))}, CTA {record['cta']} ({where})"
    )
    return Timeline(title, {role: [tuple(span) for span in spans] for role, spans in record["rows"].items()})
