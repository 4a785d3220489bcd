"""Checkers of the exercises of notebook 08: bytes, passes and what they cost; one GEMM for every order of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ... import reference, weights
from ...models import QWEN25
from .. import traffic
from . import Wrong, checker

# 08a

Launches = list[tuple[tuple[str, ...], tuple[str, ...]]]
ROWS = (1, 16, 256, 1024, 2048, 4096)
CEILINGS = (
    {"gemm_tflops": 700.0, "copy_tbs": 4.2},
    {"gemm_tflops": 620.0, "copy_tbs": 2.9},
)


def launches(variant: str, down: bool = False) -> Launches:
    """A variant of lab.traffic as the exercise gives it: (reads, writes) of each launch."""
    kernels = (*traffic.VARIANTS[variant], *((traffic.DOWN,) if down else ()))
    return [(kernel.reads, kernel.writes) for kernel in kernels]


#: launches that no variant has: an activation in place, a product of a tensor with itself
IN_PLACE: Launches = [
    (("x", "w_gate"), ("gate",)),
    (("gate",), ("gate",)),
    (("gate", "up"), ("gate",)),
    (("gate",), ("h",)),
]


@checker("08a")
def count_the_passes(bytes_moved, extra_passes, break_even):
    """The three counts against lab.traffic's own."""
    given = [(name, launches(name, down)) for name in traffic.VARIANTS for down in (False, True)]
    given.append(("silu in place", IN_PLACE))
    for model in QWEN25:
        for m in ROWS:
            for name, each in given:
                _check_bytes(bytes_moved, name, each, traffic.shape_of(model, m))
    yield (
        f"bytes of {len(given)} lists of launches, {len(QWEN25)} models, M = {', '.join(map(str, ROWS))}: as lab.traffic "
        "counts them"
    )
    fused = launches(traffic.AFTER)
    _check_passes(extra_passes, given, fused)
    told = ", ".join(f"{name} {traffic.extra_passes(name)}" for name in traffic.VARIANTS)
    yield f"extra passes: {told}"
    cases = 0
    for ceilings in CEILINGS:
        for variant in ("eager", "one pointwise kernel", "stacked weights"):
            for model in QWEN25:
                for m in ROWS:
                    cases += _check_break_even(break_even, variant, model, m, ceilings)
    if not cases:
        raise AssertionError("no GEMM is bound by its operations")  # a fault of this checker
    yield f"break-even: in {cases} cases whose GEMMs are bound by operations, the model's own K comes back from its share"


def _check_bytes(bytes_moved: Callable, name: str, each: Launches, shape: traffic.Shape) -> None:
    size = dict(zip("MNK", shape, strict=True))
    dims = dict(traffic.TENSORS)
    got = bytes_moved(list(each), dims, dict(size))
    want = sum(traffic.tensor_bytes(t, shape) for reads, writes in each for t in (*reads, *writes))
    if name in traffic.VARIANTS and each == launches(name) and want != traffic.moved(name, shape):
        raise AssertionError("this checker and lab.traffic disagree")
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise Wrong(f"bytes_moved returns {got!r}; wanted is a number of bytes.")
    if got == want:
        return

    def total(names: Sequence[str]) -> int:
        return sum(traffic.tensor_bytes(t, shape) for t in names)

    text = f"{name}, M, N, K = {size['M']}, {size['N']}, {size['K']}: you say {got:,} bytes, it is {want:,}. "
    reads = [t for r, _ in each for t in r]
    writes = [t for _, w in each for t in w]
    if got * 2 == want:
        why = "That is the number of elements: bf16 has 2 bytes."
    elif got == total(reads):
        why = "What is written is missing: it leaves the chip, too."
    elif got == total(writes):
        why = "What is read is missing: the next launch fetches it again."
    elif got == total(list(dict.fromkeys([*reads, *writes]))):
        why = (
            "Each tensor is counted once for all launches. A launch keeps nothing: what the next one reads comes from HBM "
            "again, and that is just what fusion saves."
        )
    elif got == sum(total(list(dict.fromkeys([*r, *w]))) for r, w in each):
        why = "A tensor that is read and written by one launch moves twice, in and out."
    elif got == total([t for t in (*reads, *writes) if traffic.TENSORS[t] == "MN"]):
        why = "Those are the M x N tensors alone. The launch moves its x and its weights, too."
    elif each and got == total([*each[-1][0], *each[-1][1]]):
        why = "That is the last launch alone."
    elif each and got == total([*each[0][0], *each[0][1]]):
        why = "That is the first launch alone: return behind the loop."
    else:
        why = "Each launch moves all that it reads and all that it writes, rows times columns times 2 bytes each."
    raise Wrong(text + why)


