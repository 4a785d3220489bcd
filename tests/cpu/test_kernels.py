"""Every finished kernel x configuration x dtype compiles without a GPU, within its budgets, with the right instructions."""

import re

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

import cute_kernels as ck
from cute_kernels import compile as compiling
from cute_kernels import epilogue as ep
from cute_kernels import reference, registry, validate
from cute_kernels.hopper import gated, scheduler, trace
from cute_kernels.hopper import kernel as skeleton
from cute_kernels.hopper.choose import choose, predicted_seconds
from cute_kernels.hopper.config import SMEM_CAPACITY

CASES = [(spec.name, config, dtype) for spec in ck.kernels() for config in spec.configs for dtype in spec.dtypes]
IDS = [f"{name}-{config.name}-{dtype}" for name, config, dtype in CASES]

# Registers per thread at launch, from the cubin: 65,536 over the CTA's threads, rounded down to 8. A change here means
# that ptxas was given another launch bound, and setmaxnreg's numbers must be worked out again.
REGISTERS_AT_LAUNCH = {384: 168, 256: 240}


@pytest.fixture(scope="module")
def compiled():
    cache = {}

    def get(name, config, dtype):
        key = (name, config, dtype)
        if key not in cache:
            cache[key] = ck.compile_only(name, arch="sm_90a", config=config, dtype=dtype)
        return cache[key]

    return get


@pytest.mark.parametrize(("name", "config", "dtype"), CASES, ids=IDS)
def test_budgets(compiled, name, config, dtype):
    c = compiled(name, config, dtype)
    spec = registry.get(name)
    assert c.target == "sm_90a" and ".target sm_90a" in c.ptx
    assert c.spill_bytes == 0 and "LDL" not in c.instructions and "STL" not in c.instructions
    assert c.threads == config.threads
    assert c.registers == REGISTERS_AT_LAUNCH[config.threads]
    assert c.smem_dynamic == config.smem_bytes(spec.blocks) <= SMEM_CAPACITY


