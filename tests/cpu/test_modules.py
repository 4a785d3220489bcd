"""Modules, `fuse` and the torch.compile pass, on a model of transformers built from a config and on small ones made here."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from entries import MLP
from test_ops import rel
from torch import nn
from torch.utils._pytree import tree_map_only

import cute_kernels as ck
from cute_kernels import fusion as fusing
from cute_kernels import modules, reference

BF16 = torch.bfloat16


@pytest.fixture
def pass_on():
    from torch._inductor.utils import fresh_cache

    with fresh_cache():  # graphs from the cache on disk are fused already, and not counted
        yield ck.fuse_compiled()
    ck.fuse_compiled(False)


def qwen(layers=2, dtype=BF16):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(config).to(dtype).eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", reference.GATED)
def test_modules_compute_the_gated_family(activation, bias):
    layer = ck.SwiGLU(32, 48, bias=bias, activation=activation)
    x = torch.randn(2, 3, 32)
    gate, up = layer.gate_proj, layer.up_proj
    want = reference.GATED[activation](gate(x), up(x))
    assert torch.allclose(layer(x), want, atol=1e-6) and activation in repr(layer)
    mlp = ck.SwiGLUMLP(32, 48, bias=bias, activation=activation)
    mlp.load_state_dict(layer.state_dict() | {k: v for k, v in mlp.state_dict().items() if k.startswith("down")})
    assert torch.allclose(mlp(x), mlp.down_proj(want), atol=1e-6)


def test_the_fused_kernel_runs_where_it_can(gpu):
    layer = ck.SwiGLUMLP(32, 48, dtype=BF16)
    x = torch.randn(5, 32).to(BF16)
    layer(x).sum().backward()
    assert gpu == ["swiglu_stacked"] and all(
        p.grad is not None for p in layer.parameters()
    )  # backward: too small for gemm
    gpu.clear()
    ck.SwiGLU(32, 44, dtype=BF16)(x).sum().backward()  # 44 is no multiple of 8: PyTorch's kernels
    ck.SwiGLU(32, 48)(x.float()).sum().backward()
    assert not gpu


def test_state_dicts_fit_both_ways():
    theirs = MLP()
    ours = ck.SwiGLUMLP(32, 48)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 32)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    other = MLP()
    other.load_state_dict(ours.state_dict())
    assert torch.allclose(other(x), theirs(x), atol=1e-6)


def test_from_linear_and_from_hf_share_their_parameters():
    theirs = MLP(act=nn.GELU(approximate="tanh")).eval()
    ours = ck.SwiGLUMLP.from_hf(theirs)
    assert ours.activation == "geglu_tanh" and not ours.training
    assert [id(p) for p in ours.parameters()] == [id(p) for p in theirs.parameters()]
    pair = ck.SwiGLU.from_linear(theirs.gate_proj, theirs.up_proj)
    assert pair.gate_proj is theirs.gate_proj
    for wrong, kind, words in (
        ((nn.Linear(32, 48), nn.Linear(32, 40)), ValueError, "one shape"),
        ((nn.Linear(32, 48), nn.Identity()), TypeError, "up is a torch.nn.modules.linear.Identity"),
    ):
        with pytest.raises(kind, match=words):
            ck.SwiGLU.from_linear(*wrong)
    with pytest.raises(ValueError, match="down takes 40"):
        ck.SwiGLUMLP.from_linear(nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(40, 32))
    with pytest.raises(ValueError, match="is none of the gates"):
        ck.SwiGLUMLP.from_hf(MLP(act=nn.Tanh()))
    with pytest.raises(ValueError, match="activation is 'x'"):
        ck.SwiGLU(8, 8, activation="x")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (nn.SiLU(), "swiglu"),
        (F.silu, "swiglu"),
        (nn.GELU(), "geglu"),
        (nn.GELU(approximate="tanh"), "geglu_tanh"),
        (nn.ReLU(), "reglu"),
        (torch.sigmoid, "glu"),
    ],
)
def test_gates_are_told_by_what_they_compute(function, name):
    assert modules.activation_of(function) == name


def test_autocast_is_that_of_linear():
    layer, x = ck.SwiGLU(32, 48), torch.randn(4, 32)
    with torch.autocast("cpu", dtype=BF16):
        got, want = layer(x), F.silu(layer.gate_proj(x)) * layer.up_proj(x)
    assert got.dtype == want.dtype == BF16 and rel(got, want) < 0.004
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=BF16):
        assert compiled(x).dtype == BF16


@pytest.mark.parametrize("made", ["module", "fused"])
def test_torch_func_differentiates_a_module(gpu, made):
    layer = ck.SwiGLUMLP(32, 48, dtype=BF16) if made == "module" else ck.SwiGLUMLP.from_hf(MLP().to(BF16))
    x = torch.randn(5, 32).to(BF16)

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).float().sum()

    parameters = dict(layer.named_parameters())
    got = torch.func.grad(loss)(parameters, x)
    loss(parameters, x).backward()
    assert got.keys() == parameters.keys()
    assert all(rel(got[name], parameter.grad) < 0.02 for name, parameter in parameters.items())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(MLP() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Squared(MLP):
    def forward(self, x):
        return super().forward(x) ** 2


def test_fuse_replaces_what_it_has_tried():
    model = Model()
    model.layers[1] = Squared()
    model.layers[2].gate_proj.register_forward_hook(lambda *args: None)
    names = set(model.state_dict())
    x = torch.randn(5, 32)
    want = model(x)
    done = ck.fuse(model)
    assert done.names == ["layers.0", "layers.3"] and done.count == 2
    assert "something else" in done.skipped["layers.1"] and "hooks" in done.skipped["layers.2"]
    assert torch.allclose(model(x), want, atol=1e-5) and set(model.state_dict()) == names
    assert ck.fuse(model).count == 0  # once is enough
    alone = MLP()
    assert "from_hf" in ck.fuse(alone).skipped[""]


class Clamped(MLP):
    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x).clamp(max=10)) * self.up_proj(x).clamp(-10, 10))


class Scaled(MLP):
    def forward(self, x):
        return 1.015 * super().forward(x)


class Masked(MLP):
    def forward(self, x, mask=None):
        return super().forward(x)


class Noisy(MLP):
    def forward(self, x):
        return self.down_proj(F.dropout(F.silu(self.gate_proj(x)) * self.up_proj(x), 0.5, self.training))


class OnlyTrained(MLP):
    def forward(self, x):
        return super().forward(x) if self.training else super().forward(x) * 2


class Any_(MLP):
    def forward(self, *rows):
        return super().forward(rows[0])


class Loads(MLP):
    def _load_from_state_dict(self, state_dict, prefix, *args):
        return super()._load_from_state_dict(state_dict, prefix, *args)


class Remembers(MLP):
    def get_extra_state(self):
        return 1

    def set_extra_state(self, state):
        pass


class Called(MLP):
    def __call__(self, *args):
        return super().__call__(*args)


class Weird(MLP):
    def forward(self, x):
        rows, _ = x.shape  # two dimensions and no more
        return super().forward(x)


def altered(change, **how):
    mlp = MLP(**how)
    change(mlp)
    return mlp


UNFIT = {  # -> a word of why
    "clamped": (Clamped, "something else"),
    "a clamp in act_fn": (lambda: MLP(act=lambda t: F.silu(t.clamp(max=10))), "none of the gates"),
    "1.5 % more": (Scaled, "something else"),
    "another argument": (Masked, "forward takes x, mask"),
    "its forward raises": (Weird, "ValueError: too many values"),
    "dropout": (lambda: altered(lambda m: m.add_module("dropout", nn.Dropout(0.3))).eval(), "dropout"),
    "an adapter": (lambda: altered(lambda m: m.register_parameter("lora", nn.Parameter(torch.zeros(3)))), "lora"),
    "a buffer": (lambda: altered(lambda m: m.register_buffer("calls", torch.zeros(1))), "calls"),
    "a learnable gate": (lambda: MLP(act=nn.PReLU(init=0.0)), "parameters or buffers"),
    "a gate that takes no vector": (lambda: MLP(act=lambda t: F.silu(t[:, :, None])), "does not take a vector"),
    "zero weights": (lambda: altered(lambda m: nn.init.zeros_(m.down_proj.weight)), "result is zero"),
    "its own forward": (lambda: altered(lambda m: setattr(m, "forward", m.forward)), "forward has been replaced"),
    "a layer's forward": (lambda: altered(lambda m: setattr(m.up_proj, "forward", m.up_proj.forward)), "replaced"),
    "an MLP's hook": (lambda: altered(lambda m: m.register_full_backward_hook(lambda *a: None)), "hooks"),
    "a pre-hook": (lambda: altered(lambda m: m.up_proj.register_forward_pre_hook(lambda *a: None)), "hooks"),
    "an activation's hook": (lambda: altered(lambda m: m.act_fn.register_forward_hook(lambda *a: None)), "hooks"),
    "a state_dict's hook": (lambda: altered(lambda m: m.register_state_dict_post_hook(lambda *a: None)), "hooks"),
    "a pre-hook of loading": (
        lambda: altered(lambda m: m.register_load_state_dict_pre_hook(lambda *a: None)),
        "hooks",
    ),
    "dropout in training": (lambda: Noisy().eval(), "something else"),
    "another result in evaluation": (OnlyTrained, "something else"),
    "any number of arguments": (Any_, "takes *rows"),
    "its own way to load": (Loads, "_load_from_state_dict"),
    "its own state": (Remembers, "get_extra_state, set_extra_state"),
    "its own call": (Called, "__call__"),
    "its own state_dict": (lambda: altered(lambda m: setattr(m, "state_dict", m.state_dict)), "state_dict"),
    "compiled in place": (lambda: altered(lambda m: m.compile()), "fuse before"),
    "a layer compiled in place": (lambda: altered(lambda m: m.up_proj.compile()), "fuse before"),
    "a weight of a class of its own": (lambda: altered(lambda m: quantise(m.up_proj)), "up_proj.weight is a Eights"),
    "no number": (lambda: altered(lambda m: nn.init.constant_(m.up_proj.weight, math.nan)), "no number"),
    "meta": (lambda: MLP().to("meta"), "meta"),
    "flattened parameters": (lambda: altered(flatten), "must be a Parameter"),
    "compiled before": (lambda: torch.compile(MLP()), "fuse before"),
}


class Eights(torch.Tensor):
    """A weight in eighths, as a library for quantisation would make it: it knows PyTorch's operators alone."""

    @staticmethod
    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=BF16, requires_grad=False)

    def __init__(self, numbers):
        self.numbers = numbers

    def __tensor_flatten__(self):
        return ["numbers"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, *rest):
        return cls(parts["numbers"])

    def value(self):
        return self.numbers.to(BF16) / 8

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].numbers)
        if function.namespace == "aten":
            args, kwargs = tree_map_only(cls, cls.value, (args, kwargs or {}))
            return function(*args, **kwargs)
        raise NotImplementedError(f"{function} of Eights")


