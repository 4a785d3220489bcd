"""Checkers of the exercises of notebook 10: another gated activation, and the map of the half-width epilogue."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
import types
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32
from cutlass._mlir.dialects import arith
from cutlass.cute.runtime import from_dlpack

from ... import weights
from ...hopper import tiles, visitor
from . import NotRun, Wrong, checker, file_of, harness, python
from .simulator import _Names, _rebound

# 10a

LIMIT, SCALE = 7.0, 1.702
INF, NAN, HUGE = math.inf, math.nan, 3e38
GATES = (
    -INF,
    -HUGE,
    -1e4,
    -52,
    -40,
    -20,
    -10,
    -7.5,
    -7,
    -3,
    -1,
    -0.4,
    -1e-3,
    -0.0,
    0,
    1e-3,
    0.6,
    2,
    6.9,
    7,
    7.1,
    9,
    HUGE,
    INF,
)
UPS = (-INF, -HUGE, -30, -7.25, -7, -5, -1.5, -1, -0.2, 0, 0.4, 3, 6.5, 7, 7.5, 100, HUGE, INF)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(SCALE * x)


def above(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=LIMIT)


def both(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-LIMIT, LIMIT)


def oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What is wanted, as `reference.GATED["swiglu_oai"]` has it."""
    return above(gate) * sigmoid(above(gate)) * (both(up) + 1)


def lost(x: torch.Tensor) -> torch.Tensor:
    """min(x, 7) of a plain FMNMX, to which NaN is no number: the other operand."""
    return torch.where(x.isnan(), LIMIT, above(x))


#: (explanation, what computes so): functions of the gate and the up that PyTorch has in fp64
MISTAKES: tuple[tuple[str, Callable], ...] = (
    (
        "The up branch loses a NaN: to a plain FMNMX a NaN is no number, and the result is the bound. cute.arch.fmin and "
        "fmax keep it with nan=True.",
        lambda g, u: above(g) * sigmoid(above(g)) * (torch.where(u.isnan(), LIMIT, both(u)) + 1),
    ),
    (
        "The up branch loses a NaN: to a plain FMNMX a NaN is no number, and the result is the bound. cute.arch.fmin and "
        "fmax keep it with nan=True.",
        lambda g, u: above(g) * sigmoid(above(g)) * (torch.where(u.isnan(), -LIMIT, both(u)) + 1),
    ),
    (
        "The gate loses a NaN: to a plain FMNMX a NaN is no number, and the result is the bound, 7. cute.arch.fmin keeps it with "
        "nan=True.",
        lambda g, u: lost(g) * sigmoid(lost(g)) * (both(u) + 1),
    ),
    (
        "Both branches lose a NaN: to a plain FMNMX a NaN is no number, and the result is the bound. cute.arch.fmin and "
        "fmax keep it with nan=True.",
        lambda g, u: lost(g) * sigmoid(lost(g)) * (torch.where(u.isnan(), LIMIT, both(u)) + 1),
    ),
    (
        "Both branches lose a NaN: to a plain FMNMX a NaN is no number, and the result is the bound. cute.arch.fmin and "
        "fmax keep it with nan=True.",
        lambda g, u: lost(g) * sigmoid(lost(g)) * (torch.where(u.isnan(), -LIMIT, both(u)) + 1),
    ),
    (
        "The gate is clamped on both sides. It is clamped above only: below, the sigmoid itself takes it to zero.",
        lambda g, u: both(g) * sigmoid(both(g)) * (both(u) + 1),
    ),
    ("The gate is not clamped at 7.", lambda g, u: g * sigmoid(g) * (both(u) + 1)),
    (
        "The clamp stands before the product only. The sigmoid, too, is of the clamped gate.",
        lambda g, u: above(g) * sigmoid(g) * (both(u) + 1),
    ),
    (
        "The clamp stands inside the sigmoid only. The factor before it is the clamped gate, too.",
        lambda g, u: g * sigmoid(above(g)) * (both(u) + 1),
    ),
    (
        "The up branch is clamped above only. It has no sigmoid that takes care of the other side: it is clamped to -7 ... 7.",
        lambda g, u: above(g) * sigmoid(above(g)) * (above(u) + 1),
    ),
    ("The up branch is not clamped.", lambda g, u: above(g) * sigmoid(above(g)) * (u + 1)),
    (
        "The 1 is added before the clamp: up + 1 then stays below 7. It is the clamped up to which 1 is added.",
        lambda g, u: above(g) * sigmoid(above(g)) * both(u + 1),
    ),
    ("The + 1 of the up branch is missing.", lambda g, u: above(g) * sigmoid(above(g)) * both(u)),
    (
        "1.702 is missing: that is SiLU of the gate. It is a factor inside the sigmoid.",
        lambda g, u: above(g) * torch.sigmoid(above(g)) * (both(u) + 1),
    ),
    (
        "ex2 is 2^x, not e^x: e^x = 2^(x log2 e). Fold log2 e into the constant 1.702.",
        lambda g, u: above(g) * torch.sigmoid(SCALE * math.log(2) * above(g)) * (both(u) + 1),
    ),
    (
        "log2 e is the factor that makes 2^x of e^x; you divide by it (or multiply by ln 2).",
        lambda g, u: above(g) * torch.sigmoid(SCALE * math.log(2) ** 2 * above(g)) * (both(u) + 1),
    ),
    (
        "The sign of the exponent: sigmoid(x) = 1 / (1 + e^-x). Yours falls where it should rise.",
        lambda g, u: above(g) * sigmoid(-above(g)) * (both(u) + 1),
    ),
    (
        "Gate and up are exchanged: the left of a pair, column 2j, is the gate.",
        lambda g, u: above(u) * sigmoid(above(u)) * (both(g) + 1),
    ),
    ("The sigmoid stands alone: it is a factor of the clamped gate.", lambda g, u: sigmoid(above(g)) * (both(u) + 1)),
    ("The up branch is missing.", lambda g, u: above(g) * sigmoid(above(g))),
    ("That is swiglu, silu(gate) * up, and not gpt-oss's.", lambda g, u: g * torch.sigmoid(g) * u),
)


