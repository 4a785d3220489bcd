"""Tile configurations of the warp-specialised kernels: they enumerate, validate and explain themselves without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

SMEM_CAPACITY = 232_448  # bytes of dynamic shared memory one SM90 CTA can have
SMEM_HEADER = 1024  # barriers, padded to the alignment of the first swizzled buffer
GROUP_MOST = 1 << 12  # more rows of clusters than any output needs
ELEMENT = 2  # bytes of a bf16 or fp16 element
MMA_M = 64  # rows of one WGMMA
STAGE_K = 64 * ELEMENT  # bytes of one row of a stage


def slot_widths(columns: int, element: int = ELEMENT) -> list[int]:
    """Columns that a store slot may have for a tile of `columns`, best first: all divide it and are multiples of 8.

    Best is the 128-byte swizzle, then that of 64 bytes; then, unswizzled, an odd multiple of 16 bytes as wide as can be, whose
    eight rows of a stmatrix fall into different banks; then the swizzle of 32 bytes, and last the rest.
    """
    fitting = [w for w in range(columns, 0, -8) if columns % w == 0 and w % 8 == 0 and w <= 256]
    swizzled = [128 // element, 64 // element]

    def rank(width: int) -> tuple:
        odd = width * element % 32 == 16
        order = swizzled.index(width) if width in swizzled else 2 if odd or width * element == 32 else 3
        return order, -width

    return sorted(fitting, key=rank)


class ConfigError(ValueError):
    """A configuration that the kernel cannot run, found before anything is compiled or launched."""


@dataclass(frozen=True)
class TileConfig:
    """One way to run a warp-specialised kernel.

    tile_m, tile_n: rows and columns of an output tile; tile_m below 64 loads and stores fewer rows than a WGMMA multiplies.
    schedule: "cooperative", the consumer warp groups share a tile, each takes tile_m / warp_groups rows, in slabs of 64; or
    "pingpong", two of them take tiles in turn, one multiplies while the other stores.
    warp_groups: consumer warp groups, 1 or 2.
    cluster: (along M, along N) CTAs that share operands by TMA multicast.
    stages: depth of the ring, 64 elements of K each. epi_slots: store slots of (64, epi_n) per warp group.
    group: rows of clusters that are walked together before the next column (L2 reuse).
    """

    tile_m: int = 128
    tile_n: int = 128
    warp_groups: int = 2
    cluster: tuple[int, int] = (1, 1)
    stages: int = 4
    epi_slots: int = 2
    group: int = 8
    schedule: str = "cooperative"

    def __post_init__(self) -> None:
        """Types, so that equal configurations are alike: 6.0 == 6, and would find the kernel that was compiled for 6."""
        for field in ("tile_m", "tile_n", "warp_groups", "stages", "epi_slots", "group"):
            got = getattr(self, field)
            self.need(type(got) is int, f"{field} is {got!r}, must be an int")
        self.need(
            isinstance(self.cluster, tuple) and len(self.cluster) == 2 and all(type(c) is int for c in self.cluster),
            f"cluster is {self.cluster!r}, must be a tuple of two ints",
        )

    @property
    def name(self) -> str:
        kind = "pp" if self.pingpong else "co"
        return f"{kind}_{self.tile_m}x{self.tile_n}_{self.cluster[0]}x{self.cluster[1]}_s{self.stages}_g{self.group}"

    @property
    def loops(self) -> int:
        """Times that a tile runs through K."""
        return 1

    @property
    def pingpong(self) -> bool:
        return self.schedule == "pingpong"

    @property
    def group_rows(self) -> int:
        """Rows that one consumer warp group multiplies: its share of a tile, or the 64 of a WGMMA where the tile has fewer."""
        return max(MMA_M, self.tile_m if self.pingpong else self.tile_m // self.warp_groups)

    @property
    def epi_n(self) -> int:
        """16-bit columns of one store slot, see `slot_widths`."""
        return slot_widths(self.tile_n)[0]

    @property
    def threads(self) -> int:
        return 128 * (self.warp_groups + 1)

    def smem_bytes(self, b_parts: int) -> int:
        """Dynamic shared memory in bytes when one B stage stacks `b_parts` blocks of tile_n rows."""
        ring = self.stages * (self.tile_m + b_parts * self.tile_n) * STAGE_K
        return SMEM_HEADER + ring + self.warp_groups * self.epi_slots * MMA_M * self.epi_n * ELEMENT

    def accumulators(self, b_parts: int) -> int:
        """fp32 accumulator registers per consumer thread."""
        return self.group_rows * self.tile_n * b_parts // 128

    def validate(self, b_parts: int = 1, majors: tuple[str, str] = ("k", "k")) -> TileConfig:
        """Returns self; raises ConfigError with the field, what was got and what is allowed. majors: of A and B, see tiles."""

        need = self.need
        need(
            self.schedule in ("cooperative", "pingpong"),
            f"schedule is {self.schedule!r}, allowed: cooperative, pingpong",
        )
        need(self.warp_groups in (1, 2), f"warp_groups is {self.warp_groups}, allowed: 1, 2")
        need(not self.pingpong or self.warp_groups == 2, f"warp_groups is {self.warp_groups}, pingpong takes 2")
        rows = MMA_M if self.pingpong else MMA_M * self.warp_groups
        few = self.warp_groups == 1 and self.tile_m in (8, 16, 32) and majors[0] == "k" and self.cluster[1] == 1
        need(
            few or self.tile_m > 0 and self.tile_m % rows == 0,
            f"tile_m is {self.tile_m}, must be a multiple of {rows}: 64 rows for each warp group that shares the tile (or, "
            "with one warp group, a K-major A and no multicast of it, 8, 16 or 32)",
        )
        need(self.tile_n > 0 and self.tile_n % 8 == 0, f"tile_n is {self.tile_n}, must be a multiple of 8")
        need(
            self.tile_n * b_parts <= 256,
            f"tile_n * {b_parts} B block(s) is {self.tile_n * b_parts}, a WGMMA is at most 256 columns wide",
        )
        need(
            self.accumulators(b_parts) <= 128 + 64,
            f"{self.accumulators(b_parts)} accumulators per thread, at most 192 fit beside the rest in 240 registers",
        )
        need(
            all(c in (1, 2) for c in self.cluster),
            f"cluster is {self.cluster}, allowed: 1 or 2 along each axis",
        )
        for axis, extent, major in ((1, self.tile_m, majors[0]), (0, self.tile_n, majors[1])):
            atom = 8 if major == "k" else 64
            shares = 1 if axis == 0 and b_parts == 2 else self.cluster[axis]  # of two B operands each CTA sends one
            need(
                extent % (atom * shares) == 0,
                f"{extent} rows do not split into {shares} multicast share(s) of whole swizzle atoms, which "
                f"have {atom} rows in a {major}-major operand",
            )
        need(
            b_parts * self.tile_n >= MMA_M - self.tile_m,
            f"tile_n is {self.tile_n}: with {self.tile_m} rows of A the WGMMA's 64 reach past the end of the ring",
        )
        need(self.stages >= 2, f"stages is {self.stages}, must be at least 2")
        slabs = self.group_rows // 64 * (self.tile_n // self.epi_n)
        need(
            self.epi_slots >= 1 and slabs % self.epi_slots == 0,
            f"epi_slots is {self.epi_slots}, must divide the {slabs} store slots of a tile",
        )
        need(1 <= self.group <= GROUP_MOST, f"group is {self.group}, must be 1 to {GROUP_MOST}")
        need(
            self.smem_bytes(b_parts) <= SMEM_CAPACITY,
            f"needs {self.smem_bytes(b_parts)} bytes of shared memory, {SMEM_CAPACITY} are available",
        )
        return self

    def need(self, ok: bool, text: str) -> None:
        """ConfigError with `text` unless ok."""
        if not ok:
            raise ConfigError(f"config {self!r}: {text}")

    def explain(self, b_parts: int = 1) -> str:
        """One line for people: what a CTA owns, what it costs."""
        how = "in turn" if self.pingpong else "together"
        return (
            f"{self.name}: {self.warp_groups} consumer warp group(s) {how} on {self.tile_m} x {self.tile_n} outputs, "
            f"{self.accumulators(b_parts)} accumulators per thread, {self.stages} stages, "
            f"{self.smem_bytes(b_parts)} of {SMEM_CAPACITY} B shared memory, cluster {self.cluster[0]} x {self.cluster[1]}"
        )

    def with_(self, **changes) -> TileConfig:
        return replace(self, **changes)
