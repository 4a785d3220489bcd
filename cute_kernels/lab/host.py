"""What a call costs before the GPU starts, and what PyTorch's profiler sees of it: the figures of notebook 12.

Host times are those of one thread that only queues work: batches so short that the queue never fills, with nothing in it at the
beginning. They depend on the machine's CPU, which is why its name is recorded with them and ratios are shown.
"""

from __future__ import annotations

import contextlib
import gc
import platform
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from .. import api, device, launch, modules, plans, reference, registry
from ..hopper.kernel import PLAIN
from ..models import QWEN25
from . import HAS_GPU, bench

BATCH = 50  # calls between two looks at the clock: at most 200 launches, which the driver queues without waiting
BASE = "F.linear"  # what ratios are to


def cpu_name() -> str:
    """The CPU's name as Linux has it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@contextlib.contextmanager
def unknown_calls() -> Iterator[None]:
    """Every call is checked as if it were new: plans are neither looked for nor kept."""
    with mock.patch.object(plans, "look", lambda *call: (None, None)):
        yield


def contenders(model: str, m: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """name -> (call, context in which it is timed), on random bf16 operands of a Qwen-2.5 model on this GPU."""
    import cute_kernels as ck

    k, n = QWEN25[model]
    x, both, out = bench.swiglu_operands(m, n, k)
    gate, up = both[:n], both[n:]
    operator = torch.ops.cute_kernels.swiglu
    with torch.no_grad():
        ck.swiglu(x, gate, up)  # compiled, and known from here on
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ck.swiglu(x, gate, up, out=out)

    def call() -> torch.Tensor:
        return ck.swiglu(x, gate, up)

    def operate() -> torch.Tensor:
        return operator(x, gate, up)

    return {
        "torch.empty": (lambda: torch.empty(m, n, device="cuda", dtype=torch.bfloat16), torch.no_grad),
        BASE: (lambda: F.linear(x, gate), torch.no_grad),
        "eager": (lambda: reference.eager(x, gate, up), torch.no_grad),
        "ck.swiglu": (call, torch.no_grad),
        "ck.swiglu, out=": (lambda: ck.swiglu(x, gate, up, out=out), torch.no_grad),
        "ck.swiglu, checked": (call, unknown_calls),
        "operator": (operate, torch.no_grad),
        "operator, inference_mode": (operate, torch.inference_mode),
        "CUDA graph": (graph.replay, torch.no_grad),
    }


def turns(
    calls: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]],
    rounds: int = 31,
    batch: int = BATCH,
    wait: Callable[[], Any] = torch.cuda.synchronize,
) -> dict[str, bench.Timing]:
    """Host microseconds per call: contenders in turns, a fresh random order in every round, the garbage collector off.

    wait: empties the queue before each batch.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, collecting = list(calls), gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds + 2):
            random.shuffle(order)
            for name in order:
                call, context = calls[name]
                with torch.no_grad(), context():
                    wait()
                    begin = time.perf_counter_ns()
                    for _ in range(batch):
                        call()
                    spent = time.perf_counter_ns() - begin
                if turn > 1:  # the first rounds warm up
                    samples[name].append(spent / batch / 1e3)
        wait()
    finally:
        if collecting:
            gc.enable()
    return {name: bench.Timing.of(found) for name, found in samples.items()}


def call_times(step: str, model: str = "0.5B", m: int = 1) -> dict[str, Any] | None:
    """Host time of a call of each kind: {"us", "spread", "cpu", "model", "M", "where"}.

    Kept as record "host_<step>" while notebooks are recorded; without a Hopper GPU the recorded one, None when there is none.
    """
    if not HAS_GPU:
        record = bench.recorded(f"host_{step}", "host times")
        return record and {**record, "where": f"recorded, {record['cpu']}"}
    record = {"model": model, "M": m, "cpu": cpu_name(), **bench.figures(turns(contenders(model, m)))}
    bench.keep(f"host_{step}", record)
    return {**record, "where": f"measured here, {record['cpu']}"}


