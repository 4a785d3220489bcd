"""The kernels inside PyTorch on a Hopper GPU: operators, gradients, torch.compile, CUDA graphs, modules, models."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cute_kernels as ck
from cute_kernels import gradient

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU")
BF16 = torch.bfloat16
OPS = torch.ops.cute_kernels


def mlp(m=200, n=264, k=328, dtype=BF16, grad=False):
    made = [torch.randn(m, k, device="cuda"), *(torch.randn(n, k, device="cuda") / k**0.5 for _ in range(2))]
    return [t.to(dtype).requires_grad_(grad) for t in made]


def rel(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    x, g, u = mlp(grad=grad)
    bias = torch.randn(264, device="cuda", requires_grad=grad)
    packed = ck.interleave(g.detach(), u.detach()).tensor.requires_grad_(grad)
    for op, args, how in (
        (OPS.gemm.default, (x, g), {"out_dtype": torch.float32}),
        (OPS.swiglu.default, (x, g, u, bias), {"use": "stacked"}),
        (OPS.swiglu.default, (x, g, u), {"use": "pingpong", "activation": "geglu"}),
        (OPS.swiglu_interleaved.default, (x, packed), {}),
    ):
        assert set(torch.library.opcheck(op, args, how).values()) == {"SUCCESS"}, op


def multiplied_from(monkeypatch, elements):
    """From how many elements on our GEMM multiplies in backward passes."""
    for worth in ("WORTH", "WORTH_IN_EPILOGUE"):
        monkeypatch.setattr(gradient, worth, elements)


@pytest.mark.parametrize("worth", [0, gradient.WORTH])
@pytest.mark.parametrize("activation", ck.reference.GATED)
@pytest.mark.parametrize("kernel", ["auto", "stacked", "pingpong", "interleaved"])
def test_gradients(kernel, activation, worth, monkeypatch):
    """Against float64; no further off than twice what PyTorch's own backward pass is in the same dtype."""
    multiplied_from(monkeypatch, worth)
    ours = [*mlp(grad=True), *(torch.randn(264, device="cuda").to(BF16).requires_grad_() for _ in range(2))]
    theirs, exact = ([t.detach().to(kind).requires_grad_() for t in ours] for kind in (BF16, torch.float64))
    y = ck.swiglu(*ours[:3], bias_gate=ours[3], bias_up=ours[4], activation=activation, kernel=kernel)
    dy = torch.randn_like(y)
    y.backward(dy)
    for given in (theirs, exact):
        gate, up = (F.linear(given[0], w, b) for w, b in zip(given[1:3], given[3:], strict=True))
        ck.reference.GATED[activation](gate, up).backward(dy.to(given[0].dtype))
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert rel(a.grad, c.grad) <= max(2 * rel(b.grad, c.grad), 0.002)


def test_gradients_of_a_layer_compiled_and_captured():
    """Qwen-2.5 0.5B at M = 4096, where both of our ways and PyTorch's are taken: the same bits in eager mode, under
    torch.compile and from a CUDA graph."""
    given = mlp(4096, 4864, 896, grad=True)
    dy = torch.randn(4096, 4864, device="cuda").to(BF16)

    def gradients(call=ck.swiglu, given=given):
        return torch.autograd.grad(call(*given), given, dy.to(given[0].dtype))

    eager = gradients()
    for a, b in zip(
        eager, gradients(ck.reference.eager, [t.detach().float().requires_grad_() for t in given]), strict=True
    ):
        assert rel(a, b) < 0.006
    compiled = torch.compile(lambda *t: ck.swiglu(*t), fullgraph=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients()
    graph.replay()
    for a, *others in zip(eager, gradients(compiled), captured, strict=True):
        assert all(torch.equal(a, b) for b in others)


def test_d_gate_at_both_ends(monkeypatch):
    """Gates far out, where e^-gate overflows; a NaN stays in its row."""
    multiplied_from(monkeypatch, 0)
    ends = [0.0, 1.0, -1.0, 4.0, -4.0, 20.0, -20.0, 80.0, -80.0, 88.5, -88.5, 120.0, -120.0, 3e38, -3e38, -16.0]
    x, up = torch.eye(16, device="cuda", dtype=BF16), torch.randn(8, 16, device="cuda").to(BF16)
    w = torch.tensor(ends, device="cuda").to(BF16).expand(8, 16).contiguous()
    dy = torch.randn(16, 8, device="cuda").to(BF16)
    got, _ = torch.ops.cute_kernels.of_preactivations(dy, x, w, up, None, None, "swiglu")
    want = torch.ops.aten.silu_backward(dy.double() * up.double().T, w.double().T)
    assert torch.allclose(got.double(), want, rtol=0.005, atol=1e-36)
    dy[3, 2] = float("nan")
    got, _ = torch.ops.cute_kernels.of_preactivations(dy, x, w, up, None, None, "swiglu")
    assert got.isnan().nonzero().tolist() == [[3, 2]]


def test_compiled_with_a_varying_m():
    _, g, u = mlp()
    compiled = torch.compile(lambda x, g, u: ck.swiglu(x * 2, g, u) + 1, fullgraph=True)
    for m in (200, 64, 33, 1, 128):
        x = torch.randn(m, 328, device="cuda").to(BF16)
        assert rel(compiled(x, g, u), ck.reference.swiglu(x * 2, g, u) + 1) < 0.006
    with torch.inference_mode():
        assert rel(compiled(x, g, u), ck.reference.swiglu(x * 2, g, u) + 1) < 0.006


def test_a_compiled_call_in_a_cuda_graph():
    x, g, u = mlp()
    compiled = torch.compile(lambda x, g, u: ck.swiglu(x, g, u), mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        x.normal_()
        assert rel(compiled(x, g, u), ck.reference.swiglu(x, g, u)) < 0.004


@pytest.mark.parametrize("how", ["modules", "torch.compile"])
def test_a_qwen2_is_fused(how):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    model = transformers.Qwen2ForCausalLM(config).to("cuda", BF16).eval()
    plain, tokens = copy.deepcopy(model), torch.randint(0, 512, (2, 100), device="cuda")
    with torch.no_grad():
        exact = copy.deepcopy(model).float()(tokens).logits
        want = plain(tokens).logits
        if how == "modules":
            assert ck.fuse(model).count == 2
            got = model(tokens).logits
        else:
            try:
                found = ck.fuse_compiled()
                with torch._inductor.utils.fresh_cache():
                    got = torch.compile(model)(tokens).logits
                assert found.count == 2
            finally:
                ck.fuse_compiled(False)
    assert rel(got, exact) <= 1.5 * rel(want, exact)


def test_a_module_trains():
    layer = ck.SwiGLUMLP(328, 264, device="cuda", dtype=BF16)
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
    x, target = torch.randn(300, 328, device="cuda").to(BF16), torch.randn(300, 328, device="cuda").to(BF16)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(layer(x).float(), target.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    with torch.autocast("cuda", dtype=BF16):
        wide = ck.SwiGLU(328, 264, device="cuda")
        assert wide(x.float()).dtype == BF16
    assert nn.Module.__call__(layer, x[:0]).shape == (0, 328)
