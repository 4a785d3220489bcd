"""The operators under PyTorch's own checks, on CPU tensors that pass for CUDA ones: launches are computed by PyTorch."""

import os
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch.utils.flop_counter import FlopCounterMode

import cute_kernels as ck
from cute_kernels import api, gradient, launch, plans, reference, registry
from cute_kernels import epilogue as ep

BF16 = torch.bfloat16
OPS = torch.ops.cute_kernels


def mlp(m=6, n=24, k=16, dtype=BF16, grad=False):
    shapes = (m, k) if isinstance(m, int) else (*m, k)
    made = [torch.randn(shapes), *(torch.randn(n, k) / 4 for _ in range(2))]
    return [t.to(dtype).requires_grad_(grad) for t in made]


def rel(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("m", [6, (2, 3), 1, 0])
def test_opcheck(gpu, m, grad):
    x, g, u = mlp(m, grad=grad)
    bias = torch.randn(24, requires_grad=grad)
    packed = ck.interleave(g.detach(), u.detach()).tensor.requires_grad_(grad)
    both = torch.randn(48, requires_grad=grad)
    for op, args, how in (
        (OPS.gemm.default, (x, g), {}),
        (OPS.gemm.default, (x, g), {"out_dtype": torch.float32}),
        (OPS.swiglu.default, (x, g, u), {}),
        (OPS.swiglu.default, (x, g, u, None, bias), {"use": "pingpong"}),
        (OPS.swiglu.default, (x, g, u, bias, bias), {"use": "torch", "activation": "geglu_tanh"}),
        (OPS.swiglu_interleaved.default, (x, packed), {}),
        (OPS.swiglu_interleaved.default, (x, packed, both), {}),
    ):
        found = torch.library.opcheck(op, args, how)
        assert set(found.values()) == {"SUCCESS"}, (op, how, found)
    assert bool(gpu) == bool(x.numel())


@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 16), (1, 16), (0, 16)])
def test_fake_strides_are_the_real_ones(gpu, shape):
    _, g, u = mlp()
    packed = ck.interleave(g, u).tensor
    for x in (torch.randn(shape), torch.randn(*shape[:-1], 32)[..., :16]):
        x = x.to(BF16)
        for op, weights, how in (
            (OPS.swiglu, (g, u), {}),
            (OPS.swiglu, (g, u), {"use": "torch"}),
            (OPS.swiglu_interleaved, (packed,), {}),
            (OPS.gemm, (g,), {"out_dtype": torch.float32}),
            (OPS.gemm, (g.T.contiguous().T,), {}),
        ):
            with torch._subclasses.FakeTensorMode() as mode:
                fake = op(*(mode.from_tensor(t) for t in (x, *weights)), **how)
            real = op(x, *weights, **how)
            for what in (torch.Tensor.size, torch.Tensor.stride, lambda t: (t.dtype, t.device)):
                assert what(fake) == what(real), op


def test_one_tensor_without_memory_among_others(gpu):
    """A meta tensor brings a call to the function that only says shapes: no result, for it would be nobody's numbers."""
    x, g, u = mlp()
    packed, bias = ck.interleave(g, u).tensor, torch.zeros(24)
    for op, args in ((OPS.gemm, (x, g)), (OPS.swiglu, (x, g, u, bias, bias)), (OPS.swiglu_interleaved, (x, packed))):
        for i in range(len(args)):
            with pytest.raises(ValueError, match="on cpu, meta, must be on one device"):
                op(*(t.to("meta") if i == j else t for j, t in enumerate(args)))
        assert op(*(t.to("meta") for t in args)).is_meta
    layer = ck.SwiGLU(16, 24, dtype=BF16)
    layer.up_proj.to("meta")
    with pytest.raises(ValueError, match="on cpu, meta"):
        layer(x)
    assert not gpu