def quantise(layer):
    layer.weight = nn.Parameter(Eights((layer.weight.detach() * 8).round().to(torch.int8)), requires_grad=False)


def flatten(mlp):
    weight = mlp.gate_proj.weight.detach()
    del mlp.gate_proj.weight
    mlp.gate_proj.weight = weight


@pytest.mark.parametrize("what", UNFIT)
def test_fuse_leaves_what_is_more_than_an_mlp(what):
    make, word = UNFIT[what]
    model = nn.Sequential(MLP(), make())
    before, names = model[1], set(model.state_dict())
    state = torch.get_rng_state()
    done = ck.fuse(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert done.names == ["0"] and model[1] is before and set(model.state_dict()) == names
    (why,) = done.skipped.values()
    assert word in why


def test_fuse_finds_an_mlp_in_every_place():
    shared = MLP()
    model = nn.ModuleDict({"a": shared, "b": shared})
    assert ck.fuse(model).names == ["a", "b"] and model["a"] is model["b"] and isinstance(model["a"], ck.SwiGLUMLP)


def test_what_is_put_on_a_layer_later_still_runs(gpu):
    """Adapters, hooks and pruning after `fuse`: the layers are called, not read."""
    x = torch.randn(5, 32).to(BF16)

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.low = base, nn.Linear(32, 48, bias=False, dtype=BF16)
            self.weight, self.bias = base.weight, base.bias

        def forward(self, x):
            return self.base(x) + self.low(x)

    mlp, seen = ck.SwiGLUMLP(32, 48, dtype=BF16), []
    mlp.up_proj = Adapter(mlp.up_proj)
    want = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    assert rel(mlp(x), want) < 0.01 and not gpu
    mlp(x).float().sum().backward()
    assert mlp.up_proj.low.weight.grad.any()
    mlp = ck.SwiGLUMLP(32, 48, dtype=BF16)
    handle = mlp.gate_proj.register_forward_hook(lambda *args: seen.append(1))
    mlp(x)
    assert seen == [1] and not gpu
    handle.remove()
    mlp(x)
    assert gpu == ["swiglu_stacked"]


def test_quantised_after_fuse(gpu):
    model = nn.Sequential(MLP().to(BF16))
    for name in ("gate_proj", "up_proj"):
        nn.init.normal_(getattr(model[0], name).weight)
    plain, x = copy.deepcopy(model), torch.randn(5, 32).to(BF16)
    assert ck.fuse(model).count == 1
    for mlp in (model[0], plain[0]):
        quantise(mlp.gate_proj)
    del gpu[:]
    with torch.no_grad():
        assert rel(model(x), plain(x)) < 0.01 and not gpu


def test_the_pass_leaves_quantised_weights(gpu, pass_on):
    model, x = MLP().to(BF16), torch.randn(5, 32).to(BF16)
    nn.init.normal_(model.gate_proj.weight)
    quantise(model.gate_proj)
    with torch.no_grad():
        assert rel(torch.compile(model)(x), model(x)) < 0.01
    assert pass_on.count == 0


def test_global_hooks_see_the_layers(gpu):
    mlp, seen = ck.SwiGLUMLP(32, 48, dtype=BF16), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(module))
    try:
        mlp(torch.randn(5, 32).to(BF16))
    finally:
        handle.remove()
    assert {mlp.gate_proj, mlp.up_proj, mlp.down_proj} <= set(seen)


