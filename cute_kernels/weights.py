"""Gate and up projections in one matrix: the layouts that projects use, and the typed container of the interleaved one.

`swiglu_interleaved` wants rows gate 0, up 0, gate 1, up 1, ... A plain (2N, K) tensor does not say in which order its rows are,
and a wrong order is silently wrong; so `interleave` returns an `Interleaved`, and the kernel takes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

#: name -> what the rows of the one matrix are; who stores it so
LAYOUTS = {
    "gate_up": "[gate; up]: gate_up_proj of Phi-3 in transformers, vLLM's merged linear layer",
    "up_gate": "[up; gate]: w1 of FlashInfer's gated MoE",
    "interleaved": "gate 0, up 0, gate 1, up 1, ...: gpt-oss checkpoints, triton_kernels, quack's gemm_gated, swiglu_interleaved",
    "interleaved_8": "8 rows of gate, 8 of up, ...: kestrel's MoE",
    "interleaved_16": "16 rows of gate, 16 of up, ...: FlashInfer on Blackwell",
    "interleaved_32": "32 rows of gate, 32 of up, ...: cuDNN's front end, FlashInfer on Hopper, Megatron-Bridge",
}


@dataclass(frozen=True, eq=False)  # tensors are not compared
class Interleaved:
    """Gate and up, rows in turn: `tensor` is (2N, K), or (2N,) for biases. Made by `interleave`, taken by `swiglu_interleaved`.

    `wrap` declares that a tensor from elsewhere has this order already (gpt-oss's gate_up_proj, transposed to rows).
    """

    tensor: torch.Tensor

    @classmethod
    def wrap(cls, tensor: torch.Tensor) -> Interleaved:
        """tensor (2N, K) or (2N,) whose rows are gate 0, up 0, gate 1, up 1, ...; not copied. Raises TypeError, ValueError."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor is a {type(tensor).__name__}, must be a torch.Tensor")
        if tensor.dim() not in (1, 2) or tensor.shape[0] % 2:
            raise ValueError(f"tensor has shape {tuple(tensor.shape)}, must be (2N, K) or (2N,)")
        return cls(tensor)

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def to(self, *args: Any, **kwargs: Any) -> Interleaved:
        """As torch.Tensor.to."""
        return Interleaved(self.tensor.to(*args, **kwargs))


def interleave(w_gate: torch.Tensor, w_up: torch.Tensor) -> Interleaved:
    """w_gate, w_up (N, K), or biases (N,) -> rows gate 0, up 0, gate 1, up 1, ...; a copy. Raises TypeError, ValueError."""
    return Interleaved(join(w_gate, w_up, "interleaved"))


def deinterleave(w: Interleaved) -> tuple[torch.Tensor, torch.Tensor]:
    """(w_gate, w_up), copies, bit for bit what `interleave` was given. Raises TypeError for a plain tensor."""
    if not isinstance(w, Interleaved):
        raise TypeError(
            f"w is a {type(w).__name__}, must be what interleave(w_gate, w_up) returned (or Interleaved.wrap(tensor))"
        )
    return split(w.tensor, "interleaved")


def join(gate: torch.Tensor, up: torch.Tensor, layout: str) -> torch.Tensor:
    """Gate and up, both (N, K) or both (N,), in one tensor of 2N rows as a `LAYOUTS` name says; a copy.

    Raises TypeError, ValueError (unknown layout, unequal shapes, N no multiple of the layout's block)."""
    for name, t in (("gate", gate), ("up", up)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, must be a torch.Tensor")
    if gate.shape != up.shape or gate.dim() not in (1, 2):
        raise ValueError(f"gate has shape {tuple(gate.shape)}, up {tuple(up.shape)}: must be equal, (N, K) or (N,)")
    if gate.dtype != up.dtype or gate.device != up.device:
        raise ValueError(f"gate is {gate.dtype} on {gate.device}, up is {up.dtype} on {up.device}: must be equal")
    block = _block(layout, gate.shape[0])
    if block is None:
        return torch.cat([gate, up] if layout == "gate_up" else [up, gate])
    parts = [t.reshape(t.shape[0] // block, block, *t.shape[1:]) for t in (gate, up)]
    return torch.stack(parts, 1).reshape(2 * gate.shape[0], *gate.shape[1:])


def split(w: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `join`: (gate, up), contiguous copies. Raises TypeError, ValueError."""
    if not isinstance(w, torch.Tensor):
        raise TypeError(f"w is a {type(w).__name__}, must be a torch.Tensor")
    if w.dim() not in (1, 2) or w.shape[0] % 2:
        raise ValueError(f"w has shape {tuple(w.shape)}, must be (2N, K) or (2N,)")
    n = w.shape[0] // 2
    block = _block(layout, n)
    if block is None:
        first, second = w[:n].clone(), w[n:].clone()
        return (first, second) if layout == "gate_up" else (second, first)
    blocks = w.reshape(n // block, 2, block, *w.shape[1:])
    gate, up = (blocks[:, i].reshape(n, *w.shape[1:]) for i in (0, 1))
    return gate.contiguous(), up.contiguous()


def _block(layout: str, n: int) -> int | None:
    """Rows of one block of an interleaved layout, None for halves."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, allowed: {', '.join(LAYOUTS)}")
    if not layout.startswith("interleaved"):
        return None
    block = int(layout.partition("_")[2] or 1)
    if n % block:
        raise ValueError(f"N is {n}, must be a multiple of {block} for layout {layout!r}")
    return block
