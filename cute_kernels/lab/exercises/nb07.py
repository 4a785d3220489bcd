"""Checkers of the exercises of notebook 07: PyTorch expressions as epilogue trees, and the ring of store slots.

`Stores` is the warp group that stores; `watch` shows the learner what it does with a given, faulty protocol.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from ... import epilogue as ep
from ...hopper import activation, visitor
from . import NotRun, Wrong, checker, harness
from .simulator import SCHEDULES, Fault, Simulator, as_python, bounded

# 07a

BF16 = torch.bfloat16
SHAPES = ((37, 72), (1, 8), (130, 24), (64, 200))  # (M, N), never square
ALPHAS = (0.5, -1.25)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


KNOWN = {
    activation.silu: F.silu,
    activation.gelu: F.gelu,
    activation.gelu_tanh: gelu_tanh,
    activation.relu: F.relu,
    **{f: f for f in (operator.add, operator.sub, operator.mul, operator.neg)},
}
WHERE = {"Row": ("(N,)", "row"), "Column": ("(M,)", "column"), "Load": ("(M, N)", "load")}


def rounded(x: torch.Tensor, dtype: torch.dtype = BF16) -> torch.Tensor:
    return x.to(dtype).float()


@dataclass(frozen=True)
class Task:
    """One of the expressions. right and the mistakes: functions of the fp32 accumulator and of what the names stand for, in fp32,
    vectors as they broadcast."""

    name: str
    takes: tuple[str, ...]
    right: Callable
    mistakes: tuple[tuple[str, Callable], ...]

    def arguments(self, t: dict[str, Any]) -> tuple:
        return tuple(t[name] for name in self.takes)

    def expected(self, function: Callable, acc: torch.Tensor, t: dict[str, Any]) -> torch.Tensor:
        """In fp32, before the store rounds it."""
        along = {"x_scale": (-1, 1), "w_scale": (1, -1), "bias": (1, -1)}
        plain = {name: t[name] for name in self.takes}
        for name, value in plain.items():
            if isinstance(value, torch.Tensor):
                plain[name] = value.float().reshape(along[name]) if name in along else value.float()
        return function(acc, *plain.values())


TASKS = (
    Task(
        "bias_gelu",
        ("bias",),
        lambda acc, bias: gelu_tanh(acc + bias),
        (
            (
                "The bias is added after the activation. It belongs to the product: inside the GELU.",
                lambda acc, b: gelu_tanh(acc) + b,
            ),
            (
                'That is the exact GELU, by the error function; approximate="tanh" is ep.gelu_tanh.',
                lambda acc, b: F.gelu(acc + b),
            ),
            ("The bias is missing.", lambda acc, b: gelu_tanh(acc)),
            ("The activation is missing.", lambda acc, b: acc + b),
        ),
    ),
    Task(
        "scaled_residual",
        ("bias", "residual", "alpha"),
        lambda acc, bias, residual, alpha: residual + alpha * (acc + bias),
        (
            (
                "alpha scales the residual, too: it belongs outside the parentheses.",
                lambda acc, b, r, a: a * (acc + b + r),
            ),
            (
                "alpha scales the product alone: the bias belongs inside the parentheses.",
                lambda acc, b, r, a: r + a * acc + b,
            ),
            ("alpha scales the residual instead of the product.", lambda acc, b, r, a: a * r + acc + b),
            ("alpha is missing.", lambda acc, b, r, a: r + acc + b),
            ("The residual is missing.", lambda acc, b, r, a: a * (acc + b)),
            ("The bias is missing.", lambda acc, b, r, a: r + a * acc),
        ),
    ),
    Task(
        "dequantised",
        ("x_scale", "w_scale"),
        lambda acc, x, w: F.relu(x * acc * w),
        (
            ("The ReLU is missing.", lambda acc, x, w: x * acc * w),
            ("The scale of w is missing.", lambda acc, x, w: F.relu(x * acc)),
            ("The scale of x is missing.", lambda acc, x, w: F.relu(acc * w)),
            ("The scales are added; they are factors.", lambda acc, x, w: F.relu(x + acc + w)),
        ),
    ),
    Task(
        "in_steps",
        ("bias", "residual"),
        lambda acc, bias, residual: residual + rounded(F.gelu(rounded(acc + bias))),
        (
            (
                "Nothing is rounded on the way. Each of the three operations leaves a bf16 tensor: ep.cast(torch.bfloat16, ...) "
                "rounds; the last one is the store's.",
                lambda acc, b, r: r + F.gelu(acc + b),
            ),
            (
                "What F.gelu returns is not rounded: it is a bf16 tensor, too, before the residual is added.",
                lambda acc, b, r: r + F.gelu(rounded(acc + b)),
            ),
            (
                "What F.linear returns is not rounded: GELU reads a bf16 tensor.",
                lambda acc, b, r: r + rounded(F.gelu(acc + b)),
            ),
            (
                "You round the product before the bias is added. F.linear adds the bias in fp32 and rounds the sum, once.",
                lambda acc, b, r: r + rounded(F.gelu(rounded(acc) + b)),
            ),
            (
                "You round the product, and then the sum with the bias. F.linear adds in fp32 and rounds the sum, once.",
                lambda acc, b, r: r + rounded(F.gelu(rounded(rounded(acc) + b))),
            ),
            (
                "That rounds to fp16; the tensors are bf16.",
                lambda acc, b, r: r + rounded(F.gelu(rounded(acc + b, torch.float16)), torch.float16),
            ),
            (
                "GELU is the exact one here: no approximate= is given.",
                lambda acc, b, r: r + rounded(gelu_tanh(rounded(acc + b))),
            ),
            ("The residual is inside the GELU.", lambda acc, b, r: rounded(F.gelu(rounded(acc + b) + r))),
            ("The residual is inside the GELU.", lambda acc, b, r: F.gelu(rounded(rounded(acc + b) + r))),
        ),
    ),
)


@checker("07a")
def write_the_tree(*answers):
    """The trees: evaluated on the CPU against PyTorch, compared between two launches, compiled."""
    if len(answers) != len(TASKS):
        raise Wrong(f"{len(TASKS)} functions are wanted: {', '.join(task.name for task in TASKS)}.")
    for task, answer in zip(TASKS, answers, strict=True):
        for number, (m, n) in enumerate(SHAPES):
            _check_values(task, answer, m, n, ALPHAS[number % 2])
    sizes = ", ".join(f"{m} x {n}" for m, n in SHAPES)
    yield f"all {len(TASKS)} trees, evaluated in fp32 on the CPU for outputs of {sizes}: what PyTorch makes of them"
    for task, answer in zip(TASKS, answers, strict=True):
        _check_structure(task, answer)
    yield "new tensors of other sizes and another alpha give the same tree: one kernel for all launches"
    for task, answer in zip(TASKS, answers, strict=True):
        yield f"{task.name}: {_compiled(task, answer)}"
    yield from _trees_on_gpu(answers)


def given(m: int, n: int, alpha: float = 1.0, device: str = "cpu") -> dict[str, Any]:
    """What the names of the tasks stand for, at one size."""
    vectors = {"bias": torch.randn(n).to(BF16), "residual": torch.randn(m, n).to(BF16)}
    vectors |= {"x_scale": 0.5 + torch.rand(m), "w_scale": 0.5 + torch.rand(n)}
    return {**{name: t.to(device) for name, t in vectors.items()}, "alpha": alpha}


def _expression(task: Task, answer: Callable, t: dict[str, Any]) -> ep.Expression:
    try:
        expression = answer(*task.arguments(t))
    except (TypeError, AttributeError) as why:
        if (told := _explain_error(str(why))) is None:
            raise
        raise Wrong(f"{task.name} raised {type(why).__name__}: {why}. {told}") from None
    if expression is ...:
        raise Wrong(f"`{task.name}` is not filled in yet: it returns `...`.")
    if not isinstance(expression, ep.Expression):
        raise Wrong(
            f"{task.name} returns {_called(expression)}; wanted is an expression over ep.acc. Nothing is computed here: the "
            "expression says what the kernel is to compute."
        )
    return expression


def _explain_error(text: str) -> str | None:
    """What went wrong when an expression was built; None when the words of the exception say it."""
    if "cast takes" in text and "Expression" in text:
        return "The arguments are exchanged: ep.cast(torch.bfloat16, e), the dtype first."
    if "met an epilogue expression" in text or "not Expression" in text:
        return (
            "A torch function computes with tensors, here and now. An expression only says what the kernel is to compute: "
            "use ep's functions, such as ep.gelu, ep.gelu_tanh and ep.relu."
        )
    if "'Expression' object has no attribute" in text:
        return "An expression is no tensor: it has +, -, * and ep's functions, and is fp32 already."
    return None


def _called(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_values(task: Task, answer: Callable, m: int, n: int, alpha: float) -> None:
    torch.manual_seed(1000 * m + n)
    t, acc = given(m, n, alpha), 2 * torch.randn(m, n)
    tree, operands, kinds = ep.split(_expression(task, answer, t))
    setting = f"{task.name}, M = {m}, N = {n}"
    _check_operands(setting, t, operands, kinds, (m, n))
    if not visitor.leaves(tree, visitor.Accumulator):
        raise Wrong(f"{setting}: ep.acc, which is x @ w.T, does not occur in it.")
    got = evaluate(tree, acc, operands).expand(m, n)
    want = task.expected(task.right, acc, t)
    if _same(got, want):
        return
    text = f"{setting}{f', alpha = {alpha}' if 'alpha' in task.takes else ''}: "
    i, j = divmod(int((got - want).abs().argmax()), n)
    text += f"element ({i}, {j}) becomes {got[i, j]:.6g}, PyTorch has {want[i, j]:.6g} before the store. "
    for why, wrong in task.mistakes:
        if _same(got, task.expected(wrong, acc, t)):
            raise Wrong(text + why)
    raise Wrong(text + "Read the expression from the inside out: what is done to the product first?")


#: Part of the elements that may fall on the other side of a rounding, when a sum is taken in another order.
ROUNDING = 0.01


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal but for the order of fp32 operations, or for a cast at the root, which does what the store does anyway."""
    near = [(got - each).abs() <= 2e-6 * (each.abs() + 1) for each in (want, rounded(want))]
    return max(part.double().mean().item() for part in near) >= 1 - ROUNDING


