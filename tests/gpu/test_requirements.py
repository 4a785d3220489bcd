"""What holds at every entry and in every kernel, on a Hopper GPU; tests/README.md says which test stands for which rule."""

import math
import time

import pytest
import torch
import torch.nn.functional as F
from entries import CALLS, ENTRIES, odd_strides

import cute_kernels as ck
from cute_kernels import epilogue as ep
from cute_kernels import launch, plans, registry, validate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU")
BF16 = torch.bfloat16
N, K = 264, 72
FUSED = {name: CALLS[name] for name in ("stacked", "pingpong", "packed")}


def operands(m, n=N, k=K, dtype=BF16, device="cuda"):
    made = torch.randn(m, k, device=device), *(torch.randn(n, k, device=device) * max(k, 1) ** -0.5 for _ in range(2))
    return [t.to(dtype) for t in made]


def right(y, x, gate, up):
    """Of the size and dtype that it must have, and no further from fp32 than twice PyTorch in the same dtype."""
    rows = x.reshape(-1, x.shape[-1])
    assert y.shape == (*x.shape[:-1], gate.shape[0]) and y.dtype == x.dtype
    if not y.numel():
        return True
    want, torch_y = ck.reference.swiglu(rows, gate, up), ck.reference.eager(rows, gate, up)
    error = validate.relative_error(y.reshape(want.shape), want)
    return error <= 2 * validate.relative_error(torch_y, want)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_activation_is_the_gates(name):
    x = torch.ones(70, 64, device="cuda", dtype=BF16)
    gate, up = (torch.full((64, 64), v / 64, device="cuda", dtype=BF16) for v in (-2, 5))
    y = ENTRIES[name](x, gate, up).float()
    assert ((y + 1.192).abs() < 0.01).all()  # silu(-2) * 5; silu(5) * -2 is -9.93


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("m", [0, 1, 2, 31, 63])
def test_few_rows(m, dtype):
    given = operands(m, dtype=dtype)
    for name, call in CALLS.items():
        assert right(call(*given), *given), name
    y = ck.gemm(*given[:2])
    assert y.shape == (m, N) and (not m or validate.relative_error(y, ck.reference.gemm(*given[:2])) < 0.004)


def test_no_depth_is_zeros_and_what_an_epilogue_makes_of_them():
    x, gate, up = operands(130, k=0)
    bias = torch.randn(N, device="cuda")
    for name, call in CALLS.items():
        assert (call(x, gate, up) == 0).all(), name
    assert (ck.gemm(x, gate) == 0).all()
    y = ck.gemm(x, gate, epilogue=ep.acc + ep.row(bias), out_dtype=torch.float32)
    assert torch.equal(y, bias.expand(130, N))
    y = ck.swiglu(x, gate, up, bias_gate=bias, bias_up=bias)
    assert validate.relative_error(y, (F.silu(bias) * bias).expand(130, N)) < 0.004


@pytest.mark.parametrize("name", odd_strides(K))
def test_strides_of_size_one_mean_nothing(name):
    shape, strides = odd_strides(K)[name]
    _, gate, up = operands(1)
    for _ in range(2):  # a call that is checked, and one that is known
        x = torch.randn(400, device="cuda").to(BF16).as_strided(shape, strides)
        for call in CALLS.values():
            assert right(call(x, gate, up), x, gate, up)
        assert torch.equal(ck.gemm(x, gate), ck.gemm(x.new_empty(shape).copy_(x), gate))


@pytest.mark.parametrize("m", [129, 136])
@pytest.mark.parametrize("k", [1, 7, 13, 65])
def test_any_depth_of_two_transposed_operands(m, k):
    """Their lines run along M and N, so that K need not be a multiple of 8."""
    a, b = torch.randn(k, 136, device="cuda").to(BF16)[:, :m].T, torch.randn(k, N, device="cuda").to(BF16).T
    assert validate.relative_error(ck.gemm(a, b), ck.reference.gemm(a, b)) < 0.004


@pytest.mark.parametrize("m", [1, 63, 300])
def test_out_is_a_column_slice_of_a_larger_buffer(m):
    x, gate, up = operands(m)
    packed = ck.interleave(gate, up)
    want, plain = ck.reference.swiglu(x, gate, up), ck.reference.gemm(x, gate)
    for name, call, ref in (
        *((k, lambda out, k=k: ck.swiglu(x, gate, up, kernel=k, out=out), want) for k in ("stacked", "pingpong")),
        ("interleaved", lambda out: ck.swiglu(x, gate, up, kernel="interleaved", out=out), want),
        ("packed", lambda out: ck.swiglu_interleaved(x, packed, out=out), want),
        ("torch", lambda out: ck.swiglu(x, gate, up, kernel="torch", out=out), want),
        ("gemm", lambda out: ck.gemm(x, gate, out=out), plain),
    ):
        buffer = torch.full((m + 2, 3 * N), 7.0, device="cuda", dtype=BF16)
        out = buffer[1 : m + 1, N : 2 * N]
        assert call(out) is out and validate.relative_error(out, ref) < 0.02, name
        out.fill_(7.0)
        assert (buffer == 7).all(), name


