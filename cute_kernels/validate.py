"""Numerics of every kernel x configuration x dtype over odd shapes, against fp32; `--record` keeps the result.

`gemm` is also run with transposed operands, other output dtypes and a full epilogue, each under every configuration.
Inputs are fresh normal random numbers; outputs are poisoned with NaN and lie inside a larger poisoned buffer whose rim must
stay as it was. The error is ||out - ref|| / ||ref||; the limit is twice that of PyTorch's own kernels in the same dtype, and
no single element may be off by more than rounding explains (reference.far_off): a norm hides a few wrong ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from . import device as devices
from . import epilogue as ep
from . import evidence, records, reference
from .hopper import gated
from .hopper.kernel import Variant
from .registry import KernelSpec, get, kernels
from .weights import interleave

FLOOR = 2e-5  # an error below this is rounding of a handful of elements
RIM = 8  # columns and rows of guard around the output


class RimTouched(RuntimeError):
    """A kernel wrote outside of its output."""


def shapes(config: Any, sms: int = 132) -> Iterator[tuple[int, int, int]]:
    """(M, N, K) for one configuration: tile edges, tails, the stage count of the ring, tile counts around the SM count."""
    tm, tn, s = config.tile_m * config.cluster[0], config.tile_n * config.cluster[1], config.stages
    yield from ((m, 2 * tn, 128) for m in (1, 63, 64, 65, 127, 129, 1000))
    yield from ((tm + 1, n, 192) for n in (8, tn - 8, tn + 8, 2 * tn + 24) if n > 0)
    yield from ((tm, tn, k) for k in (8, 56, 64, 72, 64 * (s - 1), 64 * s, 64 * (s + 1), 64 * (2 * s + 1) + 8, 16384))
    clusters = sms // (config.cluster[0] * config.cluster[1])
    counts = {1, 2, 3, *(turns * clusters + i for turns in (1, 2) for i in (-1, 0, 1))}
    yield from ((tm, count * tn, 64) for count in sorted(counts))
    yield 3 * tm + 8, 2 * clusters * tn + 8, 136
    yield 1000, 1032, 520


def inputs(spec: KernelSpec, m: int, n: int, k: int, dtype: torch.dtype, scale: float = 1.0) -> list[torch.Tensor]:
    """Random x and weights; weights are scaled by K^-1/2, so that pre-activations are of order `scale`."""
    x = torch.randn(m, k, device="cuda") * scale
    weights = (torch.randn(n, k, device="cuda") / math.sqrt(k) for _ in range(2 if spec.gated else 1))
    return [t.to(dtype) for t in (x, *weights)]


def packed(spec: KernelSpec, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """x and weights as the kernel is launched with them."""
    return [args[0], interleave(*args[1:]).tensor] if spec.packed else args


def expected(spec: KernelSpec, args: list[torch.Tensor]) -> torch.Tensor:
    return reference.swiglu(*args) if spec.gated else reference.gemm(*args)


def torch_result(spec: KernelSpec, args: list[torch.Tensor]) -> torch.Tensor:
    """The same by PyTorch in the inputs' dtype: the yardstick of accuracy."""
    if not spec.gated:
        return F.linear(*args)
    return reference.eager(*args)


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """||out - ref|| / ||ref||, infinite when one element is far off (reference.far_off)."""
    if reference.far_off(out, ref).any():
        return math.inf
    error = ((out.double() - ref.double()).norm() / ref.double().norm()).item()
    return error if math.isfinite(error) else math.inf


def run_case(
    kernel: Any,
    spec: KernelSpec,
    config: Any,
    args: list[torch.Tensor],
    out_dtype: torch.dtype | None = None,
    operands: tuple = (),
) -> torch.Tensor:
    """Launch into the middle of a poisoned buffer; returns the output. Raises RimTouched."""
    m, n = args[0].shape[0], args[1].shape[0]
    buffer = torch.full((m + 2, n + 2 * RIM), math.nan, device="cuda", dtype=out_dtype or args[0].dtype)
    out = buffer[1 : m + 1, RIM : RIM + n]
    clusters = devices.max_clusters(args[0].device, config.cluster[0] * config.cluster[1])
    kernel(*packed(spec, args), out, clusters, operands, None)
    torch.cuda.synchronize()
    rim = buffer.clone()
    rim[1 : m + 1, RIM : RIM + n] = math.nan
    if not rim.isnan().all():
        raise RimTouched(f"{spec.name} {config.name}: wrote outside of out")
    return out


