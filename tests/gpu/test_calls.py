"""Calls that are known, and kernels that come from disk, on a Hopper GPU."""

import os
import subprocess
import sys

import pytest
import torch

import cute_kernels as ck
from cute_kernels import validate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU")

IN_A_NEW_PROCESS = """
import torch, cute_kernels as ck
from cute_kernels import validate
torch.manual_seed(0)
x, g, u = (torch.randn(*s, device="cuda").to(torch.bfloat16) for s in ((130, 328), (264, 328), (264, 328)))
b = torch.randn(264, device="cuda")
ep = ck.epilogue
worst = max(
    validate.relative_error(ck.swiglu(x, g, u, kernel="stacked"), ck.reference.swiglu(x, g, u)),
    validate.relative_error(ck.swiglu(x, g, u, bias_gate=b, kernel="pingpong"), ck.reference.swiglu(x, g, u, bias_gate=b)),
    validate.relative_error(ck.swiglu_interleaved(x, ck.interleave(g, u)), ck.reference.swiglu(x, g, u)),
    validate.relative_error(ck.gemm(x, g, epilogue=ep.gelu(ep.acc + ep.row(b))),
                            torch.nn.functional.gelu(x.float() @ g.float().T + b)),
)
print(sum(ck.compile_counts().values()), worst < 0.004)
"""


def test_a_second_process_loads_and_is_right(tmp_path):
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", IN_A_NEW_PROCESS],
            env={**os.environ, "CUTE_KERNELS_CACHE_DIR": str(tmp_path), "CUTE_KERNELS_CACHE": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        for _ in range(2)
    ]
    assert [s.stdout.split() for s in said] == [["4", "True"], ["0", "True"]], [s.stderr[-1000:] for s in said]


def operands(m, n=264, k=328):
    return [torch.randn(*s, device="cuda").to(torch.bfloat16) for s in ((m, k), (n, k), (n, k))]


@pytest.mark.parametrize("m", [1, 130])
def test_known_calls_read_their_own_tensors(m):
    for _ in range(4):
        x, g, u = operands(m)
        want, packed = ck.reference.swiglu(x, g, u), ck.interleave(g, u)
        wide = torch.full((m, 3 * 264), 7.0, device="cuda").to(torch.bfloat16)
        out = wide[:, 264:528]
        for y in (
            ck.swiglu(x, g, u),
            ck.swiglu(x, g, u, out=out),
            ck.swiglu(x.view(1, m, -1), g, u).view(m, -1),
            ck.swiglu_interleaved(x, packed),
            torch.ops.cute_kernels.swiglu(x, g, u),
        ):
            assert validate.relative_error(y, want) < 0.004
        assert (wide[:, :264] == 7).all() and (wide[:, 528:] == 7).all()
        assert validate.relative_error(ck.gemm(x, g), ck.reference.gemm(x, g)) < 0.004
        assert validate.relative_error(ck.gemm(x, g.T.contiguous().T), ck.reference.gemm(x, g)) < 0.004


def test_a_known_call_follows_the_stream_and_the_graph():
    x, g, u = operands(64)
    ck.swiglu(x, g, u)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.normal_()
        y = ck.swiglu(x, g, u)
    side.synchronize()
    assert validate.relative_error(y, ck.reference.swiglu(x, g, u)) < 0.004
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ck.swiglu(x, g, u)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert validate.relative_error(y, ck.reference.swiglu(x, g, u)) < 0.004


def test_a_known_call_is_still_checked_where_it_must_be():
    x, g, u = operands(64)
    ck.swiglu(x, g, u)
    memory = torch.empty(x.numel() + 8, device="cuda", dtype=x.dtype)
    with pytest.raises(ValueError, match="aligned"):
        ck.swiglu(memory[1 : 1 + x.numel()].view_as(x), g, u)
    from torch._subclasses import FakeTensorMode

    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (x, g, u)]
    assert ck.swiglu(*fakes).shape == (64, 264)
    torch.cuda.synchronize()
    assert validate.relative_error(ck.swiglu(x, g, u), ck.reference.swiglu(x, g, u)) < 0.004