def _check_operands(setting, t, operands, kinds, shape) -> None:
    m, n = shape
    for operand, kind in zip(operands, kinds, strict=True):
        if kind == "Scalar":
            continue
        leaf = WHERE[kind][1]
        if not isinstance(operand, torch.Tensor):
            raise Wrong(
                f"{setting}: ep.{leaf} is given {_called(operand)}, and takes a tensor. Numbers stand as they are."
            )
        mine = [name for name, x in t.items() if isinstance(x, torch.Tensor) and x.data_ptr() == operand.data_ptr()]
        if tuple(operand.shape) != {"Row": (n,), "Column": (m,), "Load": (m, n)}[kind]:
            name = mine[0] if mine else "the tensor"
            right = {(n,): "Row", (m,): "Column", (m, n): "Load"}.get(tuple(t[name].shape if mine else operand.shape))
            why = f"{name} has shape {WHERE[right][0]}: ep.{WHERE[right][1]}({name})." if right else ""
            what = {"Row": "one value per column", "Column": "one value per row", "Load": "one value per element"}[kind]
            raise Wrong(
                f"{setting}: ep.{leaf} takes {what}, {WHERE[kind][0]}; it is given {tuple(operand.shape)}. {why}"
            )
        if not mine or operand.dtype != t[mine[0]].dtype:
            raise Wrong(
                f"{setting}: ep.{leaf} is given a tensor that PyTorch has computed first. That is one more kernel for every "
                "launch: the tensors go in as they are (they are read as fp32), and the tree does the arithmetic."
            )


