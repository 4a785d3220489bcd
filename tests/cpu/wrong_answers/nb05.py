"""Typical wrong answers: (text in the solution, what stands there instead, words of the checker's answer)."""

LOOP = "    for index in cutlass.range(cta, tiles_m * tiles_n, ctas, unroll=1):\n"
WALK = LOOP + "        row, column = tile_of(index, tiles_m, tiles_n, group)\n        work(row, column)\n"

WRONG = {
    "05a": [
        ("cutlass.min(group, tiles_m - number * group)", "group", "You take the last group for a whole one"),
        ("cutlass.min(group, tiles_m - number * group)", "tiles_m % group", "divide by zero"),
        ("column = inside // rows", "column = inside // group", "You divide by `group` also in the last group"),
        (
            "    column = inside // rows\n    row = number * group + inside - column * rows\n",
            "    column = inside // group\n    row = number * group + inside % rows\n",
            "a column has as many tiles as the group has rows",
        ),
        (
            "    column = inside // rows\n    row = number * group + inside - column * rows\n",
            "    column = inside % tiles_n\n    row = number * group + inside // tiles_n\n",
            "it goes down the rows of a column first",
        ),
        ("row = number * group + inside -", "row = inside -", "a group does not begin at row 0"),
        (
            "number = index // (group * tiles_n)",
            "number = index // (group * tiles_m)",
            "8 x 5 tiles in groups of 4 rows: tile 20",
        ),
        ("inside = index - number * group * tiles_n", "inside = index", "There is no tile"),
        (LOOP, "    for index in cutlass.range(tiles_m * tiles_n, unroll=1):\n", "Every CTA walks over all tiles"),
        (
            LOOP,
            "    share = (tiles_m * tiles_n + ctas - 1) // ctas\n"
            "    for index in cutlass.range(cta * share, cutlass.min(cta * share + share, tiles_m * tiles_n), unroll=1):\n",
            "A row of neighbouring numbers for one CTA",
        ),
        (
            LOOP,
            "    for turn in cutlass.range((tiles_m * tiles_n + ctas - 1) // ctas, unroll=1):\n"
            "        index = cta + turn * ctas\n",
            "the last round is not for every CTA",
        ),
        (
            LOOP,
            "    for turn in cutlass.range(tiles_m * tiles_n // ctas, unroll=1):\n        index = cta + turn * ctas\n",
            "The last round is for those CTAs that still find a tile",
        ),
        ("        work(row, column)\n", "        work(column, row)\n", "Row and column are exchanged"),
        (WALK, "    ...\n", "`walk` is not filled in yet"),
        (WALK, "    return None\n", "`walk` is not filled in yet, or it never calls `work`"),
        (
            "        work(row, column)\n",
            "        while row < tiles_m:\n            row += 0\n",
            "does not come to an end",
        ),
    ],
    "05b": [
        (
            "sum(1 << m + cluster_m * other for other in range(cluster_n))",
            "((1 << cluster_m) - 1) << cluster_m * n",
            "A goes along N",
        ),
        ("sum(1 << m + cluster_m * other", "sum(1 << m * cluster_n + other", "You count the ranks along N first"),
        ("sum(1 << m + cluster_m * other", "sum(1 << cluster_m * other", "shift it to this one's place along M"),
        (
            "for other in range(cluster_n))",
            "for other in range(cluster_n) if other != n)",
            "The sender's own bit is missing",
        ),
        (
            "sum(1 << m + cluster_m * other for other in range(cluster_n))",
            "(1 << cluster_m * cluster_n) - 1",
            "All CTAs would get it",
        ),
        (
            "sum(1 << down + cluster_m * n for down in range(cluster_m))",
            "1 << m + cluster_m * n",
            "It goes to the sender alone",
        ),
        ("rows = tile_m // cluster_n", "rows = tile_m", "are not all in the box"),
        (
            "    rows = tile_m // cluster_n\n    first = n * rows\n",
            "    rows, first = tile_m, 0\n",
            "so each loads 32 rows",
        ),
        ("rows = tile_m // cluster_n", "rows = tile_m // cluster_m", "so each loads 32 rows, at its place"),
        ("first = n * rows", "first = 0", "All send the same rows"),
        ("first = m * rows", "first = n * rows", "are not all in the box"),
        (
            "(tile_m + tile_n) * 64",
            "(tile_m // cluster_n + tile_n // cluster_m) * 64",
            "it receives the others' shares, too",
        ),
        ("(tile_m + tile_n) * 64 * 2", "(tile_m + tile_n) * 64", "Those are elements"),
        ("(tile_m + tile_n) * 64", "tile_m * 64", "A and B land on the same barrier"),
        ("4 if pingpong else 4 * warp_groups", "4 * warp_groups", "A pingpong stage is read by one of the warp groups"),
        ("4 if pingpong else 4 * warp_groups", "4", "All 2 warp groups read a stage"),
        ("(cluster_m + cluster_n - 1)", "1", "Those are the warps of one CTA"),
        ("(cluster_m + cluster_n - 1)", "cluster_m * cluster_n", "Not all 8 CTAs receive from this one"),
        ("(cluster_m + cluster_n - 1)", "(cluster_m + cluster_n)", "its warps arrive once"),
    ],
}