def table(times: Mapping[str, Any]):
    """What `call_times` returned as a pandas table: microseconds, spread, and the ratio to F.linear of the same run."""
    import pandas as pd

    lines = {
        name: {
            "host us": us,
            "spread": f"{100 * times['spread'][name]:.0f} %",
            f"of {BASE}": round(us / times["us"][BASE], 2),
        }
        for name, us in times["us"].items()
    }
    return pd.DataFrame(lines).T.rename_axis("call")


def bound(rows: Sequence[Mapping[str, Any]], who: str, host_us: float) -> dict[str, list[int]]:
    """model -> the M at which `who` takes less on the GPU (rows of the recorded benchmark) than a call takes on the host."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["model"], [])
        if row["us"][who] < host_us:
            found[row["model"]].append(row["M"])
    return found


# ---- what PyTorch sees ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def as_on_hopper() -> Iterator[None]:
    """The pass of `ck.fuse_compiled` asks which GPU a graph is for. Without a Hopper GPU, CPU tensors pass for its tensors here,
    so that the same graphs come out; running them afterwards takes the operator's fallback."""
    if HAS_GPU:
        yield
        return
    with mock.patch.object(api, "DEVICE", "cpu"), mock.patch.object(device, "target", lambda where: "sm_90a"):
        yield


def graph_lines(graph: torch.fx.Graph) -> str:
    """What a graph that Dynamo traced computes: its calls, one a line, without inputs and what nobody uses; short names."""
    lines = [line.split(";")[0].strip() for line in graph.python_code("self").src.splitlines()]
    calls = [line for line in lines if " = " in line and not line.startswith("l_")]
    text = "\n".join(calls)
    used = [line for line in calls if line is calls[-1] or text.count(line.split(" = ")[0]) > 1]
    text = re.sub(r"_parameters_(\w+?)_(?=\W)", r".\1", "\n".join(used))
    return re.sub(r"\bl_(?:self_modules_)?(\w+?)_?(?=\W)", r"\1", text)


