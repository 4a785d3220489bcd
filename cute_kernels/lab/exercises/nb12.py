"""Checkers of the exercises of notebook 12: an operator's fake kernel and gradient, and the keys of kernels and calls."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.gradcheck import GradcheckError

from . import Wrong, checker

# 12a

NUMBERS = itertools.count()  # of the operators: each check registers its own
GRADIENTS = ("dx", "dw_gate", "dw_up")


def geglu(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """The exercise's kernel: its result is in x's dtype and lies row by row, however x lies."""
    return (F.gelu(F.linear(x, w_gate)) * F.linear(x, w_up)).contiguous()


def layouts() -> dict[str, torch.Tensor]:
    """What x may look like, K = 16."""
    return {
        "x (5, 16)": torch.randn(5, 16),
        "x (1, 16)": torch.randn(1, 16),
        "x (2, 3, 16)": torch.randn(2, 3, 16),
        "x (0, 16)": torch.randn(0, 16),
        "x (5, 16), a column slice": torch.randn(5, 40)[:, 8:24],
        "x (4, 3, 16), its leading dimensions exchanged": torch.randn(3, 4, 16).transpose(0, 1),
        "x (5, 16), the transpose of a matrix": torch.randn(16, 5).T,
    }


@checker("12a")
def fake_and_gradient(fake, backward):
    """Fake kernel and gradient against the kernel, then the operator made of them under PyTorch's own checks."""
    _check_fake(fake)
    yield f"fake: shape, strides, dtype and device are the kernel's for {len(layouts())} layouts of x and three dtypes"
    _check_symbolic(fake)
    yield "fake: one exported graph takes any number of rows"
    _check_backward(backward)
    yield "backward: the three gradients agree with autograd's in float64, for 2-D and 3-D x and an expanded dy"
    yield _under_pytorchs_checks(fake, backward)


def _check_fake(fake: Callable) -> None:
    for what, x in layouts().items():
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            given = [t.to(dtype) for t in (x, torch.randn(24, 16), torch.randn(24, 16))]
            want = geglu(*given)
            nowhere = [torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="meta") for t in given]
            got = fake(*nowhere)
            setting = f"{what}, {_name(dtype)}: "
            if not isinstance(got, torch.Tensor):
                raise Wrong(f"{setting}`fake` returns {got!r}, wanted: a tensor without values.")
            if got.shape != want.shape:
                raise Wrong(
                    f"{setting}the kernel's result is {tuple(want.shape)}, yours {tuple(got.shape)}. {_about_shape(got, want)}"
                )
            if got.dtype != want.dtype:
                raise Wrong(
                    f"{setting}the kernel's result is {_name(want.dtype)}, yours {_name(got.dtype)}. x.new_empty(shape) takes "
                    "dtype and device from x; torch.empty(shape) takes PyTorch's defaults."
                )
            if got.device.type != "meta":
                raise Wrong(
                    f"{setting}x is on one device, your result on another, {got.device}. x.new_empty(shape) takes the device "
                    "from x."
                )
            if got.stride() != want.stride():
                raise Wrong(
                    f"{setting}the kernel's result has strides {want.stride()}, yours {got.stride()}. The kernel writes row by "
                    "row, however x lies; code that is compiled with your strides reads other elements."
                )


def _about_shape(got: torch.Tensor, want: torch.Tensor) -> str:
    if got.shape[:-1] == want.shape[:-1]:
        return "The columns are N, the rows of a weight: nn.Linear has weights (N, K)."
    if got.dim() != want.dim():
        return "x may have any number of leading dimensions, and the result has them, too."
    return "All dimensions of x but the last stay, then comes N."


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _operator(fake: Callable, backward: Callable | None) -> tuple[Any, torch.library.Library]:
    """The operator that has the learner's functions; it lives as long as the library does."""
    space = f"cookbook_12a_{next(NUMBERS)}"
    library = torch.library.Library(space, "DEF")
    library.define("geglu(Tensor x, Tensor w_gate, Tensor w_up) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("geglu", geglu, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{space}::geglu", fake, lib=library)
    if backward is not None:
        torch.library.register_autograd(
            f"{space}::geglu",
            lambda ctx, dy: tuple(backward(dy, *ctx.saved_tensors)),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            lib=library,
        )
    return getattr(torch.ops, space).geglu, library


