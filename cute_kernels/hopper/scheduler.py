"""Which output tile comes next. Tiles are numbered so that CTAs that run at the same time share operands in L2."""

import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def grouped_tile(index: Int32, tiles_m: Int32, tiles_n: Int32, group: Int32):
    """Tile number -> (tile row, tile column): down `group` rows first, then one column on; the last group may be shorter."""
    per_group = group * tiles_n
    band = index // per_group
    inside = index - band * per_group
    rows = tiles_m - band * group
    if rows > group:
        rows = group
    column = inside // rows
    return band * group + inside - column * rows, column
