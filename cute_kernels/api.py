"""The public functions: argument checks, the choice of a kernel, the launch. The only room that knows PyTorch callers."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any

import torch
from torch.autograd import forward_ad

from . import device as devices
from . import epilogue as epilogues
from . import launch as launching
from . import plans, registry, unfused
from .compile import dtype_name
from .hopper import gated, visitor
from .hopper.kernel import Variant
from .hopper.swiglu_pingpong import TwoLoopConfig
from .reference import GATED
from .weights import Interleaved, interleave, split

DEVICE = "cuda"  # tests that check arguments without a GPU set it to "cpu"
DTYPES = (torch.bfloat16, torch.float16)
OUT_DTYPES = (*DTYPES, torch.float32)
ALIGN = plans.ALIGN  # bytes: TMA's rule for base addresses and row pitches
STEP = ALIGN // 2  # the same in elements
#: `swiglu(kernel=...)` -> the finished kernels that it may run
GATED_KERNELS = {
    "auto": ("swiglu_stacked", "swiglu_pingpong"),
    "stacked": ("swiglu_stacked",),
    "pingpong": ("swiglu_pingpong",),
    "interleaved": ("swiglu_interleaved",),
    "torch": (),
}
#: kinds of devices that may be asked whether autocast is on; asked once, because Dynamo before PyTorch 2.12 cannot ask
AUTOCAST = tuple(filter(torch.amp.is_autocast_available, ("cuda", "cpu", "xpu", "mps", "hpu", "mtia", "xla")))
DISABLED = os.environ.get("CUTE_KERNELS_DISABLE", "") not in ("", "0")  # PyTorch's kernels everywhere


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    epilogue: Any = None,
    config: Any = None,
) -> torch.Tensor:
    """a @ b.T with fp32 accumulation, and what `epilogue` makes of it.

    a: (M, K) or (..., K), bf16 or fp16, on an SM90 GPU; leading dimensions are flattened without a copy. b: (N, K), the
    nn.Linear weight convention. Either may be the transpose of a contiguous matrix (weight.T, x.T). M of any size; N a multiple
    of 8, K too unless both are transposed (TMA's 16-byte rule); base addresses and pitches of lines 16-byte aligned.
    out: (..., N) to write into, default a new tensor; it may be a column slice of a larger buffer, it must not overlap the
    inputs. out_dtype: bf16, fp16 or fp32, default out's, else a's.
    epilogue: an expression over the accumulator, such as ep.gelu(ep.acc + ep.row(bias)), see cute_kernels.epilogue.
    config: one of the kernel's `.configs`, default chosen by shape.
    Returns out. Differentiable by a and b, but for an epilogue and out=. Under torch.compile an epilogue breaks the graph.
    Raises TypeError, ValueError, ConfigError, UnsupportedDevice, and CompileError for an epilogue's function that does not
    compile, before anything is launched; RuntimeError for a first call while a CUDA graph is captured.
    """
    if DISABLED:
        _check_torch_gemm(a, b, out, out_dtype, epilogue, config)
        return unfused.gemm(a, b, out, out_dtype, epilogue)
    key = None
    if epilogue is None:
        key, known = plans.look(("gemm", out_dtype, config), (a, b), 1, out)
        if known is not None:
            return known
    check_no_tangent(a=a, b=b)
    if _for_an_operator(a, b):
        if epilogue is not None and torch.compiler.is_compiling():
            return _run_gemm_apart(a, b, out, out_dtype, epilogue, config)
        if epilogue is None:
            _check_types({"a": a, "b": b})
            _check_followed(out, a, b)
            dtype = out.dtype if out_dtype is None and out is not None else out_dtype
            name = _config_name(config, ("gemm",))
            return _into(out, torch.ops.cute_kernels.gemm(a, b, out_dtype=dtype, config=name), a=a, b=b)
    return run_gemm(a, b, out, out_dtype, epilogue, config, key)


def run_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    epilogue: Any,
    config: Any,
    key: tuple | None = None,
) -> torch.Tensor:
    """`gemm` itself; autograd does not follow it. key: under which `plans` keeps the call."""
    given = a, b
    _check_out_dtype(out_dtype)
    if out_dtype is None and isinstance(out, torch.Tensor):
        out_dtype = out.dtype
        if out_dtype not in OUT_DTYPES:
            raise TypeError(f"out is {dtype_name(out_dtype)}, must be bfloat16, float16 or float32")
    if out_dtype is None and isinstance(a, torch.Tensor) and a.dtype in DTYPES:
        out_dtype = a.dtype
    majors = _major(a), _major(b)
    a, b = (_one_line(t) if major == "mn" else t for t, major in zip((a, b), majors, strict=True))
    rows, out2d, result = _arguments(a, {"b": b}, out, "a", majors, out_dtype)
    tree, operands = (None, ()) if epilogue is None else _epilogue(epilogue, result, out2d)
    if result.numel():
        if rows.shape[1] == 0:
            majors = ("k", "k")
        rows, (b,) = _with_depth(rows, (b,))
        same = result.dtype == rows.dtype
        variant = Variant(None if same else dtype_name(result.dtype), majors, tree)
        entry = launching.launch("gemm", rows, (b,), out2d, config, variant, operands)
        plans.keep(key, entry, given, (rows, b), out2d, result)
    return _written(result, out, "gemm", config, majors)


def swiglu(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    *,
    bias_gate: torch.Tensor | None = None,
    bias_up: torch.Tensor | None = None,
    activation: str = "swiglu",
    out: torch.Tensor | None = None,
    kernel: str = "auto",
    config: Any = None,
    early_weights: bool = False,
) -> torch.Tensor:
    """silu(x @ w_gate.T + bias_gate) * (x @ w_up.T + bias_up) in one kernel; the activation applies to the gate.

    x: (M, K) or (..., K), bf16 or fp16; w_gate, w_up: (N, K), plain nn.Linear weights; result (..., N).
    bias_gate, bias_up: (N,), bf16, fp16 or fp32, contiguous.
    activation: "swiglu" (silu), "geglu" (exact GELU), "geglu_tanh", "reglu", "glu" (sigmoid) or "swiglu_oai" (gpt-oss: both
    branches clamped at 7, gate * sigmoid(1.702 gate) * (up + 1)).
    Shapes, alignment, out and errors as for `gemm`.
    kernel: "stacked", gate and up in one tile; "pingpong", one loop after the other (Kernel-1); "interleaved", PairMulStore
    (Kernel-2), which packs the weights anew in every call: keep them packed and call `swiglu_interleaved` instead; "torch", two
    cuBLAS GEMMs and PyTorch's pointwise kernels, any device, shape and dtype, differentiable; "auto", the stacked
    kernel in the configuration that `hopper.choose` predicts to be fastest, or "torch" where that is predicted to be faster.
    early_weights: let the kernel read the weights before the kernel ahead of it in the stream has ended. Right only if that one
    does not write them; never done unasked.
    Differentiable by x, weights and biases, but for out=: the backward pass computes gate and up again (gradient.py). Forward
    mode and torch.func.grad go to PyTorch's kernels where kernel is "auto", else they raise.
    With CUTE_KERNELS_DISABLE=1 in the environment every kernel is "torch".
    """
    tensors = (x, w_gate, w_up, bias_gate, bias_up)
    what = ("swiglu", activation, kernel, config, early_weights, type(early_weights))
    key, known = (None, None) if DISABLED else plans.look(what, tensors, 2, out)
    if known is not None:
        return known
    check_kernel(kernel, activation, config, early_weights)
    if DISABLED or (kernel == "auto" and config is None and (has_tangent(*tensors) or func_differentiates())):
        _check_config(config, GATED_KERNELS[kernel])
        kernel, config, early_weights = "torch", None, False
    if kernel != "torch":
        check_no_tangent(x=x, w_gate=w_gate, w_up=w_up, bias_gate=bias_gate, bias_up=bias_up)
    if kernel != "torch" and _for_an_operator(*tensors):
        _check_types({"x": x, "w_gate": w_gate, "w_up": w_up})
        _check_followed(out, *tensors)
        y = torch.ops.cute_kernels.swiglu(
            *tensors,
            activation=activation,
            use=kernel,
            config=_config_name(config, GATED_KERNELS[kernel]),
            early_weights=early_weights,
        )
        return _into(out, y, x=x, w_gate=w_gate, w_up=w_up)
    return run_swiglu(*tensors, activation, out, kernel, config, early_weights, key)


def run_swiglu(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    bias_gate: torch.Tensor | None,
    bias_up: torch.Tensor | None,
    activation: str,
    out: torch.Tensor | None,
    kernel: str,
    config: Any,
    early_weights: bool,
    key: tuple | None = None,
) -> torch.Tensor:
    """`swiglu` itself, for what `check_kernel` has passed; autograd follows kernel "torch" alone. key: as for `run_gemm`."""
    biases = {"bias_gate": bias_gate, "bias_up": bias_up}
    if kernel == "torch":
        _check_torch(x, w_gate, w_up, out, biases)
        return unfused.swiglu(x, w_gate, w_up, out, activation, bias_gate, bias_up)
    if kernel == "interleaved":
        _arguments(x, {"w_gate": w_gate, "w_up": w_up}, out, "x")
        packed, bias = interleave(w_gate, w_up), _interleaved_bias(w_gate, biases)
        return run_interleaved(x, packed, bias, activation, out, config, False)
    rows, out2d, result = _arguments(x, {"w_gate": w_gate, "w_up": w_up}, out, "x")
    given = {who: t for who, t in biases.items() if t is not None}
    operands = tuple(_vector(who, t, w_gate.shape[0], out2d) for who, t in given.items())
    name, *_ = GATED_KERNELS[kernel]
    if kernel == "auto" and isinstance(config, TwoLoopConfig):  # a configuration says for which it is
        name = "swiglu_pingpong"
    if kernel == "auto" and config is None and not launching.fuses(rows, w_gate.shape[0]):
        with without_autocast(x):
            return unfused.swiglu(x, w_gate, w_up, out, activation, bias_gate, bias_up)
    if result.numel():
        tree = None
        if given or activation != "swiglu":
            tree = gated.stacked(activation, tuple(None if t is None else dtype_name(t.dtype) for t in biases.values()))
        early_weights = early_weights and rows.shape[1] > 0  # weights that stand for none are made by the kernel ahead
        rows, launched = _with_depth(rows, (w_gate, w_up))
        entry = launching.launch(
            name, rows, launched, out2d, config, Variant(tree=tree, early_weights=early_weights), operands
        )
        plans.keep(key, entry, (x, w_gate, w_up, *given.values()), (rows, *launched, *operands), out2d, result)
    return _written(result, out, name, config)


def swiglu_interleaved(
    x: torch.Tensor,
    w: Interleaved,
    *,
    bias: Interleaved | None = None,
    activation: str = "swiglu",
    out: torch.Tensor | None = None,
    config: Any = None,
    early_weights: bool = False,
) -> torch.Tensor:
    """silu(x @ w_gate.T) * (x @ w_up.T) from one packed weight: Kernel-2, whose epilogue is PairMulStore.

    x: (M, K) or (..., K), bf16 or fp16; w: what `interleave(w_gate, w_up)` returned, (2N, K); result (..., N).
    bias: `interleave(bias_gate, bias_up)`, (2N,). activation, early_weights, gradients: as for `swiglu`.
    Shapes, alignment, out and errors as for `gemm`; TypeError for a plain tensor as w, which does not say how it is packed.
    """
    packed = _packed(w, bias)
    what = ("swiglu_interleaved", activation, config, early_weights, type(early_weights))
    key, known = (None, None) if DISABLED else plans.look(what, (x, *packed), 1, out)
    if known is not None:
        return known
    check_activation(activation)
    _check_early(early_weights)
    if DISABLED:
        _check_config(config, ("swiglu_interleaved",))
        both, biases = (None if t is None else split(t, "interleaved") for t in packed)
        return run_swiglu(x, *both, *(biases or (None, None)), activation, out, "torch", None, False)
    check_no_tangent(x=x, w=packed[0], bias=packed[1])
    if _for_an_operator(x, *packed):
        _check_types({"x": x})
        _check_followed(out, x, *packed)
        name = _config_name(config, ("swiglu_interleaved",))
        y = torch.ops.cute_kernels.swiglu_interleaved(
            x, *packed, activation=activation, config=name, early_weights=early_weights
        )
        return _into(out, y, x=x, w=packed[0])
    return run_interleaved(x, w, bias, activation, out, config, early_weights, key)


def run_interleaved(
    x: torch.Tensor,
    w: Interleaved,
    bias: Interleaved | None,
    activation: str,
    out: torch.Tensor | None,
    config: Any,
    early_weights: bool,
    key: tuple | None = None,
) -> torch.Tensor:
    """`swiglu_interleaved` itself, for an activation that `check_activation` has passed; autograd does not follow it. key: as for
    `run_gemm`."""
    rows, out2d, result = _arguments(x, {"w": w.tensor}, out, "x", fold=2)
    operands, tree = (), None
    if bias is not None:
        operands = (_vector("bias", bias.tensor, w.shape[0], out2d),)
    if bias is not None or activation != "swiglu":
        tree = gated.paired(activation, None if bias is None else dtype_name(bias.dtype))
    if result.numel():
        early_weights = early_weights and rows.shape[1] > 0
        rows, packed = _with_depth(rows, (w.tensor,))
        entry = launching.launch(
            "swiglu_interleaved", rows, packed, out2d, config, Variant(tree=tree, early_weights=early_weights), operands
        )
        given = (x, w.tensor) if bias is None else (x, w.tensor, bias.tensor)
        plans.keep(key, entry, given, (rows, *packed, *operands), out2d, result)
    return _written(result, out, "swiglu_interleaved", config)


def warmup(kernel: str = "swiglu", *, m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, device: Any = None):
    """Compile and load what `gemm`, `swiglu` or `swiglu_interleaved` (by name) will use for this shape without options, so that a
    CUDA graph can capture it.

    m, n, k: rows of x, columns of the result, depth. device: default the current one. Runs one 8 x 8 problem.
    Raises TypeError, ValueError, UnsupportedDevice.
    """
    names = {"gemm": "gemm", "swiglu": "swiglu_stacked", "swiglu_interleaved": "swiglu_interleaved"}
    if kernel not in names:
        raise ValueError(f"kernel is {kernel!r}, allowed: {', '.join(map(repr, names))}")
    for what, size in (("m", m), ("n", n), ("k", k)):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{what} is {size!r}, must be an int")
        if size < 1 or (what != "m" and size % STEP):
            raise ValueError(
                f"{what} is {size}, must be positive" + ("" if what == "m" else f" and a multiple of {STEP}")
            )
    if dtype not in DTYPES:
        raise TypeError(f"dtype is {dtype!r}, must be torch.bfloat16 or torch.float16")
    if DISABLED:
        return
    spec = registry.get(names[kernel])
    device = "cuda" if device is None else device
    _check_device(device)
    device = torch.device("cuda", devices.index_of(device))
    config = launching.chosen(spec.name, m, n, k, device)
    a, out = (torch.zeros(8, 8, dtype=dtype, device=device) for _ in range(2))
    b = [torch.zeros(16 if spec.packed else 8, 8, dtype=dtype, device=device) for _ in range(spec.b_parts)]
    launching.launch(spec.name, a, tuple(b), out, config)


@torch.compiler.disable
def _run_gemm_apart(*args: Any) -> torch.Tensor:
    return run_gemm(*args)


def _config_name(config: Any, kernels: tuple[str, ...]) -> str:
    """The name under which an operator finds `config`, "" for None."""
    if config is None:
        return ""
    if not any(config == c for kernel in kernels for c in registry.get(kernel).configs):
        raise ValueError(
            f"config {getattr(config, 'name', config)!r} is none of {', '.join(kernels)}'s .configs: under torch.compile, and "
            "where a gradient is asked for, it must be one of them"
        )
    return config.name


def _check_config(config: Any, kernels: tuple[str, ...]) -> None:
    """ConfigError, a ValueError, for what none of these kernels takes; for calls that PyTorch's kernels run."""
    for kernel in kernels if config is not None else ():
        try:
            return registry.get(kernel).check(config)
        except (TypeError, ValueError):
            if kernel == kernels[-1]:
                raise


def config_named(name: str, kernels: tuple[str, ...]) -> Any:
    """The configuration of that name of one of these kernels, None for "". Raises ValueError."""
    if not name:
        return None
    for kernel in kernels:
        for config in registry.get(kernel).configs:
            if config.name == name:
                return config
    raise ValueError(f"config is {name!r}, no name of a configuration of {', '.join(kernels) or 'kernel torch'}")


def _into(out: torch.Tensor | None, result: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    """What an operator returned, in the caller's `out`, as far as its rules can be seen where tensors may have no memory."""
    if out is None:
        return result
    _check_types({"out": out})
    _check_same_device("out", out, *next(iter(inputs.items())))
    if out.dtype != result.dtype:
        raise TypeError(f"out is {dtype_name(out.dtype)}, the result is {dtype_name(result.dtype)}")
    _check_shape(out, tuple(result.shape))
    for who, t in inputs.items():
        _check_apart(out, who, t)
    return out.copy_(result)


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_kernel(kernel: Any, activation: Any, config: Any = None, early_weights: Any = False) -> None:
    if not isinstance(kernel, str) or kernel not in GATED_KERNELS:
        raise ValueError(f"kernel is {kernel!r}, allowed: {', '.join(map(repr, GATED_KERNELS))}")
    check_activation(activation)
    _check_early(early_weights)
    if kernel == "torch" and config is not None:
        raise ValueError("config is given, but kernel='torch' has none")
    if early_weights and kernel in ("torch", "interleaved"):
        why = (
            "has none"
            if kernel == "torch"
            else "packs the weights in the kernel ahead, so that they must be waited for"
        )
        raise ValueError(f"early_weights is True, but kernel={kernel!r} {why}")


def _check_early(early_weights: Any) -> None:
    if not isinstance(early_weights, bool):
        raise TypeError(f"early_weights is {early_weights!r}, must be True or False")


def _packed(w: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tensors of a packed weight and its bias."""
    for who, t in {"w": w, **({} if bias is None else {"bias": bias})}.items():
        if not isinstance(t, Interleaved):
            raise TypeError(
                f"{who} is a {type(t).__name__}, must be an Interleaved: pass interleave(gate, up), or Interleaved.wrap({who}) "
                "if its rows are gate 0, up 0, gate 1, ... already"
            )
    return w.tensor, None if bias is None else bias.tensor


def _check_followed(out: torch.Tensor | None, *tensors: Any) -> None:
    """Autograd cannot follow a result into the caller's memory."""
    if out is not None and not torch.compiler.is_compiling() and _requires_grad(*tensors):
        raise ValueError(
            "out is given and an input requires grad: autograd does not follow out=; leave it away, or call under "
            "torch.no_grad()"
        )


def _arguments(
    a: torch.Tensor,
    weights: dict[str, torch.Tensor],
    out: torch.Tensor | None,
    name: str,
    majors: tuple[str, str] = ("k", "k"),
    out_dtype: torch.dtype | None = None,
    fold: int = 1,
):
    """Checked (2-D a, 2-D out, result in the caller's shape). out_dtype: None where out must have a's dtype. fold: rows of a
    weight for one column of out."""
    tensors = {name: a, **weights, **({} if out is None else {"out": out})}
    _check_types(tensors)
    for who, t in tensors.items():
        if t.device.type != DEVICE:
            raise ValueError(
                f"{who} is on {t.device}, must be on a CUDA device (Hopper, capability 9.0); elsewhere run "
                + ("torch.matmul(a, b.T)" if name == "a" else "swiglu(..., kernel='torch')")
            )
        _check_same_device(who, t, name, a)
        _check_plain(who, t)
        if who == "out" and plans.frozen(t):
            raise ValueError(
                "out was made in torch.inference_mode(), so it can be written to only there; pass out.clone()"
            )
        if who == "out" and out_dtype is not None:
            _check_out_dtype(out_dtype, t)
            continue
        if t.dtype not in DTYPES:
            raise TypeError(f"{who} is {dtype_name(t.dtype)}, must be bfloat16 or float16")
        _check_dtype(who, t, name, a)
    _check_device(a.device)
    if a.dim() < 2:
        raise ValueError(f"{name} has shape {tuple(a.shape)}, must be (..., K) with at least 2 dimensions")
    k = a.shape[-1]
    n = next(iter(weights.values())).shape[0] // fold if next(iter(weights.values())).dim() else 0
    for who, w in weights.items():
        _check_weight(who, w)
        if w.shape[0] % fold:
            raise ValueError(f"{who} has {w.shape[0]} rows, must be an even number: gate and up in turn")
        _check_depth(who, w, name, k)
        if w.shape[0] // fold != n:
            raise ValueError(f"{who} has N = {w.shape[0]} rows, {next(iter(weights))} has N = {n}")
    for what, size in (("K", k), ("N", n)):
        if size % STEP and (what == "N" or "k" in majors):
            raise ValueError(
                f"{what} is {size}, must be a multiple of {STEP}: TMA needs rows of whole {ALIGN}-byte units "
                "(pad with zeros, or use swiglu(..., kernel='torch') or torch.matmul)"
            )
    shape = (*a.shape[:-1], n)
    if _differentiates(*tensors.values()):
        raise ValueError(
            "an input requires grad and this kernel has no backward: call it under torch.no_grad(), or use "
            "swiglu(..., kernel='torch')"
        )
    result = torch.empty(shape, dtype=out_dtype or a.dtype, device=a.device) if out is None else out
    _check_shape(result, shape)
    if k and n:
        for who, w in weights.items():
            _check_rows(who, w) if majors[1] == "k" else _check_rows(f"{who}.T", w.T, who)
    if result.numel() == 0:
        return a.new_empty(0, k), result.new_empty(0, n), result
    rows = a if majors[0] == "mn" else a.new_empty(result.numel() // n, 0) if not k else _rows(name, a)
    if k:
        _check_rows(name, rows) if majors[0] == "k" else _check_rows(f"{name}.T", rows.T, name)
    out2d = result if out is None and a.dim() == 2 else _rows("out", result)
    if out is not None:
        for who, t in ((name, rows), *weights.items()):
            _check_apart(out2d, who, t)
    return rows, out2d, result


def _check_types(tensors: dict[str, Any]) -> None:
    for who, t in tensors.items():
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{who} is a {type(t).__name__}, must be a torch.Tensor")


def _check_plain(who: str, t: torch.Tensor) -> None:
    """Memory that holds the tensor's own values: strided, and not to be negated."""
    if t.layout != torch.strided:
        raise TypeError(f"{who} is {t.layout}, must be a strided (dense) tensor")
    if t.is_neg():
        raise ValueError(f"{who} is a view that PyTorch negates lazily; pass {who}.resolve_neg()")


def _check_same_device(who: str, t: torch.Tensor, name: str, a: torch.Tensor) -> None:
    if t.device != a.device:
        raise ValueError(f"{who} is on {t.device}, {name} is on {a.device}: all tensors must be on one device")


def _check_dtype(who: str, t: torch.Tensor, name: str, a: torch.Tensor) -> None:
    if t.dtype != a.dtype:
        raise TypeError(f"{who} is {dtype_name(t.dtype)}, {name} is {dtype_name(a.dtype)}: dtypes must be equal")


def _check_weight(who: str, w: torch.Tensor) -> None:
    if w.dim() != 2:
        raise ValueError(f"{who} has shape {tuple(w.shape)}, must be (N, K)")


def _check_depth(who: str, w: torch.Tensor, name: str, k: int) -> None:
    if w.shape[1] != k:
        hint = f"; {who}.T would fit: weights are (N, K) as in nn.Linear" if w.shape[0] == k else ""
        raise ValueError(f"{who} has K = {w.shape[1]} columns, {name} has K = {k}{hint}")


def _check_out_dtype(out_dtype: Any, out: torch.Tensor | None = None) -> None:
    """One that results may have, and that of `out` where both are given."""
    if out_dtype is None:
        return
    if out_dtype not in OUT_DTYPES:
        raise TypeError(f"out_dtype is {out_dtype!r}, must be torch.bfloat16, torch.float16 or torch.float32")
    if out is not None and out.dtype != out_dtype:
        raise TypeError(f"out is {dtype_name(out.dtype)}, out_dtype is {dtype_name(out_dtype)}")


def _check_shape(out: torch.Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ValueError(f"out has shape {tuple(out.shape)}, must be {tuple(shape)}")


def _check_apart(out: torch.Tensor, who: str, t: torch.Tensor) -> None:
    if _overlap(out, t) if _has_memory(out) and _has_memory(t) else out is t:
        raise ValueError(f"out overlaps {who} in memory: the kernel would read what it has written")


def on_hopper(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    try:
        return device.type == DEVICE and devices.target(device) == "sm_90a"
    except devices.UnsupportedDevice:
        return False


def _check_device(device: Any) -> None:
    """Raises UnsupportedDevice for what is no Hopper GPU."""
    target = devices.target(device)
    if target != "sm_90a":
        raise devices.UnsupportedDevice(
            f"{device} compiles for {target}; these kernels are written for sm_90a (Hopper, capability 9.0). "
            "swiglu(..., kernel='torch') runs everywhere"
        )


def _major(t: Any) -> str:
    """ "mn" for the transpose of a row-major matrix, else "k"."""
    return "mn" if isinstance(t, torch.Tensor) and t.dim() == 2 and t.stride(1) != 1 and t.stride(0) == 1 else "k"


def _one_line(t: torch.Tensor) -> torch.Tensor:
    """A transposed operand; when K is 1 it has one line, whose pitch means nothing, and TMA still wants a legal one."""
    return t.as_strided(t.shape, (1, -(-t.shape[0] // STEP) * STEP)) if t.shape[1] == 1 else t


def _epilogue(expression: Any, result: torch.Tensor, out2d: torch.Tensor) -> tuple[visitor.Node, tuple]:
    """An epilogue's static tree and its checked operands."""
    tree, operands = _split(expression, out2d.shape[0], tuple(result.shape))
    checked = []
    for t, kind, who, shape in operands:
        if kind == "Scalar":
            checked.append(t)
        elif kind == "Load":
            _check_operand(who, t, shape, result)
            if not t.numel():
                continue
            t = _rows(who, t)
            in_place = (t.data_ptr(), t.stride(), t.dtype) == (out2d.data_ptr(), out2d.stride(), out2d.dtype)
            if not in_place:
                _check_apart(out2d, who, t)
            checked.append(t)
        else:
            checked.append(_vector(who, t, *shape, out2d))
    return tree, tuple(checked)


def _split(expression: Any, m: int, shape: tuple[int, ...]) -> tuple[visitor.Node, list[tuple[Any, str, str, tuple]]]:
    """An epilogue's tree, and of each operand the tensor or number, its kind, its name in messages and the shape it must have
    for a result of m rows and this shape."""
    tree, operands, kinds = epilogues.split(expression)
    shapes = {"Scalar": (), "Row": shape[-1:], "Column": (m,), "Load": shape}
    return tree, [
        (t, kind, f"epilogue {kind.lower()}(...)", shapes[kind]) for t, kind in zip(operands, kinds, strict=True)
    ]


def _check_operand(who: str, t: Any, shape: tuple[int, ...], out: torch.Tensor, name: str = "out") -> None:
    """What an epilogue reads beside the accumulators, on the device of `out`, which the message calls `name`."""
    _check_types({who: t})
    _check_same_device(who, t, name, out)
    if t.dtype not in OUT_DTYPES:
        raise TypeError(f"{who} is {dtype_name(t.dtype)}, must be bfloat16, float16 or float32")
    _check_plain(who, t)
    if tuple(t.shape) != shape:
        raise ValueError(f"{who} has shape {tuple(t.shape)}, must be {shape}")
    if _differentiates(t):
        raise ValueError(f"{who} requires grad and this kernel has no backward: call it under torch.no_grad()")


def _vector(who: str, t: Any, length: int, out2d: torch.Tensor) -> torch.Tensor:
    """A checked vector of an epilogue, such as a bias."""
    _check_operand(who, t, (length,), out2d)
    if not t.numel():
        return t
    if t.numel() == 1:  # its stride means nothing
        t = t.as_strided((1,), (1,))
    if t.stride(0) != 1:
        raise ValueError(f"{who} has stride {t.stride(0)}, must be contiguous; pass its .contiguous()")
    _check_rows(who, t.view(1, -1))
    _check_apart(out2d, who, t)
    return t


def _interleaved_bias(w: torch.Tensor, biases: dict[str, Any]) -> Interleaved | None:
    """Both biases in turn, the missing one as zeros."""
    given = {who: t for who, t in biases.items() if t is not None}
    if not given:
        return None
    for who, t in given.items():
        _check_operand(who, t, (w.shape[0],), w)
    dtypes = {t.dtype for t in given.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    zeros = w.new_zeros(w.shape[0], dtype=dtype)
    return interleave(*(zeros if t is None else t.to(dtype) for t in biases.values()))


def check_activation(activation: Any) -> None:
    if not isinstance(activation, str) or activation not in GATED:
        raise ValueError(f"activation is {activation!r}, allowed: {', '.join(map(repr, GATED))}")


def _written(
    result: torch.Tensor, out: Any, name: str, config: Any, majors: tuple[str, str] = ("k", "k")
) -> torch.Tensor:
    """The result of a call: autograd hears that `out` has changed; a configuration is checked even if nothing was launched."""
    if config is not None and not result.numel():
        registry.get(name).check(config, majors)
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return result


def _with_depth(rows: torch.Tensor, matrices: tuple) -> tuple[torch.Tensor, tuple]:
    """The operands of a launch; with K = 0 there is no k-tile to multiply, and zeros of one unit stand for it."""
    if rows.shape[1]:
        return rows, matrices
    return rows.new_zeros(rows.shape[0], STEP), tuple(w.new_zeros(w.shape[0], STEP) for w in matrices)


def _rows(who: str, t: torch.Tensor, aligned: bool = True) -> torch.Tensor:
    """t as a checked matrix of rows, never a copy. aligned: whether TMA's rules for pitch and address are asked for, too."""
    if t.dim() > 2:
        try:
            t = t.view(-1, t.shape[-1])
        except RuntimeError:
            raise ValueError(
                f"{who} has shape {tuple(t.shape)} and strides {t.stride()}: its leading dimensions cannot be flattened "
                f"without a copy; pass {who}.contiguous()"
            ) from None
    if t.shape[0] == 1 and t.stride(1) == 1:  # one row: its pitch means nothing, TMA still wants a legal one
        t = t.as_strided(t.shape, (t.shape[1], 1))
    if t.shape[1] == 1:
        t = t.as_strided(t.shape, (t.stride(0), 1))
    _check_rows(who, t, aligned=aligned)
    return t


def _check_rows(who: str, t: torch.Tensor, given: str | None = None, aligned: bool = True) -> None:
    """given: the caller's name for what to copy, where t is the transpose of it."""
    given = given or who
    pitch, step = t.stride()
    rows, columns = t.shape
    if step != 1:
        raise ValueError(
            f"{who} has strides {t.stride()}: its last dimension must be contiguous (stride 1); pass {given}.contiguous()"
        )
    if rows > 1 and pitch < columns:
        raise ValueError(f"{who} has strides {t.stride()}: its rows overlap; pass {given}.contiguous()")
    if not aligned:
        return
    if rows > 1 and pitch * t.element_size() % ALIGN:
        raise ValueError(
            f"{who} has a row pitch of {pitch} elements, must be a multiple of {ALIGN // t.element_size()} ({ALIGN} bytes); "
            f"pass {given}.contiguous()"
        )
    if t.data_ptr() % ALIGN:
        raise ValueError(
            f"{who} starts at an address that is {t.data_ptr() % ALIGN} bytes past a multiple of {ALIGN}, must be "
            f"{ALIGN}-byte aligned; pass {given}.clone()"
        )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share memory: exact for matrices of lines of equal pitch, by address range otherwise."""
    if not a.numel() or not b.numel():
        return False

    def lines(t: torch.Tensor) -> torch.Tensor:
        """t as a matrix of contiguous lines where it is one."""
        t = t.view(-1, t.shape[-1]) if t.dim() > 2 and t.is_contiguous() else t
        return t.T if _major(t) == "mn" else t

    a, b = lines(a), lines(b)
    (a0, a1), (b0, b1) = ((t.data_ptr(), t.data_ptr() + plans.span(t)) for t in (a, b))
    if a1 <= b0 or b1 <= a0:
        return False
    if not all(t.dim() == 2 and t.shape[0] > 1 and t.stride(1) == 1 and t.stride(0) >= t.shape[1] for t in (a, b)):
        return True
    pitch, other = (t.stride(0) * t.element_size() for t in (a, b))
    shift = (b0 - a0) % pitch  # first byte of b's lines, counted from a's
    return pitch != other or shift < a.shape[1] * a.element_size() or shift + b.shape[1] * b.element_size() > pitch


# ---- dispatch --------------------------------------------------------------------------------------------------------


def _for_an_operator(*tensors: Any) -> bool:
    """Whether PyTorch has to see an operator: for a tracer, mode, transform, subclass, or because a gradient is asked for."""
    return plans.watched() or any(map(dispatches, tensors)) or _requires_grad(*tensors)


def dispatches(t: Any) -> bool:
    """Whether t is a subclass that wants to see every operator, such as a FakeTensor, or one of the vmap that autograd's
    is_grads_batched and vectorize use: it need not have memory."""
    return isinstance(t, torch.Tensor) and (
        type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or torch._C._functorch.is_legacy_batchedtensor(t)
    )


def _has_memory(t: torch.Tensor) -> bool:
    """Whether strides and addresses may be asked for: not of a FakeTensor, and not while Dynamo traces."""
    return not torch.compiler.is_compiling() and not dispatches(t)


def _requires_grad(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _differentiates(*tensors: Any) -> bool:
    """Whether autograd, in either direction, follows one of these."""
    return _requires_grad(*tensors) or has_tangent(*tensors)


def check_no_tangent(**tensors: Any) -> None:
    """ValueError where forward-mode autograd follows one of these, whose tangent the fused kernels would lose, or torch.func
    differentiates."""
    if func_differentiates():
        raise ValueError(
            "torch.func.grad, vjp and what is made of them do not follow the fused kernels: use swiglu in its default, "
            "swiglu(..., kernel='torch'), torch.matmul, or backward() and torch.autograd.grad"
        )
    if has_tangent(*tensors.values()):
        who = next(who for who, t in tensors.items() if has_tangent(t))
        raise ValueError(
            f"{who} carries a tangent and this kernel has no forward-mode derivative: use swiglu(..., kernel='torch') or "
            "torch.matmul"
        )


def func_differentiates() -> bool:
    """Whether a call stands inside torch.func.grad, vjp or what is made of them, of which a custom operator's gradient knows
    nothing; while Dynamo traces it is not told."""
    if torch.compiler.is_compiling():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Grad for level in levels)


def has_tangent(*tensors: Any) -> bool:
    """Whether forward-mode autograd (dual tensors, torch.func.jvp) follows one of these."""
    return forward_ad._current_level >= 0 and any(
        isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    )


def _check_torch_gemm(a: Any, b: Any, out: Any, out_dtype: Any, epilogue: Any, config: Any) -> None:
    """As `_check_torch`: PyTorch would take a vector for b, and copy into an `out` of more dimensions or another dtype."""
    _check_types({"a": a, "b": b, **({} if out is None else {"out": out})})
    _check_weight("b", b)
    if not a.dim():
        raise ValueError("a has shape (), must be (..., K)")
    _check_same_device("b", b, "a", a)
    _check_depth("b", b, "a", a.shape[-1])
    _check_config(config, ("gemm",))
    _check_out_dtype(out_dtype)
    shape = (*a.shape[:-1], b.shape[0])
    if epilogue is not None:
        for t, kind, who, wanted in _split(epilogue, math.prod(shape[:-1]), shape)[1]:
            if kind != "Scalar":
                _check_operand(who, t, wanted, a, "a")
    if out is not None:
        _check_out_dtype(out_dtype, out)
        _check_torch_out(out, shape, {"a": a, "b": b})


def _check_torch(x: Any, w_gate: Any, w_up: Any, out: Any, biases: dict[str, Any]) -> None:
    """What PyTorch's kernels ask for: any strides, sizes and devices, but `out` obeys the rules of the fused kernel."""
    weights = {"w_gate": w_gate, "w_up": w_up}
    given = {who: t for who, t in biases.items() if t is not None}
    _check_types({"x": x, **weights, **({} if out is None else {"out": out}), **given})
    if not x.dim():
        raise ValueError("x has shape (), must be (..., K)")
    for who, t in weights.items():
        _check_weight(who, t)
        if not autocasts(x):
            _check_dtype(who, t, "x", x)
        _check_same_device(who, t, "x", x)
        _check_depth(who, t, "x", x.shape[-1])
    if w_gate.shape != w_up.shape:
        raise ValueError(f"w_gate has shape {tuple(w_gate.shape)}, w_up has {tuple(w_up.shape)}: must be equal")
    for who, t in given.items():
        _check_same_device(who, t, "x", x)
        if t.shape != w_gate.shape[:1]:
            raise ValueError(f"{who} has shape {tuple(t.shape)}, must be {tuple(w_gate.shape[:1])}")
    if out is not None:
        _check_dtype("out", out, "x", x)
        _check_torch_out(out, (*x.shape[:-1], w_gate.shape[0]), {"x": x, **weights, **given})


def _check_torch_out(out: torch.Tensor, shape: tuple[int, ...], inputs: dict[str, torch.Tensor]) -> None:
    """The rules of a fused kernel's `out`, but for a pitch and an address that PyTorch's kernels do not ask for."""
    name = next(iter(inputs))
    _check_followed(out, *inputs.values())
    _check_same_device("out", out, name, inputs[name])
    _check_shape(out, shape)
    if out.numel() and _has_memory(out):
        _rows("out", out, aligned=False)
    for who, t in inputs.items():
        _check_apart(out, who, t)


def autocasts(t: torch.Tensor) -> bool:
    """Whether autocast is on for a tensor's device."""
    kind = t.device.type
    return kind in AUTOCAST and torch.is_autocast_enabled(kind)


def without_autocast(t: torch.Tensor) -> contextlib.AbstractContextManager:
    """What an operator runs in: its result has the dtype that its fake kernel says, whatever autocast is on around it."""
    return torch.autocast(t.device.type, enabled=False) if autocasts(t) else contextlib.nullcontext()
