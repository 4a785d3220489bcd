"""Modules, `fuse` and the torch.compile pass, on a model of transformers built from a config and on small ones made here."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from entries import MLP
from test_ops import rel
from torch import nn

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
        ((nn.Linear(32, 48), nn.Identity()), TypeError, "up is a Identity"),
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
    "meta": (lambda: MLP().to("meta"), "meta"),
    "flattened parameters": (lambda: altered(flatten), "must be a Parameter"),
    "compiled before": (lambda: torch.compile(MLP()), "fuse before"),
}


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
    x, a, b = torch.randn(5, 32).to(BF16), *((torch.randn(48, 32) / 6).to(BF16) for _ in range(2))
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
    given = torch.randn(5, 32).to(BF16), *((torch.randn(48, 32) / 6).to(BF16) for _ in range(2))
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

    x, a, b = torch.randn(5, 32).to(BF16), *((torch.randn(48, 32) / 6).to(BF16) for _ in range(2))
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

    x, a, b = torch.randn(5, 32).to(BF16), *((torch.randn(48, 32) / 6).to(BF16) for _ in range(2))
    assert rel(torch.compile(beside)(x, a, b), beside(x, a, b)) < 0.01 and pass_on.count == 1


@pytest.mark.parametrize("what", NOT_FUSED)
def test_what_is_left_alone(gpu, pass_on, what):
    n = 32 if what == "no transpose" or "nothing" in what else 48
    x, a, b = torch.randn(5, 32).to(BF16), *((torch.randn(n, 32) / 6).to(BF16) for _ in range(2))
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
