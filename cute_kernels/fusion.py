"""Fusion for models that know nothing of this package: `fuse` swaps the gated MLPs of a model, `fuse_compiled` adds a pass to
torch.compile, which by itself cannot put two GEMMs and what joins them into one kernel. Both are off until they are called.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import api
from .modules import PARTS, SwiGLUMLP, is_plain


@dataclass
class Fusion:
    """What `fuse` did. names: the modules that it replaced. skipped: name -> why a gated MLP was left as it is."""

    names: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.names)


def fuse(model: nn.Module) -> Fusion:
    """Replace the gated MLPs inside a model (modules with gate_proj, up_proj, down_proj and act_fn, such as transformers'
    Qwen2MLP and LlamaMLP) by `SwiGLUMLP`s that share their parameters; names in the state_dict stay.

    What has other parts, methods, hooks or arguments is skipped, and so is what torch.compile has wrapped already: fuse first.
    The rest is tried on random rows, of usual and of large values, in training and in evaluation, beside its replacement: what
    computes something else there is skipped. The result, a `Fusion`, says why. In place. An MLP that is the whole model: use
    SwiGLUMLP.from_hf. What is put on a layer afterwards (an adapter, a hook, a quantised weight) still runs; gate and up are
    then called as they were before, and joined by PyTorch.
    """
    done, made = Fusion(), {}
    for name, mlp in list(model.named_modules(remove_duplicate=False)):
        if isinstance(mlp, SwiGLUMLP) or not all(part in mlp._modules for part in PARTS):
            continue
        if not name:
            done.skipped[name] = "it is the model itself: use SwiGLUMLP.from_hf(model)"
            continue
        parent, _, child = name.rpartition(".")
        holder = model.get_submodule(parent)
        if id(mlp) not in made:  # an MLP may stand in several places
            try:
                made[id(mlp)] = _replacement(mlp, holder)
            except Exception as why:  # whatever somebody's forward raises
                made[id(mlp)] = str(why) if isinstance(why, Unfit) else f"{type(why).__name__}: {why}"
        found = made[id(mlp)]
        if isinstance(found, str):
            done.skipped[name] = found
        else:
            setattr(holder, child, found)
            done.names.append(name)
    return done


class Unfit(ValueError):
    """Why an MLP is left as it is."""


def _replacement(mlp: nn.Module, holder: nn.Module) -> SwiGLUMLP:
    if isinstance(holder, torch._dynamo.OptimizedModule):
        raise Unfit("torch.compile has wrapped it: fuse before")
    try:
        fused = SwiGLUMLP.from_hf(mlp)
    except (TypeError, ValueError) as why:
        raise Unfit(str(why)) from why
    _check_same(mlp, fused)
    return fused


#: how far an MLP and its replacement may be from each other, relative in norm: roundings of the dtype
NEAR = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4, torch.float64: 1e-9}
LARGE = 12.0  # size of pre-activations at which a clamp shows


def _check_same(mlp: nn.Module, fused: SwiGLUMLP) -> None:
    """Raises Unfit unless both make the same of random rows."""
    weight = fused.gate_proj.weight
    if weight.is_meta:
        raise Unfit("its weights are on the meta device, so it cannot be tried")
    with torch.no_grad(), torch.random.fork_rng(devices=[weight.device] if weight.is_cuda else []):
        x = torch.randn(2, 4, weight.shape[1], dtype=torch.float32, device="cpu").to(weight.device, weight.dtype)
        size = (x @ weight.T).float().square().mean().sqrt().item()
        for rows, training in itertools.product((x, x * (LARGE / size) if size else x), (False, True)):
            with _mode(mlp, training):
                want = mlp(rows)
            got = fused(rows)
            if not isinstance(want, torch.Tensor) or want.shape != got.shape:
                raise Unfit("its result has another form than that of down(act(gate(x)) * up(x))")
            want, got = want.double(), got.double()
            if not want.any() or not want.isfinite().all():
                raise Unfit("its result is zero, infinite or no number, so it cannot be tried")
            if not (got - want).norm() <= NEAR.get(weight.dtype, 0) * want.norm():  # NaN is not
                raise Unfit("it computes something else than down(act(gate(x)) * up(x))")


@contextlib.contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """For a while in training or in evaluation, every part; then each as it was."""
    before = {part: part.training for part in module.modules()}
    try:
        module.train(training)
        yield
    finally:
        for part, was in before.items():
            part.training = was


# ---- torch.compile ---------------------------------------------------------------------------------------------------

#: activations in a traced graph -> member of the gated family
ACTIVATIONS = {F.silu: "swiglu", F.gelu: "geglu", F.relu: "reglu", torch.relu: "reglu", torch.sigmoid: "glu"}
LINEAR = (F.linear, torch._C._nn.linear)
PRODUCTS = (operator.matmul, torch.matmul, torch.mm)


class GatedPass:
    """act(x @ w1.T + b1) * (x @ w2.T + b2) -> torch.ops.cute_kernels.swiglu, on the graph that Inductor gets from Dynamo.

    count: gated pairs that it has fused so far; a graph that comes fused from Inductor's cache on disk is not counted again.
    before: a pass that was set already and runs first.
    """

    def __init__(self, before: Any = None):
        from torch._inductor import custom_graph_pass  # a second to import, so only where it is wanted
        from torch._inductor import pattern_matcher as pm

        custom_graph_pass.CustomGraphPass.register(GatedPass)  # one with a uuid, whose graphs Inductor may cache

        self.count, self.before = 0, before
        self.patterns = pm.PatternMatcherPass(pass_name="cute_kernels_gated")
        for function in ACTIVATIONS:
            for gate_first in (True, False):
                gate = pm.CallFunction(function, pm.KeywordArg("gate"))  # whatever its keyword arguments are
                pair = (gate, pm.KeywordArg("up")) if gate_first else (pm.KeywordArg("up"), gate)
                pm.register_graph_pattern(
                    pm.CallFunction((operator.mul, torch.mul), *pair),
                    extra_check=_is_gated,
                    pass_dict=self.patterns,
                )(self._replace)

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.before is not None:
            self.before(graph)
        self.patterns.apply(graph)

    def uuid(self) -> str:
        """Tells Inductor's caches which pass made a graph."""
        text = inspect.getsource(inspect.getmodule(type(self)))
        before = self.before.uuid() if hasattr(self.before, "uuid") else repr(self.before)
        return hashlib.sha256(f"{text}{before}".encode()).hexdigest()

    def __reduce__(self) -> tuple:
        """PyTorch releases before 2.12 pickle Inductor's config, with the pass, for the key of a cached graph; patterns point
        to each other in circles, which that does not take."""
        return _made_again, (self.uuid(), self.before)

    def _replace(self, match: Any, gate: Any, up: Any) -> None:
        (x, w_gate, b_gate), (_, w_up, b_up) = _product(gate), _product(up)
        old = match.output_node()
        (activated,) = gate.users
        activation = ACTIVATIONS[activated.target]
        if activated.kwargs.get("approximate") == "tanh":
            activation = "geglu_tanh"
        with match.graph.inserting_before(old):
            new = match.graph.call_function(
                torch.ops.cute_kernels.swiglu.default,
                (x, w_gate, w_up, b_gate, b_up),
                {"activation": activation, "fallback": True},
            )
        new.meta.update(old.meta)
        old.replace_all_uses_with(new)
        match.graph.erase_node(old)
        for node in match.nodes[::-1]:
            if node is not old and not node.users:
                match.graph.erase_node(node)
        for node in (gate, up):
            if not node.users:
                match.graph.erase_node(node)
        self.count += 1


