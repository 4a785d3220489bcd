"""What holds at every entry, on CPU tensors that pass for a GPU's: functions, operators, modules, rewritten models."""

import pytest
import torch
from entries import CALLS, ENTRIES, FUSED, MODULES, OPS, TORCH, odd_strides
from test_ops import rel

import cute_kernels as ck
from cute_kernels import api, device, fusion, launch, plans, reference
from cute_kernels import epilogue as ep

BF16 = torch.bfloat16
M, N, K = 6, 24, 16


def operands(m=M, n=N, k=K, dtype=BF16):
    shapes = ((m, k) if isinstance(m, int) else (*m, k)), (n, k), (n, k)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def right(y, x, gate, up):
    want = reference.swiglu(x.reshape(-1, x.shape[-1]), gate, up)
    return y.dtype == x.dtype and y.shape == (*x.shape[:-1], gate.shape[0]) and rel(y.flatten(), want.flatten()) < 0.01


@pytest.mark.parametrize("name", ENTRIES)
def test_the_activation_is_the_gates(gpu, name):
    x, gate, up = torch.ones(M, K).to(BF16), *(torch.full((N, K), v / K).to(BF16) for v in (-2, 5))
    y = ENTRIES[name](x, gate, up).float()
    assert ((y + 1.192).abs() < 0.01).all(), y  # silu(-2) * 5; silu(5) * -2 is -9.93
    assert bool(gpu) == (name != "torch")
    given = operands()
    assert right(ENTRIES[name](*given), *given)


@pytest.mark.parametrize("name", ENTRIES)
def test_disabled_entries_launch_nothing(gpu, monkeypatch, name):
    monkeypatch.setattr(api, "DISABLED", True)
    given = operands()
    with ck.count_compiles() as inside:
        assert right(ENTRIES[name](*given), *given)
    assert not gpu and not inside


@pytest.mark.parametrize("name", ENTRIES)
def test_without_a_gpu(name):
    """No fixture: the tensors are on the CPU, and said to be."""
    given = operands()
    if name in CALLS:
        with pytest.raises(ValueError, match="x is on cpu, must be on a CUDA device"):
            CALLS[name](*given)
    else:
        assert right(ENTRIES[name](*given), *given)
    assert right(TORCH(*given), *given)


@pytest.fixture
def foreign(request, monkeypatch):
    """CPU tensors pass for those of a GPU of this compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: request.param)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *a: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "index_of", lambda where: 0)
    monkeypatch.setattr(api, "DEVICE", "cpu")
    device.forget()
    yield request.param
    device.forget()


@pytest.mark.parametrize("foreign", [(8, 0), (8, 9), (10, 0), (10, 3), (12, 0), (12, 1)], indirect=True)
def test_other_architectures(foreign):
    """Calls say which GPU it is and what is supported, modules run PyTorch's kernels."""
    given = operands()
    words = r"compiles for sm_100a.*sm_90a" if foreign[0] == 10 else rf"NVIDIA Test has .* {foreign[0]}\.{foreign[1]};"
    for call in CALLS.values():
        with pytest.raises(ck.UnsupportedDevice, match=words + r".*kernel='torch'"):
            call(*given)
    with pytest.raises(ck.UnsupportedDevice, match=words):
        ck.gemm(*given[:2])
    for name in set(MODULES) - {"fuse_compiled"}:
        assert right(MODULES[name](*given), *given), name
    assert right(TORCH(*given), *given)

    def leaf(value):
        node = graph.placeholder("t")
        node.meta["example_value"] = value
        return node

    graph = torch.fx.Graph()
    x, *weights = map(leaf, given)
    gate, up = (graph.call_function(torch.nn.functional.linear, (x, w)) for w in weights)
    for node in (gate, up):
        node.meta["example_value"] = given[0].new_empty(M, N)
    match = type("Match", (), {"kwargs": {"gate": gate, "up": up}})
    assert not fusion._is_gated(match)  # what torch.compile makes of it stays PyTorch's


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("m", [0, 1, 2, 63, (0, 3), (2, 0), (1, 1), (3, 1)])
def test_few_rows(gpu, m, dtype):
    """Nothing is launched for no rows."""
    given = operands(m, dtype=dtype)
    for name in set(FUSED) - {"fuse", "fuse_compiled"}:  # which launch to try what they replace
        y = FUSED[name](*given)
        assert right(y, *given) if y.numel() else y.shape == (*given[0].shape[:-1], N), name
    assert ck.gemm(*given[:2]).shape == (*given[0].shape[:-1], N)
    assert bool(gpu) == bool(given[0].numel())


class Guard:
    """torch.cuda.device, writing down which device was entered and left."""

    seen: list = []

    def __init__(self, index):
        self.index = index

    def __enter__(self):
        self.seen.append(("entered", self.index))

    def __exit__(self, *why):
        self.seen.append(("left", self.index))