def variants(config: Any, dtype: str) -> Iterator[tuple[Variant, Any]]:
    """What `gemm` offers beside the plain product: (Variant, epilogue of (bias, scale of rows, residual) or None)."""
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    yield Variant("float32", ("mn", "k")), None
    yield Variant(other, ("k", "mn")), None
    yield Variant(None, ("mn", "mn")), None
    yield (
        Variant(),
        lambda bias, scale, residual: ep.gelu(ep.acc * ep.column(scale) * 0.5 + ep.row(bias)) + ep.load(residual),
    )


VARIANT_SHAPES = ((1, 8, 8), (129, 264, 200), (1000, 520, 72), (264, 1032, 1032))


def run_variant(
    spec: KernelSpec, config: Any, dtype_name: str, variant: Variant, make: Any
) -> Iterator[tuple[Any, float, float]]:
    """(shape, error, PyTorch's error) of one variant on `VARIANT_SHAPES`."""
    dtype = getattr(torch, dtype_name)
    out_dtype = getattr(torch, variant.out_dtype or dtype_name)
    kernel, tree_key = None, None
    for m, n, k in VARIANT_SHAPES:
        a, b = inputs(spec, m, n, k, dtype)
        operands: tuple = ()
        ref, yard = a.double() @ b.double().T, (a @ b.T).double()
        if make is not None:
            bias, residual = torch.randn(n, device="cuda").to(dtype), torch.randn(m, n, device="cuda").to(dtype)
            scale = torch.rand(m, device="cuda")
            tree, operands, _ = ep.split(make(bias, scale, residual))
            variant = Variant(variant.out_dtype, variant.majors, tree)
            scaled = 0.5 * scale.double()[:, None]
            ref, yard = (F.gelu(x * scaled + bias.double()) + residual.double() for x in (ref, yard))
        if kernel is None or tree_key != variant:
            kernel, tree_key = spec.compile(config, dtype_name, variant), variant
        laid = [
            F.pad(t.T, (0, -t.shape[0] % 8)).contiguous().T[: t.shape[0]] if major == "mn" else t
            for t, major in zip((a, b), variant.majors, strict=True)
        ]
        out = run_case(kernel, spec, config, laid, out_dtype, operands)
        yield (m, n, k), relative_error(out, ref), relative_error(yard.to(out_dtype), ref)


def activations(spec: KernelSpec, config: Any) -> Iterator[tuple[str, torch.dtype]]:
    """(activation, dtype of both biases) that a gated kernel is run with beside plain SwiGLU: one under every configuration, the
    whole family under the first."""
    yield "geglu_tanh", torch.bfloat16
    if config is spec.configs[0]:
        yield from ((name, torch.float32) for name in reference.GATED)


def run_activation(
    spec: KernelSpec, config: Any, dtype_name: str, activation: str, biased: torch.dtype
) -> Iterator[tuple[Any, float, float]]:
    """(shape, error, PyTorch's error) of one member of the gated family, with biases, on `VARIANT_SHAPES`."""
    dtype, bias_dtype = getattr(torch, dtype_name), str(biased).removeprefix("torch.")
    tree = gated.paired(activation, bias_dtype) if spec.packed else gated.stacked(activation, (bias_dtype, bias_dtype))
    kernel = spec.compile(config, dtype_name, Variant(tree=tree))
    for m, n, k in VARIANT_SHAPES:
        args = inputs(spec, m, n, k, dtype, 4.0)  # wide enough for a clamp at 7
        biases = [torch.randn(n, device="cuda").to(biased) for _ in range(2)]
        operands = (interleave(*biases).tensor,) if spec.packed else tuple(biases)
        named = {"activation": activation, "bias_gate": biases[0], "bias_up": biases[1]}
        ref = reference.swiglu(*args, torch.float64, **named)
        gate, up = (F.linear(args[0], w, b.to(dtype)) for w, b in zip(args[1:], biases, strict=True))
        out = run_case(kernel, spec, config, args, operands=operands)
        yield (m, n, k), relative_error(out, ref), relative_error(reference.GATED[activation](gate, up), ref)