def _check_symbolic(fake: Callable) -> None:
    operator, library = _operator(fake, None)

    class Layer(torch.nn.Module):
        def forward(self, *given):
            return operator(*given)

    rows = torch.export.Dim("rows", min=2, max=4096)
    given = torch.randn(6, 16), torch.randn(24, 16), torch.randn(24, 16)
    try:
        program = torch.export.export(Layer(), given, dynamic_shapes=((({0: rows}, None, None)),))
        got = program.module()(given[0][:3], *given[1:])
    except Exception as why:
        text = " ".join(str(why).split())
        raise Wrong(
            "torch.export with a symbol for the number of rows does not go through your fake kernel: a size is turned into a "
            f"plain number there (int(), a list of constants, data_ptr). Sizes are used as they come. PyTorch says: {text[:260]}"
        ) from None
    finally:
        library._destroy()
    if got.shape != (3, 24):
        raise Wrong(f"Exported with a symbol for the rows, 3 rows give {tuple(got.shape)}.")


def _slope(gate: torch.Tensor, function: Callable) -> torch.Tensor:
    leaf = gate.detach().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def _made(slope: Callable, up_factor: Callable = F.gelu, by_up: Callable = lambda up: up) -> Callable:
    """The gradients, with parts exchanged: d gate = dy * by_up(up) * slope(gate), d up = dy * up_factor(gate)."""

    def gradients(dy, x, w_gate, w_up):
        rows, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        gate, up = F.linear(rows, w_gate), F.linear(rows, w_up)
        d_gate, d_up = dy * by_up(up) * slope(gate), dy * up_factor(gate)
        return (d_gate @ w_gate + d_up @ w_up).view(x.shape), d_gate.T @ rows, d_up.T @ rows

    return gradients


def _phi(g: torch.Tensor) -> torch.Tensor:
    return torch.exp(-g * g / 2) / math.sqrt(2 * math.pi)


def _share(g: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(g / math.sqrt(2)))


