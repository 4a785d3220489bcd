"""What is compiled and when, on CPU tensors that pass for a GPU's: kernels are taken from a cache that only writes down."""

import types

import pytest
import torch
from entries import CALLS, MODULES

import cute_kernels as ck
from cute_kernels import cache, device, launch, plans

K, N = 16, 24
WAYS = CALLS | {name: MODULES[name] for name in ("SwiGLU", "SwiGLUMLP.from_hf")}


@pytest.fixture
def loads(monkeypatch, hopper):
    """(kernel, configuration, dtype) of what was compiled, and the names of what was launched."""
    seen, launched = [], []

    def compiled(spec, config, dtype, variant):
        seen.append((spec.name, config, dtype))
        return types.SimpleNamespace(function=lambda *args: launched.append(spec.name))

    for module in (torch.cuda, plans):
        monkeypatch.setattr(module, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cache, "compiled", compiled)
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setattr(launch, "fuses", lambda x, n: True)
    monkeypatch.setattr(device, "max_clusters", lambda where, size: 132 // size)
    plans.forget()
    yield seen, launched
    plans.forget()


def operands(m, dtype=torch.bfloat16):
    return [torch.zeros(s, dtype=dtype) for s in ((m, K), (N, K), (N, K))]


def test_changing_only_m_compiles_nothing(loads):
    """One configuration is one kernel for every M; without config= M may choose another, each of them is compiled once."""
    seen, launched = loads
    x, gate, up = operands(300)
    packed = ck.interleave(gate, up)
    calls = {
        "gemm": lambda x, **how: ck.gemm(x, gate, **how),
        "swiglu_interleaved": lambda x, **how: ck.swiglu_interleaved(x, packed, **how),
    }
    for spec in ck.kernels():
        call = calls.get(spec.name, lambda x, **how: ck.swiglu(x, gate, up, **how))
        seen.clear()
        for m in range(1, 300):
            call(x[:m], config=spec.configs[0])
        assert seen == [(spec.name, spec.configs[0], "bfloat16")]
        if spec.name == "swiglu_pingpong":
            continue
        for _ in range(2):
            for m in range(1, 300):
                call(x[:m])
            assert len(seen) == len(set(seen)) <= len(spec.configs)
    seen.clear()
    ck.gemm(*operands(300, torch.float16)[:2])
    assert [dtype for *_, dtype in seen] == ["float16"]


@pytest.mark.parametrize("name", WAYS)
def test_a_first_call_inside_a_capture_is_an_error(loads, monkeypatch, name):
    """Before anything is launched; what was called once is captured."""
    seen, launched = loads
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    given = operands(6)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"not compiled yet .* CUDA graph .*warmup\(\.\.\.\)"):
        WAYS[name](*given)
    assert not seen and not launched
    for capturing[0] in (False, True):
        WAYS[name](*given)
    assert len(seen) == 1 and len(launched) == 2


def test_too_much_shared_memory_is_an_error_before_the_launch(loads):
    seen, launched = loads
    x, gate, up = operands(6)
    packed = ck.interleave(gate, up)
    for spec in ck.kernels():
        call = {
            "gemm": lambda config: ck.gemm(x, gate, config=config),
            "swiglu_stacked": lambda config: ck.swiglu(x, gate, up, config=config),
            "swiglu_pingpong": lambda config: ck.swiglu(x, gate, up, kernel="pingpong", config=config),
            "swiglu_interleaved": lambda config: ck.swiglu_interleaved(x, packed, config=config),
        }[spec.name]
        greedy = spec.configs[0].with_(stages=14)
        need = greedy.smem_bytes(spec.blocks)
        for attempt in (call, lambda config, name=spec.name: ck.compile_only(name, config=config)):
            with pytest.raises(ck.ConfigError, match=f"needs {need} bytes of shared memory, 232448 are available"):
                attempt(greedy)
        assert not seen and not launched
        call(spec.configs[0])
        assert seen.pop()[:2] == (spec.name, spec.configs[0]) and launched.pop() == spec.name
