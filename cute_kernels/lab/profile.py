"""Hardware counters of a launch, by Nsight Compute in a child process; without it, the recorded figures."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import records
from . import bench

#: what the course looks at: short name -> metric
METRICS = {
    "cycles": "sm__cycles_elapsed.max",
    "tensor pipe busy, %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "L2 hit rate, %": "lts__t_sector_hit_rate.pct",
    "L2 sectors read, GB": "lts__t_sectors_op_read.sum",
    "DRAM read, GB": "dram__bytes_read.sum",
    "registers per thread": "launch__registers_per_thread",
}
GIGA = {"byte": 1e-9, "Kbyte": 1e-6, "Mbyte": 1e-3, "Gbyte": 1.0, "sector": 32e-9}


def available() -> bool:
    """Whether counters can be read here: a Hopper GPU and `ncu` on the PATH."""
    return torch.cuda.is_available() and shutil.which("ncu") is not None


def measure(source: str, metrics: Mapping[str, str] = METRICS, seconds: float = 120) -> list[dict[str, float]]:
    """Run Python source under ncu; one dict per launch of a CuTe DSL kernel, in order. RuntimeError with ncu's words."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profiled.py"
        file.write_text(source)
        path = os.pathsep.join([str(records.ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = ["ncu", "--csv", "-k", "regex:kernel_cutlass", "--metrics", ",".join(metrics.values())]
        done = subprocess.run(
            [*command, sys.executable, "-W", "ignore", str(file)],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "PYTHONPATH": path},
        )
    if '"Metric Name"' not in done.stdout:
        raise RuntimeError(f"ncu measured nothing ({done.returncode}): {(done.stdout + done.stderr).strip()[-400:]}")
    return parse(done.stdout, metrics)


def parse(text: str, metrics: Mapping[str, str] = METRICS) -> list[dict[str, float]]:
    """ncu's --csv output -> one dict of short names per launch."""
    table = text[text.index('"ID"') :]
    short = {metric: name for name, metric in metrics.items()}
    launches: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        name = short.get(row["Metric Name"])
        if name:
            value = float(re.sub(r"[^\d.eE+-]", "", row["Metric Value"]))
            if name.endswith("GB"):
                value *= GIGA[row["Metric Unit"]]
            launches.setdefault(row["ID"], {})[name] = round(value, 3)
    return list(launches.values())


def table(name: str, sources: Mapping[str, str], metrics: Mapping[str, str] = METRICS):
    """label -> source, each measured (its last launch) and shown as a pandas table.

    Kept as record "ncu_<name>" while notebooks are recorded; the recorded one where there are no counters."""
    import pandas as pd

    record: dict[str, Any] | None
    if available():
        record = {"rows": {label: measure(source, metrics)[-1] for label, source in sources.items()}}
        bench.keep(f"ncu_{name}", record)
    else:
        record = bench.recorded(f"ncu_{name}", f"counters of {name}")
    return None if record is None else pd.DataFrame(record["rows"]).T
