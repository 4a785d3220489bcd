"""Error contracts and dispatch of the public functions, on CPU tensors that pass for CUDA ones: nothing is launched."""

import functools
import re

import pytest
import torch

import cute_kernels as ck
from cute_kernels import api, device, launch, registry, unfused
from cute_kernels import epilogue as ep
from cute_kernels.hopper import activation, gated

BF16 = torch.bfloat16


@pytest.fixture
def launches(monkeypatch, hopper):
    """Launches are recorded instead of made."""
    seen = []
    monkeypatch.setattr(
        launch, "launch", lambda name, a, w, out, config, *more: seen.append((name, a, w, out, config, *more))
    )
    return seen


def cuda(*shape, dtype=BF16):
    return torch.zeros(*shape, dtype=dtype)


def mlp(m=128, n=256, k=64, **more):
    return cuda(m, k, **more), cuda(n, k, **more), cuda(n, k, **more)


def fails(kind, *words):
    return pytest.raises(kind, match=".*".join(map(re.escape, words)))


def test_accepts_and_picks(launches):
    x, g, u = mlp()
    out = ck.swiglu(x, g, u)
    assert (out.shape, out.dtype, out.device) == ((128, 256), BF16, x.device)
    assert launches[-1][0] == "swiglu_stacked" and launches[-1][2] == (g, u)  # gate first
    assert ck.gemm(x, g).shape == (128, 256) and launches[-1][0] == "gemm"


def test_leading_dimensions_are_flattened_not_copied(launches):
    x, g, u = cuda(2, 3, 50, 64), cuda(256, 64), cuda(256, 64)
    assert ck.swiglu(x, g, u).shape == (2, 3, 50, 256)
    assert launches[-1][1].shape == (300, 64) and launches[-1][3].shape == (300, 256)
    with fails(ValueError, "x", "flattened", "contiguous()"):
        ck.swiglu(x.transpose(0, 1), g, u, kernel="stacked")


def test_cpu_tensors():
    x = torch.zeros(128, 64, dtype=BF16)
    with fails(ValueError, "x is on cpu", "CUDA", "kernel='torch'"):
        ck.swiglu(x, x, x)
    with fails(ValueError, "a is on cpu"):
        ck.gemm(x, x)


@pytest.mark.parametrize("kernel", ["auto", "stacked"])
def test_bad_arguments(launches, kernel):
    x, g, u = mlp()

    def call(*args, **more):
        return ck.swiglu(*args, kernel=kernel, **more)

    with fails(TypeError, "x is a list"):
        call([1], g, u)
    with fails(TypeError, "x is float32", "bfloat16 or float16"):
        call(*mlp(dtype=torch.float32))
    with fails(TypeError, "w_up is float16", "x is bfloat16"):
        call(x, g, u.to(torch.float16))
    with fails(ValueError, "w_gate has K = 72 columns", "x has K = 64"):
        call(x, cuda(256, 72), u)
    with fails(ValueError, "w_gate has K = 256", "w_gate.T would fit", "nn.Linear"):
        call(x, cuda(64, 256), cuda(64, 256))
    with fails(ValueError, "w_up has N = 128", "w_gate has N = 256"):
        call(x, g, cuda(128, 64))
    with fails(ValueError, "w_up is on meta"):
        call(x, g, u.to("meta"))
    with fails(ValueError, "w_gate has strides (1, 256)", "last dimension must be contiguous"):
        call(x, cuda(64, 256).T, u)
    with fails(ValueError, "x has strides", "last dimension"):
        call(cuda(64, 128).T, g, u)
    with fails(ValueError, "K is 60, must be a multiple of 8"):
        call(*mlp(k=60))
    with fails(ValueError, "N is 250, must be a multiple of 8"):
        call(*mlp(n=250))
    with fails(ValueError, "row pitch of 68", "multiple of 8"):
        call(cuda(128, 68)[:, :64], g, u)
    with fails(ValueError, "x starts at an address", "2 bytes past", "clone()"):
        call(cuda(128 * 64 + 1)[1:].view(128, 64), g, u)
    with fails(ValueError, "x has strides (0, 1)", "rows overlap"):
        call(cuda(1, 64).expand(128, 64), g, u)
    with fails(ValueError, "must be (..., K)"):
        call(cuda(64), g, u)
    with fails(ValueError, "w_gate has shape (64,)"):
        call(x, cuda(64), u)
    assert not launches
    assert call(x, g, u).shape == (128, 256)  # a normal call works afterwards


