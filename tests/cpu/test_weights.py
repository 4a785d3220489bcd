"""Gate and up in one matrix: every layout there and back, and a type that a plain tensor cannot pass for."""

import pytest
import torch

import cute_kernels as ck
from cute_kernels import weights


@pytest.mark.parametrize("layout", weights.LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 5), (64,)])
def test_there_and_back(layout, shape):
    gate, up = torch.randn(shape), torch.randn(shape)
    joined = weights.join(gate, up, layout)
    assert joined.shape == (128, *shape[1:])
    back = weights.split(joined, layout)
    assert torch.equal(back[0], gate) and torch.equal(back[1], up)
    assert sorted(joined.flatten().tolist()) == sorted([*gate.flatten().tolist(), *up.flatten().tolist()])


def test_orders():
    gate, up = torch.arange(32), torch.arange(32) + 100
    assert weights.join(gate, up, "gate_up")[:3].tolist() == [0, 1, 2]
    assert weights.join(gate, up, "up_gate")[:3].tolist() == [100, 101, 102]
    assert weights.join(gate, up, "interleaved")[:4].tolist() == [0, 100, 1, 101]
    assert weights.join(gate, up, "interleaved_8")[6:10].tolist() == [6, 7, 100, 101]
    assert weights.join(gate, up, "interleaved_32")[31:33].tolist() == [31, 100]


def test_interleave_is_typed_and_exact():
    gate, up = torch.randn(8, 4).bfloat16(), torch.randn(8, 4).bfloat16()
    w = ck.interleave(gate, up)
    assert (w.shape, w.dtype) == ((16, 4), torch.bfloat16)
    assert torch.equal(w.tensor[0::2], gate) and torch.equal(w.tensor[1::2], up)
    back = ck.deinterleave(w)
    assert torch.equal(back[0], gate) and torch.equal(back[1], up)
    assert w.to(torch.float32).dtype == torch.float32
    with pytest.raises(TypeError, match="w is a Tensor, must be what interleave"):
        ck.deinterleave(w.tensor)
    assert ck.Interleaved.wrap(w.tensor).tensor is w.tensor
    with pytest.raises(ValueError, match=r"tensor has shape \(3, 4\)"):
        ck.Interleaved.wrap(torch.zeros(3, 4))


def test_errors():
    gate, up = torch.randn(24, 4), torch.randn(24, 4)
    with pytest.raises(ValueError, match="layout is 'rows', allowed: gate_up"):
        weights.join(gate, up, "rows")
    with pytest.raises(ValueError, match="N is 24, must be a multiple of 32"):
        weights.join(gate, up, "interleaved_32")
    with pytest.raises(ValueError, match="must be equal"):
        ck.interleave(gate, up[:16])
    with pytest.raises(ValueError, match="must be equal"):
        ck.interleave(gate, up.double())
    with pytest.raises(TypeError, match="up is a list"):
        ck.interleave(gate, [1])