@checker("10a")
def pair_of_oai(pair):
    """The pair function: on CPU values against PyTorch, then in the interleaved kernel, whose instructions are counted."""
    _check_written(pair)
    gate, up = values()
    got = on_cpu(pair, gate, up)
    _check_values(got, gate, up)
    yield f"{len(gate):,} pairs on the CPU, with tails, NaN, infinities and {HUGE:g}: what PyTorch makes of them in fp64"
    yield _counts(pair)
    yield from _pairs_on_gpu(pair)


def values() -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 gates and ups: every combination of the special ones, and random ones around them."""
    torch.manual_seed(10)
    special = torch.cartesian_prod(torch.tensor((*GATES, NAN)), torch.tensor((*UPS, NAN)))
    usual = torch.randn(4000, 2) * torch.tensor([8.0, 6.0])
    return tuple(torch.cat([special, usual]).T.contiguous())


def _check_written(pair: Callable) -> None:
    """The function stands in the learner's cell, and takes nothing finished."""
    if file_of(pair) == file_of(oai) or "cute_kernels" in (python(pair).__module__ or ""):
        raise Wrong("That is a function of the package. Write it in the cell, from ex2 and rcp.")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(python(pair))))
    except (OSError, TypeError, SyntaxError):
        raise Wrong("It has no source that can be read: write it as a function, in a cell.") from None
    if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree)):
        raise Wrong("Imports stand at the top of the cell; what is needed is imported there already.")
    for name, value in python(pair).__globals__.items():
        used = name in python(pair).__code__.co_names
        where = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None) or ""
        if used and where.startswith("cute_kernels.hopper"):
            raise Wrong(f"`{name}` is the package's own. Write it from cute.math.exp2 and cute.arch.rcp_approx.")