@pytest.fixture
def elsewhere(gpu, monkeypatch):
    """The current device is another one (1; that of CPU tensors is None), so that every launch goes through launch.call."""
    for module in (torch.cuda, plans):
        monkeypatch.setattr(module, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", Guard)


@pytest.mark.parametrize("name", odd_strides(K))
def test_strides_of_size_one_mean_nothing(elsewhere, monkeypatch, name):
    """Neither to the checks nor to TMA, which is given a legal pitch in their place."""
    shape, strides = odd_strides(K)[name]
    real = launch.call

    def call_with_legal_pitches(function, index, *args):
        matrices = [t for t in args if isinstance(t, torch.Tensor)]
        assert len(matrices) >= 3 and all(t.stride(0) >= t.shape[1] and t.stride(0) % 8 == 0 for t in matrices)
        real(function, index, *args)

    monkeypatch.setattr(launch, "call", call_with_legal_pitches)
    _, gate, up = operands()
    for _ in range(2):  # a call that is checked, and one that is known
        x = torch.randn(200).to(BF16).as_strided(shape, strides)
        out_strides = (*(s if n == 1 else N for n, s in zip(shape[:-1], strides[:-1], strict=True)), 1)
        for call, how in CALLS.items():
            assert right(how(x, gate, up), x, gate, up), call
        for kernel in ("stacked", "pingpong", "interleaved"):
            out = torch.full((400,), 7.0).to(BF16).as_strided((*shape[:-1], N), out_strides)
            assert ck.swiglu(x, gate, up, kernel=kernel, out=out) is out and right(out, x, gate, up), kernel
        assert torch.equal(ck.gemm(x, gate), ck.gemm(x.new_empty(shape).copy_(x), gate))


def rows_of(n, k, offset=0):
    """An (n, k) matrix that starts `offset` elements past an aligned address."""
    return torch.zeros(n * k + 8).to(BF16)[offset : offset + n * k].view(n, k)


#: call -> (function of named tensors, their shapes)
NAMED = {
    "swiglu": (ck.swiglu, dict(x=(M, K), w_gate=(N, K), w_up=(N, K), bias_gate=(N,), bias_up=(N,), out=(M, N))),
    "pingpong": (lambda **t: ck.swiglu(**t, kernel="pingpong"), dict(x=(M, K), w_gate=(N, K), w_up=(N, K), out=(M, N))),
    "operator": (OPS.swiglu, dict(x=(M, K), w_gate=(N, K), w_up=(N, K), bias_gate=(N,), bias_up=(N,))),
    "gemm": (ck.gemm, dict(a=(M, K), b=(N, K), out=(M, N))),
    "packed": (
        lambda x, w, bias, out: ck.swiglu_interleaved(
            x, ck.Interleaved.wrap(w), bias=ck.Interleaved.wrap(bias), out=out
        ),
        dict(x=(M, K), w=(2 * N, K), bias=(2 * N,), out=(M, N)),
    ),
    "packed operator": (OPS.swiglu_interleaved, dict(x=(M, K), w=(2 * N, K), bias=(2 * N,))),
    "epilogue": (
        lambda a, b, row, load: ck.gemm(a, b, epilogue=ep.acc + ep.row(row) + ep.load(load)),
        dict(a=(M, K), b=(N, K), row=(N,), load=(M, N)),
    ),
}


def named(shapes, **changed):
    def make(shape, offset=0):
        return rows_of(*shape, offset) if len(shape) == 2 else rows_of(1, *shape, offset)[0]

    return {name: make(shape, changed.get(name, 0)) for name, shape in shapes.items()}


@pytest.mark.parametrize(("call", "which"), [(call, which) for call, (_, shapes) in NAMED.items() for which in shapes])
def test_each_operand_is_checked_after_calls_that_were_right(gpu, call, which):
    """Of another address, dtype, device or shape: the error says which, and the next right call works."""
    function, shapes = NAMED[call]
    for _ in range(2):
        function(**named(shapes))
    launched = len(gpu)
    with pytest.raises(ValueError, match=rf"\b{which}\b.*2 bytes past a multiple of 16"):
        function(**named(shapes, **{which: 1}))
    for kind, wrong, words in (
        (TypeError, lambda t: t.double(), rf"\b{which}\b|is bfloat16, \w is float64"),
        (ValueError, lambda t: t.to("meta"), r"is on cpu|is on meta|are on cpu, meta"),
        (ValueError, lambda t: t[..., :-1], rf"\b({which}|K|N)\b"),
    ):
        given = named(shapes)
        given[which] = wrong(given[which])
        with pytest.raises(kind, match=words):
            function(**given)
    assert len(gpu) == launched
    function(**named(shapes))
    assert len(gpu) == launched + 1


def test_the_tensors_device_is_entered_and_left(elsewhere, monkeypatch):
    """Around every launch, also one that fails."""
    given = operands()
    for call in CALLS.values():
        for _ in range(2):
            Guard.seen.clear()
            call(*given)
            assert Guard.seen == [("entered", None), ("left", None)]
    plans.forget()

    def refuse(*args):
        raise RuntimeError("the launch fails")

    monkeypatch.setattr(reference, "swiglu", refuse)  # what launches compute here
    for call in CALLS.values():
        Guard.seen.clear()
        with pytest.raises(RuntimeError, match="the launch fails"):
            call(*given)
        assert Guard.seen == [("entered", None), ("left", None)]
