"""The epilogue tree: its structure, its index maps against the hardware's, and what it compiles to."""

import operator

import cutlass
import cutlass.cute as cute
import pytest
import torch

import cute_kernels as ck
from cute_kernels import epilogue as ep
from cute_kernels import registry
from cute_kernels.hopper import activation, tiles, visitor
from cute_kernels.hopper.kernel import Variant

BF16 = torch.bfloat16
SPEC = registry.get("gemm")
COOPERATIVE = next(c for c in SPEC.configs if not c.pingpong)
PINGPONG = next(c for c in SPEC.configs if c.pingpong)


def test_equal_structures_are_one_kernel():
    def tree(bias, residual, scale):
        return ep.split(ep.gelu(ep.acc * scale + ep.row(bias)) + ep.load(residual))

    first, operands, kinds = tree(torch.zeros(8), torch.zeros(4, 8), 0.5)
    second, *_ = tree(torch.ones(16), torch.ones(2, 16), 2.0)
    assert first == second and hash(first) == hash(second)
    assert kinds == ("Scalar", "Row", "Load") and operands[0] == 0.5
    other, *_ = tree(torch.zeros(8, dtype=BF16), torch.zeros(4, 8), 0.5)
    assert other != first  # its bias is read differently
    assert ep.split(ep.acc - 1)[0] != ep.split(1 - ep.acc)[0]


