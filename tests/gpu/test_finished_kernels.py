"""The public functions on a Hopper GPU against fp32."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F

import cute_kernels as ck
from cute_kernels import epilogue as ep
from cute_kernels import validate
from cute_kernels.lab import child

DEVICE = "cuda"
SHAPES = [(1, 64, 64), (63, 264, 72), (65, 8, 8), (129, 1032, 520), (1000, 256, 4096), (300, 4864, 896)]


def weights(n, k, count, dtype=torch.bfloat16):
    return [(torch.randn(n, k, device=DEVICE) / math.sqrt(k)).to(dtype) for _ in range(count)]


def rel(out, ref):
    return validate.relative_error(out, ref)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gemm(shape, dtype):
    m, n, k = shape
    a = torch.randn(m, k, device=DEVICE).to(dtype)
    (b,) = weights(n, k, 1, dtype)
    ref = ck.reference.gemm(a, b)
    assert rel(ck.gemm(a, b), ref) <= 2 * rel(a @ b.T, ref)


CALLS = {
    "gemm": ck.gemm,
    "swiglu_stacked": functools.partial(ck.swiglu, kernel="stacked"),
    "swiglu_pingpong": functools.partial(ck.swiglu, kernel="pingpong"),
    "swiglu_interleaved": functools.partial(ck.swiglu, kernel="interleaved"),
}
FUSED = ["stacked", "pingpong", "interleaved"]


@pytest.mark.parametrize("kernel", ["auto", *FUSED])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu(shape, dtype, kernel):
    m, n, k = shape
    x = torch.randn(m, k, device=DEVICE).to(dtype)
    g, u = weights(n, k, 2, dtype)
    ref = ck.reference.swiglu(x, g, u)
    assert rel(ck.swiglu(x, g, u, kernel=kernel), ref) <= 2 * rel(ck.swiglu(x, g, u, kernel="torch"), ref)


@pytest.mark.parametrize("spec", ck.kernels(), ids=lambda s: s.name)
def test_every_configuration_is_accepted(spec):
    m, n, k = 200, 264, 200
    x = torch.randn(m, k, device=DEVICE).bfloat16()
    w = weights(n, k, 2 if spec.gated else 1)
    ref = validate.expected(spec, [x, *w])
    for config in spec.configs:
        assert rel(CALLS[spec.name](x, *w, config=config), ref) < 0.004, config.name


def test_gate_is_the_gate():
    x = torch.ones(70, 64, device=DEVICE, dtype=torch.bfloat16)
    g = torch.full((64, 64), -2 / 64, device=DEVICE, dtype=torch.bfloat16)
    u = torch.full((64, 64), 5 / 64, device=DEVICE, dtype=torch.bfloat16)
    out = ck.swiglu(x, g, u, kernel="stacked")
    assert torch.allclose(out.float(), torch.full_like(out, -1.192, dtype=torch.float32), atol=0.01)


def test_negative_tail_and_extremes():
    """Gates -16..-1 keep relative accuracy; huge gates stay finite."""
    x = torch.zeros(128, 64, device=DEVICE, dtype=torch.bfloat16)
    x[:, 0] = 1
    gate = torch.zeros(256, 64, device=DEVICE, dtype=torch.bfloat16)
    gate[:, 0] = torch.linspace(-16, -1, 256, device=DEVICE)
    up = torch.zeros_like(gate)
    up[:, 0] = 1
    out = ck.swiglu(x, gate, up, kernel="stacked").float()
    ref = ck.reference.swiglu(x, gate, up)
    assert ((out - ref).abs() / ref.abs()).max() < 0.005
    for huge, want in ((3e38, 3e38), (-3e38, 0.0)):
        gate[:, 0] = huge
        out = ck.swiglu(x, gate, up, kernel="stacked").float()
        assert out.isfinite().all() and torch.allclose(out, torch.full_like(out, want), rtol=0.01)


def test_nan_stays_in_its_row_and_column():
    x = torch.randn(300, 128, device=DEVICE).bfloat16()
    g, u = weights(264, 128, 2)
    x[77] = math.nan
    u[33] = math.nan
    bad = ck.swiglu(x, g, u, kernel="stacked").isnan()
    want = torch.zeros_like(bad)
    want[77] = True
    want[:, 33] = True
    assert torch.equal(bad, want)


def test_out_slice_keeps_its_neighbours():
    x = torch.randn(130, 64, device=DEVICE).bfloat16()
    (b,) = weights(72, 64, 1)
    buffer = torch.full((132, 96), 7.0, device=DEVICE, dtype=torch.bfloat16)
    out = buffer[1:131, 8:80]
    assert ck.gemm(x, b, out=out) is out
    assert torch.equal(out, ck.gemm(x, b))
    out.fill_(7.0)
    assert (buffer == 7.0).all()


def test_strided_inputs():
    store = torch.randn(300, 256, device=DEVICE).bfloat16()
    x, rows = store[:, 64:192], store[::2, :128]
    (b,) = weights(64, 128, 1)
    for view in (x, rows):
        assert torch.equal(ck.gemm(view, b), ck.gemm(view.contiguous(), b))
    batched = torch.randn(3, 5, 128, device=DEVICE).bfloat16()
    assert torch.equal(ck.gemm(batched, b), ck.gemm(batched.view(15, 128), b).view(3, 5, 64))


def test_misaligned_after_an_aligned_call():
    x = torch.randn(65 * 64 + 8, device=DEVICE).bfloat16()
    (b,) = weights(64, 64, 1)
    ck.gemm(x[: 64 * 64].view(64, 64), b)
    with pytest.raises(ValueError, match="2 bytes past a multiple of 16"):
        ck.gemm(x[1 : 64 * 64 + 1].view(64, 64), b)
    assert ck.gemm(x[: 64 * 64].view(64, 64), b).isfinite().all()


def test_changing_only_m_compiles_nothing():
    g, u = weights(256, 128, 2)
    config = ck.kernels()[1].configs[0]
    x = torch.randn(2048, 128, device=DEVICE).bfloat16()
    ck.swiglu(x, g, u, kernel="stacked", config=config)
    with ck.count_compiles() as inside:
        for m in (1, 100, 129, 2048):
            ck.swiglu(x[:m], g, u, kernel="stacked", config=config)
    assert not inside


def test_graph_capture():
    x = torch.randn(512, 128, device=DEVICE).bfloat16()
    g, u = weights(256, 128, 2)
    ck.warmup("swiglu", m=512, n=256, k=128)
    out = torch.empty(512, 256, device=DEVICE, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ck.swiglu(x, g, u, out=out)
    x.copy_(torch.randn_like(x))
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert rel(out, ck.reference.swiglu(x, g, u)) < 0.004


def test_side_stream():
    x = torch.randn(4096, 4096, device=DEVICE).bfloat16()
    (b,) = weights(4096, 4096, 1)
    ck.gemm(x, b)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.zero_()
        out = ck.gemm(x, b)  # must run behind the zeroing
    side.synchronize()
    assert (out == 0).all()


@pytest.mark.parametrize("m", [1, 200])
def test_short_k_many_tiles_is_repeatable(m):
    """Short K over many tiles re-uses store slots and stages at the highest rate: a race shows as a changing result."""
    x = torch.randn(m, 64, device=DEVICE).bfloat16()
    g, u = weights(8192, 64, 2)
    for config in ck.kernels()[1].configs:
        first = ck.swiglu(x, g, u, kernel="stacked", config=config)
        for _ in range(50):
            assert torch.equal(first, ck.swiglu(x, g, u, kernel="stacked", config=config)), config.name


@pytest.mark.parametrize("config", ck.kernels()[0].configs, ids=lambda c: c.name)
def test_gemm_is_repeatable(config):
    """200 launches over many short tiles, bit for bit the same."""
    a = torch.randn(300, 64, device=DEVICE).bfloat16()
    (b,) = weights(16384, 64, 1)
    first = ck.gemm(a, b, config=config)
    for _ in range(200):
        assert torch.equal(first, ck.gemm(a, b, config=config))


def test_ones_give_exactly_k():
    for config in ck.kernels()[0].configs:
        for k in (8, 64, 320, 16384):
            a, b = (torch.ones(n, k, device=DEVICE, dtype=torch.bfloat16) for n in (130, 264))
            assert (ck.gemm(a, b, out_dtype=torch.float32, config=config) == k).all(), (config.name, k)


@pytest.mark.parametrize("config", [c for c in ck.kernels()[0].configs if c.pingpong], ids=lambda c: c.name)
def test_pingpong_ends_with_any_number_of_tiles(config):
    """A consumer without a tile, an odd count, one more than a wave: in a child, for what fails here hangs."""
    outcome = child.run(
        f"""