def _used(some: Launches) -> list[str]:
    """The tensors of every read and every write, one after the other."""
    return [t for reads, writes in some for t in (*reads, *writes)]


def _wide(tensors: Sequence[str]) -> list[str]:
    return [t for t in tensors if traffic.TENSORS[t] == "MN"]


def passes(some: Launches) -> int:
    return len(_wide(_used(some)))


#: (explanation, what counts so): functions of the launches and the fused ones
MISCOUNTS: tuple[tuple[str, Callable[[Launches, Launches], int]], ...] = (
    ("Those are all of them. One is needed: the fused kernel writes h, too.", lambda some, fused: passes(some)),
    (
        "The other way round: what the fused kernel makes is subtracted.",
        lambda some, fused: passes(fused) - passes(some),
    ),
    (
        "x and the weights are no passes over M x N tensors: fusion does not change what a GEMM reads of them.",
        lambda some, fused: len(_used(some)) - len(_used(fused)),
    ),
    (
        "x and the weights are no passes over M x N tensors: fusion does not change what a GEMM reads of them.",
        lambda some, fused: len(_used(some)) - passes(fused),
    ),
    (
        "Those are tensors. A pass is a read or a write: gate is written by one launch and read by another, two passes.",
        lambda some, fused: len(set(_wide(_used(some)))) - len(set(_wide(_used(fused)))),
    ),
    (
        "Those are the writes. What is written is read again, which is a pass, too.",
        lambda some, fused: len(_wide([t for _, w in some for t in w])) - passes(fused),
    ),
    (
        "Those are the reads. Somebody has written what is read, which is a pass, too.",
        lambda some, fused: len(_wide([t for r, _ in some for t in r])) - len(_wide([t for r, _ in fused for t in r])),
    ),
    (
        "Those are the reads. Somebody has written what is read, which is a pass, too.",
        lambda some, fused: len(_wide([t for r, _ in some for t in r])) - passes(fused),
    ),
    ("Those are launches. A launch may make several passes.", lambda some, fused: len(some) - len(fused)),
    (
        "You leave out every pass over a tensor that the fused kernel touches. Only as many passes as it makes itself are "
        "needed: subtract the counts.",
        lambda some, fused: len([t for t in _wide(_used(some)) if t not in _used(fused)]),
    ),
    (
        "A tensor that is read and written by one launch is passed over twice, in and out.",
        lambda some, fused: sum(len(set(_wide([*r, *w]))) for r, w in some) - passes(fused),
    ),
)


def _check_passes(extra_passes: Callable, given: list[tuple[str, Launches]], fused: Launches) -> None:
    found = []
    for name, each in given:
        got = extra_passes(list(each), list(fused), dict(traffic.TENSORS))
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"extra_passes returns {got!r}; wanted is a number of passes, an int.")
        want = passes(each) - passes(fused)
        if name in traffic.VARIANTS and each == launches(name) and want != traffic.extra_passes(name):
            raise AssertionError("this checker and lab.traffic disagree")
        found.append((name, each, got, want))
    wrong = [each for each in found if each[2] != each[3]]
    if not wrong:
        return
    name, each, got, want = wrong[0]
    down = (traffic.DOWN.reads, traffic.DOWN.writes) in each
    why = 'Count reads and writes of tensors with dims "MN", in both lists, and subtract.'
    for told, count in MISCOUNTS:
        if all(count(some, fused) == said for _, some, said, _ in found):
            why = told
            break
    raise Wrong(f"{name}{' and the down GEMM' if down else ''}: you say {got} extra passes, they are {want}. {why}")