def test_a_tensor_used_twice_is_one_operand():
    bias = torch.zeros(8)
    tree, operands, _ = ep.split(ep.acc * ep.row(bias) + ep.row(bias))
    assert len(operands) == 1 and len(visitor.leaves(tree)) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ep.acc + torch.zeros(8), "wrap tensors in row"),
        (lambda: ep.acc * True, "bool in an epilogue"),
        (lambda: ep.apply(3, ep.acc), "function is a int"),
        (lambda: ep.cast(torch.float32, ep.acc), r"cast takes \(torch.bfloat16 or torch.float16"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_pairs_halve_the_width_once():
    pairs = visitor.Pairs(operator.mul, visitor.Accumulator())
    assert visitor.halves(pairs) and not visitor.halves(visitor.Accumulator())
    with pytest.raises(ValueError, match="halves the width"):
        visitor.halves(visitor.Apply(operator.add, (pairs, visitor.Accumulator())))
    with pytest.raises(ValueError, match="halves the width"):
        visitor.halves(visitor.Pairs(operator.mul, pairs))
    row = visitor.Row(0)
    with pytest.raises(ValueError, match="one width only"):
        inside = visitor.Pairs(operator.mul, visitor.Apply(operator.add, (visitor.Accumulator(), row)))
        visitor.halves(visitor.Apply(operator.add, (inside, row)))


def fragment(columns):
    """(thread, value) -> (row, column) of a 64 x columns accumulator, from CuTe's own partition."""
    found = {}

    @cute.jit
    def probe():
        mma = tiles.tiled_mma(cutlass.BFloat16, columns)
        identity = cute.make_identity_tensor((64, columns))
        for t in cutlass.range_constexpr(128):
            part = mma.get_slice(t).partition_C(identity)
            found[t] = [part[v] for v in range(cute.size(part))]

    probe()
    return found


@pytest.mark.parametrize("columns", [16, 64])
def test_operands_are_read_where_the_accumulator_sits(columns):
    """The closed forms in visitor.Slab are WGMMA's map: row and column of value v, and of a pair of values (2v, 2v + 1)."""
    for t, places in fragment(columns).items():
        warp, lane = t // 32, t % 32
        for v, place in enumerate(places):
            assert place == (warp * 16 + lane // 4 + 8 * (v // 2 % 2), 8 * (v // 4) + 2 * (lane % 4) + v % 2)
        for v in range(len(places) // 2):
            (row, left), (other, right) = places[2 * v], places[2 * v + 1]
            assert (row, right) == (other, left + 1)
            assert (row, left // 2) == (warp * 16 + lane // 4 + 8 * (v % 2), 4 * (v // 2) + lane % 4)


def compiled(tree, config=PINGPONG, **more):
    return SPEC.compile(config, "bfloat16", Variant(tree=tree, **more))


@pytest.mark.parametrize("config", [COOPERATIVE, PINGPONG], ids=lambda c: c.schedule)
@pytest.mark.parametrize("function", [activation.silu, activation.gelu, activation.gelu_tanh, activation.relu])
def test_activations_cost_what_they_must(function, config):
    c = compiled(visitor.Apply(function, (visitor.Accumulator(),)), config)
    per_thread = config.group_rows * config.tile_n // 128
    special = 0 if function is activation.relu else per_thread
    assert c.spill_bytes == 0 and "CALL" not in c.instructions
    assert c.instructions.get("MUFU.EX2", 0) == c.instructions.get("MUFU.RCP", 0) == special


@pytest.mark.parametrize("config", [COOPERATIVE, PINGPONG], ids=lambda c: c.schedule)
def test_operands_are_loaded_in_pairs(config):
    vector, matrix = torch.zeros(8, dtype=BF16), torch.zeros(8, 8, dtype=BF16)
    values = config.group_rows * config.tile_n // 128
    bias = compiled(ep.split(ep.gelu(ep.acc + ep.row(vector)))[0], config)
    residual = compiled(ep.split(ep.acc + ep.load(matrix))[0], config)
    assert bias.spill_bytes == residual.spill_bytes == 0
    assert residual.mnemonics["LDG.E"] == values // 2  # 32 bits, two columns
    assert bias.mnemonics["LDG.E"] == values // 4  # and one load for the rows r and r + 8


def test_a_number_is_a_launch_argument():
    a, b = (compiled(ep.split(ep.acc * scale)[0]) for scale in (0.5, 2.0))
    assert a.sass == b.sass


def test_pairs_store_half_the_columns():
    config = PINGPONG.with_(tile_n=64)
    c = compiled(visitor.Pairs(operator.mul, visitor.Accumulator()), config)
    assert c.spill_bytes == 0 and c.smem_dynamic == config.smem_bytes(2)
    assert "wgmma.mma_async.sync.aligned.m64n128k16" in c.ptx and c.mnemonics["STS.U16"] == 64
    assert c.instructions["UTMASTG"] == 2 and "STSM" not in c.instructions


@pytest.mark.parametrize("config", [COOPERATIVE, PINGPONG], ids=lambda c: c.schedule)
def test_fp32_output(config):
    c = compiled(None, config, out_dtype="float32")
    plain = compiled(None, config)
    assert c.spill_bytes == 0 and c.smem_dynamic == plain.smem_dynamic
    assert c.instructions["UTMASTG"] == 2 * plain.instructions["UTMASTG"] and "STSM" not in c.instructions
    assert c.mnemonics["STS.64"] >= config.group_rows * config.tile_n // 128 // 2


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
def test_transposed_operands(majors):
    for config in SPEC.fitting(majors)[:2]:
        c = SPEC.compile(config, "bfloat16", Variant(majors=majors))
        assert c.spill_bytes == 0 and c.smem_dynamic == config.smem_bytes(1)
    narrow = PINGPONG.with_(tile_n=160)
    with pytest.raises(ck.ConfigError, match="64 rows in a mn-major operand"):
        SPEC.compile(narrow, "bfloat16", Variant(majors=("k", "mn")))


def test_what_is_no_epilogue_says_so():
    for make, words in (
        (lambda: torch.relu(ep.acc), "torch's relu met an epilogue expression: use this module's functions"),
        (lambda: torch.zeros(3) * ep.acc, "wrap tensors in row"),
        (lambda: ep.acc / ep.acc, "divides by numbers only"),
    ):
        with pytest.raises(TypeError, match=words):
            make()
    assert ep.split(ep.acc / 4)[1] == (0.25,)
    c = ck.compile_only("gemm", epilogue=ep.relu(ep.acc + ep.row(torch.zeros(8).bfloat16())))
    assert c.spill_bytes == 0 and c.mnemonics["LDG.E"] > 0
    with pytest.raises(ValueError, match="'swiglu_stacked' takes no epilogue"):
        ck.compile_only("swiglu_stacked", epilogue=ep.acc)


def test_shared_parts_cost_nothing():
    x = ep.acc
    for _ in range(200):
        x = x * x
    one, other = ep.split(x)[0], ep.split(x)[0]
    assert one == other and hash(one) == hash(other) and len(one.walk()) == 201
