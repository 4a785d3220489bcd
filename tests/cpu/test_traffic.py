"""Counts of notebook 08, against figures worked out by hand for Qwen-2.5 0.5B and M = 4096: K = 896, N = 4864."""

import math

import pytest
import torch

from cute_kernels import reference
from cute_kernels.lab import bench, traffic

SHAPE = (4096, 4864, 896)
X = 7_340_032  # 4096 * 896 * 2 bytes
W = 8_716_288  # 4864 * 896 * 2
H = 39_845_888  # 4096 * 4864 * 2
CEILINGS = {"gemm_tflops": 800.0, "copy_tbs": 4.0}
PRODUCT_US = 35.701915648e9 / 800e6  # 2 * 4096 * 4864 * 896 operations
PASS_US = H / 4e6


def test_shape_of():
    assert traffic.shape_of("0.5B", 4096) == SHAPE


@pytest.mark.parametrize(
    ("variant", "passes", "extra", "moved"),
    [
        ("eager", 7, 6, 2 * X + 2 * W + 7 * H),
        ("one pointwise kernel", 5, 4, 2 * X + 2 * W + 5 * H),
        ("stacked weights", 5, 4, X + 2 * W + 5 * H),
        ("epilogue of one GEMM", 3, 2, 2 * X + 2 * W + 3 * H),
        ("fused", 1, 0, X + 2 * W + H),
    ],
)
def test_passes_and_bytes(variant, passes, extra, moved):
    assert traffic.passes(variant) == passes
    assert traffic.extra_passes(variant) == extra
    assert traffic.moved(variant, SHAPE) == moved
    assert traffic.operations(variant, SHAPE) == 71_403_831_296


def test_variants_hand_on_only_what_was_written():
    for kernels in traffic.VARIANTS.values():
        known = {"x", "w_gate", "w_up"}
        for kernel in kernels:
            assert set(kernel.reads) <= known
            known |= set(kernel.writes)
        assert "h" in known


def test_intensity_is_the_papers():
    assert traffic.intensity("fused", SHAPE) == pytest.approx(71_403_831_296 / 64_618_496)
    assert traffic.intensity("stacked weights", SHAPE) == pytest.approx(71_403_831_296 / 224_002_048)
    assert round(100 * traffic.gain(SHAPE)) == 247


def test_floors():
    assert traffic.floor_us("fused", SHAPE, CEILINGS) == pytest.approx(2 * PRODUCT_US)
    assert traffic.floor_us("one pointwise kernel", SHAPE, CEILINGS) == pytest.approx(2 * PRODUCT_US + 3 * PASS_US)
    assert traffic.floor_us("eager", SHAPE, CEILINGS) == pytest.approx(2 * PRODUCT_US + 5 * PASS_US)
    assert traffic.roof_us("eager", SHAPE, CEILINGS) == pytest.approx(2 * PRODUCT_US)  # bytes hide under operations
    one = (1, 4864, 896)  # a single token: the weights' bytes are the floor
    assert traffic.floor_us("fused", one, CEILINGS) == pytest.approx((2 * W + 1792 + 9728) / 4e6)


def test_share_depends_on_k_alone():
    r = 200 / 896  # ridge of CEILINGS over K
    for m in (1024, 4096):
        share = traffic.activation_share("eager", traffic.shape_of("0.5B", m), CEILINGS)
        assert share == pytest.approx(5 * r / (5 * r + 3))
    assert traffic.activation_share("fused", SHAPE, CEILINGS) == 0


def test_counts_table():
    table = traffic.counts({"0.5B": SHAPE}, CEILINGS)
    assert table.loc["0.5B", "intensity"] == "+247 %"
    assert table.loc["0.5B", "MB before"] == 224.0 and table.loc["0.5B", "MB after"] == 64.6


def test_off_share():
    ref = torch.tensor([1.0, 1.0, 1e-6, 0.0])
    out = torch.tensor([1.009, 1.011, 1.1e-6, 0.0])
    assert reference.off_share(out, ref) == 0.5
    assert reference.off_share(torch.full((4,), math.nan), ref) == 1


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], "nothing measured yet"),
        ([10, 20], "within the claim"),
        ([1, 2], "all below the claim"),
        ([40, 50], "all above the claim"),
        ([5, 10, 20, 50], "50 % of the cases within the claim"),
    ],
)
def test_claim(found, verdict, capsys):
    assert traffic.claim("share", 9, 37, found).endswith(verdict)
    assert verdict in capsys.readouterr().out