def _made_again(made_by: str, before: Any) -> GatedPass:
    """A pickled pass; `made_by`, its uuid, is there for the pickle's bytes to differ where the passes do."""
    return GatedPass(before)


def fuse_compiled(on: bool = True) -> GatedPass | None:
    """Let torch.compile (Inductor) fuse gated pairs from now on, or (on=False) no longer; graphs that are compiled stay.

    Returns the pass, whose `count` says how many pairs it has fused; None when switched off. A pass of somebody else's that
    Inductor's config holds already still runs, first.
    Fused is act(x @ w1.T) * (x @ w2.T) in any order, by F.linear (with or without bias), matmul or mm, with weights and x in
    bf16 or fp16; left alone are float32 weights (under autocast too), a product in place (`g *= up`), quantised and
    distributed weights, and what torch.func transforms.
    """
    from torch._inductor import config

    current = config.pre_grad_custom_pass
    if on:
        if not isinstance(current, GatedPass):
            config.pre_grad_custom_pass = GatedPass(current)
        return config.pre_grad_custom_pass
    if isinstance(current, GatedPass):
        config.pre_grad_custom_pass = current.before
    return None


def _value(node: Any) -> torch.Tensor | None:
    """The fake tensor that Dynamo saw there."""
    found = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


#: what .T and .mT of a matrix become in a graph from PyTorch 2.14 on; before that they are attributes
SWAPPED = {name: getattr(torch.ops.aten, name) for name in ("numpy_T", "mT")}