def evaluate(root: visitor.Node, acc: torch.Tensor, operands: Sequence[Any]) -> torch.Tensor:
    """An epilogue's static tree on fp32 values, by PyTorch on the CPU. acc: (M, N)."""
    known: dict[visitor.Node, torch.Tensor] = {}
    for node in root.walk():  # children first
        if isinstance(node, visitor.Accumulator):
            known[node] = acc
        elif isinstance(node, visitor.Scalar):
            known[node] = torch.tensor(operands[node.slot], dtype=torch.float32)
        elif isinstance(node, visitor.Operand):
            along = {visitor.Row: (1, -1), visitor.Column: (-1, 1)}.get(type(node), acc.shape)
            known[node] = operands[node.slot].float().reshape(along)
        elif isinstance(node, visitor.Cast):
            known[node] = rounded(known[node.input], getattr(torch, node.dtype))
        elif isinstance(node, visitor.Apply):
            known[node] = _apply(node.function, *(known[child] for child in node.arguments))
        else:
            raise Wrong(f"{type(node).__name__} is not needed here: every element is made of its own accumulator.")
    return known[root]


def _apply(function: Callable, *values: torch.Tensor) -> torch.Tensor:
    if function in KNOWN:
        return KNOWN[function](*values)
    try:
        result = function(*values)  # plain arithmetic works on tensors as on the DSL's numbers
    except Exception:
        result = None
    if isinstance(result, torch.Tensor):
        return result
    name = getattr(function, "__name__", repr(function))
    raise Wrong(
        f"ep.apply({name}, ...): this checker cannot evaluate `{name}` on the CPU. It knows of +, -, *, ep.silu, ep.gelu, "
        "ep.gelu_tanh, ep.relu and ep.cast, and these are all that is needed."
    )