@pytest.mark.parametrize("activation", reference.GATED)
def test_gradients_of_the_gated_family(activation):
    """Against finite differences in float64; inputs wide enough that a clamp at 7 is met."""
    torch.manual_seed(0)
    given = [(3 * t).detach().requires_grad_() for t in mlp(5, 8, 16, torch.float64)]
    given += [torch.randn(8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *t: OPS.swiglu(*t, activation=activation, use="torch"), given)
    if activation != "swiglu_oai":  # finite differences of second order do not like its corners
        given = [(t / 3).detach().requires_grad_() for t in given]
        assert torch.autograd.gradgradcheck(lambda *t: OPS.swiglu(*t, activation=activation, use="torch"), given)


def opened(monkeypatch, elements=0):
    """From how many elements on our GEMM multiplies in backward passes."""
    for worth in ("WORTH", "WORTH_IN_EPILOGUE"):
        monkeypatch.setattr(gradient, worth, elements)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", reference.GATED)
def test_our_gemms_in_a_backward_pass(gpu, monkeypatch, activation, bias):
    """Gate, up, two for dx, one for each weight; the same gradients as PyTorch's products give."""
    given = [*mlp((2, 3), dtype=torch.float16, grad=True), *(torch.randn(24, requires_grad=True) for _ in range(2))][
        : 5 if bias else 3
    ]
    dy = torch.randn(2, 3, 24).half()

    def gradients():
        gpu.clear()
        return torch.autograd.grad(OPS.swiglu(*given, activation=activation, use="stacked"), given, dy)

    theirs = gradients()
    assert gpu == ["swiglu_stacked"]
    opened(monkeypatch)
    ours = gradients()
    assert gpu == ["swiglu_stacked"] + 6 * ["gemm"]
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and rel(a, b) < 0.002
    monkeypatch.setattr(api, "DISABLED", True)
    gradients()
    assert not gpu


def test_which_products_are_worth_it(gpu, monkeypatch):
    """By the elements of each result: here gate and up 144, dx 96, a weight's 384; d gate in an epilogue from 144 on."""
    given = mlp(dtype=torch.float16, grad=True)
    for worth, worth_in_epilogue, launches in (
        (385, 145, 0),
        (384, 145, 2),
        (385, 144, 1),
        (144, 144, 4),
        (96, 145, 6),
    ):
        monkeypatch.setattr(gradient, "WORTH", worth)
        monkeypatch.setattr(gradient, "WORTH_IN_EPILOGUE", worth_in_epilogue)
        gpu.clear()
        OPS.swiglu(*given, use="stacked").sum().backward()
        assert gpu == ["swiglu_stacked"] + launches * ["gemm"]
        gpu.clear()
        OPS.gemm(*given[:2]).backward(torch.randn(6, 24).half())
        assert gpu == ["gemm"] + ((worth <= 96) + (worth <= 384)) * ["gemm"]


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_backward_where_our_gemm_does_not_fit(gpu, monkeypatch, dtype):
    """N = 20 is no multiple of 8, float32 is no dtype of it."""
    given, opened_ = mlp(n=20, dtype=dtype, grad=True), opened(monkeypatch)
    got = torch.autograd.grad(OPS.swiglu(*given, fallback=True).sum(), given)
    want = torch.autograd.grad(reference.eager(*given).sum(), given)
    assert not gpu and opened_ is None
    for a, b in zip(got, want, strict=True):
        assert rel(a, b) < 0.01


@pytest.mark.parametrize("worth", [0, gradient.WORTH])
def test_a_compiled_backward_pass_computes_the_same_bits(gpu, monkeypatch, worth):
    opened(monkeypatch, worth)
    given, dy = [*mlp(40, grad=True), torch.randn(24, requires_grad=True)], torch.randn(40, 24).to(BF16)
    graphs = []

    def layer(x, g, u, b):
        return ck.swiglu(x, g, u, bias_up=b, kernel="stacked")

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    compiled = torch.compile(layer, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    for a, b in zip(*(torch.autograd.grad(call(*given), given, dy) for call in (layer, compiled)), strict=True):
        assert torch.equal(a, b)
    assert graphs[1].count("cute_kernels.of_preactivations") == 1 and graphs[1].count("cute_kernels.product") == 4


def test_parts_of_a_backward_pass_by_name(gpu, monkeypatch):
    opened(monkeypatch)
    for grad in (False, True):
        a, b = mlp(grad=grad)[:2]
        for c in (None, torch.randn(6, 24).to(BF16).requires_grad_(grad)):
            assert set(torch.library.opcheck(OPS.product.default, (a, b, c)).values()) == {"SUCCESS"}
    x, g, u = mlp()
    for activation in ("swiglu", "geglu"):
        given = (torch.randn(6, 24).to(BF16), x, g, u, None, torch.randn(24).to(BF16), activation)
        assert set(torch.library.opcheck(OPS.of_preactivations.default, given).values()) == {"SUCCESS"}
    with pytest.raises(NotImplementedError, match="has no derivative"):
        OPS.of_preactivations(given[0].requires_grad_(), *given[1:])[0].sum().backward()


def calls(gpu, activation="swiglu"):
    """(function, its operands) of every differentiable entry."""
    x, g, u = mlp(grad=True)
    packed = ck.interleave(g.detach(), u.detach()).tensor.requires_grad_()
    how = {"activation": activation}
    return {
        "gemm": (ck.gemm, (x, g)),
        "swiglu": (lambda *t: ck.swiglu(*t, kernel="stacked", **how), (x, g, u)),
        "interleaved": (lambda x, w: OPS.swiglu_interleaved(x, w, **how), (x, packed)),
    }


@pytest.mark.parametrize("call", ["gemm", "swiglu", "interleaved"])
def test_forward_mode_through_a_backward_pass(gpu, monkeypatch, call):
    """The gradient is linear in dy: its tangent is the gradient for dy's tangent, by either interface."""
    opened(monkeypatch)
    function, given = calls(gpu, "glu")[call]  # silu_backward of PyTorch has no forward mode either
    y, dy, tangent = function(*given), *(torch.randn(6, 24).to(BF16) for _ in range(2))

    def backward(dy):
        return torch.autograd.grad(y, given[0], dy, retain_graph=True)[0]

    want = backward(tangent)
    assert rel(torch.func.jvp(backward, (dy,), (tangent,))[1], want) < 0.01
    with torch.autograd.forward_ad.dual_level():
        found = backward(torch.autograd.forward_ad.make_dual(dy, tangent))
        assert rel(torch.autograd.forward_ad.unpack_dual(found).tangent, want) < 0.01


@pytest.mark.parametrize("call", ["gemm", "swiglu", "interleaved"])
def test_many_gradients_at_once(gpu, monkeypatch, call):
    """is_grads_batched and vectorize=True, whose vmap is not torch.func's."""
    opened(monkeypatch)
    function, given = calls(gpu)[call]
    y, dy = function(*given), torch.randn(3, 6, 24).to(BF16)
    single = [torch.autograd.grad(y, given, row, retain_graph=True) for row in dy]
    both = torch.autograd.grad(y, given, dy, is_grads_batched=True, retain_graph=True)
    for i, a in enumerate(both):
        assert all(torch.equal(row, one[i]) for row, one in zip(a, single, strict=True))
    x, *others = given
    jacobian = torch.autograd.functional.jacobian(lambda x: function(x, *others), x.detach(), vectorize=True)
    assert rel(torch.einsum("mnab,mn->ab", jacobian.float(), dy[0].float()), single[0][0]) < 0.02


@pytest.mark.parametrize("worth", [0, gradient.WORTH])
@pytest.mark.parametrize("call", ["gemm", "swiglu", "torch"])
def test_compiled_backward_under_autocast_of_another_dtype(gpu, monkeypatch, call, worth):
    """An operator's result has the dtype that its fake kernel promised, or compiled code reads other numbers."""
    opened(monkeypatch, worth)
    table = calls(gpu)
    table["torch"] = lambda *t: OPS.swiglu(*t, use="torch"), table["swiglu"][1]
    function, given = table[call]
    want = torch.autograd.grad(function(*given).float().square().sum(), given)
    y = torch.compile(function, fullgraph=True)(*given)
    with torch.autocast("cpu", dtype=torch.float16):
        got = torch.autograd.grad(y.float().square().sum(), given)
        for op, args in ((OPS.gemm, given[:2]), (OPS.swiglu, mlp())):
            for disabled in (False, True):
                monkeypatch.setattr(api, "DISABLED", disabled)
                assert op(*args).dtype == BF16
        monkeypatch.setattr(api, "DISABLED", False)
        monkeypatch.setattr(launch, "fuses", lambda x, n: False)
        assert ck.swiglu(*mlp()).dtype == BF16
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and rel(a, b) < 0.01


@pytest.mark.parametrize("known", [False, True])
def test_backward_in_a_capture(gpu, monkeypatch, known):
    """What is not compiled yet is left to PyTorch, which needs no compilation."""
    opened(monkeypatch)
    launched = launch.launch

    def capturing(name, *args):
        if name == "gemm" and not known:
            return launch.load((name, None, BF16, 0, launch.PLAIN), None)
        return launched(name, *args)

    given = mlp(grad=True)
    monkeypatch.setattr(launch, "launch", capturing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    spec = types.SimpleNamespace(check=lambda *a: types.SimpleNamespace(name="any"))
    monkeypatch.setattr(registry, "get", lambda name: spec)
    OPS.swiglu(*given, use="stacked").sum().backward()
    assert gpu == ["swiglu_stacked"] + 6 * ["gemm"] * known
    want = torch.autograd.grad(reference.eager(*given).sum(), given)
    for t, b in zip(given, want, strict=True):
        assert rel(t.grad, b) < 0.02


def test_other_errors_of_a_launch_in_a_backward_pass_are_raised(gpu, monkeypatch):
    opened(monkeypatch)
    y = ck.gemm(*mlp(grad=True)[:2])

    def fails(*args):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(launch, "launch", fails)
    plans.forget()
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        y.sum().backward()


@pytest.mark.parametrize("gate", [-60000.0, -20.0, -5.0, 0.5, 6.0])
def test_gradients_of_oai_in_float16(gate):
    """With a gradient as large as loss scaling makes it."""
    gate, up, dy = (torch.tensor([[v]]).half() for v in (gate, 0.5, 10000.0))
    got = gradient.of_gated("swiglu_oai", gate, up, dy)
    want = gradient.of_gated("swiglu_oai", *(t.double() for t in (gate, up, dy)))
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a.double(), b, rtol=0.01, atol=0.01)


def test_flop_counter(gpu):
    """A product counts 2 M N K, also in a backward pass: six of them for swiglu, beside the two of forward."""
    product = 2 * 6 * 24 * 16
    for name, (function, given) in calls(gpu).items():
        with FlopCounterMode(display=False) as forward:
            y = function(*given)
        with FlopCounterMode(display=False) as backward:
            y.sum().backward()
        counts = (1, 2) if name == "gemm" else (2, 6)
        assert (forward.get_total_flops(), backward.get_total_flops()) == tuple(n * product for n in counts)


def test_a_bias_in_every_second_place(gpu, monkeypatch):
    """Kernel-2's bias is packed; its halves are no vectors that an epilogue takes."""
    opened(monkeypatch)
    x, packed = calls(gpu)["interleaved"][1]
    OPS.swiglu_interleaved(x, packed, torch.randn(48).to(BF16)).sum().backward()
    assert gpu == ["swiglu_interleaved"] + 6 * ["gemm"]


def test_wrong_parts_of_a_backward_pass(gpu, monkeypatch):
    """By name: whatever the size, and with or without memory."""
    x, g, u = mlp()
    dy, bias = torch.randn(6, 24).to(BF16), torch.randn(24).to(BF16)
    product, parts = OPS.product, OPS.of_preactivations
    wrong = [
        (product, (x, g, dy.float()), TypeError, "c is float32: dtypes must be equal"),
        (product, (x, g, dy[:, :8]), ValueError, r"c has shape \(6, 8\), must be \(6, 24\)"),
        (product, (x, g[:, :8]), ValueError, r"b has shape \(24, 8\), must be \(24, 16\)"),
        (product, (x[None], g), ValueError, "must be matrices"),
        (parts, (dy, x, g, u[:1], None, None, "swiglu"), ValueError, "w_up has shape"),
        (parts, (dy[:1], x, g, u, None, None, "swiglu"), ValueError, "dy has shape"),
        (parts, (dy, x, g, u, None, bias[:1], "swiglu"), ValueError, "bias_up has shape"),
        (parts, (dy.float(), x, g, u, None, None, "swiglu"), TypeError, "dtypes must be equal"),
    ]
    for worth in (0, gradient.WORTH):
        opened(monkeypatch, worth)
        for op, args, error, words in wrong:
            for place in ("cpu", "meta"):
                with pytest.raises(error, match=words):
                    op(*(t.to(place) if isinstance(t, torch.Tensor) else t for t in args))
        for op, args in ((product, (x, g, dy)), (parts, (dy, x, g, u, bias, bias, "swiglu"))):
            for i, t in enumerate(args):
                if isinstance(t, torch.Tensor):
                    with pytest.raises(ValueError, match="must be on one device"):
                        op(*args[:i], t.to("meta"), *args[i + 1 :])
        given = (torch.randn(24, 6).to(BF16).T, x, g, u, None, torch.randn(48).to(BF16)[::2])
        assert set(torch.library.opcheck(parts.default, (*given, "swiglu")).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("n", "k"), [(0, 16), (8, 0)])
def test_gradients_of_nothing(n, k):
    given = [torch.zeros(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, k), (n, k), (n, k))]
    for t in torch.autograd.grad(OPS.swiglu(*given, use="torch").sum(), given):
        assert not t.any()


def test_unknown_activation_has_no_gradient():
    with pytest.raises(ValueError, match="activation is 'tanh'"):
        gradient.of_gated("tanh", *[torch.zeros(1, 1)] * 3)


@pytest.mark.parametrize("call", ["swiglu", "interleaved", "gemm"])
def test_backward_agrees_with_pytorch(gpu, call):
    ours, theirs = (mlp((2, 3), dtype=torch.float16, grad=True) for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        b.data.copy_(a.data)
    x, g, u = ours
    if call == "swiglu":
        y, want = ck.swiglu(x, g, u, kernel="stacked"), reference.eager(*theirs)
    elif call == "interleaved":
        y, want = ck.swiglu(x, g, u, kernel="interleaved"), reference.eager(*theirs)
    else:
        y, want = ck.gemm(x, g), F.linear(theirs[0], theirs[1])
    assert gpu and rel(y, want) < 0.002
    dy = torch.randn_like(y)
    y.backward(dy)
    want.backward(dy)
    for a, b in list(zip(ours, theirs, strict=True))[: 2 if call == "gemm" else 3]:
        assert rel(a.grad, b.grad) < 0.003
    only = mlp(grad=False)
    only[1].requires_grad_()
    ck.swiglu(*only).sum().backward()
    assert only[1].grad is not None and only[0].grad is None


def test_fullgraph_and_a_varying_m(gpu):
    """One graph, no break; of two sizes of M at most two compiles, and no more for others."""
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph.forward

    def layer(x, g, u):
        return ck.gemm(ck.swiglu(x, g, u), u.T) * 2

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x, g, u = mlp(40)
    for m in (40, 7, 33, 24, 1):
        assert len(compiles) <= 2
        assert torch.equal(compiled(x[:m], g, u), layer(x[:m], g, u))
    assert len(compiles) <= 3  # M = 1 is a size of its own to Dynamo


def test_inductor_and_inference_mode(gpu):
    x, g, u = mlp(40)
    compiled = torch.compile(lambda x, g, u: ck.swiglu(F.relu(x), g, u) + 1, fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(x, g, u), ck.swiglu(F.relu(x), g, u) + 1)
    assert gpu == ["swiglu_stacked"] * 2


def test_nobody_asks_which_devices_have_autocast_while_tracing(gpu, monkeypatch):
    """Dynamo before PyTorch 2.12 cannot answer: the graph of a module would break."""

    def asked(kind):
        raise AssertionError("asked")

    monkeypatch.setattr(torch.amp, "is_autocast_available", asked)
    x, g, u = mlp(40)
    layer = ck.SwiGLUMLP(16, 24, dtype=BF16)
    for call in (layer, lambda x: ck.swiglu(x, g, u, kernel="torch")):
        with torch.no_grad():
            assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(x), call(x))
    assert ck.SwiGLU(16, 24, device="meta")(x.to("meta")).is_meta


def test_out_and_configuration_under_compile(gpu):
    x, g, u = mlp(40)
    config = ck.kernels()[1].configs[3]
    want, out = ck.swiglu(x, g, u), torch.zeros(40, 24, dtype=BF16)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def into(x, g, u, out):
        return ck.swiglu(x, g, u, out=out, config=config)

    assert torch.equal(into(x, g, u, out), want) and torch.equal(out, want)
    other = config.with_(group=3)
    with pytest.raises(ValueError, match="none of swiglu_stacked, swiglu_pingpong's .configs"):
        ck.swiglu(x.requires_grad_(), g, u, config=other)
    with pytest.raises(ValueError, match="config is 'x', no name"):
        OPS.gemm(x, g, config="x")


def test_an_epilogue_breaks_the_graph_and_is_right(gpu):
    x, g, _ = mlp(40)
    compiled = torch.compile(lambda x, g: ck.gemm(x, g, epilogue=ep.acc) + 1, backend="aot_eager")
    assert torch.equal(compiled(x, g), ck.gemm(x, g) + 1)


def test_export(gpu):
    class Layer(torch.nn.Module):
        def forward(self, x, g, u):
            return ck.swiglu(x, g, u)

    x, g, u = mlp(40)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(Layer(), (x, g, u), dynamic_shapes=({0: rows}, None, None))
    assert "cute_kernels.swiglu.default" in program.graph_module.code
    assert torch.equal(program.module()(x[:9], g, u), ck.swiglu(x[:9], g, u))


def test_errors_reach_the_caller(gpu):
    x, g, u = mlp()
    for call in (OPS.swiglu, torch.compile(lambda x, g, u: ck.swiglu(x, g, u), backend="aot_eager")):
        with pytest.raises(Exception, match="K = 8 columns"):
            call(x, g[:, :8], u[:, :8])
    with pytest.raises(ValueError, match="N is 23"):
        OPS.swiglu(x, g[:23], u[:23])
    with pytest.raises(ValueError, match="kernel is 'x'"):
        OPS.swiglu(x, g, u, use="x")
    assert rel(OPS.swiglu(x, g[:23], u[:23], fallback=True), reference.swiglu(x, g[:23], u[:23])) < 0.01


def test_the_escape_hatch():
    """With CUTE_KERNELS_DISABLE=1 nothing is compiled or launched, by any entry, on a machine without a GPU."""
    code = """
import torch, torch.nn.functional as F
import cute_kernels as ck
from cute_kernels import epilogue as ep
x, g, u = torch.randn(6, 16).bfloat16(), torch.randn(24, 16).bfloat16(), torch.randn(24, 16).bfloat16()
want = F.silu(F.linear(x, g)) * F.linear(x, u)
for kernel in ("auto", "stacked", "pingpong", "interleaved", "torch"):
    assert torch.equal(ck.swiglu(x, g, u, kernel=kernel), want)
assert torch.equal(ck.swiglu_interleaved(x, ck.interleave(g, u)), want)
assert torch.equal(ck.gemm(x, g), F.linear(x, g))
bias, c = torch.randn(24).bfloat16(), torch.randn(6, 24).bfloat16()
rows = torch.rand(6)
got = ck.gemm(x, g, epilogue=ep.gelu(ep.acc * ep.column(rows) + ep.row(bias)) - 0.5 * ep.load(c), out_dtype=torch.float32)
ref = F.gelu(x.float() @ g.float().T * rows[:, None] + bias.float()) - 0.5 * c.float()
assert torch.allclose(got, ref, atol=1e-5), (got - ref).abs().max()
try:
    ck.gemm(x, g, epilogue=ep.apply(lambda v: v, ep.acc))
except ValueError as why:
    assert "no PyTorch function" in str(why)
else:
    raise AssertionError
assert not ck.compile_counts(), ck.compile_counts()
"""
    env = {**os.environ, "CUTE_KERNELS_DISABLE": "1"}
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