class Vision(MLP):  # as Qwen2.5-VL names it
    def forward(self, hidden_state):
        return super().forward(hidden_state)


def test_an_argument_keeps_its_name():
    model, x = nn.Sequential(Vision()), torch.randn(5, 32)
    want = model[0](hidden_state=x)
    assert ck.fuse(model).count == 1
    assert torch.allclose(model[0](hidden_state=x), want, atol=1e-5) and torch.allclose(model[0](x), want, atol=1e-5)
    assert torch.equal(copy.deepcopy(model)[0](hidden_state=x), model[0](x))
    assert torch.equal(torch.compile(model[0], backend="eager", fullgraph=True)(hidden_state=x), model[0](x))
    for given in ({}, {"y": x}, {"hidden_state": x, "y": x}):
        with pytest.raises(TypeError, match="hidden_state="):
            model[0](**given)
    with pytest.raises(TypeError, match="hidden_state="):
        model[0](x, hidden_state=x)
    plain = ck.SwiGLUMLP(32, 48)
    assert torch.equal(plain(x=x), plain(x))


def test_fx_traces_a_fused_mlp():
    model, x = nn.Sequential(MLP()), torch.randn(5, 32)
    ck.fuse(model)
    assert torch.allclose(torch.fx.symbolic_trace(model)(x), model(x), atol=1e-6)