def _transposed(node: Any) -> Any:
    """w, where node is w.T of a matrix, else None."""
    if not isinstance(node, torch.fx.Node) or not node.args or _value(node.args[0]) is None:
        return None
    source, *rest = node.args
    if _value(source).dim() != 2:
        return None
    if node.op == "call_function" and node.target is getattr:
        return source if rest[0] in ("T", "mT") else None
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    axes = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
    swapped = [axis % 2 for axis in axes if isinstance(axis, int)]
    if name in ("transpose", "swapaxes"):  # in either order
        swapped.sort(reverse=True)
    return (
        source
        if name in ("t", *SWAPPED) or (name in ("transpose", "swapaxes", "permute") and swapped == [1, 0])
        else None
    )


def _product(node: Any) -> tuple[Any, Any, Any] | None:
    """(x, weight (N, K), bias or None) where node is x @ weight.T + bias, else None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return None
    if node.target in LINEAR and not node.kwargs and len(node.args) >= 2:
        x, weight, *bias = node.args
        return x, weight, bias[0] if bias else None
    if node.target in PRODUCTS and not node.kwargs and len(node.args) == 2:
        weight = _transposed(node.args[1])
        return None if weight is None else (node.args[0], weight, None)
    return None


#: what may stand between two products and what joins them: it writes to nothing and switches nothing
PURE = {
    *LINEAR,
    *PRODUCTS,
    *ACTIVATIONS,
    *SWAPPED.values(),
    getattr,
    *(getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "neg", "getitem")),
    *(getattr(torch, name) for name in ("add", "sub", "mul", "div", "neg", "tanh", "cat", "transpose", "permute")),
    *(getattr(torch, name) for name in ("t", "swapaxes", "reshape", "rsqrt", "square")),
    F.layer_norm,
    F.rms_norm,
    F.scaled_dot_product_attention,
}
PURE_METHODS = {
    *("t", "transpose", "permute", "swapaxes", "view", "reshape", "flatten", "contiguous", "to", "float", "size"),
    *("add", "sub", "mul", "div", "pow", "mean", "sum", "unsqueeze", "squeeze", "expand", "chunk", "split"),
}


def _nothing_between(match: Any, gate: Any, up: Any) -> bool:
    """Whether the products may as well be made where they are joined: no write and no switch of modes in between."""
    joined = match.output_node()
    waited, node = {gate, up}, joined.prev
    while node.op != "root":
        waited.discard(node)
        if not waited:
            return True
        pure = node.op in ("placeholder", "get_attr")
        pure |= node.op == "call_function" and node.target in PURE and "out" not in node.kwargs
        pure |= node.op == "call_method" and node.target in PURE_METHODS
        if not pure or (_inplace(node) and node not in match.nodes):
            return False
        node = node.prev
    return False


def _inplace(node: Any) -> bool:
    return bool(node.kwargs.get("inplace")) or (node.target is F.relu and len(node.args) > 1 and node.args[1])


def _is_gated(match: Any) -> bool:
    """Two products of one x that nobody else needs, of a kind that the fused kernel takes."""
    gate, up = match.kwargs["gate"], match.kwargs["up"]
    parts = _product(gate), _product(up)
    if gate is up or None in parts:
        return False
    (x, w_gate, b_gate), (same, w_up, b_up) = parts
    if x is not same or len(gate.users) > 1 or len(up.users) > 1:
        return False
    values = [_value(node) for node in (x, w_gate, w_up)]
    biases = [_value(b) for b in (b_gate, b_up) if b is not None]
    if any(v is None for v in (*values, *biases)) or _value(gate) is None:
        return False
    if any(not is_plain(v) or torch._C._functorch.is_functorch_wrapped_tensor(v) for v in (*values, *biases)):
        return False  # of a class that knows our operator no more than torch.func does
    dtypes = {v.dtype for v in (*values, _value(gate), _value(up))}
    if len(dtypes) > 1 or not dtypes <= set(api.DTYPES) or not {b.dtype for b in biases} <= set(api.OUT_DTYPES):
        return False
    n, k = values[1].shape
    if values[1].shape != values[2].shape or n % api.STEP or k % api.STEP or any(b.shape != (n,) for b in biases):
        return False
    return api.on_hopper(values[0].device) and _nothing_between(match, gate, up)