import torch
import cute_kernels as ck

config = ck.kernels()[0].configs[{ck.kernels()[0].configs.index(config)}]
rows, columns = config.tile_m * config.cluster[0], config.tile_n * config.cluster[1]
for k in (64, 64 * config.stages - 8, 64 * config.stages + 64):
    for tiles in (1, 2, 3, 65, 66, 67, 131, 132, 133, 197, 198, 199, 263, 264, 265):
        a = torch.randn(rows, k, device="cuda").bfloat16()
        b = torch.randn(columns * tiles, k, device="cuda").bfloat16()
        out = torch.full((rows, columns * tiles), float("nan"), device="cuda", dtype=torch.bfloat16)
        ck.gemm(a, b, out=out, config=config)
        ref = ck.reference.gemm(a, b)
        error = ((out.float() - ref).norm() / ref.norm()).item()
        assert error < 0.003, (k, tiles, error)
print("right")
""",
        90,
    )
    assert outcome.finished and outcome.stdout.strip() == "right", outcome


@pytest.mark.parametrize("m", [1, 129, 1000])
def test_epilogue(m):
    a = torch.randn(2, m, 200, device=DEVICE).bfloat16()
    (b,) = weights(520, 200, 1)
    bias, scale = torch.randn(520, device=DEVICE).bfloat16(), torch.rand(2 * m, device=DEVICE)
    residual = torch.randn(2, m, 520, device=DEVICE).bfloat16()
    acc = (a.double() @ b.double().T) * scale.double().view(2, m, 1)
    for make, fn in (
        (ep.gelu, F.gelu),
        (ep.gelu_tanh, lambda t: F.gelu(t, approximate="tanh")),
        (ep.silu, F.silu),
        (ep.relu, F.relu),
        (lambda e: ep.cast(torch.bfloat16, e), lambda t: t.bfloat16().double()),
    ):
        out = ck.gemm(a, b, epilogue=make(ep.acc * ep.column(scale) + ep.row(bias)) + ep.load(residual))
        assert rel(out, fn(acc + bias.double()) + residual.double()) < 0.003
    want = (acc + residual.double()).clone()
    assert ck.gemm(a, b, epilogue=ep.acc * ep.column(scale) + ep.load(residual), out=residual) is residual
    assert rel(residual, want) < 0.003


def test_epilogue_keeps_nan():
    a, b = torch.randn(70, 64, device=DEVICE).bfloat16(), torch.randn(64, 64, device=DEVICE).bfloat16()
    a[7] = math.nan
    for activation in (ep.relu, ep.gelu, ep.silu, ep.gelu_tanh):
        bad = ck.gemm(a, b, epilogue=activation(ep.acc)).isnan()
        assert bad[7].all() and bad.sum() == 64


def test_transposed_operands():
    a, b = torch.randn(200, 264, device=DEVICE).bfloat16(), torch.randn(136, 264, device=DEVICE).bfloat16()
    want = ck.gemm(a, b)
    ta, tb = a.T.contiguous().T, b.T.contiguous().T
    for x, w in ((ta, b), (a, tb), (ta, tb)):
        assert torch.equal(ck.gemm(x, w), want)