def test_out(launches):
    x, g, u = mlp()
    buffer = cuda(128, 512)
    view = buffer[:, 128:384]
    assert ck.swiglu(x, g, u, out=view) is view
    assert launches[-1][3].stride() == (512, 1) and launches[-1][3].storage_offset() == 128
    for bad, words in (
        (cuda(128, 255), "out has shape"),
        (cuda(256, 128).T, "last dimension must be contiguous"),
        (cuda(128, 260)[:, :256], "row pitch of 260"),
        (buffer.view(-1)[4 : 4 + 128 * 256].view(128, 256), "8 bytes past"),
    ):
        with fails(ValueError, words):
            ck.swiglu(x, g, u, out=bad)
    with fails(TypeError, "out is float32"):
        ck.swiglu(x, g, u, out=cuda(128, 256, dtype=torch.float32))


def test_out_must_not_overlap(launches):
    w = cuda(64, 64)
    buffer = cuda(128, 128)
    with fails(ValueError, "out overlaps a"):
        ck.gemm(buffer[:, :64], w, out=buffer[:, :64])
    with fails(ValueError, "out overlaps a"):
        ck.gemm(buffer[:, :64], w, out=buffer[:, 32:96])
    assert ck.gemm(buffer[:, :64], w, out=buffer[:, 64:]) is not None  # columns of one buffer, no element shared


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64)])
def test_no_rows_no_launch(launches, shape):
    x, g, u = cuda(*shape), cuda(256, 64), cuda(256, 64)
    assert ck.swiglu(x, g, u, kernel="stacked").shape == (*shape[:-1], 256)
    assert ck.gemm(x, g).shape == (*shape[:-1], 256)
    assert not launches


def test_one_row_with_an_odd_pitch(launches):
    x = torch.empty_strided((1, 64), (3, 1), dtype=BF16)
    assert ck.gemm(x, cuda(256, 64)).shape == (1, 256)
    assert launches[-1][1].stride() == (64, 1)


def test_no_columns_of_k_gives_zeros(launches):
    """The epilogue of nothing may not be zero (a bias): one k-tile of zeros is launched."""
    ck.gemm(cuda(4, 0), cuda(8, 0))
    ck.swiglu(cuda(4, 0), cuda(8, 0), cuda(8, 0))
    ck.swiglu_interleaved(cuda(4, 0), ck.interleave(cuda(8, 0), cuda(8, 0)))
    for (_, a, weights, out, *_), rows in zip(launches, (8, 8, 16), strict=True):
        assert a.shape == (4, 8) and not a.any() and out.shape == (4, 8)
        assert all(w.shape == (rows, 8) and not w.any() for w in weights)


def test_gradients(launches):
    x, g, u = mlp()
    g.requires_grad_()
    for call in (ck.gemm, ck.swiglu):
        operands = (x, g) if call is ck.gemm else (x, g, u)
        assert call(*operands).requires_grad
        with fails(ValueError, "requires grad", "out=", "no_grad"):
            call(*operands, out=cuda(128, 256))
    with fails(ValueError, "requires grad", "no_grad"):
        ck.gemm(x, g, epilogue=ep.relu(ep.acc))
    with torch.no_grad():
        assert not ck.swiglu(x, g, u, kernel="stacked").requires_grad
    assert len(launches) == 3


def test_auto_keeps_pytorch_where_it_is_faster(launches, monkeypatch):
    monkeypatch.setattr(unfused, "swiglu", lambda *args: None)
    for fused in (True, False):
        launches.clear()
        monkeypatch.setattr(
            launch, "_prefers_fused", lambda m, n, k, sms, fused=fused: fused and (m, n, k) == (32, 256, 64)
        )
        ck.swiglu(*mlp(32))
        assert bool(launches) is fused
    with fails(ValueError, "kernel is 'fast'", "'stacked'"):
        ck.swiglu(*mlp(), kernel="fast")