def _exact(dy: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients as autograd has them."""
    leaves = [t.detach().requires_grad_() for t in given]
    return torch.autograd.grad(geglu(*leaves), leaves, dy)


#: (explanation, what computes so)
MISTAKES: tuple[tuple[str, Callable], ...] = (
    (
        "GELU itself stands where its derivative belongs: d gate = dy * up * GELU'(gate).",
        _made(F.gelu),
    ),
    (
        "GELU(g) = g * Phi(g) is a product: its derivative is Phi(g) + g * phi(g). The second term is missing.",
        _made(_share),
    ),
    (
        "GELU(g) = g * Phi(g) is a product: its derivative is Phi(g) + g * phi(g). The first term is missing.",
        _made(lambda g: g * _phi(g)),
    ),
    (
        "The density phi(g) = exp(-g^2 / 2) / sqrt(2 pi): the factor 1 / sqrt(2 pi) is missing.",
        _made(lambda g: _share(g) + g * math.sqrt(2 * math.pi) * _phi(g)),
    ),
    (
        "The density phi(g) = exp(-g^2 / 2) / sqrt(2 pi): the exponent is -g^2 / 2, not -g^2.",
        _made(lambda g: _share(g) + g * torch.exp(-g * g) / math.sqrt(2 * math.pi)),
    ),
    (
        "That is the derivative of the tanh approximation; the kernel computes the exact GELU.",
        _made(lambda g: _slope(g, lambda t: F.gelu(t, approximate="tanh"))),
    ),
    ("That is the derivative of SiLU; the kernel computes GELU.", _made(lambda g: _slope(g, F.silu))),
    (
        "d gate lacks the other factor of the product: dy * up * GELU'(gate).",
        _made(lambda g: _share(g) + g * _phi(g), by_up=lambda up: torch.ones_like(up)),
    ),
    (
        "d up is dy times the other factor of the product, and that is GELU(gate), not gate.",
        _made(lambda g: _share(g) + g * _phi(g), up_factor=lambda g: g),
    ),
    (
        "d up lacks the other factor of the product: dy * GELU(gate).",
        _made(lambda g: _share(g) + g * _phi(g), up_factor=torch.ones_like),
    ),
)


def cases() -> dict[str, tuple[torch.Tensor, ...]]:
    """dy, x, w_gate, w_up in float64."""
    torch.manual_seed(0)
    made = {}
    for what, x in layouts().items():
        x = x.double()
        dy = torch.randn(*x.shape[:-1][::-1], 24, dtype=torch.float64).transpose(
            0, x.dim() - 2
        )  # not contiguous in 3-D
        made[what] = dy, x, *(torch.randn(24, 16, dtype=torch.float64) / 4 for _ in range(2))
    _, x, w_gate, w_up = made["x (2, 3, 16)"]
    made["x (2, 3, 16), dy as y.sum() sends it, one number with strides 0"] = (
        torch.ones(()).double().expand(2, 3, 24),
        x,
        w_gate,
        w_up,
    )
    return made


def _check_backward(backward: Callable) -> None:
    for what, given in cases().items():
        want = _exact(*given)
        got = backward(*given)
        if not isinstance(got, tuple | list) or len(got) != 3 or not all(isinstance(t, torch.Tensor) for t in got):
            raise Wrong(
                f"{what}: `backward` returns {type(got).__name__}, wanted: three tensors, {', '.join(GRADIENTS)}."
            )
        for name, mine, right, of in zip(GRADIENTS, got, want, given[1:], strict=True):
            if mine.shape != of.shape:
                raise Wrong(
                    f"{what}: {name} is {tuple(mine.shape)}, must be as what it is the gradient of, {tuple(of.shape)}. "
                    + ("A weight's gradient is d.T @ rows." if name != "dx" else "dx has x's leading dimensions.")
                )
            if not torch.allclose(mine, right, 1e-9, 1e-9):
                raise Wrong(f"{what}: {_explain_gradient(name, got, want, given)}")
    dy, x, w_gate, w_up = (t.bfloat16() for t in cases()["x (5, 16)"])
    for name, mine, of in zip(GRADIENTS, backward(dy, x, w_gate, w_up), (x, w_gate, w_up), strict=True):
        if mine.dtype != of.dtype:
            raise Wrong(
                f"bfloat16: {name} is {_name(mine.dtype)}; a gradient has the dtype of what it is the gradient of."
            )


def _explain_gradient(name: str, got: tuple, want: tuple, given: tuple) -> str:
    def same(a, b):
        return all(s.shape == t.shape and torch.allclose(s, t, 1e-9, 1e-9) for s, t in zip(a, b, strict=True))

    for why, mistake in MISTAKES:
        if same(got, mistake(*given)):
            return f"{name} is wrong. {why}"
    if same(got[1:], want[:0:-1]):
        return "dw_gate and dw_up are exchanged."
    off = {who: ((a - b).norm() / b.norm()).item() for who, a, b in zip(GRADIENTS, got, want, strict=True)}
    right = [who for who, error in off.items() if error < 1e-9]
    if right == ["dw_gate", "dw_up"]:
        dy, x, w_gate, w_up = given
        rows, gate = x.reshape(-1, 16), F.linear(x.reshape(-1, 16), w_gate)
        d_gate = dy.reshape(-1, 24) * F.linear(rows, w_up) * (_share(gate) + gate * _phi(gate))
        for part, alone in (("gate", d_gate @ w_gate), ("up", dy.reshape(-1, 24) * F.gelu(gate) @ w_up)):
            if torch.allclose(got[0].reshape(-1, 16), alone, 1e-9, 1e-9):
                return f"dx has the {part}'s share alone. x stands in two products: dx is the sum of both shares."
        return "Both weights' gradients are right, dx is not: it is d_gate @ w_gate + d_up @ w_up."
    told = ", ".join(f"{who} {'right' if who in right else f'off by {100 * off[who]:.0f} %'}" for who in GRADIENTS)
    return f"{told} (relative error). From the outside in: y = GELU(gate) * up, then gate and up are products of x and a weight."


def _under_pytorchs_checks(fake: Callable, backward: Callable) -> str:
    operator, library = _operator(fake, backward)
    try:
        for shape in ((5, 16), (2, 3, 16)):
            given = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in (shape, (24, 16), (24, 16))]
            for test, said in torch.library.opcheck(operator.default, tuple(given), raise_exception=False).items():
                if said != "SUCCESS":
                    raise Wrong(f"opcheck, {test}: {' '.join(str(said).split())[:400]}")
            try:
                torch.autograd.gradcheck(operator, given)
            except GradcheckError as why:
                raise Wrong(f"gradcheck: {' '.join(str(why).split())[:300]}") from None
    finally:
        library._destroy()
    return "the operator made of both: opcheck has no objection, gradcheck (finite differences in float64) agrees"


# 12b


@dataclass(frozen=True)
class Operand:
    """A tensor as a call sees it. stride in elements, device: the GPU's index, address in bytes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = "bfloat16"
    device: int = 0
    address: int = 0x7F0000000000


@dataclass(frozen=True)
class Call:
    """A call of a kernel. config: the configuration that was chosen for it, by shape or by the caller; out_dtype None: a's;
    biases: of each weight, or None; out None: a new tensor."""

    kernel: str
    config: str
    a: Operand
    weights: tuple[Operand, ...]
    biases: tuple[Operand | None, ...] = (None, None)
    activation: str = "swiglu"
    early_weights: Any = False
    out_dtype: str | None = None
    out: Operand | None = None


def rows_of(m: int, k: int, pitch: int | None = None, **more: Any) -> Operand:
    return Operand((m, k), (pitch or k, 1), **more)


def a_call(m: int = 64, n: int = 4864, k: int = 896, config: str = "co_64x40_1x1_s9_g8", **more: Any) -> Call:
    """ck.swiglu on Qwen-2.5 0.5B's sizes."""
    return Call("swiglu_stacked", config, rows_of(m, k), (rows_of(n, k), rows_of(n, k)), **more)


def _gemm(**more: Any) -> Call:
    first = Call("gemm", "pp_128x128_2x1_s6_g8", rows_of(1024, 896), (rows_of(4864, 896),), (None,), "none")
    return dataclasses.replace(first, **more)


def _with_a(call: Call, **changes: Any) -> Call:
    return dataclasses.replace(call, a=dataclasses.replace(call.a, **changes))


@dataclass(frozen=True)
class Pair:
    """Two calls, whether they may share a compiled kernel and a check (None: either will do), and why."""

    name: str
    one: Call
    other: Call
    kernel: bool | None
    check: bool | None
    why_kernel: str
    why_check: str


VECTOR = Operand((4864,), (1,))
SIZES = "sizes and pitches are arguments of the launch, TMA descriptors are made from them"
CHECKED = "what was checked, and chosen, for one shape says nothing of another"
BOTH = "of a plan, too: it holds one kernel"


def pairs() -> tuple[Pair, ...]:
    """The pairs of calls that the exercise is about."""
    plain, gemm = a_call(), _gemm()
    moved = dataclasses.replace(
        _with_a(plain, address=0x7F0000400000),
        weights=tuple(dataclasses.replace(w, address=w.address + 4096) for w in plain.weights),
    )
    other_gpu = dataclasses.replace(
        _with_a(plain, device=1), weights=tuple(dataclasses.replace(w, device=1) for w in plain.weights)
    )
    half = dataclasses.replace(
        _with_a(plain, dtype="float16"), weights=tuple(dataclasses.replace(w, dtype="float16") for w in plain.weights)
    )
    transposed = _gemm(weights=(Operand((4864, 896), (1, 4864)),))
    result = rows_of(64, 4864)
    return (
        Pair("the same call again", plain, a_call(), True, True, "nothing differs", "nothing differs"),
        Pair(
            "other tensors, same form",
            plain,
            moved,
            True,
            True,
            "addresses are arguments",
            "addresses differ in every call: they are looked at each time, beside the key",
        ),
        Pair("M 64 -> 48", plain, a_call(m=48), True, False, SIZES, CHECKED),
        Pair("N and K", plain, a_call(n=8960, k=1536), True, False, SIZES, CHECKED),
        Pair(
            "M 64 -> 4096, another configuration",
            plain,
            a_call(m=4096, config="pp_128x80_2x1_s5_g8"),
            False,
            False,
            "tile, stages and cluster are constants of the code",
            CHECKED,
        ),
        Pair(
            "same shapes, the caller asks for another configuration",
            plain,
            a_call(config="co_64x72_1x1_s7_g8"),
            False,
            False,
            "tile, stages and cluster are constants of the code",
            BOTH,
        ),
        Pair(
            "another kernel",
            plain,
            dataclasses.replace(plain, kernel="swiglu_pingpong"),
            False,
            False,
            "it is another function",
            BOTH,
        ),
        Pair(
            "a column slice as x",
            plain,
            _with_a(plain, stride=(1792, 1)),
            True,
            False,
            SIZES,
            "the pitch must be a multiple of 16 bytes: it is checked, so it belongs to the key",
        ),
        Pair(
            "x (64, 896) -> (4, 16, 896)",
            plain,
            _with_a(plain, shape=(4, 16, 896), stride=(14336, 896, 1)),
            True,
            False,
            "leading dimensions are flattened before the launch",
            "the result has another shape",
        ),
        Pair("bf16 -> fp16", plain, half, False, False, "the MMA instruction and the conversions are others", BOTH),
        Pair(
            "GPU 0 -> GPU 1",
            plain,
            other_gpu,
            False,
            False,
            "code is loaded for one GPU, and the persistent grid is that GPU's",
            BOTH,
        ),
        Pair(
            "swiglu -> geglu",
            plain,
            dataclasses.replace(plain, activation="geglu"),
            False,
            False,
            "the activation is code",
            BOTH,
        ),
        Pair(
            "no bias -> a bias of the gate",
            plain,
            dataclasses.replace(plain, biases=(VECTOR, None)),
            False,
            False,
            "the epilogue has a leaf more: it is code",
            BOTH,
        ),
        Pair(
            "a bias of the gate -> a bias of up",
            dataclasses.replace(plain, biases=(VECTOR, None)),
            dataclasses.replace(plain, biases=(None, VECTOR)),
            False,
            False,
            "the leaf stands elsewhere in the tree: a list of the biases that there are does not say where",
            "one tensor of the same form in another place is another call",
        ),
        Pair(
            "a bias in bf16 -> in fp32",
            dataclasses.replace(plain, biases=(VECTOR, None)),
            dataclasses.replace(plain, biases=(dataclasses.replace(VECTOR, dtype="float32"), None)),
            False,
            False,
            "the width of its loads is code",
            BOTH,
        ),
        Pair(
            "early_weights",
            plain,
            dataclasses.replace(plain, early_weights=True),
            False,
            False,
            "where the wait stands is code",
            BOTH,
        ),
        Pair(
            "early_weights True -> 1",
            dataclasses.replace(plain, early_weights=True),
            dataclasses.replace(plain, early_weights=1),
            None,
            False,
            "",
            "1 is refused, True is not, and 1 == True: to a dict they are one key. The type belongs to it",
        ),
        Pair(
            "a new tensor -> out=",
            plain,
            dataclasses.replace(plain, out=result),
            True,
            False,
            "the kernel writes to an address in either case",
            "out is checked, and no tensor is made",
        ),
        Pair(
            "out= -> a column slice as out=",
            dataclasses.replace(plain, out=result),
            dataclasses.replace(plain, out=rows_of(64, 4864, 9728)),
            True,
            False,
            SIZES,
            "out's strides are checked as those of the inputs",
        ),
        Pair(
            "gemm: b -> the transpose of a matrix",
            gemm,
            transposed,
            False,
            False,
            "which dimension is contiguous decides the shared-memory layout and the descriptor of the MMA",
            "strides are checked",
        ),
        Pair(
            "gemm: a row pitch of b",
            gemm,
            _gemm(weights=(rows_of(4864, 896, 1024),)),
            True,
            False,
            "what is contiguous is code, the pitch is not",
            "strides are checked",
        ),
        Pair(
            "gemm: out_dtype None -> bf16, which is a's",
            gemm,
            _gemm(out_dtype="bfloat16"),
            True,
            None,
            "None means a's dtype: both store bf16",
            "",
        ),
        Pair(
            "gemm: out_dtype -> fp32",
            gemm,
            _gemm(out_dtype="float32"),
            False,
            False,
            "the conversion and the store are code",
            BOTH,
        ),
    )


def differences() -> None:
    """Print the pairs of calls and the fields in which they differ."""
    for number, pair in enumerate(pairs()):
        changed = []
        for field in dataclasses.fields(Call):
            a, b = getattr(pair.one, field.name), getattr(pair.other, field.name)
            if a != b or type(a) is not type(b):
                changed.append(field.name)
        print(f"{number:2d}  {pair.name:<56} {', '.join(changed) or '-'}")


@checker("12b")
def two_keys(kernel_key, call_key):
    """Both keys on every pair, each shared or not as it must be."""
    for who, key in (("kernel_key", kernel_key), ("call_key", call_key)):
        _check_form(who, key)
    for who, key, wanted in (
        ("kernel_key", kernel_key, lambda p: (p.kernel, p.why_kernel)),
        ("call_key", call_key, lambda p: (p.check, p.why_check)),
    ):
        shared = apart = 0
        for pair in pairs():
            share, why = wanted(pair)
            same = key(pair.one) == key(pair.other)
            if share is None:
                continue
            if same and not share:
                raise Wrong(
                    f"`{who}` gives one key to two calls that must not share: {pair.name}. {why[0].upper()}{why[1:]}. "
                    f"{_harm(who)}"
                )
            if share and not same:
                raise Wrong(
                    f"`{who}` separates two calls that should share: {pair.name}. {why[0].upper()}{why[1:]}. {_cost(who)}"
                )
            shared, apart = shared + share, apart + (not share)
        yield f"{who}: {shared} pairs share, {apart} are kept apart, each as it must be"
    calls = [_with_a(a_call(m), address=0x7F0000000000 + 16 * turn * m) for m in range(1, 65) for turn in range(50)]
    kernels, checks = len({kernel_key(c) for c in calls}), len({call_key(c) for c in calls})
    yield f"{len(calls)} calls with 1 to 64 rows, new tensors each time: {kernels} kernel, {checks} checks"


def _check_form(who: str, key: Callable) -> None:
    made = key(a_call())
    try:
        hash(made)
    except TypeError as why:
        raise Wrong(
            f"`{who}` returns what cannot be the key of a dict: {why}. Tuples, strings and numbers can."
        ) from None
    if made is None:
        raise Wrong(f"`{who}` returns None.")
    if key(a_call()) != made:
        raise Wrong(
            f"`{who}` of an equal call is another key: something in it (id(), an object without ==) is new each time."
        )


def _harm(who: str) -> str:
    if who == "kernel_key":
        return "The second call would run the first one's code, on data that it was not written for."
    return "The second call would be launched as the first one was, unchecked."


def _cost(who: str) -> str:
    if who == "kernel_key":
        return "Each such call would compile a kernel anew: seconds, in which a server stands still."
    return "No call would ever be known: each pays for all checks."
