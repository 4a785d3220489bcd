"""The public functions on a Hopper GPU against fp32."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F

import cute_kernels as ck
from cute_kernels import epilogue as ep
from cute_kernels import registry, validate
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
    limit = min(0.004, 2 * rel(validate.torch_result(spec, [x, *w]), ref))
    for config in spec.configs:
        assert rel(CALLS[spec.name](x, *w, config=config), ref) <= limit, config.name


@pytest.mark.parametrize("kernel", FUSED)
def test_gate_is_the_gate(kernel):
    x = torch.ones(70, 64, device=DEVICE, dtype=torch.bfloat16)
    g = torch.full((64, 64), -2 / 64, device=DEVICE, dtype=torch.bfloat16)
    u = torch.full((64, 64), 5 / 64, device=DEVICE, dtype=torch.bfloat16)
    out = ck.swiglu(x, g, u, kernel=kernel)
    assert torch.allclose(out.float(), torch.full_like(out, -1.192, dtype=torch.float32), atol=0.01)


@pytest.mark.parametrize("kernel", FUSED)
def test_negative_tail_and_extremes(kernel):
    """Gates -16..-1 keep relative accuracy; huge gates stay finite."""
    x = torch.zeros(128, 64, device=DEVICE, dtype=torch.bfloat16)
    x[:, 0] = 1
    gate = torch.zeros(256, 64, device=DEVICE, dtype=torch.bfloat16)
    gate[:, 0] = torch.linspace(-16, -1, 256, device=DEVICE)
    up = torch.zeros_like(gate)
    up[:, 0] = 1
    out = ck.swiglu(x, gate, up, kernel=kernel).float()
    ref = ck.reference.swiglu(x, gate, up)
    assert ((out - ref).abs() / ref.abs()).max() < 0.005
    for huge, want in ((3e38, 3e38), (-3e38, 0.0)):
        gate[:, 0] = huge
        out = ck.swiglu(x, gate, up, kernel=kernel).float()
        assert out.isfinite().all() and torch.allclose(out, torch.full_like(out, want), rtol=0.01)


@pytest.mark.parametrize("kernel", FUSED)
def test_nan_stays_in_its_row_and_column(kernel):
    x = torch.randn(300, 128, device=DEVICE).bfloat16()
    g, u = weights(264, 128, 2)
    x[77] = math.nan
    u[33] = math.nan
    bad = ck.swiglu(x, g, u, kernel=kernel).isnan()
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


@pytest.mark.parametrize("kernel", FUSED)
@pytest.mark.parametrize("activation", ck.reference.GATED)
def test_gated_family(kernel, activation):
    m, n, k = 130, 264, 328
    x = 4 * torch.randn(m, k, device=DEVICE)
    x = x.bfloat16()
    g, u = weights(n, k, 2)
    for biases in (
        {},
        {"bias_up": torch.randn(n, device=DEVICE)},
        {"bias_gate": g[:, 0].clone(), "bias_up": u[:, 0].clone()},
    ):
        ref = ck.reference.swiglu(x, g, u, torch.float64, activation=activation, **biases)
        out = ck.swiglu(x, g, u, kernel=kernel, activation=activation, **biases)
        torch_out = ck.swiglu(x, g, u, kernel="torch", activation=activation, **biases)
        assert rel(out, ref) <= 2 * rel(torch_out, ref), biases


def test_small_inputs_keep_relative_accuracy():
    """Scaled by 0.02, and per band of 16 columns: a wrong column does not hide in the norm of the others."""
    x = (0.02 * torch.randn(257, 520, device=DEVICE)).bfloat16()
    g, u = weights(264, 520, 2)
    ref = ck.reference.swiglu(x, g, u)
    for kernel in FUSED:
        out = ck.swiglu(x, g, u, kernel=kernel).float()
        for band in range(0, 264, 16):
            error, size = (out - ref)[:, band : band + 16].norm(), ref[:, band : band + 16].norm()
            assert error / size < 0.004, (kernel, band)


@pytest.mark.parametrize("m", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65])
def test_few_rows(m):
    """Configurations whose tiles have fewer rows than a WGMMA, with one tile and more of them."""
    x = torch.randn(m, 328, device=DEVICE).bfloat16()
    g, u = weights(1000, 328, 2)
    ref = ck.reference.swiglu(x, g, u)
    for config in registry.get("swiglu_stacked").configs:
        if config.tile_m < 64:
            assert rel(ck.swiglu(x, g, u, config=config), ref) < 0.004, config.name


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "stacked", "pingpong"])
def test_a_kernel_waits_for_the_one_ahead(kernel, early):
    """x is the result of the launch before, of ours and of PyTorch's: programmatic launch must not read it too early."""
    a = torch.randn(64, 512, device=DEVICE).bfloat16()
    b, g, u = *weights(3584, 512, 1), *weights(4096, 3584, 2)[:2]
    ref = ck.reference.swiglu(ck.gemm(a, b), g, u)
    x = torch.empty(64, 3584, device=DEVICE, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    ck.swiglu(x, g, u, kernel=kernel, early_weights=early)
    with torch.cuda.graph(graph):
        outs = []
        for _ in range(20):
            x.zero_()
            ck.gemm(a, b, out=x)
            outs.append(ck.swiglu(x, g, u, kernel=kernel, early_weights=early))
    for _ in range(10):
        graph.replay()
        assert all(rel(out, ref) < 0.004 for out in outs)
    for _ in range(20):
        x.zero_()
        torch.mm(a, b.T, out=x)
        assert rel(ck.swiglu(x, g, u, kernel=kernel, early_weights=early), ref) < 0.006


@pytest.mark.parametrize("m", [64, 1000])
@pytest.mark.parametrize("kernel", ["gemm", "auto", *FUSED])
def test_weights_that_change_are_read_anew(kernel, m):
    """Without early_weights a kernel sees what the launch before wrote into its weights, though it asked L2 for them earlier:
    PyTorch's launch, and one of ours, which lets its successor begin."""
    x, eye = torch.randn(m, 512, device=DEVICE).bfloat16(), torch.eye(512, device=DEVICE, dtype=torch.bfloat16)
    (g, u), new = weights(4096, 512, 2), weights(4096, 512, 1)[0]

    def run():
        return ck.gemm(x, g) if kernel == "gemm" else ck.swiglu(x, g, u, kernel=kernel)

    ref = ck.reference.gemm(x, new) if kernel == "gemm" else ck.reference.swiglu(x, new, u)
    for write in (lambda: g.copy_(new), lambda: ck.gemm(new, eye, out=g)):
        for _ in range(10):
            g.zero_()
            assert (run() == 0).all()
            write()
            assert rel(run(), ref) < 0.004


def test_interleaved_equals_stacked():
    x = torch.randn(300, 200, device=DEVICE).bfloat16()
    g, u = weights(264, 200, 2)
    packed = ck.interleave(g, u)
    assert torch.equal(ck.swiglu_interleaved(x, packed), ck.swiglu(x, g, u, kernel="stacked"))
    bias = torch.randn(264, device=DEVICE), torch.randn(264, device=DEVICE)
    got = ck.swiglu_interleaved(x, packed, bias=ck.interleave(*bias), activation="geglu")
    assert torch.equal(
        got, ck.swiglu(x, g, u, kernel="stacked", activation="geglu", bias_gate=bias[0], bias_up=bias[1])
    )


@pytest.mark.parametrize("name", ["swiglu_pingpong", "swiglu_stacked"])
def test_two_loops_end_with_any_number_of_tiles(name):
    """Every pingpong configuration of the gated kernels, in a child: what fails here hangs."""
    outcome = child.run(
        f"""
import torch
import cute_kernels as ck
from cute_kernels import registry

for config in registry.get("{name}").configs:
    if not config.pingpong:
        continue
    rows, columns = config.tile_m * config.cluster[0], config.tile_n * config.cluster[1]
    for k in (64, 64 * config.stages - 8, 64 * config.stages + 64):
        for tiles in (1, 2, 3, 65, 66, 67, 131, 132, 133):
            x = torch.randn(rows, k, device="cuda").bfloat16()
            g, u = ((torch.randn(columns * tiles, k, device="cuda") / k**0.5).bfloat16() for _ in range(2))
            ref = ck.reference.swiglu(x, g, u)
            error = ((ck.swiglu(x, g, u, config=config).float() - ref).norm() / ref.norm()).item()
            assert error < 0.004, (config.name, k, tiles, error)
print("right")
""",
        120,
    )
    assert outcome.finished and outcome.stdout.strip() == "right", outcome


def test_more_than_two_gibi_elements():
    """The last rows of an output and of an A of more than 2^31 elements."""
    m, n, k = 262_145, 8192, 64
    a = torch.randn(m, k, device=DEVICE).bfloat16()
    (b,) = weights(n, k, 1)
    out = ck.gemm(a, b)
    assert rel(out[-300:], ck.reference.gemm(a[-300:], b)) < 0.004
    del out
    m, k = 4_194_305, 512
    a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    (b,) = weights(64, k, 1)
    assert rel(ck.gemm(a, b)[-300:], ck.reference.gemm(a[-300:], b)) < 0.004