def test_modes_of_parts_stay():
    model = nn.Sequential(MLP())
    model[0].up_proj.eval()
    ck.fuse(model)
    assert model[0].training and model[0].gate_proj.training and not model[0].up_proj.training


def test_modules_on_meta_and_in_float64():
    assert ck.SwiGLUMLP(32, 48, device="meta")(torch.randn(2, 32, device="meta")).shape == (2, 32)
    with torch.device("meta"):
        assert modules.activation_of(F.silu) == "swiglu"
    layer, x = ck.SwiGLU(32, 48, dtype=torch.float64), torch.randn(4, 32, dtype=torch.float64)
    with torch.autocast("cpu", dtype=BF16):
        assert layer(x).dtype == torch.float64
    gate, up = nn.Linear(32, 48).eval(), nn.Linear(32, 48)
    assert not ck.SwiGLU.from_linear(gate, up).training and up.training


def test_fuse_a_qwen2(gpu):
    """Same logits within bf16 rounding, one fusion a layer, gradients, and a state_dict that the original still loads."""
    model = qwen()
    plain = copy.deepcopy(model)
    tokens = torch.randint(0, 128, (2, 9))
    want = model(tokens).logits
    done = ck.fuse(model)
    assert done.count == 2 and not done.skipped
    del gpu[:]
    got = model(tokens).logits
    assert gpu == ["swiglu_stacked"] * 2 and rel(got, want) < 0.01
    plain.load_state_dict(model.state_dict())
    got.float().sum().backward()
    want_grad = plain(tokens).logits.float().sum().backward() or plain.model.layers[0].mlp.gate_proj.weight.grad
    assert rel(model.model.layers[0].mlp.gate_proj.weight.grad, want_grad) < 0.05


