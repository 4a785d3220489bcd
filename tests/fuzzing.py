"""Random calls of the public functions, what the documented rules say of each, and whether that is what happens.

A `Case` is drawn by hypothesis; `run` builds its tensors, calls twice (the second call is a known one) and checks: a call within
the rules is right and touches nothing but its result; one against them raises TypeError or ValueError and touches nothing. The
rules stand here a second time, from the documentation: what api.py says is not asked.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import hypothesis.strategies as st
import torch

import cute_kernels as ck
from cute_kernels import epilogue as ep
from cute_kernels import reference, registry, unfused, validate

RIGHT, EITHER, WRONG = range(3)  # must work; may raise; must raise
WORST = {
    torch.bfloat16: 0.005,
    torch.float16: 0.001,
    torch.float32: 0.0001,
}  # relative error in norm, by the result's dtype
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

#: layout of a matrix -> (offset, pitch beyond the columns, what the rules say of it)
LAYOUTS = {
    "contiguous": (0, 0, RIGHT),
    "padded": (0, 8, RIGHT),
    "offset": (8, 0, RIGHT),
    "columns": (8, 24, RIGHT),
    "misaligned": (1, 0, WRONG),
    "odd_pitch": (0, 1, WRONG),
    "expanded": (0, None, WRONG),
    "every_other_column": (0, None, WRONG),
    "transposed": (0, None, WRONG),  # but for gemm
}
SOUND = ("contiguous", "padded", "offset", "columns")
GATED = ("swiglu", "op_swiglu", "swiglu_interleaved", "op_swiglu_interleaved")
KERNELS = ("auto", "stacked", "pingpong", "interleaved", "torch")
EPILOGUES = {  # by name: an expression over (row, column, matrix)
    "bias_gelu": lambda row, column, matrix: ep.gelu(ep.acc + ep.row(row)),
    "scaled": lambda row, column, matrix: ep.acc * 0.5 * ep.column(column),
    "residual": lambda row, column, matrix: ep.relu(ep.acc) + ep.load(matrix),
}


@dataclasses.dataclass(frozen=True)
class Case:
    function: str  # "gemm", "op_gemm" or one of GATED
    m: int
    n: int
    k: int
    lead: int = 0  # x is (lead, m, k) instead of (m, k)
    dtype: str = "bfloat16"
    other: str | None = None  # dtype of the weights where it is not x's
    x: str = "contiguous"
    w: str = "contiguous"
    w_up: str = "contiguous"
    out: str = "none"  # or "contiguous", "columns", "misaligned", "over_x", "beside_x", "wrong_shape"
    out_dtype: str | None = None  # of gemm
    kernel: str = "auto"
    config: int | None = None
    activation: str = "swiglu"
    bias_gate: str | None = None
    bias_up: str | None = None
    bias: str = "contiguous"
    epilogue: str | None = None
    early: bool = False
    scale: float = 1.0
    seed: int = 0


def mostly(usual, *others):
    """The usual value seven times in eight."""
    return st.integers(0, 7).flatmap(lambda i: st.sampled_from(others) if i == 7 else st.just(usual))


ROWS = st.one_of(st.sampled_from([0, 1, 2, 3, 16, 31, 63, 64, 65, 127, 128, 129, 255, 257]), st.integers(1, 400))
EIGHTS = st.one_of(st.sampled_from([8, 64, 72, 128, 136]), st.integers(1, 70).map(lambda i: 8 * i))


@st.composite
def cases(draw) -> Case:
    function = draw(st.sampled_from(["gemm", "op_gemm", "swiglu", "swiglu", "op_swiglu", *GATED[2:]]))
    gated, operator = function in GATED, function.startswith("op_")
    layouts = st.one_of(st.sampled_from(SOUND), mostly("contiguous", *LAYOUTS))
    if not gated:
        layouts = st.one_of(layouts, st.just("transposed"))
    n, k = draw(EIGHTS) + draw(mostly(0, 1, 4)), draw(mostly(0, 0, 1, 4, None))
    k = 0 if k is None else k + draw(EIGHTS)
    x = draw(layouts)
    kernel = draw(st.sampled_from(KERNELS)) if function.endswith("swiglu") else "auto"
    biases = st.sampled_from([None, None, *DTYPES])
    both = draw(biases)
    return Case(
        function,
        draw(ROWS),
        n,
        k,
        lead=draw(mostly(0, 1, 2, 3)) if x in SOUND else 0,
        dtype=draw(st.sampled_from(["bfloat16", "float16"])),
        other=draw(mostly(None, None, None, *DTYPES)),
        x=x,
        w=draw(layouts),
        w_up=draw(layouts),
        out="none"
        if operator
        else draw(
            st.one_of(
                st.sampled_from(["none", "contiguous", "columns"]),
                mostly("none", "misaligned", "over_x", "beside_x", "wrong_shape"),
            )
        ),
        out_dtype=None if gated else draw(st.sampled_from([None, *DTYPES])),
        kernel=kernel,
        config=draw(mostly(None, 0, 4)) if not operator and kernel != "torch" else None,
        activation=draw(st.sampled_from(["swiglu", "swiglu", *reference.GATED])) if gated else "swiglu",
        bias_gate=both if gated else None,
        bias_up=(both if "interleaved" in function else draw(biases)) if gated else None,
        bias=draw(mostly("contiguous", "misaligned", "every_other")),
        epilogue=draw(st.sampled_from([None, None, *EPILOGUES])) if function == "gemm" else None,
        early=draw(mostly(False, True)) if gated and kernel not in ("torch", "interleaved") else False,
        scale=draw(st.sampled_from([1.0, 1.0, 0.02, 8.0])),
        seed=draw(st.integers(0, 2**31)),
    )


# ---- what the rules say ----------------------------------------------------------------------------------------------


def verdict(case: Case) -> int:
    """RIGHT, EITHER or WRONG, from the documented rules."""
    gated = case.function in GATED
    anything = case.kernel == "torch"  # PyTorch's kernels take any layout
    said = [RIGHT]
    depth_free = not gated and case.x == case.w == "transposed"
    said.append(WRONG if case.n % 8 and not anything else RIGHT)
    said.append(WRONG if case.k % 8 and not anything and not depth_free else RIGHT)
    if case.other not in (None, case.dtype):
        said.append(WRONG)
    rows = case.m * max(1, case.lead)
    weights = [case.w] if not gated else [case.w, case.w_up]
    packed = "interleaved" in case.function  # packed anew by the test: contiguous
    for kind, count in ((case.x, rows), *((w, case.n) for w in ([] if packed else weights))):
        if anything or (kind == "transposed" and not gated):
            continue
        said.append(layout_verdict(kind, count, case.k))
    as_given = not (anything or packed or case.kernel == "interleaved")  # else the biases are packed anew
    if (case.bias_gate or case.bias_up) and as_given and case.bias != "contiguous":
        said.append(WRONG)
    if case.out in ("wrong_shape", "over_x"):
        said.append(WRONG)
    if case.out == "misaligned" and not anything:
        said.append(WRONG)
    if case.config is not None and not gated and "transposed" in (case.x, case.w):
        said.append(EITHER)  # not every configuration fits every major order
    worst = max(said)
    nothing = not rows or not case.n or not case.k
    return EITHER if worst == WRONG and nothing else worst


def layout_verdict(kind: str, rows: int, columns: int) -> int:
    said = LAYOUTS[kind][2]
    if said == WRONG and rows == 1 and kind in ("odd_pitch", "expanded", "every_other_column", "transposed"):
        return RIGHT if kind in ("odd_pitch", "expanded") or columns == 1 else WRONG
    if said == WRONG and rows > 1 and columns == 1:
        return EITHER
    return said


# ---- its tensors -----------------------------------------------------------------------------------------------------


class Memory:
    """Buffers full of NaN with tensors in them, to see what a call touched."""

    def __init__(self, seed: int, device: str):
        self.device = device
        self.random = torch.Generator().manual_seed(seed)
        self.buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def view(self, shape, strides, offset: int, dtype, values: float | None, extra: int = 0) -> torch.Tensor:
        """A view of a new buffer; values: scale of random numbers in it, None leaves NaN."""
        size = offset + extra + sum((s - 1) * step for s, step in zip(shape, strides, strict=True) if s) + 17
        buffer = torch.full((max(size, 17),), math.nan, dtype=dtype, device=self.device)
        t = buffer.as_strided(shape, strides, offset)
        if values is not None and t.numel():
            fresh = (torch.randn(shape, generator=self.random) * values).to(dtype).to(self.device)
            if 0 in strides and shape[0] > 1:
                t[:1].copy_(fresh[:1])
            else:
                t.copy_(fresh)
        self.buffers.append((buffer, t))
        return t

    def matrix(self, kind: str, rows: int, columns: int, dtype, values: float | None) -> torch.Tensor:
        offset, beyond, _ = LAYOUTS[kind]
        strides = {
            "expanded": (0, 1),
            "every_other_column": (2 * columns, 2),
            "transposed": (1, max(8, -(-rows // 8) * 8)),
        }.get(kind, (columns + (beyond or 0), 1))
        return self.view((rows, columns), strides, offset, dtype, values)

    def freeze(self) -> None:
        self.before = [buffer.clone() for buffer, _ in self.buffers]

    def touched(self, result: torch.Tensor | None) -> bool:
        """Whether anything but `result` has changed."""
        for (buffer, _), before in zip(self.buffers, self.before, strict=True):
            now = buffer.clone()
            if result is not None and result.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr():
                place = result.storage_offset()
                for copy in (now, before):
                    copy.as_strided(result.shape, result.stride(), place).fill_(0)
            kind = {2: torch.int16, 4: torch.int32}[buffer.element_size()]
            if not torch.equal(now.view(kind), before.view(kind)):
                return True
        return False


@dataclasses.dataclass
class Call:
    memory: Memory
    x: torch.Tensor
    weights: list[torch.Tensor]
    biases: list[torch.Tensor | None]
    out: torch.Tensor | None
    operands: tuple  # of an epilogue


def build(case: Case, device: str, turn: int) -> Call:
    memory = Memory(case.seed + turn, device)
    dtype, other = DTYPES[case.dtype], DTYPES[case.other or case.dtype]
    rows = case.m * max(1, case.lead)
    result = DTYPES[case.out_dtype or case.dtype]
    size = max(result.itemsize // dtype.itemsize, 1)
    out = None
    if case.out == "beside_x":
        pitch = -(-(case.k + size * case.n) // 8) * 8 + 8
        x = memory.view((rows, case.k), (pitch, 1), 0, dtype, case.scale, pitch)
        if result == dtype:
            out = x.as_strided((rows, case.n), (pitch, 1), -(-case.k // 8) * 8)
        else:
            out = memory.matrix("contiguous", rows, case.n, result, None)
    elif case.out == "over_x":
        offset, beyond, _ = LAYOUTS[case.x]
        x = memory.view((rows, case.k), (case.k + (beyond or 0), 1), offset, dtype, case.scale, rows * case.n * size)
        whole = memory.buffers[-1][0]
        out = whole[: whole.numel() // 8 * 8].view(result)[: rows * case.n].view(rows, case.n)
    else:
        x = memory.matrix(case.x, rows, case.k, dtype, case.scale)
    if case.lead:
        x = x.as_strided((case.lead, case.m, case.k), (case.m * x.stride(0), *x.stride()), x.storage_offset())
    depth = max(case.k, 1) ** -0.5
    names = (case.w,) if case.function not in GATED else (case.w, case.w_up)
    weights = [memory.matrix(kind, case.n, case.k, other, depth) for kind in names]
    biases: list[Any] = []
    for kind in (case.bias_gate, case.bias_up):
        step = 2 if case.bias == "every_other" else 1
        place = 1 if case.bias == "misaligned" else 0
        biases.append(None if kind is None else memory.view((case.n,), (step,), place, DTYPES[kind], 1.0))
    if case.out in ("contiguous", "columns", "misaligned"):
        out = memory.matrix(case.out, rows, case.n, result, None)
    elif case.out == "wrong_shape":
        out = memory.matrix("contiguous", rows + 1, case.n, result, None)
    if out is not None and case.lead and case.out != "wrong_shape":
        out = out.as_strided((case.lead, case.m, case.n), (case.m * out.stride(0), *out.stride()), out.storage_offset())
    operands = ()
    if case.epilogue:
        matrix = memory.matrix("contiguous", rows, case.n, result, 1.0).view(*x.shape[:-1], case.n)
        operands = (
            memory.view((case.n,), (1,), 0, torch.float32, 1.0),
            memory.view((rows,), (1,), 0, torch.float32, 1.0),
            matrix,
        )
    memory.freeze()
    return Call(memory, x, weights, biases, out, operands)


def perform(case: Case, call: Call) -> torch.Tensor:
    """The call itself."""
    ops = torch.ops.cute_kernels
    how: dict[str, Any] = {} if call.out is None else {"out": call.out}
    if case.function == "op_gemm":
        return ops.gemm(call.x, call.weights[0], out_dtype=None if case.out_dtype is None else DTYPES[case.out_dtype])
    if case.function == "gemm":
        if case.out_dtype is not None:
            how["out_dtype"] = DTYPES[case.out_dtype]
        if case.epilogue:
            how["epilogue"] = EPILOGUES[case.epilogue](*call.operands)
        return ck.gemm(call.x, call.weights[0], config=config_of(case), **how)
    how |= {"activation": case.activation, "early_weights": case.early}
    if "interleaved" in case.function:
        packed = ck.interleave(*(w.contiguous() for w in call.weights))
        bias = None if case.bias_gate is None else ck.interleave(*(b.contiguous() for b in call.biases))
        if case.function == "op_swiglu_interleaved":
            return ops.swiglu_interleaved(call.x, packed.tensor, None if bias is None else bias.tensor, **how)
        return ck.swiglu_interleaved(call.x, packed, bias=bias, config=config_of(case), **how)
    if case.function == "op_swiglu":
        return ops.swiglu(call.x, *call.weights, *call.biases, use=case.kernel, **how)
    biases = dict(zip(("bias_gate", "bias_up"), call.biases, strict=True))
    return ck.swiglu(call.x, *call.weights, **biases, kernel=case.kernel, config=config_of(case), **how)


def config_of(case: Case) -> Any:
    if case.config is None:
        return None
    name = {"pingpong": "swiglu_pingpong", "interleaved": "swiglu_interleaved"}.get(case.kernel, "swiglu_stacked")
    name = {"gemm": "gemm", "swiglu_interleaved": "swiglu_interleaved"}.get(case.function, name)
    configs = registry.get(name).configs
    return configs[case.config % len(configs)]


def expected(case: Case, call: Call) -> torch.Tensor:
    """In fp32, (rows, n)."""
    rows = call.x.reshape(case.m * max(1, case.lead), case.k)
    if case.function in GATED:
        biases = dict(zip(("bias_gate", "bias_up"), call.biases, strict=True))
        return reference.swiglu(rows, *call.weights, activation=case.activation, **biases)
    y = reference.gemm(rows, call.weights[0])
    if not case.epilogue:
        return y
    row, column, matrix = call.operands
    return unfused.evaluate(EPILOGUES[case.epilogue](row, column, matrix.reshape(y.shape)), y)


# ---- the check -------------------------------------------------------------------------------------------------------


def run(case: Case, device: str, values: bool = True) -> dict[str, Any]:
    """Call twice and check; returns {"outcome": "right" or "refused", "error": the worst relative error of our kernels}.

    values: whether the numbers are looked at too. AssertionError with the case where it is not what the rules say.
    """
    said, worst, outcome = verdict(case), 0.0, "right"
    for turn in range(2):
        call = build(case, device, turn)
        try:
            y = perform(case, call)
        except (TypeError, ValueError) as why:
            assert said != RIGHT, f"refused, but within the rules: {case}\n{why}"
            assert str(why).strip(), case
            assert not call.memory.touched(None), f"refused, but memory has changed: {case}"
            outcome = "refused"
            continue
        assert said != WRONG, f"accepted, but against the rules: {case}"
        if device == "cuda":
            torch.cuda.synchronize()
        assert call.out is None or y is call.out, case
        assert y.shape == (*call.x.shape[:-1], case.n), (case, y.shape)
        assert y.dtype == (call.out.dtype if call.out is not None else DTYPES[case.out_dtype or case.dtype]), case
        assert call.out is not None or y.is_contiguous(), case
        assert not call.memory.touched(call.out), f"more than the result has changed: {case}"
        if values and y.numel():
            got, want = y.float().reshape(-1, case.n), expected(case, call)
            limit = WORST[y.dtype] * (4 if case.kernel == "torch" else 1)  # PyTorch rounds in between
            error = validate.relative_error(got, want) if want.any() else got.abs().max().item()
            assert error <= limit, f"wrong by {error}: {case}"
            if case.kernel != "torch":
                assert not reference.far_off(got, want).any(), f"wrong elements: {case}"
                worst = max(worst, error)  # of ours: PyTorch's kernels round several times
    return {"outcome": outcome, "error": worst}


def campaign(seed: int, count: int, device: str = "cuda") -> dict[str, Any]:
    """`count` cases from one seed; returns how many were right and refused, the worst error, and how often was compiled."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    said: dict[str, Any] = {"cases": 0, "calls": 0, "right": 0, "refused": 0, "worst_error": 0.0}

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # the first wrong case is reported as it is: no time on the GPU to make it smaller
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def every(case):
        got = run(case, device)
        said["cases"] += 1
        said["calls"] += 2
        said[got["outcome"]] += 1
        said["worst_error"] = max(said["worst_error"], got["error"])

    with ck.count_compiles() as compiled:
        every()
    return {**said, "compiled": sum(compiled.values())}