def test_torch_path_runs_anywhere_and_gates_the_gate():
    x = torch.tensor([[1.0]])
    got = ck.swiglu(x, torch.tensor([[-2.0]]), torch.tensor([[5.0]]), kernel="torch")
    assert got.item() == pytest.approx(-1.192029, abs=1e-5)  # silu(-2) * 5, not silu(5) * -2 = -9.93
    assert ck.reference.swiglu(x, torch.tensor([[-2.0]]), torch.tensor([[5.0]])).item() == pytest.approx(
        -1.192029, abs=1e-5
    )


def test_foreign_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *a: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(api, "DEVICE", "cpu")
    monkeypatch.setattr(device, "index_of", lambda where: 0)
    device.forget()
    with fails(ck.UnsupportedDevice, "8.9", "kernel='torch'"):
        ck.swiglu(*mlp(), kernel="stacked")
    device.forget()


def test_first_call_inside_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    spec = ck.kernels()[0]
    with fails(RuntimeError, "CUDA graph", "warmup"):
        launch.load(("gemm", spec.configs[0], BF16, 0, launch.PLAIN), torch.device("cuda:0"))


def test_config_is_checked():
    spec = ck.kernels()[1]
    for config, kind, words in (
        (spec.configs[0].with_(stages=9), ck.ConfigError, "needs 328704 bytes of shared memory, 232448 are available"),
        (spec.configs[0].with_(tile_n=256), ck.ConfigError, "at most 256 columns"),
        (spec.configs[0].with_(cluster=(4, 1)), ck.ConfigError, "cluster is (4, 1)"),
        ({"tile_m": 64}, TypeError, "config is a dict"),
        (spec.configs[0].with_(group=1 << 30), ck.ConfigError, "group is 1073741824, must be 1 to 4096"),
        (spec.configs[0].with_(schedule="both"), ck.ConfigError, "schedule is 'both'"),
    ):
        with fails(kind, words):
            spec.check(config)


def test_configurations_of_wrong_types_cannot_be_made():
    """6.0 equals 6, and would find what was compiled for 6."""
    for field, value, words in (
        ("cluster", [2, 1], "cluster is [2, 1], must be a tuple of two ints"),
        ("cluster", (2, 1, 1), "cluster is (2, 1, 1)"),
        ("cluster", (True, 1), "cluster is (True, 1)"),
        ("stages", 4.0, "stages is 4.0, must be an int"),
        ("tile_m", "128", "tile_m is '128', must be an int"),
    ):
        for spec in ck.kernels():
            with fails(ck.ConfigError, words):
                spec.configs[0].with_(**{field: value})


def test_out_obeys_the_same_rules_under_torch():
    """What "auto" picks must not decide whether an out= is an error."""
    x, g, u = mlp()
    call = functools.partial(ck.swiglu, x, g, u, kernel="torch")
    for out in (torch.zeros(9999, dtype=BF16).as_strided((128, 256), (8, 1)), cuda(256, 128).T, cuda(128, 512)[:, ::2]):
        with fails(ValueError, "out has strides"):
            call(out=out)
    with fails(ValueError, "out has shape (2, 64, 256) and strides (256, 512, 1)"):
        ck.swiglu(x.view(2, 64, 64), g, u, kernel="torch", out=cuda(64, 2, 256).transpose(0, 1))
    with fails(ValueError, "w_gate is on meta"):
        ck.swiglu(x, g.to("meta"), u, kernel="torch")
    with fails(ValueError, "w_gate has K = 64 columns, x has K = 56"):
        ck.swiglu(x[:, :56], g, u, kernel="torch")
    with fails(ValueError, "requires grad"):
        ck.swiglu(x, g.clone().requires_grad_(), u, kernel="torch", out=cuda(128, 256))
    assert ck.swiglu(*(t.to("meta") for t in (x, g, u)), kernel="torch").shape == (128, 256)
    out = cuda(128, 256)
    assert call(out=out) is out
    with fails(ValueError, "out has shape (1, 256), must be (128, 256)"):
        call(out=cuda(1, 256))
    with fails(ValueError, "out has shape (3, 128, 256)"):
        call(out=cuda(3, 128, 256))
    with fails(TypeError, "out is float32", "x is bfloat16"):
        call(out=cuda(128, 256, dtype=torch.float32))
    with fails(TypeError, "out is a int"):
        call(out=3)
    with fails(ValueError, "w_gate has shape (256, 64), w_up has (128, 64)"):
        ck.swiglu(x, g, cuda(128, 64), kernel="torch")
    buffer = cuda(128, 512)
    args = buffer[:, :64], cuda(256, 64), cuda(256, 64)
    with fails(ValueError, "out overlaps x"):
        ck.swiglu(*args, kernel="torch", out=buffer[:, 32:288])
    assert ck.swiglu(*args, kernel="torch", out=buffer[:, 64:320]).shape == (128, 256)
    with fails(TypeError, "w_up is float16, x is bfloat16"):
        ck.swiglu(x, g, u.half(), kernel="torch")
    with torch.autocast(x.device.type, dtype=torch.bfloat16):  # which makes them equal
        assert ck.swiglu(x.float(), g, u.half(), kernel="torch").dtype == torch.bfloat16