def test_fuse_and_compile_a_qwen2(gpu):
    model = qwen(1)
    tokens = torch.randint(0, 128, (2, 9))
    with torch.no_grad():
        want = model(tokens).logits
        ck.fuse(model)
        got = torch.compile(model, backend="aot_eager")(tokens).logits
    assert rel(got, want) < 0.01 and "swiglu_stacked" in gpu


def operands(n=48):
    """x (5, 32), and weights of gate and up (n, 32)."""
    return torch.randn(5, 32).to(BF16), *((torch.randn(n, 32) / 6).to(BF16) for _ in range(2))


ATEN = torch.ops.aten
WRITTEN = {
    "linear": lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b),
    "matmul and .T": lambda x, a, b: F.silu(x @ a.T) * (x @ b.T),
    "up first": lambda x, a, b: (x @ b.t()) * F.silu(torch.matmul(x, a.transpose(0, 1))),
    "mm and a module": lambda x, a, b: nn.SiLU()(torch.mm(x, a.mT)) * torch.mm(x, b.permute(1, 0)),
    "negative axes": lambda x, a, b: F.silu(x @ a.transpose(-2, -1)) * (x @ b.permute((-1, 0))),
    "as PyTorch 2.14 traces .T and .mT": lambda x, a, b: F.silu(x @ ATEN.numpy_T(a)) * (x @ ATEN.mT(b)),
    "torch.mul": lambda x, a, b: torch.mul(F.silu(F.linear(x, a)), F.linear(x, b)),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_compiled_code_is_fused(gpu, pass_on, how):
    x, a, b = operands()
    got = torch.compile(WRITTEN[how])(x, a, b)
    assert gpu == ["swiglu_stacked"] and pass_on.count == 1
    assert rel(got, reference.swiglu(x, a, b)) < 0.004


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (F.gelu, "geglu"),
        (lambda t: F.gelu(t, approximate="tanh"), "geglu_tanh"),
        (F.relu, "reglu"),
        (torch.sigmoid, "glu"),
    ],
)
def test_the_family_is_fused(gpu, pass_on, monkeypatch, act, name):
    x, a, b = torch.randn(2, 5, 32).to(BF16), *((torch.randn(48, 32) / 6).to(BF16) for _ in range(2))
    asked = []
    real = fusing.api.run_swiglu
    monkeypatch.setattr(
        fusing.api, "run_swiglu", lambda *args: asked.append(args[5]) or real(*args[:7], "torch", None, False)
    )
    got = torch.compile(lambda x, a, b: act(F.linear(x, a)) * F.linear(x, b))(x, a, b)
    assert asked == [name] and rel(got, reference.swiglu(x.view(10, 32), a, b, activation=name).view(2, 5, 48)) < 0.01


