"""MLP shapes of the models that the kernels are measured on."""

from __future__ import annotations

#: Qwen-2.5: name -> (hidden size K, intermediate size N), from the models' published configurations.
QWEN25: dict[str, tuple[int, int]] = {
    "0.5B": (896, 4864),
    "1.5B": (1536, 8960),
    "3B": (2048, 11008),
    "7B": (3584, 18944),
    "14B": (5120, 13824),
    "32B": (5120, 27648),
    "72B": (8192, 29568),
}
