"""Gated MLPs as nn.Modules whose parameters are named as in transformers' Qwen2MLP and LlamaMLP, so that state_dicts fit.

What the fused kernel does not take (another device or dtype, sizes that are no multiples of 8) runs as PyTorch's kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.module import _has_any_global_hook

from . import api, reference

PARTS = ("gate_proj", "up_proj", "down_proj")  # of an MLP of transformers


class SwiGLU(nn.Module):
    """silu(gate_proj(x)) * up_proj(x), or another of the gated family, in one kernel: (..., hidden) -> (..., intermediate).

    hidden, intermediate: sizes K and N. bias: of both projections. activation: as for `cute_kernels.swiglu`.
    device, dtype: of the parameters, as for nn.Linear. Raises ValueError for an unknown activation.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        *,
        bias: bool = False,
        activation: str = "swiglu",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        api.check_activation(activation)
        self.activation = activation
        self.gate_proj, self.up_proj = (
            nn.Linear(hidden, intermediate, bias=bias, device=device, dtype=dtype) for _ in range(2)
        )

    @classmethod
    def from_linear(cls, gate: nn.Linear, up: nn.Linear, *, activation: str = "swiglu") -> SwiGLU:
        """From two nn.Linear of equal shape, whose parameters it shares. Raises TypeError, ValueError."""
        _check_linear(gate=gate, up=up)
        api.check_activation(activation)
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.activation, made.gate_proj, made.up_proj, made.training = activation, gate, up, gate.training
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj, self.up_proj
        if not (plain(gate) and plain(up) and is_plain(x)):  # an adapter, a hook, a quantised layer: more than its weight says
            return reference.GATED[self.activation](gate(x), up(x))
        return gated(x, gate.weight, up.weight, gate.bias, up.bias, self.activation)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


class SwiGLUMLP(SwiGLU):
    """down_proj(silu(gate_proj(x)) * up_proj(x)): (..., hidden) -> (..., hidden), the MLP of Qwen, Llama and their kin.

    Parameters as for `SwiGLU`; bias: of all three projections.
    """

    takes = "x"  # the name by which forward may be given its argument

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        *,
        bias: bool = False,
        activation: str = "swiglu",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(hidden, intermediate, bias=bias, activation=activation, device=device, dtype=dtype)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias, device=device, dtype=dtype)

    @classmethod
    def from_linear(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, *, activation: str = "swiglu") -> SwiGLUMLP:
        """From three nn.Linear, whose parameters it shares. Raises TypeError, ValueError."""
        _check_linear(down=down)
        made = super().from_linear(gate, up, activation=activation)
        if down.in_features != gate.out_features:
            raise ValueError(f"down takes {down.in_features} features, gate and up give {gate.out_features}")
        made.down_proj = down
        return made

    @classmethod
    def from_hf(cls, mlp: nn.Module) -> SwiGLUMLP:
        """From a transformers MLP with gate_proj, up_proj, down_proj and act_fn (Qwen2MLP, LlamaMLP, ...), whose parameters it
        shares: `load_state_dict` of either fits the other. Raises TypeError, ValueError for what is no such MLP."""
        parts = {name: getattr(mlp, name, None) for name in PARTS}
        _check_linear(**parts)
        _check_bare(mlp)
        made = cls.from_linear(*parts.values(), activation=activation_of(getattr(mlp, "act_fn", None)))
        made.training = mlp.training
        (made.takes,) = inspect.signature(mlp.forward).parameters
        return made

    def forward(self, x: torch.Tensor | None = None, **named: torch.Tensor) -> torch.Tensor:
        """named: x by the name that it had in the MLP of `from_hf`. Raises TypeError for any other."""
        if x is None and list(named) == [self.takes]:
            x = named.pop(self.takes)
        if x is None or named:
            raise TypeError(f"forward takes x alone, by position or as {self.takes}=, and got {', '.join(named) or None}")
        return self.down_proj(super().forward(x))


def gated(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    bias_gate: torch.Tensor | None,
    bias_up: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """The operator with its fallback; under autocast in autocast's dtype, as nn.Linear is."""
    kind = x.device.type
    if api.autocasts(x) and x.dtype is not torch.float64:  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(kind)
        x, w_gate, w_up = x.to(dtype), w_gate.to(dtype), w_up.to(dtype)
        with torch.autocast(kind, enabled=False):
            return gated(x, w_gate, w_up, bias_gate, bias_up, activation)
    tensors = (x, w_gate, w_up, bias_gate, bias_up)
    if api.has_tangent(*tensors) or api.func_differentiates():
        return api.swiglu(x, w_gate, w_up, bias_gate=bias_gate, bias_up=bias_up, activation=activation, kernel="torch")
    return torch.ops.cute_kernels.swiglu(*tensors, activation=activation, fallback=True)


#: what may stand for the gate of a family's member
GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    "reglu": F.relu,
    "glu": torch.sigmoid,
}