def _check_break_even(break_even: Callable, variant: str, model: str, m: int, ceilings: dict[str, float]) -> bool:
    """Whether this case is one: its GEMMs are bound by operations, its activation by bytes."""
    shape = traffic.shape_of(model, m)
    kernels = (*traffic.VARIANTS[variant], traffic.DOWN)
    operations = 2.0 * shape[0] * shape[1] * shape[2] / ceilings["gemm_tflops"] / 1e6
    if any(traffic.kernel_us(k, shape, ceilings) > k.products * operations * (1 + 1e-9) for k in kernels if k.products):
        return False
    passes = sum(traffic.TENSORS[t] == "MN" for k in kernels if not k.products for t in (*k.reads, *k.writes))
    gemms = sum(k.products for k in kernels)
    ridge, share = ceilings["gemm_tflops"] / ceilings["copy_tbs"], traffic.activation_share(variant, shape, ceilings)
    got, want = break_even(share, passes, gemms, ridge), shape[2]
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise Wrong(f"break_even returns {got!r}; wanted is a number.")

    def near(other: float) -> bool:
        return abs(got - other) <= 1e-6 * abs(other)

    if near(want):
        return True
    text = (
        f"{variant}, {model}, M = {m}: {passes} passes take {100 * share:.2f} % of them and {gemms} GEMMs together, ridge "
        f"{ridge:.1f}. That is so at K = {want}; you say {got:.6g}. "
    )
    r = passes * ridge
    for why, other in (
        (
            "That is the share of the GEMMs' time. Here it is of the whole, in which the passes are, too: p / (p + g), "
            "not p / g.",
            r / share / gemms,
        ),
        ("The number of GEMMs is missing: that is for one.", r * (1 - share) / share),
        ("The number of passes is missing: that is for one.", ridge * (1 - share) / share / gemms),
        (
            "GEMMs and passes are exchanged: a pass takes ridge / K of one GEMM.",
            gemms * ridge * (1 - share) / share / passes,
        ),
        ("Upside down: K is where the ridge is divided by the ratio, not multiplied.", r * share / (1 - share) / gemms),
        ("That is r = ridge / K, the cost of a pass; wanted is K.", share * gemms / (1 - share) / passes),
        (
            "A factor of 2: a pass is 2 bytes for 2 K operations, which the ridge has counted.",
            2 * r * (1 - share) / share / gemms,
        ),
        (
            "A factor of 2: a pass is 2 bytes for 2 K operations, which the ridge has counted.",
            r * (1 - share) / share / gemms / 2,
        ),
    ):
        if near(other):
            raise Wrong(text + why)
    raise Wrong(
        text + "One pass takes r = ridge / K of one GEMM. Solve passes * r / (passes * r + gemms) = share for K."
    )


# 08b

MORE = "interleaved_64"  # a layout that no project has: the number after the name is the block
SHAPES = ((5, 64, 24), (1, 96, 8), (33, 192, 40))


def joined(gate: torch.Tensor, up: torch.Tensor, layout: str) -> torch.Tensor:
    """`weights.join`, for `MORE` too."""
    if layout != MORE:
        return weights.join(gate, up, layout)
    parts = [t.reshape(-1, 64, *t.shape[1:]) for t in (gate, up)]
    return torch.stack(parts, 1).reshape(2 * gate.shape[0], *gate.shape[1:])


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "mkldnn_linear", "_mkl_linear")


