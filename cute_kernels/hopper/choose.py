"""Which configuration for which shape: a time predicted from counts, the smallest wins, ties go to the earlier one.

Per tile and k-tile of 64, an SM needs the longer of
    multiply: tile_m * columns * 64 / 2048 cycles (a WGMMA m64n256k16 takes 128), and
    load:     bytes that L2 sends this CTA (its share only of what is multicast) / 55 per cycle.
A cooperative schedule adds the epilogue to every tile. Under pingpong one warp group's epilogue runs beneath the other's
multiplication: a tile costs its multiplication, or half of multiplication and epilogue where that is more, and only the
last epilogue is seen. Tiles run in waves over the SMs. No launch beats the DRAM time of its compulsory bytes. The constants
were fitted to H200 timings; notebooks/measured/h200/bench.json says how the choices turned out.
"""

from __future__ import annotations

from collections.abc import Sequence

from .config import ELEMENT, TileConfig

CLOCK = 1.6e9  # Hz under load; only the comparison with the DRAM time depends on it
DRAM = 4.2e12  # bytes per second
MULTIPLY = 2048  # fused multiply-adds per cycle and SM
L2 = 55  # bytes per cycle and SM


def predicted_seconds(config: TileConfig, m: int, n: int, k: int, b_parts: int, sms: int) -> float:
    """Predicted duration of one launch on `sms` multiprocessors: out (m, n), depth k, b_parts B operands."""
    along_m, along_n = config.cluster
    clusters = -(-m // (config.tile_m * along_m)) * -(-n // (config.tile_n * along_n))
    waves = -(-clusters // (sms // (along_m * along_n)))
    columns = config.tile_n * b_parts
    multiply = config.tile_m * columns * 64 / MULTIPLY
    load = (config.tile_m / along_n + columns / along_m) * 64 * ELEMENT / L2
    main = -(-k // 64) * max(multiply, load)
    epilogue = 300 + config.tile_m * config.tile_n / (5 if config.pingpong else 10)  # of one consumer, of both together
    if config.pingpong:
        cycles = waves * max(main, (main + epilogue) / 2) + epilogue
    else:
        cycles = waves * (main + epilogue)
    compulsory = ELEMENT * (m * k + b_parts * n * k + m * n)
    return max(cycles / CLOCK, compulsory / DRAM) + 1e-3 * cycles / CLOCK  # the last term breaks memory-bound ties


def prefers_fused(m: int, n: int, k: int) -> bool:
    """Whether `swiglu(kernel="auto")` fuses: m rows, weights (n, k) of 16-bit elements. bench.json has both sides.

    With few rows the launch is bound by reading the weights, and cuBLAS reads the largest ones up to an eighth faster; small
    ones are read so soon that three launches instead of one decide.
    """
    return m > 32 or 2 * n * k * ELEMENT <= 100_000_000


def choose(configs: Sequence[TileConfig], m: int, n: int, k: int, b_parts: int, sms: int) -> TileConfig:
    """The configuration with the smallest predicted time."""
    return min(configs, key=lambda config: predicted_seconds(config, m, n, k, b_parts, sms))