def activation_of(function: Any) -> str:
    """The gated family's name for an activation function or module, told by what it computes. Raises TypeError, ValueError."""
    if not callable(function):
        raise TypeError(f"act_fn is a {type(function).__name__}, must be callable")
    if isinstance(function, nn.Module) and function.state_dict():
        raise ValueError(f"act_fn {function!r} has parameters or buffers of its own")
    probe = torch.linspace(-40, 40, 4001, device="cpu")
    try:
        with torch.no_grad():
            got = function(probe.clone())
    except Exception as why:
        raise ValueError(f"act_fn {function!r} does not take a vector: {type(why).__name__}: {why}") from why
    for name, gate in GATES.items():
        if isinstance(got, torch.Tensor) and got.shape == probe.shape and torch.allclose(got, gate(probe), 1e-4, 1e-6):
            return name
    raise ValueError(f"act_fn {function!r} is none of the gates {', '.join(GATES)}")


def hooked(module: nn.Module) -> bool:
    """Whether something runs beside the module's forward or backward pass."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


#: tensors that are numbers in memory, or a tracer's picture of them; any other class decides by itself what an operator does
PLAIN = (torch.Tensor, nn.Parameter, FakeTensor, FunctionalTensor)


def is_plain(t: Any) -> bool:
    """Whether t is a tensor and no quantised, distributed, nested or other one of a class of its own."""
    return type(t) in PLAIN


def plain(layer: Any) -> bool:
    """Whether calling the layer is x @ weight.T + bias and nothing else."""
    return (
        type(layer) is nn.Linear
        and not hooked(layer)
        and not _has_any_global_hook()
        and "forward" not in layer.__dict__
        and is_plain(layer.weight)
        and (layer.bias is None or is_plain(layer.bias))
    )


#: what an MLP's class may say otherwise than nn.Module and still be replaced
OWN = {"__init__", "__repr__", "forward", "extra_repr"}
STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _check_bare(mlp: nn.Module) -> None:
    """ValueError where an MLP has, does or takes more than the three layers, an activation and x."""
    more = {name for name, _ in mlp.named_children()} - {*PARTS, "act_fn"}
    more |= {name for own in (mlp.named_parameters, mlp.named_buffers) for name, _ in own(recurse=False)}
    if more:
        raise ValueError(f"it has parts that its replacement would not have: {', '.join(sorted(more))}")
    if "forward" in mlp.__dict__:
        raise ValueError("its forward has been replaced")
    if mlp._compiled_call_impl is not None or any(part._compiled_call_impl is not None for part in mlp.children()):
        raise ValueError("torch.compile has wrapped it or a part of it: fuse before")
    if any(map(hooked, (mlp, *mlp.children()))) or any(getattr(mlp, hooks) for hooks in STATE_HOOKS):
        raise ValueError("it has hooks, which its replacement would not have")
    methods = [name for name, what in vars(nn.Module).items() if inspect.isfunction(what) and name not in OWN]
    own = {name for name in methods if getattr(type(mlp), name) is not getattr(nn.Module, name) or name in mlp.__dict__}
    if own:
        raise ValueError(f"it has methods that its replacement would not have: {', '.join(sorted(own))}")
    takes = inspect.signature(mlp.forward).parameters.values()
    if len(takes) != 1 or {one.kind for one in takes} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ValueError(f"its forward takes {', '.join(map(str, takes)) or 'nothing'}, a replacement's takes x alone")


def _check_linear(**layers: Any) -> None:
    """nn.Linear and nothing that does more, with weights of one shape for gate and up."""
    for name, layer in layers.items():
        if type(layer) is not nn.Linear:
            kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
            raise TypeError(f"{name} is a {kind}, must be an nn.Linear")
        if hooked(layer):
            raise ValueError(f"{name} has hooks, which a fused kernel would pass by")
        if "forward" in layer.__dict__:
            raise ValueError(f"{name}'s forward has been replaced")
        for what, t in (("weight", layer.weight), ("bias", layer.bias)):
            if t is not None and not (isinstance(t, nn.Parameter) and is_plain(t)):
                raise TypeError(f"{name}.{what} is a {type(t).__name__}, must be a Parameter with a plain tensor")
    shapes = {name: tuple(layer.weight.shape) for name, layer in layers.items() if not name.startswith("down")}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"weights of gate and up must have one shape, these have {shapes}")