class Watch(TorchDispatchMode):
    """Which operations run, and what they allocate: (name, shape) of every result that is no view of an operand."""

    def __init__(self):
        super().__init__()
        self.allocated: list[tuple[str, tuple[int, ...]]] = []
        self.products: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        operands = {
            t.untyped_storage().data_ptr()
            for t in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        for t in torch.utils._pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.numel() and t.untyped_storage().data_ptr() not in operands:
                self.allocated.append((name, tuple(t.shape)))
        if name in PRODUCTS:
            self.products.append(tuple(result.shape))
        return result


@checker("08b")
def stacked_weights(halves, swiglu):
    """Views of the product for every order of rows; one GEMM and one pointwise expression around them."""
    names = (*weights.LAYOUTS, MORE)
    for m, n, _ in SHAPES:
        for layout in names:
            if _fits(n, layout):
                _check_views(halves, m, n, layout)
    for layout in ("gate_up", "up_gate", "interleaved"):
        _check_views(halves, 3, 7, layout)
    yield f"gate and up are views of the product, and the right ones, for {len(weights.LAYOUTS)} orders of rows and for {MORE}"
    worst = 0.0
    for m, n, k in SHAPES:
        for layout in names:
            if _fits(n, layout):
                worst = max(worst, _check_result(swiglu, m, n, k, layout))
    yield f"values in fp32 on the CPU, every order: largest difference {worst:.1e}"
    yield "one GEMM, and nothing of the activations' size but its result, silu and the product"


def _fits(n: int, layout: str) -> bool:
    return n % int(layout.partition("_")[2] or 1) == 0 if layout.startswith("interleaved") else True


def _check_views(halves: Callable, m: int, n: int, layout: str) -> None:
    marks = joined(torch.arange(n), torch.arange(n) + 10_000, layout).float()
    both = marks + 100_000 * torch.arange(m).float()[:, None]
    setting = f"{layout}, both of shape ({m}, {2 * n}): "
    try:
        answer = halves(both, layout)
    except RuntimeError as why:
        if "view size is not compatible" not in str(why):
            raise
        raise Wrong(
            f"{setting}{str(why).split('.')[0]}. Blocks of gate do not lie evenly spaced: no view has them in one axis of "
            "N. Leave the block as an axis of its own; silu and * do not mind."
        ) from None
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(t, torch.Tensor) for t in answer):
        raise Wrong(f"{setting}halves returns {_called(answer)}; wanted are two tensors, gate and up.")
    want = {"gate": both % 100_000 < 10_000, "up": both % 100_000 >= 10_000}
    for name, got in zip(("gate", "up"), answer, strict=True):
        if got.numel() != m * n:
            raise Wrong(
                f"{setting}{name} has shape {tuple(got.shape)}, {got.numel()} elements; wanted are the {m} x {n} of one branch."
            )
    for name, got in zip(("gate", "up"), answer, strict=True):
        flat = got.reshape(m, n) if got.shape[0] == m else got.reshape(-1)
        if flat.shape == (m, n) and torch.equal(flat, both[want[name]].reshape(m, n)):
            continue
        raise Wrong(setting + _explain_view(name, answer, both, m, n, layout))
    for name, got in zip(("gate", "up"), answer, strict=True):
        if got.untyped_storage().data_ptr() != both.untyped_storage().data_ptr():
            raise Wrong(
                f"{setting}{name} has the right values in a storage of its own: they were copied, a read and a write of M "
                "x N more. Where blocks do not lie evenly spaced, `reshape` copies without a word, as do advanced "
                "indices, cat and contiguous; `view`, `unflatten`, slices and numbers as indices do not."
            )


def _explain_view(name: str, answer: Any, both: torch.Tensor, m: int, n: int, layout: str) -> str:
    got = answer[0 if name == "gate" else 1]
    found = got.reshape(-1)[: min(3, n)].long().tolist()

    def row(mark: int) -> str:
        mark %= 100_000
        return f"up {mark - 10_000}" if mark >= 10_000 else f"gate {mark}"

    text = f"{name} begins with {', '.join(map(row, found))}; wanted is {', '.join(f'{name} {j}' for j in range(len(found)))}. "
    if got.shape[0] != m:
        return text + f"Its shape is {tuple(got.shape)}: rows of both, the tokens, stay the first axis."
    flat = got.reshape(m, n)
    other = (
        answer[1 if name == "gate" else 0].reshape(m, n) if answer[1 if name == "gate" else 0].shape[0] == m else flat
    )
    is_up = both % 100_000 >= 10_000
    if torch.equal(flat, both[is_up if name == "gate" else ~is_up].reshape(m, n)) and not torch.equal(flat, other):
        return text + (
            "In up_gate the first half is up's."
            if layout == "up_gate"
            else "Gate and up are exchanged: gate comes first in this order."
        )
    if layout.startswith("interleaved") and torch.equal(flat, both[:, :n] if name == "gate" else both[:, n:]):
        return text + "That is a half of the columns, as [gate; up] has it. Here rows, or blocks of them, take turns."
    if torch.equal(flat, both[:, (0 if name == "gate" else 1) :: 2]):
        return text + "That is every second column. Here it is whole blocks, or halves, that take turns."
    for block in (1, 8, 16, 32, 64):
        if n % block == 0 and torch.equal(
            flat, both.reshape(m, -1, 2, block)[:, :, 0 if name == "gate" else 1].reshape(m, n)
        ):
            return text + f"That is for blocks of {block}. The number behind the name is the block."
    return text + "From the outside in, columns are: number of the pair of blocks, gate or up, place in the block."