def test_an_error_leaves_device_and_stream_as_they_were():
    x, gate, up = operands(64)
    greedy = registry.get("gemm").configs[0].with_(stages=14)
    side, device = torch.cuda.Stream(), torch.cuda.current_device()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for wrong, words in (
            (lambda: ck.swiglu(x, gate[:, :64], up), "w_gate has K = 64"),
            (lambda: ck.swiglu(x, gate, up.cpu()), "w_up is on cpu"),
            (lambda: ck.swiglu_interleaved(x, ck.interleave(gate.half(), up.half())), "w is float16"),
            (lambda: ck.gemm(x, gate, config=greedy), "shared memory, 232448 are available"),
            (lambda: ck.gemm(x, gate, epilogue=ep.acc + ep.row(torch.zeros(N))), r"epilogue row\(...\) is on cpu"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                wrong()
            assert torch.cuda.current_device() == device and torch.cuda.current_stream() == side
        y = ck.swiglu(x, gate, up)
    side.synchronize()
    assert right(y, x, gate, up)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one():
    given, here = operands(64, device="cuda:1"), operands(64, device="cuda:0")
    for call in CALLS.values():
        for _ in range(2):
            assert right(call(*given), *given) and torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="w_gate is on cuda:0, x is on cuda:1"):
        ck.swiglu(given[0], *here[1:])
    side = torch.cuda.Stream("cuda:1")  # the current stream of the tensors' device, not that of device 0
    side.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        given[0].zero_()
        with torch.cuda.device(0):
            y = ck.swiglu(*given)
    side.synchronize()
    assert (y == 0).all() and torch.cuda.current_device() == 0


TWO_LOOPS_AND_PACKED = [
    (name, c) for name in ("swiglu_pingpong", "swiglu_interleaved") for c in registry.get(name).configs
]


@pytest.mark.parametrize(("name", "config"), TWO_LOOPS_AND_PACKED, ids=lambda v: getattr(v, "name", v))
def test_short_k_over_many_tiles_is_repeatable(name, config):
    """Slots and stages are used again at the highest rate: a race shows as a changing result."""
    x, gate, up = operands(300, 8192, 64)
    packed = ck.interleave(gate, up)

    def run():
        if name == "swiglu_interleaved":
            return ck.swiglu_interleaved(x, packed, config=config)
        return ck.swiglu(x, gate, up, kernel="pingpong", config=config)

    first = run()
    assert right(first, x, gate, up)
    for _ in range(100):
        assert torch.equal(first, run())


def nothing_is_loaded(monkeypatch):
    """As in a process that has not called anything yet."""
    monkeypatch.setattr(launch, "_compiled", {})
    plans.forget()


@pytest.mark.parametrize("name", ["stacked", "pingpong", "interleaved", "packed", "packed operator"])
def test_a_first_call_inside_a_capture_is_an_error(name, monkeypatch):
    nothing_is_loaded(monkeypatch)
    given = operands(64)
    with pytest.raises(RuntimeError, match=r"CUDA graph .*warmup\(\.\.\.\)"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        CALLS[name](*given)
    assert not torch.cuda.is_current_stream_capturing() and right(CALLS[name](*given), *given)


@pytest.mark.parametrize("name", ["gemm", "swiglu", "swiglu_interleaved"])
def test_warmup_is_enough_for_a_capture(name, monkeypatch):
    x, gate, up = operands(48, 520, 136)
    packed = ck.interleave(gate, up)
    call, reference = {
        "gemm": (lambda: ck.gemm(x, gate), lambda: ck.reference.gemm(x, gate)),
        "swiglu": (lambda: ck.swiglu(x, gate, up), lambda: ck.reference.swiglu(x, gate, up)),
        "swiglu_interleaved": (lambda: ck.swiglu_interleaved(x, packed), lambda: ck.reference.swiglu(x, gate, up)),
    }[name]
    reference()  # cuBLAS has started
    nothing_is_loaded(monkeypatch)
    ck.warmup(name, m=48, n=520, k=136)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert validate.relative_error(y, reference()) < 0.004


def test_a_known_call_costs_little_more_than_pytorchs_own():
    """It leaves out the checks, which alone cost several times as much as the launch. Host time, so beside F.linear's."""
    x, gate, up = operands(16, 64, 64)
    packed = ck.interleave(gate, up)
    calls = {
        "F.linear": lambda: F.linear(x, gate),
        "gemm": lambda: ck.gemm(x, gate),
        "swiglu": lambda: ck.swiglu(x, gate, up),
        "swiglu_interleaved": lambda: ck.swiglu_interleaved(x, packed),
    }
    best = dict.fromkeys(calls, math.inf)
    for turn in range(30):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(50):  # queued, not waited for
                call()
            if turn:
                best[name] = min(best[name], time.perf_counter() - began)
    assert all(seconds < 2 * best["F.linear"] for seconds in best.values()), best


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["gemm", *FUSED])
def test_what_is_not_finite_goes_where_fp32_puts_it(name, value):
    """One element of x, of the gate's weight, of up's: one row or column of the result, and no pair partner."""
    for which in range(2 if name == "gemm" else 3):
        given = operands(130)[: 2 if name == "gemm" else 3]
        given[which][33, 5] = value
        want = ck.reference.gemm(*given) if name == "gemm" else ck.reference.swiglu(*given)
        y = ck.gemm(*given) if name == "gemm" else FUSED[name](*given)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(y), kind(want)), (which, kind)
        assert 0 < (~want.isfinite()).sum() <= N


SIZES = {"M x 2N": (131_073, 8192, 64), "out": (262_145, 8192, 64), "x": (4_194_305, 64, 512)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FUSED)
def test_more_than_two_gibi_elements(name, size):
    """In x, the result, or gate and up together: the first and the last rows."""
    m, n, k = SIZES[size]
    x, (_, gate, up) = torch.randn(m, k, device="cuda", dtype=BF16), operands(1, n, k)
    y = FUSED[name](x, gate, up)
    for rows in (slice(300), slice(m - 300, m)):
        assert right(y[rows], x[rows], gate, up)
