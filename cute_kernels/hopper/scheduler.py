"""Which output tile comes next. Tiles are numbered so that CTAs that run at the same time share operands in L2."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32


def divisors(tiles_m: Int32, tiles_n: Int32, group: Int32) -> tuple:
    """What `grouped_tile` divides by: tiles of a group, rows of a group, rows of the last one.

    They are made on the host, once a launch: a division by one of them is a multiplication and a shift, where the hardware
    has no integer division and a launch would wait for two of them before its first load.
    """
    group = cutlass.min(Int32(group), tiles_m)  # so that a group has no more tiles than there are
    last = tiles_m - (tiles_m - 1) // group * group
    return tuple(cute.fast_divmod_create_divisor_v2(d) for d in (group * tiles_n, group, last))


@cute.jit
def grouped_tile(index: Int32, tiles_m: Int32, divisors: tuple):
    """Tile number -> (tile row, tile column): down a group's rows first, then one column on; the last group may be shorter."""
    group_tiles, group_rows, last_rows = divisors
    band, inside = divmod(index, group_tiles)
    top = band * group_rows.divisor
    column, row = divmod(inside, group_rows)
    if top + group_rows.divisor > tiles_m:
        column, row = divmod(inside, last_rows)
    return top + row, column