def _check_result(swiglu: Callable, m: int, n: int, k: int, layout: str) -> float:
    torch.manual_seed(m * n + k)
    x, gate, up = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n, k) / k**0.5
    w = joined(gate, up, layout)
    setting = f"{layout}, M, N, K = {m}, {n}, {k}: "
    with Watch() as seen:
        got = swiglu(x, w, layout)
    if not isinstance(got, torch.Tensor) or tuple(got.shape) != (m, n):
        shape = f"a tensor of shape {tuple(got.shape)}" if isinstance(got, torch.Tensor) else _called(got)
        raise Wrong(f"{setting}swiglu returns {shape}; wanted is h, ({m}, {n}).")
    want = reference.swiglu(x, gate, up)
    worst = (got - want).abs().max().item()
    if not worst <= 1e-5 * max(1.0, want.abs().max().item()):
        raise Wrong(f"{setting}{_explain_result(got, x, gate, up, w)}")
    if len(seen.products) != 1:
        raise Wrong(
            f"{setting}{len(seen.products)} GEMMs run, "
            f"{', '.join(' x '.join(map(str, s)) for s in seen.products) or 'none'}; one of "
            f"{m} x {2 * n} is wanted: x is then read once."
        )
    least = m * n
    pointwise = {"silu", "mul", "mul_", "silu_", "sigmoid"}
    for name, shape in seen.allocated:
        size = torch.Size(shape).numel()
        if name in pointwise or name in PRODUCTS or size < min(least, n * k):
            continue
        what = (
            "the weights'" if size in (n * k, 2 * n * k) and size != m * n and size != 2 * m * n else "the activations'"
        )
        raise Wrong(
            f"{setting}the values are right, but `{name}` makes a tensor {' x '.join(map(str, shape))}, of {what} size: "
            "one more pass to write it and one to read it. Views of the product are all that is needed."
        )
    many = [name for name, _ in seen.allocated if name in pointwise]
    if len(many) > 2:
        raise Wrong(
            f"{setting}{len(many)} pointwise operations run ({', '.join(many)}): silu(gate) * up is two, F.silu and the product."
        )
    return worst


def _explain_result(got: torch.Tensor, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, w: torch.Tensor) -> str:
    silu = torch.nn.functional.silu
    g, u, both = x @ gate.T, x @ up.T, x @ w.T
    n = g.shape[1]
    for why, other in (
        ("SiLU sits on up: it belongs to gate.", silu(u) * g),
        ("SiLU is missing.", g * u),
        ("SiLU sits on the product: it belongs to gate alone.", silu(g * u)),
        ("Both branches are activated; up is not.", silu(g) * silu(u)),
        ("That is the sigmoid: silu(gate) is gate * sigmoid(gate).", torch.sigmoid(g) * u),
        ("The branches are added.", silu(g) + u),
        ("The columns of the product are taken as halves, whatever the layout.", silu(both[:, :n]) * both[:, n:]),
        ("The columns of the product are taken as pairs, whatever the layout.", silu(both[:, ::2]) * both[:, 1::2]),
    ):
        if torch.allclose(got, other, atol=1e-5):
            return f"the result is wrong. {why}"
    if torch.allclose(got.sum(), (silu(g) * u).sum(), atol=1e-3):
        return "the elements are right, and in another order: h's columns are those of gate 0, gate 1, ..."
    return "the result is wrong. silu(gate) * up of the views that `halves` returns, in the order of gate's rows."


def _called(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
