"""Calls of known shapes skip the checks; whatever changes from call to call does not."""

import pytest
import torch

import cute_kernels as ck
from cute_kernels import api, plans, reference, registry

M, N, K = 24, 16, 32


def tensors(*, m=M, dtype=torch.bfloat16, seed=0):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=made).to(dtype) for shape in ((m, K), (N, K), (N, K))]


@pytest.fixture
def checked(gpu, monkeypatch):
    """How often arguments went through the checks."""
    calls, real = [], api._arguments
    monkeypatch.setattr(api, "_arguments", lambda *args, **how: calls.append(args) or real(*args, **how))
    return calls


def right(y, x, w_gate, w_up, **biases):
    want = reference.swiglu(x, w_gate, w_up, **biases)
    return torch.equal(y.float(), want.to(y.dtype).float().view(y.shape))


CALLS = {
    "gemm": lambda x, g, u, **how: ck.gemm(x, g, **how),
    "swiglu": ck.swiglu,
    "pingpong": lambda *given, **how: ck.swiglu(*given, kernel="pingpong", **how),
    "swiglu_interleaved": lambda x, g, u, **how: ck.swiglu_interleaved(x, ck.interleave(g, u), **how),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("m", [1, M])
@pytest.mark.parametrize("given_out", [False, True])
def test_a_known_call_is_launched_without_checks_and_reads_its_own_tensors(name, m, given_out, checked, gpu):
    for turn in range(3):
        x, g, u = tensors(m=m, seed=turn)
        how = {"out": torch.full((m, N), 7.0).bfloat16()} if given_out else {}
        version = how["out"]._version if given_out else 0
        y = CALLS[name](x, g, u, **how)
        want = (x.float() @ g.float().T).bfloat16() if name == "gemm" else None
        assert torch.equal(y, want) if name == "gemm" else right(y, x, g, u)
        if given_out:
            assert y is how["out"] and y._version > version
        assert len(checked) == 1 and len(gpu) == turn + 1


def test_operators_know_their_calls_too(checked, gpu):
    for turn in range(2):
        x, g, u = tensors(seed=turn)
        assert right(torch.ops.cute_kernels.swiglu(x, g, u), x, g, u)
        assert right(torch.ops.cute_kernels.swiglu_interleaved(x, ck.interleave(g, u).tensor), x, g, u)
        assert torch.equal(torch.ops.cute_kernels.gemm(x, g), (x.float() @ g.float().T).bfloat16())
        assert len(checked) == 3


def test_leading_dimensions_and_slices_of_known_calls(checked):
    for turn in range(2):
        x, g, u = tensors(m=12, seed=turn)
        buffer = torch.full((12, 3 * N), 5.0).bfloat16()
        out = buffer[:, N : 2 * N]
        assert right(ck.swiglu(x, g, u, out=out), x, g, u)
        assert (buffer[:, :N] == 5).all() and (buffer[:, 2 * N :] == 5).all()
        y = ck.swiglu(x.view(3, 4, K), g, u)
        assert y.shape == (3, 4, N) and right(y, x, g, u)
        wide = torch.randn(12, 2 * K).bfloat16()
        assert right(ck.swiglu(wide[:, K:], g, u), wide[:, K:], g, u)
        assert len(checked) == 3


def test_biases_of_known_calls(checked):
    for turn in range(2):
        x, g, u = tensors(seed=turn)
        b, c = torch.randn(N), torch.randn(N)
        assert right(ck.swiglu(x, g, u, bias_gate=b, bias_up=c), x, g, u, bias_gate=b, bias_up=c)
        y = ck.swiglu_interleaved(x, ck.interleave(g, u), bias=ck.interleave(b, c))
        assert right(y, x, g, u, bias_gate=b, bias_up=c)
        assert len(checked) == 2
    ck.swiglu(x, g, u, bias_gate=b)
    with pytest.raises(ValueError, match="overlaps bias_up"):
        long = torch.zeros(M * N, dtype=torch.bfloat16)
        ck.swiglu(x, g, u, bias_gate=b.bfloat16(), bias_up=long[:N], out=long.view(M, N))


def test_what_differs_is_checked(checked):
    x, g, u = tensors()
    ck.swiglu(x, g, u)
    ck.swiglu(*tensors(m=M + 1))
    ck.swiglu(x.half(), g.half(), u.half())
    ck.swiglu(x, g, u, kernel="stacked")
    ck.swiglu(x, g, u, early_weights=True)
    ck.swiglu(x, g, u, config=registry.get("swiglu_stacked").configs[0])
    ck.swiglu(torch.randn(M, 2 * K).bfloat16()[:, :K], g, u)
    assert len(checked) == 7
    with pytest.raises(TypeError, match="early_weights"):
        ck.swiglu(x, g, u, early_weights=1)
    with pytest.raises(ValueError, match="activation"):
        ck.swiglu(x, g, u, activation=["swiglu"])
    with pytest.raises(ValueError, match="w_up has K"):
        ck.swiglu(x, g, u[:, :24].contiguous())


def test_addresses_are_looked_at_every_time(checked):
    x, g, u = tensors()
    memory = torch.empty(M * K + 8, dtype=torch.bfloat16)
    ck.swiglu(x, g, u)
    with pytest.raises(ValueError, match="aligned"):
        ck.swiglu(memory[1 : 1 + M * K].view(M, K), g, u)
    ck.swiglu(x, g, u, out=torch.empty(M, N).bfloat16())
    both = torch.empty(M * K, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="out overlaps x"):
        ck.swiglu(both.view(M, K), g, u, out=both[: M * N].view(M, N))
    beside = torch.empty(M, K + N, dtype=torch.bfloat16)  # one buffer, nothing shared
    for _ in range(2):
        beside.normal_()
        inside = beside[:, :K]
        assert right(ck.swiglu(inside, g, u, out=beside[:, K:]), inside, g, u)


def test_autograd_and_transforms_see_known_calls(gpu):
    x, g, u = tensors()
    ck.swiglu(x, g, u)
    g.requires_grad_()
    ck.swiglu(x, g, u).sum().backward()
    assert g.grad is not None
    with torch.no_grad():
        assert not ck.swiglu(x, g, u).requires_grad
    g = g.detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(ck.swiglu(dual, g, u)).tangent is not None
    both = torch.vmap(lambda one: ck.swiglu(one, g, u))(torch.stack([x, -x]))
    assert right(both[0], x, g, u) and right(both[1], -x, g, u)
    want = torch.func.grad(lambda one: ck.reference.eager(one, g, u).float().sum())(x)
    got = torch.func.grad(lambda one: ck.swiglu(one, g, u).float().sum())(x)
    assert (got - want).norm() < 0.01 * want.norm()
    for call in (lambda t: ck.gemm(t, g), lambda t: ck.swiglu(t, g, u, kernel="stacked")):
        with pytest.raises(ValueError, match=r"torch\.func\.grad, vjp"):
            torch.func.grad(lambda one, call=call: call(one).float().sum())(x)
    assert right(ck.swiglu(x, g, u), x, g, u)


def test_a_subclass_goes_the_long_way(checked):
    class Mine(torch.Tensor):
        pass

    x, g, u = tensors()
    ck.swiglu(x, g, u)
    ck.swiglu(x.as_subclass(Mine), g, u)
    assert len(checked) == 2


@pytest.mark.parametrize("known", [False, True])
def test_fake_tensors_and_modes_launch_nothing(known, gpu):
    from torch._subclasses import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    x, g, u = tensors()
    packed = ck.interleave(g, u)
    if known:
        ck.swiglu(x, g, u), ck.gemm(x, g), ck.swiglu_interleaved(x, packed)
    launched = len(gpu)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = ck.swiglu(x, g, u), ck.gemm(x, g), ck.swiglu_interleaved(x, packed)
        out = mode.from_tensor(torch.empty(M, N).bfloat16())
        assert ck.swiglu(mode.from_tensor(x), g, u, out=out) is out
    fakes = [mode.from_tensor(t) for t in (x, g, u)]
    made += ck.swiglu(*fakes), ck.gemm(*fakes[:2])  # the mode has ended, its tensors have no memory still
    assert {(type(y).__name__, y.shape, y.dtype) for y in made} == {("FakeTensor", (M, N), torch.bfloat16)}
    assert len(gpu) == launched
    with FlopCounterMode(display=False):
        assert right(ck.swiglu(x, g, u), x, g, u)
    assert len(gpu) == launched + 1


def test_disabled_forgets_what_is_known(gpu, monkeypatch):
    x, g, u = tensors()
    packed = ck.interleave(g, u)
    for _ in range(2):
        ck.swiglu(x, g, u), ck.gemm(x, g), ck.swiglu_interleaved(x, packed)
        torch.ops.cute_kernels.swiglu(x, g, u)
        torch.ops.cute_kernels.gemm(x, g)
        torch.ops.cute_kernels.swiglu_interleaved(x, packed.tensor)
        assert len(gpu) == 6
        monkeypatch.setattr(api, "DISABLED", True)
    ck.warmup(m=8, n=8, k=8)
    assert len(gpu) == 6


def test_plans_do_not_grow_without_end(gpu, monkeypatch):
    monkeypatch.setattr(plans, "MOST", 3)
    for m in range(1, 9):
        ck.swiglu(*tensors(m=m))
        assert len(plans._plans) <= 3
    assert [key[6] for key in plans._plans] == [
        (6, K),
        (7, K),
        (8, K),
    ]  # x's shape behind the six options: the last ones stay


def test_threads_share_plans(gpu):
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        x, g, u = tensors(m=1 + seed % 5, seed=seed)
        return right(ck.swiglu(x, g, u), x, g, u)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_an_inference_tensor_is_no_out(gpu):
    x, g, u = (torch.randn(n, 64).to(torch.bfloat16) for n in (8, 24, 24))
    with torch.inference_mode():
        out = x.new_zeros(8, 24)
        ck.swiglu(x, g, u, out=out)
    before = out.clone()
    for _ in range(2):
        with pytest.raises(ValueError, match="inference_mode"):
            ck.swiglu(x, g, u, out=out)
    assert torch.equal(out, before)