NOT_FUSED = {
    "two x": lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x + 1, b),
    "gate is needed elsewhere": lambda x, a, b: (lambda g: F.silu(g) * F.linear(x, b) + g)(F.linear(x, a)),
    "the activation is needed elsewhere": lambda x, a, b: (lambda s: s * F.linear(x, b) + s)(F.silu(F.linear(x, a))),
    "no transpose": lambda x, a, b: F.silu(x @ a) * (x @ b),
    "a transpose of nothing": lambda x, a, b: F.silu(x @ a.transpose(0, 0)) * (x @ b.transpose(1, -1)),
    "a permutation of nothing": lambda x, a, b: F.silu(x @ a.permute(-2, -1)) * (x @ b.permute((0, 1))),
    "another activation": lambda x, a, b: F.tanh(F.linear(x, a)) * F.linear(x, b),
}


def _residual(x, a, b):
    g, u = F.linear(x, a), F.linear(x, b)
    x += 1
    return F.silu(g) * u + x.sum()


def _between(x, a, b):
    g = F.linear(x, a)
    x.add_(1)
    return F.silu(g) * F.linear(x, b)


def _view(x, a, b):
    rows, g, u = x[1:], F.linear(x, a), F.linear(x, b)
    rows.mul_(2)
    return F.silu(g) * u + rows.sum()


def _weight(x, a, b):
    g, u = F.linear(x, a), F.linear(x, b)
    a.zero_()
    return F.silu(g) * u


def _written(x, a, b):
    g, u = F.linear(x, a), F.linear(x, b)
    torch.mul(x, 2, out=x)
    F.relu(b, inplace=True)
    return F.silu(g) * u


WRITES = {f.__name__[1:]: f for f in (_residual, _between, _view, _weight, _written)}


@pytest.mark.parametrize("what", WRITES)
def test_no_product_is_moved_past_a_write(gpu, pass_on, what):
    given = operands()
    with torch.no_grad():
        want = WRITES[what](*(t.clone() for t in given))
        got = torch.compile(WRITES[what])(*(t.clone() for t in given))
    assert rel(got, want) < 0.01 and pass_on.count == 0


@pytest.mark.parametrize("both", [True, False])
def test_no_product_leaves_its_no_grad(gpu, pass_on, both):
    def half(x, a, b):
        with torch.no_grad():
            g = F.linear(x, a)
        with torch.set_grad_enabled(not both):
            u = F.linear(x, b)
        return F.silu(g) * u + x.sum() * 0

    x, a, b = operands()
    grads = []
    for call in (half, torch.compile(half)):
        leaf = x.clone().requires_grad_()
        call(leaf, a, b).float().sum().backward()
        grads.append(leaf.grad)
    assert pass_on.count == 0 and (grads[1] - grads[0]).norm() <= 0.02 * grads[0].norm()


def test_other_work_between_the_products_is_no_obstacle(gpu, pass_on):
    def beside(x, a, b):
        g = F.linear(x, a)
        other = torch.tanh(F.linear(x, a + b))
        return F.silu(g) * F.linear(x, b) + other

    x, a, b = operands()
    assert rel(torch.compile(beside)(x, a, b), beside(x, a, b)) < 0.01 and pass_on.count == 1