def saved_for_backward(call: Callable[..., torch.Tensor], *given: torch.Tensor) -> list[tuple[int, ...]]:
    """Shapes of the tensors that autograd keeps for the backward pass of call(*given), beside what was given."""
    kept: dict[int, tuple[int, ...]] = {}
    inputs = {t.data_ptr() for t in given}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in inputs:
            kept[t.data_ptr()] = tuple(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = call(*given)
    del y
    return list(kept.values())


def first_call_in_a_capture() -> str:
    """What a first call says while a CUDA graph is captured. Without a GPU, PyTorch is made to say that a capture is on."""
    import cute_kernels as ck

    spec = registry.get("gemm")
    config = spec.configs[-1]
    try:
        if HAS_GPU:
            a, b = (torch.zeros(8, 8, device="cuda", dtype=torch.float16) for _ in range(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the graph is empty, as it should be
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    ck.gemm(a, b, config=config)
        else:
            with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
                launch.load((spec.name, config, torch.float16, 0, PLAIN), torch.device("cuda", 0))
    except RuntimeError as why:
        return f"{type(why).__name__}: {why}"
    raise AssertionError("a first call inside a capture compiled and loaded a kernel")


def training_times(step: str, shapes: Sequence[tuple[str, int]]):
    """GPU time of forward, and of forward and backward, of eager SwiGLU and `ck.swiglu`, each in a CUDA graph, and the memory
    (10^6 bytes) that lies there after forward and at most during both, beside weights and x; as a pandas table.

    shapes: (Qwen-2.5 model, M). Kept as record "training_<step>" while notebooks are recorded; without a Hopper GPU the recorded
    table, labelled, or None.
    """
    import pandas as pd

    rows = _timed(f"training_{step}", "training step", shapes, _training_steps, memory)
    if rows is None:
        return None
    return pd.DataFrame(
        {f"{r['model']} M={r['M']}, {unit}": r[unit] for r in rows for unit in ("us", "MB") if unit in r}
    )


def memory(call: Callable[[], Any]) -> float:
    """What a call has allocated at most while it ran, its result included, in 10^6 bytes; for a call whose result autograd
    follows, what is still there when it is over."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    followed = isinstance(result, torch.Tensor) and result.requires_grad
    after = torch.cuda.memory_allocated() if followed else torch.cuda.max_memory_allocated()
    return round((after - before) / 1e6, 1)


def backward_times(step: str, shapes: Sequence[tuple[str, int]]):
    """GPU time of each kind of GEMM in a backward pass of swiglu by PyTorch and by `ck.gemm`, as a pandas table.

    shapes, record "backward_<step>": as for `training_times`.
    """
    import pandas as pd

    rows = _timed(f"backward_{step}", "products of a backward pass", shapes, _products_of_backward)
    lines = {}
    for row in rows or ():
        (k, n), m, us = QWEN25[row["model"]], row["M"], row["us"]
        for part, elements in {GATE: m * n, D_GATE: m * n, DX: m * k, D_WEIGHT: n * k}.items():
            theirs, ours = us[f"{part}, PyTorch"], us[f"{part}, ck.gemm"]
            lines[f"{row['model']} M={m}", part] = {
                "elements, millions": round(elements / 1e6, 1),
                "PyTorch, us": theirs,
                "ck.gemm, us": ours,
                "ratio": round(theirs / ours, 2),
            }
    return pd.DataFrame(lines).T if lines else None


def _timed(
    name: str,
    what: str,
    shapes: Sequence[tuple[str, int]],
    calls_of: Callable[[int, int, int], dict[str, list[Callable[[], Any]]]],
    memory_of: Callable[[Callable[[], Any]], float] | None = None,
) -> list[dict[str, Any]] | None:
    """Rows {"model", "M", "us", "MB" (by memory_of), ...} of calls_of(M, K, N) in turns, kept as a record of that name; without
    a GPU the recorded ones."""
    record: dict[str, Any] | None
    if HAS_GPU:
        rows = []
        for model, m in shapes:
            calls = calls_of(m, *QWEN25[model])
            try:
                rows.append({"model": model, "M": m, **bench.figures(bench.turns(calls, rounds=5))})
                if memory_of is not None:  # after the turns, which have warmed up
                    rows[-1]["MB"] = {who: memory_of(call) for who, (call,) in calls.items()}
            except bench.CaptureError as why:
                print(f"{what}: {why}")
                return None
        record = {"rows": rows}
        bench.keep(name, record)
    else:
        record = bench.recorded(name, what)
    return None if record is None else record["rows"]


def _training_steps(m: int, k: int, n: int) -> dict[str, list[Callable[[], Any]]]:
    import cute_kernels as ck

    x, both, dy = bench.swiglu_operands(m, n, k)
    leaves = [t.detach().clone().requires_grad_() for t in (x, both[:n], both[n:])]
    dy.normal_()
    calls: dict[str, list[Callable[[], Any]]] = {}
    for who, call in (("eager", reference.eager), ("ck.swiglu", ck.swiglu)):
        calls[f"{who}, forward"] = [lambda call=call: call(*leaves)]
        calls[f"{who}, forward and backward"] = [lambda call=call: torch.autograd.grad(call(*leaves), leaves, dy)]
    return calls


#: the products of a backward pass
GATE, D_GATE, DX, D_WEIGHT = "gate again", "up again, d gate", "dx, second half", "d weight"


def _products_of_backward(m: int, k: int, n: int) -> dict[str, list[Callable[[], Any]]]:
    import cute_kernels as ck
    from cute_kernels import epilogue as ep
    from cute_kernels import gradient

    x, both, dy = bench.swiglu_operands(m, n, k)
    dy.normal_()
    w_gate, w_up = both[:n], both[n:]
    gate = x @ w_gate.T
    d_gate, d_up = gradient.of_gated("swiglu", gate, x @ w_up.T, dy)
    half = d_gate @ w_gate
    in_epilogue = ep.apply(gradient.d_silu_times, ep.load(dy), ep.load(gate), ep.acc)
    calls: dict[str, Callable[[], Any]] = {
        f"{GATE}, PyTorch": lambda: x @ w_gate.T,
        f"{GATE}, ck.gemm": lambda: ck.gemm(x, w_gate),
        f"{D_GATE}, PyTorch": lambda: torch.ops.aten.silu_backward(dy * (x @ w_up.T), gate),
        f"{D_GATE}, ck.gemm": lambda: ck.gemm(x, w_up, epilogue=in_epilogue),
        f"{DX}, PyTorch": lambda: torch.addmm(half, d_up, w_up),
        f"{DX}, ck.gemm": lambda: ck.gemm(d_up, w_up.T, epilogue=ep.acc + ep.load(half)),
        f"{D_WEIGHT}, PyTorch": lambda: d_up.T @ x,
        f"{D_WEIGHT}, ck.gemm": lambda: ck.gemm(d_up.T, x.T),
    }
    return {who: [call] for who, call in calls.items()}


# ---- the profiler -----------------------------------------------------------------------------------------------------


def kind(kernel: str) -> str:
    """What a kernel of a profile is, by its name: "ours", "activation" (pointwise), "epilogue" (a reduction), "cublas"."""
    if "kernel_cutlass" in kernel:
        return "ours"
    if "elementwise" in kernel or "triton_poi" in kernel:
        return "activation"
    return "epilogue" if "reduce" in kernel.lower() else "cublas"


def kernels_of(call: Callable[[], Any], repeats: int = 4) -> list[tuple[str, float, float]]:
    """(name, start, duration) in microseconds of the kernels of one call, the last of several in a row, by torch.profiler.

    Empty where the profiler sees no kernels (CUPTI is missing, or not allowed)."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = [
        (e.name, e.time_range.start, e.time_range.elapsed_us())
        for e in seen.events()
        if e.device_type == DeviceType.CUDA and not e.name.startswith(("Memset", "Memcpy", "ProfilerStep"))
    ]
    events.sort(key=lambda e: e[1])
    last = events[len(events) - len(events) // repeats :]
    return [(name, round(start - last[0][1], 2), round(spent, 2)) for name, start, spent in last]


def layer_profiles(step: str, model: str, rows: Sequence[int]) -> dict[str, Any] | None:
    """Kernels of one gated MLP (gate, up, activation, down) of a Qwen-2.5 model before and after fusion:
    {"rows": {"M=64": {"eager": [(kernel, start, us), ...], "fused": [...]}}, "where"}.

    Kept as record "profile_<step>" while notebooks are recorded; the recorded ones, or None, without a GPU that may be profiled.
    """
    found: dict[str, Any] = {}
    if HAS_GPU:
        hidden, intermediate = QWEN25[model]
        fused = modules.SwiGLUMLP(hidden, intermediate, device="cuda", dtype=torch.bfloat16)

        def eager(x: torch.Tensor) -> torch.Tensor:
            return fused.down_proj(reference.eager(x, fused.gate_proj.weight, fused.up_proj.weight))

        with torch.no_grad():
            for m in rows:
                x = torch.randn(m, hidden, device="cuda", dtype=torch.bfloat16)
                found[f"M={m}"] = {
                    "eager": kernels_of(lambda x=x: eager(x)),
                    "fused": kernels_of(lambda x=x: fused(x)),
                }
        if all(kernels for both in found.values() for kernels in both.values()):
            record = {"model": model, "rows": found}
            bench.keep(f"profile_{step}", record)
            return {**record, "where": torch.cuda.get_device_name()}
        print("torch.profiler sees no kernels on this machine (CUPTI is missing or not allowed)")
    record = bench.recorded(f"profile_{step}", f"profile of the {model} MLP")
    return record and {**record, "where": f"recorded on {record['stamp']['gpu']}"}


def profile_figures(profiles: Mapping[str, Any]) -> Iterator[Any]:
    """A timeline for each M of `layer_profiles`: eager above fused, both on one scale."""
    from . import draw

    for label, both in profiles["rows"].items():
        bars = {
            who: [(start, start + spent, f"{spent:.0f}", kind(name)) for name, start, spent in kernels]
            for who, kernels in both.items()
        }
        title = f"{profiles['model']} MLP, {label}: kernels of one call, us ({profiles['where']})"
        yield draw.timeline(bars, title, "us since the first kernel started")


def profile_table(profiles: Mapping[str, Any], most: int = 70):
    """`layer_profiles` as a pandas table, kernels in order; names are cut at `most` characters."""
    import pandas as pd

    lines = [
        {"M": label.removeprefix("M="), "": who, "kernel": name[:most], "us": spent}
        for label, both in profiles["rows"].items()
        for who, kernels in both.items()
        for name, _, spent in kernels
    ]
    return pd.DataFrame(lines).set_index(["M", "", "kernel"])