@pytest.mark.parametrize(("name", "config", "dtype"), CASES, ids=IDS)
def test_instructions(compiled, name, config, dtype):
    c = compiled(name, config, dtype)
    spec = registry.get(name)
    n, loops = config.tile_n * spec.blocks, config.loops
    kind = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    assert f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind}" in c.ptx
    assert c.instructions["HGMMA"] == loops * 2 * 4 * (config.group_rows // 64)  # first k-tile and loop, 4 k-blocks
    loads_b = 2 if spec.gated and not spec.packed else 1
    assert c.instructions["UTMALDG"] == loops + loads_b
    slabs = config.group_rows // 64 * (config.tile_n // config.epi_n)
    assert c.instructions["UTMASTG"] == slabs
    multicast = sum(count for m, count in c.mnemonics.items() if m.startswith("UTMALDG") and "MULTICAST" in m)
    assert multicast == (loops if config.cluster[1] > 1 else 0) + (loads_b if config.cluster[0] > 1 else 0)
    # one fence and one wait a k-tile (first and loop): ptxas has not put them around every single WGMMA
    assert c.mnemonics["WARPGROUP.ARRIVE"] == c.mnemonics["WARPGROUP.DEPBAR.LE"] == 2 * loops
    assert "CALL" not in c.instructions  # no slow division in the activation
    assert not any(m.startswith("I2F") for m in c.mnemonics)  # nor one of integers: the walk over the tiles has none
    per_thread = config.group_rows * config.tile_n // 128 if spec.gated else 0
    assert c.instructions.get("MUFU.EX2", 0) == per_thread  # one ex2 and one rcp of an output element
    assert c.instructions.get("MUFU.RCP", 0) == per_thread


@pytest.mark.parametrize(("name", "config", "dtype"), CASES, ids=IDS)
def test_weights_are_prefetched_before_the_wait(compiled, name, config, dtype):
    """One prefetch to L2 for each B operand of a stage, ahead of griddepcontrol.wait; every load into shared memory behind it."""
    operations = re.findall(
        r"cp\.async\.bulk\.(prefetch\.tensor|tensor)\.2d(?!\.global)|(griddepcontrol\.wait)",
        compiled(name, config, dtype).ptx,
    )
    found = [a or b for a, b in operations]
    first = found.index("griddepcontrol.wait")
    assert found[:first] == ["prefetch.tensor"] * (2 if name == "swiglu_stacked" else 1)
    assert "prefetch.tensor" not in found[first:] and "tensor" in found[first:]


@pytest.mark.parametrize(("name", "config", "dtype"), CASES, ids=IDS)
def test_setmaxnreg_is_effective(compiled, name, config, dtype):
    """Both directions present, and the sum fits the register file, else the increase would wait for ever."""
    c = compiled(name, config, dtype)
    found = dict(re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32\s+(\d+)", c.ptx))
    assert found == {"inc": str(skeleton.CONSUMER_REGISTERS), "dec": str(skeleton.PRODUCER_REGISTERS)}
    assert c.instructions["USETMAXREG"] == 2
    assert 128 * (config.warp_groups * int(found["inc"]) + int(found["dec"])) <= 65536


@pytest.mark.parametrize(("name", "config", "dtype"), CASES, ids=IDS)
def test_fences(compiled, name, config, dtype):
    """A proxy fence between the last stmatrix and every TMA store; the barriers' init is fenced before the cluster goes on."""
    ptx = compiled(name, config, dtype).ptx
    events = re.findall(
        r"(stmatrix|st\.shared|fence\.proxy\.async|cp\.async\.bulk\.tensor\.2d\.global\.shared|bar\.sync|barrier\.sync|"
        r"mbarrier\.init|fence\.mbarrier_init|mbarrier\.try_wait)",
        ptx,
    )
    clean = False
    stores = 0
    for event in events:
        if event in ("stmatrix", "st.shared"):
            clean = False
        elif event == "fence.proxy.async":
            clean = True
        elif event.startswith("cp.async.bulk"):
            stores += 1
            assert clean, "a TMA store can read shared memory that the generic proxy wrote and nothing has fenced"
    assert stores
    last_init = max(i for i, e in enumerate(events) if e == "mbarrier.init")
    first_wait = min(i for i, e in enumerate(events) if e == "mbarrier.try_wait")
    assert "fence.mbarrier_init" in events[last_init:first_wait]


def test_wgmma_kernel_is_not_for_blackwell():
    with pytest.raises(ValueError, match="arch is 'sm_100a', but kernel 'gemm' is written for sm_90a"):
        ck.compile_only("gemm", arch="sm_100a")
    spec = registry.get("gemm")
    args = [*(ck.fake_matrix("bfloat16") for _ in range(3)), compiling.cutlass.Int32(1), (), None, ck.env_stream()]
    with pytest.raises(ck.CompileError, match="gemm for sm_100a.*sm_90a"):
        ck.build(spec.factory(spec.configs[0], compiling.DTYPES["bfloat16"]), args, arch="sm_100a", name="gemm")


def test_compile_only_refuses():
    with pytest.raises(ValueError, match="kernel is 'gem', allowed: gemm, swiglu_stacked"):
        ck.compile_only("gem")
    with pytest.raises(ValueError, match="dtype is 'float32', kernel 'gemm' takes bfloat16, float16"):
        ck.compile_only("gemm", dtype=torch.float32)
    with pytest.raises(ValueError, match="arch is 'sm_89'"):
        ck.build(lambda: None, [], arch="sm_89")


def test_compiles_are_counted():
    with ck.count_compiles() as inside:
        ck.compile_only("gemm", config=registry.get("gemm").configs[-1])
    assert inside == {"sm_90a": 1}


@pytest.mark.parametrize("spec", ck.kernels(), ids=lambda s: s.name)
def test_configurations_are_distinct_and_explain_themselves(spec):
    assert len({config.name for config in spec.configs}) == len(spec.configs)
    for config in spec.configs:
        text = config.validate(spec.blocks).explain(spec.blocks)
        assert config.name in text and str(config.smem_bytes(spec.blocks)) in text


def test_choice_follows_the_counts():
    configs = registry.get("swiglu_stacked").configs
    big = choose(configs, 4096, 18944, 3584, 2, 132)
    assert big.tile_m == 128 and big.pingpong
    few = choose(configs, 64, 18944, 3584, 2, 132)
    assert few.tile_m == 64  # a 128-row tile would be half empty
    assert choose(configs, 1, 18944, 3584, 2, 132).tile_m == 16  # and rows beyond M are not free
    wide = choose(configs, 1024, 13824, 5120, 2, 132)
    assert wide.tile_n == 56  # 15 whole waves of 56 columns; 14 of 64 would be 13.1
    assert choose(configs, 8192, 18944, 3584, 2, 132).tile_n >= 80  # of equal waves the wider tile: fewer bytes
    for config in configs:
        one = predicted_seconds(config, 4096, 4096, 4096, 2, 132)
        assert one < predicted_seconds(config, 8192, 4096, 4096, 2, 132)
        assert one >= 2 * (4096 * 4096 * 4) / 4.2e12  # never below the DRAM floor of its bytes


def test_a_norm_does_not_hide_a_wrong_element():
    ref = torch.randn(1000, 1000)
    out = ref.clone()
    assert validate.relative_error(out.bfloat16(), ref) < 0.004
    out[3, 5] += 0.1 + ref.square().mean().sqrt()
    assert (out - ref).norm() / ref.norm() < 0.004 and validate.relative_error(out, ref) == float("inf")
    out[3, 5] = float("nan")
    assert validate.relative_error(out, ref) == float("inf")
    out, ref = torch.full((2, 2), float("inf")), torch.full((2, 2), float("inf"))
    assert not reference.far_off(out, ref).any()
    assert reference.far_off(-out, ref).all() and reference.far_off(torch.zeros(2, 2), ref).all()


@pytest.mark.parametrize("out_dtype", [None, "float32"])
@pytest.mark.parametrize("config", registry.get("gemm").configs, ids=lambda c: c.name)
def test_a_full_epilogue_does_not_spill(config, out_dtype):
    """The tree that validate.py runs under every configuration: a scale of the rows, a bias, GELU, a residual."""
    scale, bias, residual = torch.zeros(8), torch.zeros(64).bfloat16(), torch.zeros(8, 64).bfloat16()
    tree, *_ = ep.split(ep.gelu(ep.acc * ep.column(scale) * 0.5 + ep.row(bias)) + ep.load(residual))
    c = registry.get("gemm").compile(config, "bfloat16", skeleton.Variant(out_dtype, tree=tree))
    assert c.spill_bytes == 0 and c.smem_dynamic == config.smem_bytes(1)


def test_a_group_larger_than_the_output_does_not_overflow():
    """group * tile columns is a 32-bit product: the group is cut to the rows that there are."""
    found = torch.zeros(2, dtype=torch.int32)

    @cute.jit
    def probe(out: cute.Tensor, kernel: cutlass.Constexpr):
        size = cutlass.Int32(1), cutlass.Int32(1 << 19)
        place = skeleton.Walk(*size, scheduler.divisors(*size, kernel.config.group), 0, 1, 0, 0)
        out[0], out[1] = kernel.tile(place, cutlass.Int32(5))

    config = ck.TileConfig(64, 16, warp_groups=1, stages=2, epi_slots=1, group=4096)
    probe(from_dlpack(found), registry.get("gemm").factory(config, cutlass.BFloat16, skeleton.PLAIN))
    assert found.tolist() == [0, 5]


def test_slots_too_narrow_for_the_output_are_a_config_error():
    config = ck.TileConfig(64, 8, warp_groups=1, epi_slots=1, stages=4)
    assert registry.get("gemm").compile(config).spill_bytes == 0
    with pytest.raises(ck.ConfigError, match="store slots are too narrow"):
        registry.get("gemm").compile(config, variant=skeleton.Variant("float32"))


def test_the_next_kernel_may_start_only_when_the_one_before_has_ended():
    for name in ("gemm", "swiglu_stacked", "swiglu_pingpong", "swiglu_interleaved"):
        for early in (False, True):
            ptx = registry.get(name).compile(variant=skeleton.Variant(early_weights=early)).ptx
            events = re.findall(r"griddepcontrol\.(\w+)", ptx)
            assert events == ["wait", "launch_dependents"] * 2, name  # of the producer and of the consumers
            if name == "swiglu_pingpong":  # which has no early loads: it is the same kernel
                assert "bulk.tensor.2d.shared" not in ptx[: ptx.index("griddepcontrol.wait")]
    with pytest.raises(Exception, match="traced and early_weights"):
        registry.get("gemm").compile(variant=skeleton.Variant(traced=True, early_weights=True))


@pytest.mark.parametrize(
    "config", [c for c in registry.get("swiglu_stacked").configs if c.tile_n >= 80], ids=lambda c: c.name
)
def test_biases_of_wide_tiles_do_not_spill(config):
    spec = registry.get("swiglu_stacked")
    for activation, biases in (
        ("geglu", (None, "float32")),
        ("geglu", (None, "bfloat16")),
        ("geglu", ("float32", "bfloat16")),
        ("swiglu", ("float32", "float32")),
        ("swiglu_oai", ("bfloat16", None)),
    ):
        tree = gated.stacked(activation, biases)
        assert spec.compile(config, variant=skeleton.Variant(tree=tree)).spill_bytes == 0, (activation, biases)


@pytest.mark.parametrize("config", registry.get("swiglu_pingpong").configs, ids=lambda c: c.name)
def test_biases_between_the_loops_do_not_spill(config):
    spec = registry.get("swiglu_pingpong")
    for activation in ("swiglu", "swiglu_oai"):
        for biases in (("float32", None), ("float32", "float32"), ("bfloat16", "bfloat16")):
            tree = gated.stacked(activation, biases)
            assert spec.compile(config, variant=skeleton.Variant(tree=tree)).spill_bytes == 0, (activation, biases)


@pytest.mark.parametrize("name", ["gemm", "swiglu_pingpong"])
def test_a_trace_that_is_off_leaves_no_instruction(name, monkeypatch):
    """The same instructions as of a skeleton whose marks are not there at all."""
    spec = registry.get(name)
    off = spec.compile()
    monkeypatch.setattr(trace.Trace, "begin", lambda self, events, cta, role: (events, 0))
    monkeypatch.setattr(trace.Trace, "mark", lambda self, mine, count, kind, writes: count)
    assert spec.compile().sass == off.sass
    monkeypatch.undo()
    assert spec.compile(variant=skeleton.Variant(traced=True)).mnemonics["CS2R"] > off.mnemonics["CS2R"]


def _trees():
    def row(dtype=torch.bfloat16):
        return ep.row(torch.zeros(64, dtype=dtype))

    def load(dtype=torch.bfloat16):
        return ep.load(torch.zeros(8, 64, dtype=dtype))

    yield "four rows", ep.acc * row() + row() * row() + row()
    yield "three fp32 rows", ep.acc * row(torch.float32) + row(torch.float32) + row(torch.float32)
    yield "two residuals", ep.acc + load() + load()
    yield "gate and residual", ep.gelu(ep.acc) * load() + load()
    fp32 = torch.float32
    yield "all in fp32", ep.gelu((ep.acc * row(fp32) + row(fp32)) + load(fp32)) * load(fp32) + load(fp32)


@pytest.mark.parametrize("config", registry.get("gemm").configs[1:3], ids=lambda c: c.name)
@pytest.mark.parametrize(("name", "expression"), _trees(), ids=lambda x: x if isinstance(x, str) else "")
def test_trees_of_many_operands_do_not_spill(name, expression, config):
    """Under the configurations with the fewest registers to spare."""
    tree, *_ = ep.split(expression)
    assert registry.get("gemm").compile(config, variant=skeleton.Variant(tree=tree)).spill_bytes == 0, name