def _check_structure(task: Task, answer: Callable) -> None:
    def tree(m: int, n: int, alpha: float) -> visitor.Node:
        return ep.split(_expression(task, answer, given(m, n, alpha)))[0]

    first = tree(37, 72, ALPHAS[0])
    if first != tree(37, 72, ALPHAS[0]):
        made = next(n.function for n in first.walk() if isinstance(n, visitor.Apply) and n.function not in KNOWN)
        raise Wrong(
            f"{task.name}: two calls make two different trees, so two kernels: `{getattr(made, '__name__', 'a function')}` is "
            "made anew in every call, and functions are told apart by identity. Use the operations of ep, or define it once, "
            "outside; a number that changes is one of its arguments."
        )
    if first != tree(5, 16, ALPHAS[0]):
        raise Wrong(f"{task.name}: its structure depends on the sizes, so that every size is compiled anew.")
    if first != tree(37, 72, ALPHAS[1]):
        raise Wrong(
            f"{task.name}: alpha = {ALPHAS[0]} and alpha = {ALPHAS[1]} make two different trees, so two kernels. A number that "
            "stands in the expression itself (alpha * ..., or ep.scalar(alpha)) is an argument of the launch."
        )


def _compiled(task: Task, answer: Callable) -> str:
    """Compile it into the finished gemm, and say what came out."""
    compiled = harness.with_tree(ep.split(_expression(task, answer, given(37, 72)))[0])
    if compiled.spill_bytes:
        raise Wrong(f"{task.name}: {compiled.spill_bytes} bytes a thread are spilled. What is held longer than needed?")
    return f"the finished gemm with it for sm_90a has {compiled.registers} registers at launch, nothing spilled"


def _trees_on_gpu(answers: tuple):
    from .. import HAS_GPU

    if not HAS_GPU:
        yield NotRun("the numbers: running gemm with these trees needs a Hopper GPU")
        return
    hint = "An epilogue has nothing to wait for: look for a loop without end."
    told = harness.in_child("nb07.judge_trees", "07a", answers, "On the GPU", hint)
    yield f"{told['shapes']} launches on {told['gpu']}: worst relative error {told['worst']:.2g}"


