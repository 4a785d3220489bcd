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

from .config import ELEMENT, MMA_M, TileConfig

CLOCK = 1.6e9  # Hz under load; only the comparison with the DRAM time depends on it
DRAM = 4.2e12  # bytes per second
MULTIPLY = 2048  # fused multiply-adds per cycle and SM
L2 = 55  # bytes per cycle and SM
ENERGY = (
    0.01  # of equal cycles those with fewer bytes are better: a board at its power limit pays for bytes with its clock
)
UNFUSED_FLOPS = 680e12  # per second, what cuBLAS reaches on large products of random data
LAUNCH = 1.5e-6  # seconds between two kernels of a CUDA graph


def predicted_seconds(config: TileConfig, m: int, n: int, k: int, blocks: int, sms: int) -> float:
    """Predicted duration of one launch on `sms` multiprocessors: out (m, n), depth k, `blocks` of tile_n weight rows a stage."""
    along_m, along_n = config.cluster
    clusters = -(-m // (config.tile_m * along_m)) * -(-n // (config.tile_n * along_n))
    waves = -(-clusters // (sms // (along_m * along_n)))
    columns = config.tile_n * blocks
    multiply = max(MMA_M, config.tile_m) * columns * 64 / MULTIPLY
    load = (config.tile_m / along_n + columns / along_m) * 64 * ELEMENT / L2
    main = config.loops * -(-k // 64) * max(multiply, load) * (1 + ENERGY * load / multiply)
    outputs = config.tile_m * config.tile_n
    epilogue = 300 + outputs / 5 if config.pingpong else 600 + outputs / 10  # of one consumer, of both together
    if config.pingpong:
        cycles = waves * max(main, (main + epilogue) / 2) + epilogue
    else:
        cycles = waves * (main + epilogue)
    compulsory = ELEMENT * (m * k + config.loops * blocks * n * k + m * n)
    return max(cycles / CLOCK, compulsory / DRAM) + 1e-3 * cycles / CLOCK  # the last term breaks memory-bound ties


def unfused_seconds(m: int, n: int, k: int) -> float:
    """Predicted duration of gate and up as two cuBLAS GEMMs and PyTorch's two pointwise kernels."""
    products = max(4 * m * n * k / UNFUSED_FLOPS, ELEMENT * (m * k + 2 * n * k + 2 * m * n) / DRAM)
    return products + ELEMENT * 5 * m * n / DRAM + 3 * LAUNCH


def prefers_fused(configs: Sequence[TileConfig], m: int, n: int, k: int, blocks: int, sms: int) -> bool:
    """Whether `swiglu(kernel="auto")` fuses: its best configuration is predicted to be no slower than cuBLAS and PyTorch."""
    best = choose(configs, m, n, k, blocks, sms)
    return predicted_seconds(best, m, n, k, blocks, sms) <= unfused_seconds(m, n, k)


def choose(configs: Sequence[TileConfig], m: int, n: int, k: int, blocks: int, sms: int) -> TileConfig:
    """The configuration with the smallest predicted time."""
    return min(configs, key=lambda config: predicted_seconds(config, m, n, k, blocks, sms))