def test_out_obeys_the_same_rules_when_disabled(monkeypatch):
    monkeypatch.setattr(api, "DISABLED", True)
    a, b = cuda(6, 64), cuda(24, 64)
    out = cuda(6, 24)
    assert ck.gemm(a, b, out=out) is out
    for shape in ((3, 6, 24), (1, 24), (24, 6)):
        with fails(ValueError, f"out has shape {shape}, must be (6, 24)"):
            ck.gemm(a, b, out=cuda(*shape))
    with fails(TypeError, "out is a int"):
        ck.gemm(a, b, out=3)
    with fails(TypeError, "out is bfloat16, out_dtype is float32"):
        ck.gemm(a, b, out=out, out_dtype=torch.float32)
    with fails(ValueError, "b has shape (64,), must be (N, K)"):
        ck.gemm(a, b[0])
    buffer = cuda(6, 88)
    with fails(ValueError, "out overlaps a"):
        ck.gemm(buffer[:, :64], b, out=buffer[:, 63:87])
    assert ck.gemm(buffer[:, :64], b, out=buffer[:, 64:], epilogue=ep.relu(ep.acc)).shape == (6, 24)
    with fails(ValueError, "out has shape (3, 6, 24), must be (6, 24)"):
        ck.swiglu(a, b, b, out=cuda(3, 6, 24))
    with fails(ValueError, "out has strides"):
        ck.gemm(a, b, out=cuda(24, 6).T)
    leaf = a.clone().requires_grad_()
    for call in (functools.partial(ck.gemm, leaf, b), functools.partial(ck.swiglu, leaf, b, b)):
        with fails(ValueError, "requires grad"):
            call(out=cuda(6, 24))
        assert call().shape == (6, 24)


def test_options_obey_the_same_rules_when_disabled(monkeypatch):
    monkeypatch.setattr(api, "DISABLED", True)
    a, b = cuda(6, 64), cuda(24, 64)
    for epilogue, words in (
        (ep.acc + ep.load(cuda(3, 6, 24)), "load(...) has shape (3, 6, 24), must be (6, 24)"),
        (ep.acc + ep.row(cuda(1)), "row(...) has shape (1,), must be (24,)"),
        (ep.acc * ep.column(cuda(24)), "column(...) has shape (24,), must be (6,)"),
    ):
        with fails(ValueError, words):
            ck.gemm(a, b, epilogue=epilogue)
    with fails(TypeError, "row(...) is int32"):
        ck.gemm(a, b, epilogue=ep.acc + ep.row(cuda(24, dtype=torch.int32)))
    with fails(TypeError, "out_dtype is torch.int32"):
        ck.gemm(a, b, out_dtype=torch.int32)
    with fails(ValueError, "b has K = 64 columns, a has K = 56"):
        ck.gemm(a[:, :56], b)
    for call in (
        functools.partial(ck.gemm, a, b),
        functools.partial(ck.swiglu, a, b, b),
        functools.partial(ck.swiglu_interleaved, a, ck.interleave(b, b)),
    ):
        with pytest.raises((TypeError, ValueError), match="config"):
            call(config="nonsense")
        assert call().shape == (6, 24)
    for name in ("gemm", "swiglu_stacked", "swiglu_pingpong"):
        call = functools.partial(ck.gemm, a, b) if name == "gemm" else functools.partial(ck.swiglu, a, b, b)
        assert call(config=registry.get(name).configs[-1]).shape == (6, 24)