def judge_trees(exercise: str, *answers: Callable) -> None:
    """In a child process: gemm with each tree, against PyTorch in fp32; two values of alpha with one kernel."""
    from ... import gemm
    from ...compile import count_compiles
    from ...reference import gemm as product
    from ..check import compare

    verdict: dict[str, Any] = {"wrong": None, "gpu": torch.cuda.get_device_name()}
    errors = []
    try:
        for task, answer in zip(TASKS, answers, strict=True):
            for m, n, k in ((257, 392, 512), (1, 8, 64), (130, 1000, 200)):
                x = torch.randn(m, k, device="cuda").to(BF16)
                w = (2 * torch.randn(n, k, device="cuda") / k**0.5).to(BF16)
                for number, alpha in enumerate(ALPHAS if "alpha" in task.takes else ALPHAS[:1]):
                    t = given(m, n, alpha, "cuda")
                    with count_compiles() as compiles:
                        out = gemm(x, w, epilogue=_expression(task, answer, t))
                    if number and sum(compiles.values()):
                        raise Wrong(f"{task.name}: another alpha was compiled anew.")
                    report = compare(out, task.expected(task.right, product(x, w).float(), t))
                    if not report.ok():
                        raise Wrong(f"{task.name} at M, N, K = {m}, {n}, {k}: {report}")
                    errors.append(report.rel)
        verdict.update(shapes=len(errors), worst=max(errors))
    except Wrong as why:
        verdict["wrong"] = str(why)
    harness.tell(verdict)


# 07b

WARPS = 4
ROWS = 64 // WARPS  # of a slab, that a warp writes
BARRIER = 1


@dataclass
class Store:
    """One TMA store: the slab that it is for, its slot, the warp that sent it. rows: for each warp's rows, the slab whose values
    it has read there."""

    slab: int
    slot: int
    warp: int
    rows: list[int | None] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return bool(self.rows)


