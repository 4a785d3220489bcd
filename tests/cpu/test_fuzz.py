"""Random calls against the documented rules, on CPU tensors that pass for a GPU's (values: tests/gpu/test_random_calls.py)."""

import os

import fuzzing
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch._subclasses import FakeTensorMode

CASES = int(os.environ.get("CUTE_KERNELS_FUZZ", "400"))
quietly = settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="CUTE_KERNELS_FUZZ" not in os.environ,
    database=None,
)


def plain(case):
    return case.activation == "swiglu" and not case.epilogue


@quietly
@given(fuzzing.cases())
def test_calls_do_what_the_rules_say(gpu, case):
    fuzzing.run(case, "cpu", values=plain(case) and case.kernel != "torch")


@quietly
@given(fuzzing.cases())
def test_fake_results_are_like_real_ones(gpu, case):
    if fuzzing.verdict(case) != fuzzing.RIGHT or case.epilogue or case.config is not None:
        return
    call = fuzzing.build(case, "cpu", 0)
    real = fuzzing.perform(case, call)
    launched = len(gpu)
    with FakeTensorMode() as mode:
        fake = fuzzing.build(case, "cpu", 0)
        fake.x, fake.weights = mode.from_tensor(call.x), [mode.from_tensor(w) for w in call.weights]
        fake.biases = [None if b is None else mode.from_tensor(b) for b in call.biases]
        fake.out = None if call.out is None else mode.from_tensor(call.out)
        y = fuzzing.perform(case, fake)
    assert (y.shape, y.stride(), y.dtype, y.device) == (real.shape, real.stride(), real.dtype, real.device), case
    assert len(gpu) == launched


def test_the_rules_tell_right_from_wrong():
    right = fuzzing.Case("swiglu", 64, 64, 64)
    assert fuzzing.verdict(right) == fuzzing.RIGHT
    for changed in (
        {"n": 65},
        {"k": 12},
        {"x": "misaligned"},
        {"w": "transposed"},
        {"other": "float16"},
        {"out": "over_x"},
    ):
        assert fuzzing.verdict(fuzzing.dataclasses.replace(right, **changed)) == fuzzing.WRONG
    assert fuzzing.verdict(fuzzing.Case("gemm", 64, 64, 64, w="transposed")) == fuzzing.RIGHT


def test_a_touched_neighbour_is_noticed():
    call = fuzzing.build(fuzzing.Case("swiglu", 5, 8, 16, out="columns"), "cpu", 0)
    call.out.fill_(1)
    assert not call.memory.touched(call.out)
    call.memory.buffers[0][0][3] += 1
    assert call.memory.touched(call.out)
    with pytest.raises(AssertionError, match="wrong by"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fuzzing, "perform", lambda case, call: torch.ones(5, 8).bfloat16())
            fuzzing.run(fuzzing.Case("swiglu", 5, 8, 16), "cpu")