def test_a_traced_call_compares_no_addresses():
    """A FakeTensor has none, and Dynamo would break the graph to ask."""
    x, g, u = mlp()
    into = torch.compile(
        lambda x, g, u, out: ck.swiglu(x, g, u, out=out, kernel="torch"), fullgraph=True, backend="eager"
    )
    out = torch.empty_like(x @ g.T)
    assert torch.equal(into(x, g, u, out), ck.swiglu(x, g, u, kernel="torch"))
    mode = torch._subclasses.FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (x, g, u, out)]
    assert ck.swiglu(*fakes[:3], out=fakes[3], kernel="torch") is fakes[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_warmup_without_a_gpu():
    with fails(ck.UnsupportedDevice, "no CUDA GPU"):
        ck.warmup(m=16, n=64, k=64)


def test_warmup_is_checked_as_a_call_is():
    for kind, words, given in (
        (TypeError, "n is 'a', must be an int", {"n": "a"}),
        (TypeError, "m is True", {"m": True}),
        (ValueError, "k is 60, must be positive and a multiple of 8", {"k": 60}),
        (ValueError, "m is 0, must be positive", {"m": 0}),
        (ValueError, "kernel is 'stacked', allowed: 'gemm'", {"kernel": "stacked"}),
        (TypeError, "dtype is torch.float32, must be torch.bfloat16", {"dtype": torch.float32}),
    ):
        with fails(kind, words):
            ck.warmup(**{"m": 16, "n": 64, "k": 64, **given})


@pytest.mark.parametrize("m", [4, 64])
def test_few_rows_change_no_rule(launches, monkeypatch, m):
    """Where "auto" runs PyTorch, that would take anything; what is an error must not depend on M."""
    monkeypatch.setattr(launch, "_prefers_fused", lambda m, n, k, sms: m > 32)
    n, k = 8192, 8192
    w = torch.empty(n, k, dtype=BF16)
    x = cuda(m, k)
    with fails(ValueError, "N is 8190"):
        ck.swiglu(x, w[:8190], w[:8190])
    with fails(ValueError, "last dimension must be contiguous"):
        ck.swiglu(x, w.T, w.T)
    with fails(ValueError, "last dimension must be contiguous"):
        ck.swiglu(x, w, w, out=cuda(n, m).T)
    with fails(TypeError, "out is float32"):
        ck.swiglu(x, w, w, out=cuda(m, n, dtype=torch.float32))


def test_forward_mode_and_lazy_negation(launches):
    x, g, u = mlp()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        for call in (
            lambda: ck.gemm(dual, g),
            lambda: ck.swiglu(dual, g, u, kernel="stacked"),
            lambda: ck.swiglu_interleaved(dual, ck.interleave(g, u)),
            lambda: torch.ops.cute_kernels.gemm(dual, g),
            lambda: torch.ops.cute_kernels.swiglu(dual, g, u, fallback=True),
        ):
            with fails(ValueError, "carries a tangent", "forward-mode"):
                call()
        assert torch.autograd.forward_ad.unpack_dual(ck.swiglu(dual, g, u)).tangent is not None and not launches
    with fails(ValueError, "resolve_neg"):
        ck.gemm(torch._neg_view(x), g)


def test_jvp_goes_to_pytorch_or_raises(hopper):
    x, g, u = (torch.randn(t.shape).to(BF16) for t in mlp(5, 48, 32))
    v = torch.randn_like(x)
    want = torch.func.jvp(lambda x: ck.reference.eager(x, g, u), (x,), (v,))[1]
    mlp_ = ck.SwiGLU.from_linear(*(torch.nn.utils.skip_init(torch.nn.Linear, 32, 48, bias=False) for _ in "gu"))
    mlp_.gate_proj.weight, mlp_.up_proj.weight = (torch.nn.Parameter(w, requires_grad=False) for w in (g, u))
    for call in (lambda x: ck.swiglu(x, g, u), mlp_):
        got = torch.func.jvp(call, (x,), (v,))[1]
        assert (got - want).norm() < 0.01 * want.norm()
    for call in (
        lambda x: ck.gemm(x, g),
        lambda x: ck.swiglu(x, g, u, kernel="stacked"),
        lambda x: ck.swiglu_interleaved(x, ck.interleave(g, u)),
    ):
        with fails(ValueError, "carries a tangent"):
            torch.func.jvp(call, (x,), (v,))


def test_torch_kernel_names_what_is_no_matrix():
    x, g, u = mlp()
    with fails(TypeError, "x is a NoneType"):
        ck.swiglu(None, g, u, kernel="torch")
    with fails(ValueError, "w_up has shape ()"):
        ck.swiglu(x, g, torch.zeros((), dtype=BF16), kernel="torch")


def test_the_way_to_pytorch_adds_no_copy(launches, monkeypatch):
    seen = []
    monkeypatch.setattr(unfused, "swiglu", lambda *args: seen.append(args))
    monkeypatch.setattr(launch, "_prefers_fused", lambda *shape: False)
    x, w = cuda(4, 8192), torch.empty(8192, 8192, dtype=BF16)
    ck.swiglu(x, w, w)
    assert seen == [(x, w, w, None, "swiglu", None, None)] and not launches


@pytest.mark.parametrize("way", ["mode", "compile"])
def test_out_under_a_mode_or_a_tracer(launches, way):
    """Where PyTorch has to see operators, an out= is judged by what can be seen there."""
    from torch.utils.flop_counter import FlopCounterMode

    x, g, u = mlp(5, 48, 32)

    def call(how, out):
        with FlopCounterMode(display=False):
            return how(out)

    for how in (
        lambda out: ck.gemm(x, g, out=out),
        lambda out: ck.swiglu(x, g, u, out=out),
        lambda out: ck.swiglu_interleaved(x, ck.interleave(g, u), out=out),
    ):
        for out, kind in ((cuda(3, 5, 48), ValueError), (cuda(5, 48, dtype=torch.float32), TypeError)):
            if kind is TypeError and "gemm" in how.__code__.co_names:
                continue  # which takes any dtype of out
            if way == "compile":
                with pytest.raises(Exception, match=r"out has shape|out is float32"):
                    torch.compile(how, backend="eager", fullgraph=True)(out)
            else:
                with pytest.raises(kind, match=r"out has shape|out is float32"):
                    call(how, out)
    if way == "mode":
        with fails(ValueError, "out overlaps x"):
            call(lambda out: ck.swiglu(x, cuda(32, 32), cuda(32, 32), out=x), None)


def test_gated_family(launches):
    x, g, u = mlp()
    with fails(ValueError, "activation is 'swish', allowed: 'swiglu', 'geglu'"):
        ck.swiglu(x, g, u, activation="swish")
    assert set(activation.GATED) == set(ck.reference.GATED)
    bias = torch.zeros(256)
    ck.swiglu(x, g, u, activation="geglu", bias_up=bias)
    name, _, _, _, _, variant, operands = launches[-1]
    assert name == "swiglu_stacked" and operands == (bias,)
    assert variant.tree == gated.stacked("geglu", (None, "float32"))
    ck.swiglu(x, g, u, kernel="pingpong")
    assert launches[-1][0] == "swiglu_pingpong" and launches[-1][5].tree is None
    config = registry.get("swiglu_pingpong").configs[1]
    ck.swiglu(x, g, u, config=config)  # a configuration says which kernel it is for
    assert launches[-1][0] == "swiglu_pingpong" and launches[-1][4] is config
    with fails(TypeError, "config is a TwoLoopConfig, kernel 'swiglu_stacked' takes a TileConfig"):
        registry.get("swiglu_stacked").check(config)
    with fails(TypeError, "config is a TileConfig, kernel 'swiglu_pingpong' takes a TwoLoopConfig"):
        registry.get("swiglu_pingpong").check(ck.TileConfig())
    ck.swiglu(x, g, u, kernel="stacked", config=config)  # refused when it is loaded
    assert launches[-1][0] == "swiglu_stacked"
    ck.swiglu(x, g, u, early_weights=True)
    assert launches[-1][5].early_weights
    for t, words in (
        (cuda(128), "bias_gate has shape (128,), must be (256,)"),
        (cuda(512)[::2], "bias_gate has stride 2"),
        (cuda(257)[1:], "bias_gate starts at an address"),
    ):
        with fails(ValueError, words):
            ck.swiglu(x, g, u, bias_gate=t, kernel="stacked")
    with fails(TypeError, "bias_up is float64"):
        ck.swiglu(x, g, u, bias_up=torch.zeros(256).double())
    with fails(ValueError, "bias_up has shape (3,), must be (256,)"):
        ck.swiglu(x, g, u, bias_up=torch.zeros(3), kernel="torch")
    assert ck.swiglu(x, g, u, bias_gate=cuda(256).requires_grad_()).requires_grad


def test_interleaved(launches):
    x, g, u = mlp()
    w = ck.interleave(g, u)
    assert ck.swiglu_interleaved(x, w).shape == (128, 256)
    assert launches[-1][0] == "swiglu_interleaved" and launches[-1][2] == (w.tensor,)
    with fails(TypeError, "w is a Tensor, must be an Interleaved", "Interleaved.wrap(w)"):
        ck.swiglu_interleaved(x, w.tensor)
    with fails(ValueError, "w has K = 72 columns, x has K = 64"):
        ck.swiglu_interleaved(x, ck.interleave(cuda(256, 72), cuda(256, 72)))
    with fails(ValueError, "N is 4, must be a multiple of 8"):
        ck.swiglu_interleaved(x, ck.interleave(cuda(4, 64), cuda(4, 64)))
    bias = ck.interleave(torch.zeros(256), torch.ones(256))
    ck.swiglu_interleaved(x, w, bias=bias, activation="swiglu_oai")
    assert launches[-1][5].tree == gated.paired("swiglu_oai", "float32") and launches[-1][6] == (bias.tensor,)
    ck.swiglu(x, g, u, kernel="interleaved", bias_up=torch.ones(256))
    assert launches[-1][0] == "swiglu_interleaved" and torch.equal(launches[-1][6][0], bias.tensor)


def test_torch_kernel_of_the_family():
    torch.manual_seed(0)
    x, g, u = torch.randn(5, 8), torch.randn(16, 8), torch.randn(16, 8)
    named = {"bias_gate": torch.randn(16), "bias_up": torch.randn(16)}
    for name in ck.reference.GATED:
        got = ck.swiglu(4 * x, g, u, kernel="torch", activation=name, **named)
        want = ck.reference.swiglu(4 * x, g, u, torch.float64, activation=name, **named)
        assert (got - want).norm() / want.norm() < 1e-5, name


def test_epilogue_operands_obey_the_same_rules(launches):
    a, b, bias = cuda(16, 64), cuda(256, 64), cuda(256)
    with fails(ValueError, "epilogue row(...) requires grad", "no_grad"):
        ck.gemm(a, b, epilogue=ep.acc + ep.row(bias.clone().requires_grad_()))
    with fails(ValueError, "epilogue load(...) requires grad"):
        ck.gemm(a, b, epilogue=ep.acc + ep.load(cuda(16, 256).requires_grad_()))
    with fails(ValueError, "epilogue row(...) is a view that PyTorch negates lazily"):
        ck.gemm(a, b, epilogue=ep.acc + ep.row(torch._neg_view(bias)))
    with fails(ValueError, "out is a view that PyTorch negates lazily"):
        ck.gemm(a, b, out=torch._neg_view(cuda(16, 256)))
    assert not launches
    ck.gemm(cuda(1, 64), b, epilogue=ep.acc * ep.column(cuda(1, 64)[:, 0]))  # one value: its stride means nothing
    assert launches[-1][6][0].stride() == (1,)
    for shape in ((3, 0, 64), (0, 64)):
        assert ck.gemm(cuda(*shape), b, epilogue=ep.acc * 2).shape == (*shape[:-1], 256)
    with torch.no_grad():
        ck.gemm(a, b, epilogue=ep.acc + ep.row(bias.clone().requires_grad_()))


def test_autograd_hears_that_out_has_changed(launches):
    a, g, u = mlp()
    for call in (lambda out: ck.gemm(a, g, out=out), lambda out: ck.swiglu(a, g, u, out=out, kernel="stacked")):
        out = cuda(128, 256)
        before = out._version
        call(out)
        assert out._version > before


def test_hints_of_transposed_operands_name_what_to_copy(launches):
    b = cuda(64, 64)
    with fails(ValueError, "a.T has a row pitch of 68", "pass a.contiguous()"):
        ck.gemm(cuda(64, 68)[:, :64].T, b)
    with fails(ValueError, "a.T starts at an address", "pass a.clone()"):
        ck.gemm(cuda(64 * 64 + 1)[1:].view(64, 64).T, b)


def test_one_line_of_a_transposed_operand_gets_a_legal_pitch(launches):
    ck.gemm(cuda(1, 5).T, cuda(1, 8).T)
    _, a, (b,), *_ = launches[-1]
    assert a.stride() == (1, 8) and b.stride() == (1, 8)


def test_a_configuration_is_checked_though_nothing_is_launched(launches):
    with fails(TypeError, "config is a str"):
        ck.gemm(cuda(0, 64), cuda(256, 64), config="x")
    with fails(TypeError, "a is torch.sparse_coo"):
        ck.gemm(cuda(16, 64).to_sparse(), cuda(256, 64))
    with fails(TypeError, "out_dtype is 'float32', must be torch.bfloat16"):
        ck.gemm(cuda(16, 64), cuda(256, 64), out_dtype="float32")
    with fails(TypeError, "a is float64, must be bfloat16"):
        ck.gemm(cuda(16, 64).double(), cuda(256, 64))


def test_early_weights_are_never_those_that_the_call_writes(launches):
    """Packing, and the zeros that stand for K = 0, are written by the kernel ahead."""
    x, g, u = mlp()
    with fails(ValueError, "early_weights is True, but kernel='interleaved' packs"):
        ck.swiglu(x, g, u, kernel="interleaved", early_weights=True)
    with fails(ValueError, "early_weights is True, but kernel='torch' has none"):
        ck.swiglu(x, g, u, kernel="torch", early_weights=True)

    def pack(**more):
        return ck.swiglu_interleaved(x, ck.interleave(g, u), **more)

    for wrong in ("no", 1, [], None):
        with fails(TypeError, "early_weights is", "must be True or False"):
            ck.swiglu(x, g, u, early_weights=wrong)
        with fails(TypeError, "early_weights is", "must be True or False"):
            pack(early_weights=wrong)
    none = cuda(4, 0), cuda(8, 0), cuda(8, 0)
    ck.swiglu(*none, early_weights=True)
    ck.swiglu_interleaved(none[0], ck.interleave(*none[1:]), early_weights=True)
    assert [seen[5].early_weights for seen in launches] == [False, False]
    pack(early_weights=True)
    assert launches[-1][5].early_weights


def test_packed_biases_of_two_dtypes(launches):
    x, g, u = mlp()
    ck.swiglu(x, g, u, kernel="interleaved", bias_gate=cuda(256), bias_up=torch.zeros(256))
    assert launches[-1][6][0].dtype == torch.float32
    with fails(ValueError, "bias_gate has shape (128,), must be (256,)"):
        ck.swiglu(x, g, u, kernel="interleaved", bias_gate=cuda(128))


def test_wrong_things_have_names(launches):
    x, g, u = mlp()
    with fails(TypeError, "w_gate is a NoneType"):
        ck.swiglu(x, None, u, kernel="torch", bias_gate=cuda(256))
    for wrong in (["swiglu"], None):
        with fails(ValueError, "activation is"):
            ck.swiglu(x, g, u, activation=wrong)
        with fails(ValueError, "kernel is"):
            ck.swiglu(x, g, u, kernel=wrong)
    out = cuda(128, 256)
    with fails(ValueError, "out overlaps bias_up"):
        ck.swiglu(x, g, u, kernel="torch", out=out, bias_up=out[0])


def test_no_rows_are_no_reason_to_accept_anything(launches):
    """What is wrong with M rows is wrong with none."""
    a, b = cuda(0, 64), cuda(256, 64)
    with fails(TypeError, "epilogue"):
        ck.gemm(a, b, epilogue="junk")
    with fails(ValueError, "b starts at an address"):
        ck.gemm(a, cuda(256 * 64 + 1)[1:].view(256, 64))
    with fails(ValueError, "epilogue row(...) has shape (3,)"):
        ck.gemm(a, b, epilogue=ep.acc + ep.row(cuda(3)))
    for lead in ((0,), (0, 3), (2, 0)):
        residual = cuda(*lead, 256)
        got = ck.gemm(cuda(*lead, 64), b, epilogue=ep.acc + ep.row(cuda(256)) + ep.load(residual))
        assert got.shape == residual.shape
    assert not launches