class Stores(Simulator):
    """One warp group that stores `slabs` slabs through a ring of `in_ring` slots, the first of them number `first`.

    TMA reads shared memory by the async proxy. What a warp has written by the generic one is sure to be seen there when the warp
    itself has fenced it before the store is issued: the PTX ISA lets a proxy fence "take effect within a single thread", and does
    not say what one behind the barrier does for the writes of others. A store reads its slot at any time until its sender's wait
    for it returns; wait_group counts the groups of the thread that calls it. strict: what the hardware leaves open raises Fault;
    otherwise it happens. fenced: writes are seen when they are fenced; otherwise at once.
    """

    def __init__(self, schedule, slabs: int, in_ring: int, first: int = 0, strict: bool = True, fenced: bool = True):
        super().__init__(schedule)
        self.slabs, self.in_ring, self.first, self.strict, self.fenced = slabs, in_ring, first, strict, fenced
        self.at = [0] * WARPS  # the slab that a warp is at
        self.written: dict[tuple[int, int], int] = {}  # (slot, warp) -> slab, for the generic proxy
        self.visible: dict[tuple[int, int], int] = {}  # the same, for the async proxy
        self.unfenced: list[set[int]] = [set() for _ in range(WARPS)]  # slots
        self.sent: list[Store] = []
        self.under = 0  # most stores that were still reading while a slab was written

    def go(self, store_slab: Callable) -> None:
        """Run a learner's protocol for every slab, then the kernel's drain. Raises Fault."""
        plain = as_python(store_slab, self)

        def body(warp: int) -> None:
            for slab in range(self.slabs):
                self.at[warp] = slab
                plain(warp, self.slot(slab), self.in_ring, *self.callables())
            if warp == 0:
                self.wait_stores(0)

        self.run([lambda warp=warp: body(warp) for warp in range(WARPS)])
        if not self.strict:
            while self.in_flight:
                self.in_flight.pop(0)()
            return
        for store in self.sent:
            if not store.done:
                text = f"the kernel ends while the store of slab {store.slab}, sent by warp {store.warp}, may still read its slot"
                raise Fault("unfinished", text)
        for slab in range(self.slabs):
            if slab not in {store.slab for store in self.sent}:
                raise Fault("never", f"slab {slab} is never stored")

    def callables(self) -> tuple[Callable, ...]:
        return self.wait_stores, self.sync, self.write, self.fence, self.send

    def slot(self, slab: int) -> int:
        return self.first + slab % self.in_ring

    def wait_stores(self, left: int) -> None:
        self.together("wait_stores")
        if left < 0:
            raise Wrong(
                f"{self.setting()}: wait_stores({left}) waits until {left} stores are left; there can be 0, 1, 2, ..."
            )
        self.pause()
        mine = [store for store in self.sent if store.warp == self.current.index]
        older = mine[: max(0, len(mine) - int(left))]
        self.pause(f"wait_stores({left})", lambda: all(store.done for store in older))

    def sync(self) -> None:
        super().named_barrier(BARRIER, 32 * WARPS, wait=True)

    def sync_threads(self) -> None:
        raise Wrong("sync() is the barrier of these 128 threads. Any other has threads that do not store this slab.")

    def named_barrier(self, *_: Any, **__: Any) -> None:
        self.sync_threads()

    def write(self, slot: int) -> None:
        self.together("write")
        self.pause()
        slot, warp = int(slot), self.current.index
        slab = self.at[warp]
        self._check_slot("writes", slab, slot)
        for store in self.sent:
            if self.strict and store.slot == slot and not store.done:
                text = f"warp {warp} writes slab {slab} into slot {slot} while the store of slab {store.slab} may still read it"
                raise Fault("overwrite", text, warp)
        self.under = max(self.under, sum(not store.done for store in self.sent))
        self.written[slot, warp] = slab
        self.unfenced[warp].add(slot)
        if not self.fenced:
            self.visible[slot, warp] = slab

    def fence(self) -> None:
        self.together("fence")
        self.pause()
        warp = self.current.index
        for slot in self.unfenced[warp]:
            self.visible[slot, warp] = self.written[slot, warp]
        self.unfenced[warp].clear()

    def send(self, slot: int) -> None:
        self.together("send")
        self.pause()
        slot, sender = int(slot), self.current.index
        slab = self.at[sender]
        self._check_slot("sends", slab, slot)
        if self.strict:
            self._check_send(slab, slot, sender)
        store = Store(slab, slot, sender)
        self.sent.append(store)

        def read() -> None:
            store.rows = [self.visible.get((slot, warp)) for warp in range(WARPS)]

        if self.timing == "now":
            read()
        else:
            self.in_flight.append(read)

    def _check_slot(self, what: str, slab: int, slot: int) -> None:
        if slot != self.slot(slab):
            raise Fault(
                "slot",
                f"warp {self.current.index} {what} slab {slab} in slot {slot}, it belongs into {self.slot(slab)}",
            )

    def _check_send(self, slab: int, slot: int, sender: int) -> None:
        for warp in range(WARPS):
            rows = f"rows {ROWS * warp} to {ROWS * warp + ROWS - 1}"
            if self.written.get((slot, warp)) != slab:
                raise Fault("early", f"warp {sender} sends slab {slab} before warp {warp} has written its {rows}", warp)
            if self.visible.get((slot, warp)) != slab:
                raise Fault(
                    "unseen", f"warp {sender} sends slab {slab}, and TMA does not see {rows}, of warp {warp}", warp
                )
        if any(store.slab == slab for store in self.sent):
            raise Fault("twice", f"slab {slab} is stored twice, by warp {self.sent[-1].warp} and by warp {sender}")

    def setting(self) -> str:
        slabs = f"{self.slabs} slab{'s' * (self.slabs != 1)}"
        return f"{slabs}, ring of {self.in_ring} slot{'s' * (self.in_ring != 1)}"


def recorded(store_slab: Callable, warp: int, slot: int, in_ring: int) -> list[tuple[str, int | None]]:
    """What one warp calls for one slab, in order: (name, its argument)."""
    calls: list[tuple[str, int | None]] = []

    def records(name: str) -> Callable:
        return lambda *argument: calls.append((name, *map(int, argument), None)[:2])

    plain = as_python(store_slab, Simulator(SCHEDULES[0]))
    bounded(plain, warp, slot, in_ring, *map(records, ("wait_stores", "sync", "write", "fence", "send")), lines=1000)
    return calls


#: What `watch` shows: (what is hostile, schedule, whether a write needs a fence to be seen).
HOSTILITY = (
    ("nothing: everything happens at once", ("first", "now"), False),
    ("TMA sees writes when they are fenced", ("first", "now"), True),
    ("TMA reads as late as it may", ("first", "late"), False),
)


