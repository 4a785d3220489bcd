"""Every way to a gated product, for tests of what must hold at each of them."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

import cute_kernels as ck


class MLP(nn.Module):
    """What transformers' Qwen2MLP is."""

    def __init__(self, hidden=32, intermediate=48, act=None, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, intermediate, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)
        self.act_fn = act or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def linear(w):
    layer = nn.Linear(*w.shape[::-1], bias=False, device="meta")
    layer.weight = nn.Parameter(w)
    return layer


def mlp(gate, up):
    """An MLP of these weights whose down projection changes nothing."""
    made = MLP(8, 8)
    down = torch.eye(gate.shape[0], dtype=gate.dtype, device=gate.device)
    made.gate_proj, made.up_proj, made.down_proj = map(linear, (gate, up, down))
    return made


def module(x, gate, up):
    layer = ck.SwiGLU(*gate.shape[::-1], device=x.device, dtype=x.dtype)
    layer.load_state_dict({"gate_proj.weight": gate, "up_proj.weight": up})
    return layer(x)


def fused(x, gate, up):
    model = nn.Sequential(mlp(gate, up))
    assert ck.fuse(model).count == 1
    return model(x)


def compiled(x, gate, up):
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    ck.fuse_compiled()
    try:
        with fresh_cache():
            return torch.compile(lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b))(x, gate, up)
    finally:
        ck.fuse_compiled(False)


OPS = torch.ops.cute_kernels
#: functions and operators: what they do not take is an error
CALLS = {
    "auto": ck.swiglu,
    **{kernel: functools.partial(ck.swiglu, kernel=kernel) for kernel in ("stacked", "pingpong", "interleaved")},
    "packed": lambda x, gate, up: ck.swiglu_interleaved(x, ck.interleave(gate, up)),
    "operator": OPS.swiglu,
    "packed operator": lambda x, gate, up: OPS.swiglu_interleaved(x, ck.interleave(gate, up).tensor),
}
#: modules and rewritten models: what the fused kernels do not take runs as PyTorch's
MODULES = {
    "SwiGLU": module,
    "SwiGLU.from_linear": lambda x, gate, up: ck.SwiGLU.from_linear(linear(gate), linear(up))(x),
    "SwiGLUMLP.from_linear": lambda x, *both: ck.SwiGLUMLP.from_linear(*list(mlp(*both).children())[:3])(x),
    "SwiGLUMLP.from_hf": lambda x, gate, up: ck.SwiGLUMLP.from_hf(mlp(gate, up))(x),
    "fuse": fused,
    "fuse_compiled": compiled,
}
FUSED = CALLS | MODULES
TORCH = functools.partial(ck.swiglu, kernel="torch")
ENTRIES = FUSED | {"torch": TORCH}


def odd_strides(k):
    """(shape, strides) of rows of k elements, of whose size-1 dimensions the stride means nothing."""
    return {
        "a row": ((1, k), (3, 1)),
        "a row of stride 0": ((1, k), (0, 1)),
        "batches of one": ((1, 1, k), (5, 7, 1)),
        "one batch": ((1, 3, k), (7, k + 8, 1)),
        "one row a batch": ((3, 1, k), (k + 8, 1, 1)),
        "four dimensions": ((1, 2, 1, k), (9, k + 8, 11, 1)),
    }
