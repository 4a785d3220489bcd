"""Activations on fp32 accumulators, from the two special-function instructions that they really need."""

import math

import cutlass.cute as cute
from cutlass import Float32


def silu(x: Float32) -> Float32:
    """x * sigmoid(x) as x * rcp(1 + 2^(-x log2 e)): one ex2, one rcp, no division routine.

    For x -> -inf, ex2 overflows to inf, rcp(inf) = 0 and the result is -0.0; only x = -inf gives NaN, as in fp32 PyTorch.
    """
    return x * cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(x * Float32(-math.log2(math.e)), fastmath=True))