def watch(store_slab: Callable, slabs: int = 5, in_ring: int = 2) -> None:
    """Store some slabs with a protocol, on a friendly and on some hostile machines, and print what lies in global memory."""
    print(
        f"{slabs} slabs through a ring of {in_ring}. What global memory holds at the end: for each slab, and each warp's 16"
    )
    print("rows of it, the slab whose values they are; '.' is what lay in the slot before the kernel\n")
    print(f"{'what is hostile':<40}" + "".join(f"{f'slab {slab}':<11}" for slab in range(slabs)))
    for what, schedule, fenced in HOSTILITY:
        cta = Stores(schedule, slabs, in_ring, strict=False, fenced=fenced)
        try:
            cta.go(store_slab)
        except Fault as fault:
            print(f"{what:<40}{fault.kind.upper()}: {fault}")
            continue
        found = {store.slab: store.rows for store in cta.sent}
        held = [[("." if x is None else str(x)) for x in found.get(slab, "----")] for slab in range(slabs)]
        wrong = sum(found.get(slab) != [slab] * WARPS for slab in range(slabs))
        line = "".join(f"{' '.join(rows):<11}" for rows in held)
        print(f"{what:<40}{line}{f'{wrong} wrong' if wrong else 'right'}")


@checker("07b")
def store_ring(store_slab):
    """The protocol of one slab under hostile timing, then in the finished gemm."""
    rings, lengths = (2, 1, 3, 4), (1, 2, 3, 5, 9)
    for in_ring in rings:
        for slabs in lengths:
            for number, schedule in enumerate(SCHEDULES):
                _store(store_slab, Stores(schedule, slabs, in_ring, first=number % 2 * in_ring))
    yield (
        f"1 to {lengths[-1]} slabs through rings of 1 to {max(rings)} slots, {len(SCHEDULES)} hostile schedules: every store "
        "reads its own slab, whole, and no slot is written under it"
    )
    for in_ring in rings:
        cta = Stores(("first", "late"), 3 * in_ring, in_ring)
        _store(store_slab, cta)
        if cta.under < in_ring - 1:
            raise Wrong(
                f"{cta.setting()}: the results are right, but at most {cta.under} store{'s' * (cta.under != 1)} can run while "
                f"the next slab is written, and the ring has room for {in_ring - 1}. Which store must be done before this slot "
                "is written? Only the one that used it last."
            )
    yield "in_ring - 1 stores run while the next slab is written: nothing waits for longer than it must"
    compiled = harness.finished("07b", store_slab)
    stores = _check_fences(compiled.ptx)
    yield (
        f"the finished gemm compiles for sm_90a with it: in its PTX a proxy fence stands between the stmatrix and each of "
        f"{stores} TMA stores; {compiled.registers} registers at launch, {compiled.spill_bytes} bytes spilled"
    )
    hint = "The usual cause: a barrier that not all four warps reach."
    yield from harness.run_on_gpu("07b", store_slab, hint)


def _check_fences(ptx: str) -> int:
    """The number of TMA stores in a kernel's PTX; Wrong when one may follow a stmatrix without a proxy fence between."""
    unfenced, stores = False, 0
    for line in ptx.splitlines():
        if "stmatrix" in line:
            unfenced = True
        elif "fence.proxy.async" in line:
            unfenced = False
        elif re.search(r"cp\.async\.bulk\.tensor\S*\.global\.shared::cta", line):
            stores += 1
            if unfenced:
                raise Wrong(
                    "In the PTX of the finished gemm a TMA store follows a stmatrix without fence.proxy.async between."
                )
    if not stores:
        raise Wrong("In the PTX of the finished gemm there is no TMA store.")
    return stores


def _store(store_slab: Callable, cta: Stores) -> None:
    try:
        cta.go(store_slab)
    except Fault as fault:
        raise Wrong(f"{cta.setting()}: {fault}. {_explain_store(fault, store_slab, cta)}".strip()) from None