def validate_kernel(spec: KernelSpec, progress=print) -> dict[str, Any]:
    """All cases of one kernel -> its entry for validation.json. Failing cases are listed, not raised, and so is a case that
    wrote outside of its output."""
    cases, failures, per_config = 0, [], {}
    for config in spec.configs:
        errors = [0.0]

        def judge(
            what: str, error: float, yardstick: float, name: str = config.name, errors: list[float] = errors
        ) -> None:
            errors.append(error)
            if not error <= max(2 * yardstick, FLOOR):
                failures.append(f"{name} {what}: {error:.5f} > 2 x {yardstick:.5f}")

        for dtype_name in spec.dtypes:
            dtype = getattr(torch, dtype_name)
            kernel = spec.compile(config, dtype_name)
            runs = [(shape, 1.0) for shape in shapes(config)] + [((257, 264, 520), 0.02)]
            for shape, scale in runs:
                args = inputs(spec, *shape, dtype, scale)
                ref = expected(spec, args)
                try:
                    error = relative_error(run_case(kernel, spec, config, args), ref)
                except RimTouched as why:
                    failures.append(f"{dtype_name} {shape} scale {scale}: {why}")
                    continue
                judge(f"{dtype_name} {shape} scale {scale}", error, relative_error(torch_result(spec, args), ref))
            for variant, make in variants(config, dtype_name) if spec.name == "gemm" else ():
                if config not in spec.fitting(variant.majors):
                    continue
                what = f"{variant.majors} -> {variant.out_dtype or dtype_name}{', epilogue' if make else ''}"
                for shape, *found in run_variant(spec, config, dtype_name, variant, make):
                    judge(f"{dtype_name} {what} {shape}", *found)
            for activation, biased in activations(spec, config) if spec.gated else ():
                for shape, *found in run_activation(spec, config, dtype_name, activation, biased):
                    judge(f"{dtype_name} {activation}, biases {biased} {shape}", *found)
            cases += 1
            if not _ones_give_k(kernel, spec, config, dtype):
                failures.append(f"{config.name} {dtype_name}: all-ones inputs do not give the exact result")
        cases += len(errors) - 1
        per_config[config.name] = max(errors)
        progress(f"{spec.name:<16} {config.name:<22} worst {max(errors):.5f}  failures {len(failures)}")
    return {
        "digest": evidence.validation_digest(spec.module),
        "stamp": records.stamp(),
        "cases": cases,
        "worst_error": max(per_config.values()),
        "per_config": per_config,
        "failures": failures,
    }


def _ones_give_k(kernel: Any, spec: KernelSpec, config: Any, dtype: torch.dtype) -> bool:
    """All-ones operands: every sum is exactly K (a power of two here), so a lost or doubled k-tile shows at once."""
    m, n, k = 200, 264, 1024
    args = [torch.ones(m, k, device="cuda", dtype=dtype)]
    args += [torch.ones(n, k, device="cuda", dtype=dtype) for _ in range(2 if spec.gated else 1)]
    want = float(k) * float(k) if spec.gated else float(k)  # silu(1024) = 1024 in fp32
    if dtype is torch.float16 and spec.gated:  # 1024 * 1024 is beyond fp16
        args[2] /= k
        want = float(k)
    return bool((run_case(kernel, spec, config, args) == want).all())


def main(record: bool = False, only: str | None = None) -> int:
    """Validate on this GPU; 1 when a case fails."""
    if not torch.cuda.is_available():
        print("validate needs a Hopper GPU; `python -m cute_kernels evidence` shows what is recorded")
        return 2
    torch.manual_seed(torch.seed() % 2**31)
    found, bad = {}, 0
    for spec in [get(only)] if only else kernels():
        entry = validate_kernel(spec)
        print(
            f"{spec.name}: {entry['cases']} cases, worst error {entry['worst_error']:.5f}, {len(entry['failures'])} failed"
        )
        for line in entry["failures"][:20]:
            print("  FAILED", line)
        bad += len(entry["failures"])
        found[spec.name] = entry
    if record:  # failures, too: they are what is known of this code
        with records.locked("validation"):
            kept = (records.load("validation", records.folder_name(records.current_gpu())) or {}).get("kernels", {})
            print("recorded in", records.save("validation", {"kernels": kept | found}).relative_to(records.ROOT))
    return 1 if bad else 0