def on_cpu(pair: Callable, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """pair(gate, up) of each two values, compiled for this CPU with stand-ins for the GPU's special functions."""
    here = _for_cpu(pair)

    @cute.jit
    def on_host(gate: cute.Tensor, up: cute.Tensor, out: cute.Tensor):
        for i in cutlass.range(cute.size(gate), unroll=1):
            out[i] = _one_value(here(gate[i], up[i]))

    out = torch.zeros_like(gate)
    tensors = [from_dlpack(t) for t in (gate, up, out)]
    try:
        harness.compile_for_cpu(on_host, *tensors)(*tensors)
    except Wrong as why:
        if "DYNAMIC_TO_STATIC" not in str(why):
            raise
        raise Wrong(
            "gate and up are values of the run: Python cannot decide by them, with an `if` or with its own min and max. "
            "cute.arch.fmin and fmax are instructions, and so is cutlass.select_(condition, a, b)."
        ) from None
    return out


def _one_value(result: Any) -> Any:
    if result is ...:
        raise Wrong("It returns `...`: it is not filled in yet.")
    if not isinstance(result, Float32):
        raise Wrong(f"It returns {type(result).__name__}; wanted is one fp32 value, the product of both branches.")
    return result


def _for_cpu(function: Callable) -> Callable:
    """The learner's function with `cute` and what he imported of it exchanged for what a CPU can do."""

    def least(a, b, *, nan=False, **_):
        return _binary(arith.minimumf if nan else arith.minnumf, a, b)

    def most(a, b, *, nan=False, **_):
        return _binary(arith.maximumf if nan else arith.maxnumf, a, b)

    def reciprocal(x, **_):
        return Float32(1.0) / Float32(x)

    def exp2(x, **_):
        return cute.math.exp2(Float32(x))

    arch = _OnCpu("cute.arch", fmin=least, fmax=most, rcp_approx=reciprocal, exp2=exp2)
    maths = _OnCpu("cute.math", exp2=exp2)
    new_cute = _OnCpu("cute", arch=arch, math=maths, jit=lambda f: f, Float32=Float32)
    kept = {
        name: getattr(cutlass, name) for name in ("Float32", "Int32", "Boolean", "select_", "min", "max", "const_expr")
    }
    stand_in = {
        id(cutlass): _OnCpu("cutlass", cute=new_cute, **kept),
        id(cute): new_cute,
        id(cute.arch): arch,
        id(cute.math): maths,
        id(cute.arch.fmin): least,
        id(cute.arch.fmax): most,
        id(cute.arch.rcp_approx): reciprocal,
        id(cute.math.exp2): exp2,
    }
    plain, scope = python(function), {}
    for name, value in plain.__globals__.items():
        value = stand_in.get(id(value), value)
        if isinstance(value, types.FunctionType) and file_of(value) == file_of(function):
            value = _rebound(value, scope)
        elif isinstance(value, types.ModuleType) and value.__name__.startswith("cutlass"):
            value = _OnCpu(name)
        scope[name] = value
    return _rebound(plain, scope)


class _OnCpu(_Names):
    """A module's stand-in for a function that is compiled for the CPU."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "exp":
            raise Wrong(
                "The special function is 2^x, cute.math.exp2: e^x = 2^(x log2 e), and log2 e joins the other constant."
            )
        known = ", ".join(key for key in self.__dict__ if key != "_path")
        raise Wrong(f"{self._path}.{name} is not needed here; what is needed of {self._path}: {known or 'nothing'}.")


def _binary(operation: Callable, a: Any, b: Any) -> Float32:
    return Float32(operation(Float32(a).ir_value(), Float32(b).ir_value()))


def _same(got: torch.Tensor, want: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Which values agree: to fp32 rounding of the gate's branch, that of the exponent included, and NaN only with NaN."""
    room = 1e-6 + 1.5e-7 * SCALE * math.log2(math.e) * gate.abs().clamp(max=64).nan_to_num()
    branch = (above(gate) * sigmoid(above(gate))).abs().nan_to_num()
    near = (got - want).abs() <= room * torch.maximum(want.abs(), branch) + 1e-36
    return near | (got == want) | (got.isnan() & want.isnan())


def _check_values(got: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    got, gate, up = got.double(), gate.double(), up.double()
    want = oai(gate, up)
    wrong = ~_same(got, want, gate)
    if not wrong.any():
        return
    far = (gate.abs() + up.abs()).nan_to_num(nan=HUGE, posinf=INF).where(wrong, NAN)
    i = int(far.nan_to_num(nan=INF, posinf=1e300).argmin())  # the plainest of the wrong ones
    share = f"{int(wrong.sum()):,} of {len(got):,} pairs are wrong. "
    text = share + f"gate = {gate[i]:g}, up = {up[i]:g} gives {got[i]:.7g}, PyTorch has {want[i]:.7g}. "
    plain = ~((gate.abs() > 1e3) | (up.abs() > 1e3))  # where fp32 does not overflow; NaN is among them
    for why, mistake in MISTAKES:
        if _same(got, mistake(gate, up), gate)[plain].all():
            raise Wrong(text + why)
    if (want.isnan() & ~got.isnan() & wrong).any():
        raise Wrong(text + "A NaN is lost: somewhere it is compared away, or a min or max takes the other operand.")
    if (got.isnan() & wrong).any():
        raise Wrong(
            text + "A NaN appears: inf / inf, inf * 0 or inf - inf. With x * rcp(1 + 2^y) a large y gives rcp(inf) = 0."
        )
    if (gate[wrong] < 0).all():
        raise Wrong(
            text
            + "Only the tail is wrong, where the sigmoid is small: it cancels. 1 - s(-x) is a difference of numbers near 1; "
            "rcp(1 + 2^-x) is none."
        )
    raise Wrong(
        text + "Take it from the inside out: clamp, scale, ex2, + 1, rcp, the product with the gate, with up + 1."
    )


def _counts(pair: Callable) -> str:
    """Compile it into the interleaved kernel, and count what a result costs."""
    from ...hopper import gated
    from ...registry import get

    spec = get("swiglu_interleaved")
    config = spec.configs[0]
    function = python(pair)
    ours, finished = _compiled(spec, function), _compiled(spec, gated.product("swiglu_oai"))
    results = config.tile_m * config.tile_n // 128
    found = {name: ours.instructions.get(name, 0) for name in ("MUFU.EX2", "MUFU.RCP", "CALL")}
    setting = f"In the interleaved kernel for sm_90a, {results} results a thread: "
    divides = (
        "fp32 division is a routine with a slow path, or a dozen instructions in place. rcp_approx is one, and 1 + 2^x is "
        "never zero."
    )
    if found["CALL"]:
        raise Wrong(f"{setting}{found['CALL']} CALL. {divides[0].upper()}{divides[1:]}")
    if found["MUFU.EX2"] != results:
        raise Wrong(
            f"{setting}{found['MUFU.EX2']} MUFU.EX2, and one for each would do. Special functions run 16 a cycle and SM: one "
            "sigmoid has one ex2."
        )
    if found["MUFU.RCP"] != results:
        raise Wrong(
            f"{setting}{found['MUFU.RCP']} MUFU.RCP, and one for each would do: one sigmoid has one reciprocal."
        )
    if ours.spill_bytes:
        raise Wrong(f"{setting}{ours.spill_bytes} bytes a thread are spilled.")
    most = sum(finished.mnemonics.values())
    total = sum(ours.mnemonics.values())
    if total > most + 2 * results:
        raise Wrong(
            f"{setting}{total} instructions, where the package has {most}: more than two a result too many. Without "
            "fastmath=True exp2 also scales what would be a denormal; a constant factor is folded into the other."
        )
    return (
        f"in the interleaved kernel for sm_90a: {found['MUFU.EX2']} ex2, {found['MUFU.RCP']} rcp and no CALL for {results} "
        f"results a thread, {total} instructions in all (the package's own: {most}), nothing spilled"
    )


def _compiled(spec: Any, function: Callable) -> Any:
    from ...hopper.kernel import Variant

    with harness.refusals():
        return spec.compile(variant=Variant(tree=visitor.Pairs(function, visitor.Accumulator())))


def _pairs_on_gpu(pair: Callable):
    from .. import HAS_GPU

    if not HAS_GPU:
        yield NotRun("the numbers: running the interleaved kernel with this node needs a Hopper GPU")
        return
    told = harness.in_child("nb10.judge_pairs", "10a", pair, "On the GPU", "A node has nothing to wait for.")
    yield f"{told['shapes']} shapes on {told['gpu']}: worst relative error {told['worst']:.2g}"


def judge_pairs(exercise: str, pair: Callable) -> None:
    """In a child process: the interleaved kernel with the learner's node against PyTorch in fp32."""
    from ... import reference
    from ...registry import get
    from .. import bench, check

    run = bench.launcher(_compiled(get("swiglu_interleaved"), python(pair)))

    def kernel(x, gate, up, out):
        run(x, weights.join(gate, up, "interleaved"), out)

    want = functools.partial(reference.swiglu, activation="swiglu_oai")
    harness.tell_table(lambda: check.swiglu(kernel, f"exercise {exercise}", expected=want, tile=(128, 64)))


# 10b

BLOCKS = (8, 16, 32)


@functools.cache
def cute_map(columns: int) -> list[list[tuple[int, int]]]:
    """CuTe's own (row, column) of accumulator value i of thread t, of a WGMMA of 64 x columns: [t][i]."""
    found: list[list[tuple[int, int]]] = []

    @cute.jit
    def probe():
        mma = tiles.tiled_mma(cutlass.BFloat16, columns)
        identity = cute.make_identity_tensor((64, columns))
        parts = [mma.get_slice(t).partition_C(identity) for t in range(128)]  # a comprehension stays Python
        found.extend([tuple(part[v]) for v in range(cute.size(part))] for part in parts)

    probe()
    return found


@functools.cache
def weight_rows(columns: int, layout: str) -> list[tuple[str, int]]:
    """For each accumulator column, the weight row that it is the product with: ("gate" or "up", j), by `weights.join`."""
    numbers = torch.arange(columns)
    rows = weights.join(numbers, numbers + 1000, layout).tolist()
    return [("up" if row >= 1000 else "gate", row % 1000) for row in rows]


@functools.cache
def pairs(columns: int) -> list[list[tuple[int, int]]]:
    """Where result v of thread t belongs, which the node makes of its accumulators 2v and 2v + 1: [t][v]."""
    rows, found = weight_rows(columns, "interleaved"), []
    for mine in cute_map(2 * columns):
        for (row, left), (same, right) in zip(mine[::2], mine[1::2], strict=True):
            if row != same or rows[left][0] != "gate" or rows[right] != ("up", rows[left][1]):
                raise AssertionError("CuTe's map and weights.join disagree with the node")  # a fault of this checker
        found.append([(row, rows[column][1]) for row, column in mine[::2]])
    return found


@checker("10b")
def half_width_map(place, partners):
    """The map of PairMulStore and the accumulators of blocks, against CuTe's partition and weights.join."""
    for columns in (64, 72, 40, 96):
        _check_places(place, columns)
        yield f"PairMulStore, 64 x {columns}: all 128 threads hold what CuTe's partition and weights.join say, each element once"
    for block, columns in ((8, 64), (8, 40), (16, 64), (16, 80), (32, 64), (32, 96)):
        _check_partners(partners, block, columns)
    sizes = ", ".join(map(str, BLOCKS))
    yield f"blocks of {sizes}: for every thread, gate and up of a result are its own two, and lie where a plain tile has it"


def _integers(answer: Any, names: str, question: str) -> tuple[int, int]:
    values = answer if isinstance(answer, tuple) else (answer,)
    if len(values) != 2 or not all(isinstance(x, int) and not isinstance(x, bool) for x in values):
        raise Wrong(f"For {question} it returns {answer!r}; wanted: {names} as plain integers.")
    return values


def _check_places(place: Callable, columns: int) -> None:
    want = pairs(columns)
    results = range(columns // 2)
    got = {
        (t, v): _integers(place(t, v), "row, column", f"thread {t}, result {v}") for t in range(128) for v in results
    }
    wrong = [(t, v) for t, v in got if got[t, v] != want[t][v]]
    if not wrong:
        return
    t, v = wrong[0]
    text = (
        f"64 x {columns} outputs: result {v} of thread {t} is element {want[t][v]}, you say {got[t, v]}. "
        f"{_explain_place(got, want, columns, wrong)}"
    )
    raise Wrong(f"{text} {_owners(got, columns)}".strip())


def _owners(got: dict[tuple[int, int], tuple[int, int]], columns: int) -> str:
    """Elements with several owners, with none, and outside of the tile, by name."""
    owners: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for who, element in got.items():
        owners.setdefault(element, []).append(who)
    inside = {(row, column) for row in range(64) for column in range(columns)}
    told = []
    if outside := sorted(set(owners) - inside):
        told.append(f"{_elements(len(outside))} outside of the tile, such as {outside[0]}")
    if twice := sorted(element for element, who in owners.items() if len(who) > 1):
        (t0, v0), (t1, v1) = owners[twice[0]][:2]
        told.append(
            f"{_elements(len(twice))} written more than once, such as {twice[0]}: by thread {t0}, result {v0}, and by "
            f"thread {t1}, result {v1}"
        )
    if missing := sorted(inside - set(owners)):
        told.append(f"{_elements(len(missing))} written by nobody, such as {missing[0]}")
    return f"In this map {'; '.join(told)}." if told else "Each element has one owner in it, but not this one."


def _elements(count: int) -> str:
    return f"{count:,} element{'s are' if count != 1 else ' is'}"


def _explain_place(got, want, columns, wrong) -> str:
    """What the first difference is made of, from the warp down to the value."""
    if all(got[t, v] == accumulator(t, v) for t, v in got):
        return (
            "That is the map of a plain accumulator, where a thread has columns 2j and 2j + 1. Here these two have become one "
            "result: the half-width map has one column of a row for each thread."
        )
    if all(got[t, v] == (want[t][v][0], 2 * want[t][v][1]) for t, v in got):
        return "That is the column of the gate in the accumulator; the result is half as wide: column 2j becomes j."
    rows = [(t, v) for t, v in wrong if got[t, v][0] != want[t][v][0]]
    if rows:
        t, v = rows[0]
        for t, v in rows:
            (row, _), (right, _) = got[t, v], want[t][v]
            if row // 16 != right // 16:
                return "Each warp owns 16 rows of the 64: thread // 32 picks them."
        if all(got[t, v][0] == want[t][0][0] for t, v in rows):
            return "Every result is put into one row: a thread holds row r and row r + 8."
        if all(got[t, v][0] == accumulator(t, v)[0] for t, v in got):
            return (
                "Bit 1 picks the row of an accumulator; a result is made of accumulators 2v and 2v + 1, so that bit 1 of them is "
                "bit 0 of v: row r + 8 * (v % 2)."
            )
        return "Within a warp, four threads share a row: lane // 4, and 8 further down for every second result."
    if all(got[t, v][1] == 4 * (v // 2) + t % 32 // 4 for t, v in wrong):
        return "Four threads share a row, so lane % 4 picks the column, and lane // 4 the row."
    if all(got[t, v][1] // 4 == want[t][v][1] // 4 for t, v in wrong):
        return "Four neighbouring threads hold four neighbouring columns, one each: lane % 4."
    if all(got[t, v][1] % 4 == want[t][v][1] % 4 for t, v in wrong):
        return "Results 2i and 2i + 1 are two rows of one column; the next two are 4 columns on: 4 * (v // 2)."
    return "The row is right. A thread holds every fourth column: the first is lane % 4, and 4 more for every second result."


def accumulator(t: int, i: int) -> tuple[int, int]:
    """(row, column) of accumulator value i of thread t, as notebook 10 has it."""
    warp, lane = t // 32, t % 32
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


def _check_partners(partners: Callable, block: int, columns: int) -> None:
    wide, plain = cute_map(2 * columns), cute_map(columns)
    rows = weight_rows(columns, f"interleaved_{block}")
    setting = f"Blocks of {block}, 64 x {columns} outputs: "
    got = [_integers(partners(v, block), "gate, up", f"result {v} in blocks of {block}") for v in range(columns // 2)]
    most = columns - 1
    for v, mine in enumerate(got):
        if outside := [i for i in mine if not 0 <= i <= most]:
            raise Wrong(
                f"{setting}result {v} is made of accumulators {mine[0]} and {mine[1]}, and a thread has 0 to {most}: "
                f"there is no {outside[0]}. {_explain_partners(got, block)}"
            )
    for v, mine in enumerate(got):
        for t in range(128):
            for part, i in zip(("gate", "up"), mine, strict=True):
                row, column = wide[t][i]
                if (row, rows[column]) == (plain[t][v][0], (part, plain[t][v][1])):
                    continue
                name, number = rows[column]
                text = (
                    f"{setting}result {v} of thread {t} is element {plain[t][v]}; you take accumulator {i} for its {part}, "
                    f"which is {name} {number} of row {row}. {_explain_partners(got, block)}"
                )
                raise Wrong(f"{text} {_users(got, columns)}".strip())


def _users(got: list[tuple[int, int]], columns: int) -> str:
    """Accumulators that several results use, and that none uses."""
    users: dict[int, list[int]] = {}
    for v, mine in enumerate(got):
        for i in mine:
            users.setdefault(i, []).append(v)
    told = []
    if twice := sorted(i for i, who in users.items() if len(who) > 1):
        first, second = users[twice[0]][:2]
        told.append(
            f"accumulator {twice[0]} is in results {first} and {second}"
            if first != second
            else f"result {first} uses {twice[0]} twice"
        )
    if missing := sorted(set(range(columns)) - set(users)):
        told.append(f"{len(missing)} accumulators are in none, such as {missing[0]}")
    return f"In yours {' and '.join(told)}." if told else ""


def _explain_partners(got: list[tuple[int, int]], block: int) -> str:
    half, results = block // 2, range(len(got))
    right = [(2 * (v // half) * half + v % half, (2 * (v // half) + 1) * half + v % half) for v in results]
    if got == [(2 * v, 2 * v + 1) for v in results]:
        return "Neighbours are gate and up where rows alternate; here a block of gate comes first, then one of up."
    if got == [(up, gate) for gate, up in right]:
        return "Gate and up are exchanged: the first block is gate's."
    if got == [(v, v + half) for v in results]:
        return "That is right in the first block only: behind it lies up's, and gate goes on two blocks further."
    if got == [(v, v + block) for v in results] or got == [
        (2 * (v // block) * block + v % block, (2 * (v // block) + 1) * block + v % block) for v in results
    ]:
        return "A block of columns is spread over four threads and two rows each: a thread has block / 2 values of it, not block."
    if got == [(v, v + len(got)) for v in results]:
        return "That is the stacked tile, all of gate and then all of up. In blocks they take turns."
    if [gate for gate, _ in got] == [gate for gate, _ in right]:
        return "Gate's is right. Up's lies one block further: block / 2 values of a thread."
    return "A thread has block / 2 values of a block: v // (block / 2) is the block of a result, v % (block / 2) the place in it."