def _explain_store(fault: Fault, store_slab: Callable, cta: Stores) -> str:
    calls = [recorded(store_slab, warp, cta.first, cta.in_ring) for warp in range(WARPS)]
    names = [[name for name, _ in mine] for mine in calls]
    syncs = [mine.count("sync") for mine in names]
    for warp in range(1, WARPS):
        if syncs[warp] != syncs[0]:
            return (
                f"For one slab warp 0 comes to the barrier {_times(syncs[0])}, warp {warp} {_times(syncs[warp])}. It opens for "
                "128 threads: no `if warp == 0` around a sync()."
            )
    if "send" not in names[0]:
        return "Warp 0 sends: at the end of the kernel warp 0 waits for its own stores, and nobody for another warp's."
    if fault.kind == "overwrite":
        return _explain_overwrite(calls, names, fault.k, cta.in_ring)
    if fault.kind in ("early", "unseen"):
        return _explain_unseen(fault.kind, names, fault.k)
    return {
        "twice": "One warp sends for all four: warp 0, which also waits for its stores.",
        "never": "Warp 0 sends each slab, once it is written.",
        "slot": "`slot` is the number of the slot to use now, of all slots of the CTA.",
        "hang": "All four warps come to each sync().",
    }.get(fault.kind, "")


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _explain_overwrite(calls: list, names: list[list[str]], warp: int, in_ring: int) -> str:
    sender, mine = names[0], names[warp]
    if "wait_stores" not in sender:
        others = next((w for w in range(1, WARPS) if "wait_stores" in names[w]), None)
        if others is None:
            return "Nobody waits for the stores: a slot is free when the store that used it last has read it."
        return (
            f"Warp {others} waits, and has no stores to wait for: bulk groups belong to the threads that committed them. Warp 0 "
            "waits."
        )
    waited = sender.index("wait_stores")
    left = max(argument for name, argument in calls[0] if name == "wait_stores")
    if left >= in_ring:
        return (
            f"wait_stores({left}) returns while {left} stores still read, and the ring has {in_ring} slot{'s' * (in_ring != 1)}: "
            f"the store that used this slot last may be one of them. At most {in_ring - 1} may be left."
        )
    for_next = "send" in sender[:waited]  # it waits for the slot of the slab behind
    if "write" in sender[:waited] and not for_next:
        return "The wait stands behind the write. First the slot must be free, then it is written."
    heard = "sync" in sender[waited:] if for_next else _syncs(mine, "write") > _syncs(sender, "wait_stores")
    if warp and not heard:
        own = (
            f"Its own wait_stores has nothing to wait for: bulk groups belong to the threads that committed them, and those are "
            f"warp 0's. Warp {warp} learns"
            if "wait_stores" in mine
            else f"Warp 0 has waited for it, or will; warp {warp} learns"
        )
        return f"{own} that the slot is free only from a barrier between warp 0's wait and its own write."
    return "A slot may be written when the store that used it last has read it, and every warp knows."


def _syncs(names: list[str], before: str) -> int:
    """Barriers of a warp before the first call of a kind."""
    return names[: names.index(before)].count("sync")


def _explain_unseen(kind: str, names: list[list[str]], warp: int) -> str:
    mine = names[warp]
    if "write" not in mine:
        return "All four warps write, each its own 16 rows."
    if kind == "early":
        return "Between the writes and the send stands a barrier: warp 0 must know that the others have written, and fenced."
    if not any("fence" in calls for calls in names):
        return (
            "stmatrix writes by the generic proxy, TMA reads by the async one, and a barrier does not order the one before the "
            "other: fence() does."
        )
    if "fence" not in mine:
        who = next(w for w in range(WARPS) if "fence" in names[w])
        return (
            f"A proxy fence takes effect in the thread that executes it: of warp {who}'s, PTX promises nothing for what warp "
            f"{warp} has written. All four fence."
        )
    if "fence" not in mine[mine.index("write") :]:
        return "The fence stands before the write. It orders what was written before it, nothing behind."
    if "sync" not in mine[mine.index("fence", mine.index("write")) :]:
        return (
            "The fence stands behind the last barrier. What warp 0 learns there is that the others have written, not that they "
            "have fenced: write, fence, barrier, send."
        )
    return "Between a warp's write and the send stand its fence, then a barrier."