CODE = """
# Topologically Sorted Source Nodes: [silu, mul], Original ATen: [aten.silu, aten.mul]
triton_poi_fused_mul_silu_0 = async_compile.triton('triton_poi_fused_mul_silu_0', '''
import triton

@triton.jit
def triton_poi_fused_mul_silu_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_out_ptr0 + (x0), None).to(tl.float32)
    tl.store(in_out_ptr0 + (x0), tmp0, None)
''', device_str='cuda')

def call(self, args):
    with torch.cuda._DeviceGuard(0):
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(arg1_1, reinterpret_tensor(arg0_1, (896, 4864), (1, 896), 0), out=buf0)
        stream0 = get_raw_stream(0)
        triton_poi_fused_mul_silu_0.run(buf2, buf1, xnumel, stream=stream0)
"""


def test_inductors_code_is_read():
    assert traffic.kernel_list(CODE) == [
        ("extern_kernels.mm", "aten.t, aten.mm"),
        ("triton_poi_fused_mul_silu_0", "aten.silu, aten.mul"),
    ]
    source = traffic.pointwise_source(CODE)
    assert source.startswith("def triton_poi_fused_mul_silu_0(") and source.endswith("tmp0, None)")
    assert traffic.pointwise_source("no kernel") == ""


def test_generated_prints_launches(monkeypatch, capsys):
    import torch._inductor.utils as utils

    monkeypatch.setattr(utils, "run_and_get_code", lambda function, mlp: (function(mlp), [CODE]))
    record = traffic.generated("inductor_test", {"one": lambda s: s.x}, (8, 24, 16), device="cpu")
    assert record["launches"]["one"][0][0] == "extern_kernels.mm"
    assert "tmp0" in record["pointwise"] and "aten.silu, aten.mul" in capsys.readouterr().out


def gate_up(s):
    return torch.nn.functional.silu(s.x @ s.w_gate.T) * (s.x @ s.w_up.T)


def measured(monkeypatch, **more):
    monkeypatch.setitem(traffic.QWEN25, "tiny", (64, 96))
    us = {"eager": 10.0, traffic.GEMMS: 6.0, traffic.ACTIVATION: 3.0, traffic.LAST: 3.0, traffic.MLP: 12.0}
    parts = {name: gate_up for name in us if name != "eager"}
    return traffic.measure(
        "none",
        {"eager": gate_up},
        parts,
        [("tiny", 40), ("tiny", 8)],
        device="cpu",
        timer=lambda name, calls: lambda replays: us.get(name, 5.0),
        **more,
    )


def test_measure_and_its_tables(monkeypatch, capsys):
    def broken(s):
        raise RuntimeError("no such template")

    torch.manual_seed(0)
    record = measured(monkeypatch, slow={"tuned": gate_up, "broken": broken}, slow_seconds=1e-9)
    assert "broken is left out: RuntimeError: no such template" in capsys.readouterr().out
    first, second = record["rows"]
    assert (first["M"], second["M"]) == (8, 40)  # sorted; the shape that came first had the time for slow contenders
    assert "tuned" in second["us"] and "tuned" not in first["us"]
    assert 0 < first["error"]["eager"] < 0.006 and first["off"]["eager"] < 0.05
    table = traffic.shares(record, CEILINGS)
    assert table.loc[("tiny", 8), "by parts"] == "25 %" and table.loc[("tiny", 8), "in place"] == "25 %"
    assert traffic.speeds(record, CEILINGS).loc[("tiny", 40), "tuned"] == "5.0 us, 200 %"
    assert traffic.of(record, lambda row: row["us"].get("tuned")) == [5.0]
    assert traffic.share_figure(["tiny"], [8, 40], CEILINGS, record, (9, 37)).axes
    monkeypatch.setattr(bench, "keep", lambda *_: pytest.fail("a test keeps no record"))


def test_without_a_record(capsys):
    assert traffic.shares(None, CEILINGS) is None and traffic.speeds(None, CEILINGS) is None
    assert traffic.of(None, lambda row: 1.0) == []
    assert traffic.share_figure(["0.5B"], [256], CEILINGS).axes
    if not torch.cuda.is_available():
        assert traffic.measure("no such record", {}, {}, []) is None
        assert "nothing is recorded yet" in capsys.readouterr().out


def test_pictures():
    assert traffic.passes_figure().axes and len(traffic.roofline_figure(["0.5B"], [256, 1024], CEILINGS).axes) == 2