@pytest.mark.parametrize("shape", [(1,), (5, 48), (48,)])
@pytest.mark.parametrize("whose", ["gate", "up"])
def test_a_bias_that_is_broadcast_is_left_to_pytorch(gpu, pass_on, whose, shape):
    x, a, b = operands()
    bias = torch.randn(shape).to(BF16)
    biases = (bias, None) if whose == "gate" else (None, bias)

    def f(x, a, b, of_gate, of_up):
        return F.silu(F.linear(x, a, of_gate)) * F.linear(x, b, of_up)

    assert rel(torch.compile(f)(x, a, b, *biases), f(x, a, b, *biases)) < 0.01
    assert pass_on.count == (shape == (48,))


@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: torch.vmap(f, in_dims=(0, None, None))])
def test_what_torch_func_transforms_is_left_to_pytorch(gpu, pass_on, transform):
    x, a, b = operands()

    def f(x, a, b):
        return WRITTEN["linear"](x, a, b).float().sum()

    assert rel(torch.compile(transform(f))(x, a, b), transform(f)(x, a, b)) < 0.02 and pass_on.count == 0


@pytest.mark.parametrize("what", NOT_FUSED)
def test_what_is_left_alone(gpu, pass_on, what):
    n = 32 if what == "no transpose" or "nothing" in what else 48
    x, a, b = operands(n)
    want = NOT_FUSED[what](x, a, b)
    got = torch.compile(NOT_FUSED[what])(x, a, b)
    assert not gpu and pass_on.count == 0 and rel(got, want) < 0.01


@pytest.mark.parametrize("case", ["float32", "N of 44", "off"])
def test_what_does_not_qualify_is_left_to_pytorch(gpu, case):
    torch._dynamo.reset()  # what is compiled stays
    found = ck.fuse_compiled(case != "off")
    dtype, n = (torch.float32, 48) if case == "float32" else (BF16, 44 if "44" in case else 48)
    x, a, b = torch.randn(5, 32).to(dtype), *((torch.randn(n, 32) / 6).to(dtype) for _ in range(2))
    got = torch.compile(WRITTEN["linear"])(x, a, b)
    assert not gpu and rel(got, reference.swiglu(x, a, b)) < 0.01 and (found is None or found.count == 0)
    ck.fuse_compiled(False)


def test_the_pass_trains(gpu, pass_on):
    model = MLP().to(BF16)
    twin = copy.deepcopy(model)
    x = torch.randn(7, 32).to(BF16)
    torch.compile(model)(x).float().sum().backward()
    twin(x).float().sum().backward()
    assert pass_on.count == 1 and gpu
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert rel(a.grad, b.grad) < 0.03


def test_a_compiled_qwen2_is_fused(gpu, pass_on):
    model = qwen(2)
    tokens = torch.randint(0, 128, (2, 9))
    with torch.no_grad():
        want = model(tokens).logits
        got = torch.compile(model)(tokens).logits
    assert pass_on.count == 2 and gpu == ["swiglu_stacked"] * 2 and rel(got, want) < 0.01


def test_the_pass_is_pickled_in_short(pass_on):
    """PyTorch before 2.12 pickles Inductor's config for a cached graph's key, without a memo, and warns where that fails."""
    pickler = pickle.Pickler(io.BytesIO())
    pickler.fast = True
    pickler.dump({"pre_grad_custom_pass": pass_on})
    again = pickle.loads(pickle.dumps(pass_on))
    assert again.uuid() == pass_on.uuid() and again.patterns.patterns.keys() == pass_on.patterns.patterns.keys()


def test_the_pass_keeps_another(pass_on):
    from torch._inductor import config

    assert ck.fuse_compiled() is pass_on and config.pre_grad_custom_pass is pass_on
    ck.fuse_compiled(False)
    assert config.pre_grad_custom_pass is None
    seen = []
    config.pre_grad_custom_pass = seen.append
    try:
        found = ck.fuse_compiled()
        torch.compile(lambda x: x + 1)(torch.ones(3))
        assert seen and found.before == seen.append and found.uuid() != pass_on.uuid()
        ck.fuse_compiled(False)
        assert config.pre_grad_custom_pass == seen.append
    finally:
        config.pre_grad_custom_pass = None
