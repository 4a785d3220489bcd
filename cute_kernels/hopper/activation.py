"""Activations on fp32 accumulators, from the special-function instructions that they really need."""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32


def sigmoid_times(x: Float32, scale: float, of: Float32) -> Float32:
    """x * sigmoid(scale * of) as x * rcp(1 + 2^(-scale * of * log2 e)): one ex2, one rcp, no division routine.

    For of -> -inf, ex2 overflows to inf, rcp(inf) = 0 and the result is -0.0; only infinite values give NaN.
    """
    return x * cute.arch.rcp_approx(
        Float32(1.0) + cute.math.exp2(of * Float32(-scale * math.log2(math.e)), fastmath=True)
    )


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + e^-x)."""
    return cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(x * Float32(-math.log2(math.e)), fastmath=True))


def silu(x: Float32) -> Float32:
    """x * sigmoid(x); only x = -inf gives NaN, as in fp32 PyTorch."""
    return sigmoid_times(x, 1.0, x)


def gelu_tanh(x: Float32) -> Float32:
    """0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), as PyTorch's approximate="tanh": x * sigmoid(2 u)."""
    return sigmoid_times(x, 2.0 * math.sqrt(2.0 / math.pi), x + Float32(0.044715) * x * x * x)


def gelu(x: Float32) -> Float32:
    """x * Phi(x), PyTorch's default GELU, with Phi from one ex2 and one rcp.

    For z = |x| / sqrt(2), erfc(z) = (a1 t + ... + a5 t^5) e^(-z^2), t = 1 / (1 + p z): Abramowitz and Stegun 7.1.26, absolute
    error at most 1.5e-7 of erf. The tail of negative x is the product itself, so nothing cancels there.
    """
    z = cute.math.absf(x) * Float32(math.sqrt(0.5))
    t = cute.arch.rcp_approx(Float32(1.0) + Float32(0.3275911) * z)
    poly = Float32(1.061405429)
    for a in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = poly * t + Float32(a)
    tail = Float32(0.5) * t * poly * cute.math.exp2(z * z * Float32(-math.log2(math.e)), fastmath=True)
    side = cutlass.select_(x > Float32(0.0), Float32(1.0) - tail, tail)
    return x * side


def relu(x: Float32) -> Float32:
    """max(x, 0); NaN stays NaN."""
    return cute.arch.fmax(x, Float32(0.0), nan=True)


def identity(x: Float32) -> Float32:
    return x


def oai_gate(x: Float32) -> Float32:
    """g * sigmoid(1.702 g) with g = min(x, 7): the gate of gpt-oss; NaN stays NaN."""
    g = cute.arch.fmin(x, Float32(7.0), nan=True)
    return sigmoid_times(g, 1.702, g)


def oai_up(x: Float32) -> Float32:
    """x, clamped to -7 ... 7, plus 1: the other branch of gpt-oss; NaN stays NaN."""
    return cute.arch.fmin(cute.arch.fmax(x, Float32(-7.0), nan=True), Float32(7.0), nan=True) + Float32(1.0)


#: the gated family: name -> (of the gate, of the other branch); the output is their product
GATED = {
    "swiglu": (silu, identity),
    "geglu": (gelu, identity),
    "geglu_tanh": (gelu_tanh, identity),
    "reglu": (relu, identity),
    "glu": (sigmoid, identity),
    "swiglu_oai": (oai_gate, oai_up),
}
