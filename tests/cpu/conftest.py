"""A Hopper GPU that is not there, for tests of what happens around a launch."""

import types

import pytest
import torch

from cute_kernels import api, device, gradient, launch, plans, reference, unfused
from cute_kernels.compile import dtype_name
from cute_kernels.hopper import gated


@pytest.fixture
def hopper(monkeypatch):
    """CPU tensors pass for those of an H200."""
    monkeypatch.setattr(device, "target", lambda where: "sm_90a")
    monkeypatch.setattr(device, "sm_count", lambda where: 132)
    monkeypatch.setattr(api, "DEVICE", "cpu")


def d_silu_times(dy, gate, up):
    return torch.ops.aten.silu_backward(dy * up, gate)


@pytest.fixture
def gpu(monkeypatch, hopper):
    """Kernels are PyTorch's; returns the names of the kernels that were launched."""
    seen = []

    def function_of(name, biases, tree):
        def function(a, *rest):
            *weights, out, _, operands, _ = rest
            seen.append(name)
            if name == "gemm":
                y = a.float() @ weights[0].float().T
                out.copy_(y if tree is None else unfused.value(tree, operands, y))
                return
            if name == "swiglu_interleaved":
                weights = weights[0][0::2], weights[0][1::2]
                operands = tuple(t for o in operands for t in (o[0::2], o[1::2]))
            named = dict(zip(biases, operands, strict=False))
            out.copy_(reference.swiglu(a, *weights, **named))

        return function

    def compute(name, a, weights, out, config, variant=launch.PLAIN, operands=()):
        only_up = len(operands) == 1 and variant.tree == gated.stacked("swiglu", (None, dtype_name(operands[0].dtype)))
        biases = ("bias_up",) if only_up else ("bias_gate", "bias_up")
        entry = types.SimpleNamespace(function=function_of(name, biases, variant.tree)), 1
        launch.call(entry[0].function, None, a, *weights, out, 1, operands, None)
        return entry

    monkeypatch.setitem(unfused.TORCH, gradient.d_silu_times, d_silu_times)
    for module in (torch.cuda, plans):
        monkeypatch.setattr(module, "current_device", lambda: None)  # the index of a CPU tensor's device
    plans.forget()
    monkeypatch.setattr(launch, "launch", compute)
    monkeypatch.setattr(launch, "fuses", lambda x, n: True)
    yield seen
    plans.forget()
