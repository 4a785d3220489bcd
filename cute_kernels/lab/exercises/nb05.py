"""Checkers of the exercises of notebook 05: the order of tiles with the persistent walk, and a cluster's multicast."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import product

import cutlass.cute as cute
import torch
from cutlass import Int32
from cutlass.cute.runtime import from_dlpack

from . import Wrong, checker, harness
from .simulator import SCHEDULES, Simulator, as_python, bounded

Tile = tuple[int, int]  # (row, column)


# 05a

#: (tiles_m, tiles_n, group): whole groups, a short last one, a group higher than the output, then everything small.
SHAPES = (
    (8, 5, 4),
    (7, 5, 3),
    (5, 4, 3),
    (3, 4, 8),
    *product(range(1, 9), range(1, 7), range(1, 11)),
    (32, 16, 6),
    (11, 40, 8),
)
WALKS = ((7, 5, 3, 4), (7, 5, 3, 1), (4, 3, 8, 5), (2, 3, 2, 6), (2, 3, 2, 9), (9, 7, 4, 13))  # and the number of CTAs


@checker("05a")
def walk_the_tiles(tile_of, walk):
    """The order of tiles and who takes which: as plain Python, compiled for the CPU, then in the finished gemm."""
    where, go = (as_python(function, Simulator(SCHEDULES[0])) for function in (tile_of, walk))
    for shape in SHAPES:
        _check_order([_tile(where, index, *shape) for index in range(shape[0] * shape[1])], *shape)
    yield f"{len(SHAPES)} sizes and groups, short last groups among them: every tile once, in the order wanted"
    for *shape, ctas in WALKS:
        _check_walk([_walked(go, cta, ctas, *shape) for cta in range(ctas)], *shape)
    yield f"{len(WALKS)} walks, also with more CTAs than tiles: CTA c of C takes the tiles c, c + C, c + 2C, ..."
    _check_compiled(walk)
    yield "compiled for the CPU: the same walks"
    compiled = harness.finished("05a", tile_of)
    yield (
        f"the finished gemm compiles for sm_90a with it: {compiled.registers} registers at launch, {compiled.spill_bytes} "
        "bytes spilled"
    )
    yield from harness.run_on_gpu("05a", tile_of, "The usual cause: a tile number that is taken for ever.")


def grouped(tiles_m: int, tiles_n: int, group: int) -> list[Tile]:
    """The tiles in their order: the specification."""
    tops = range(0, tiles_m, group)
    return [(m, n) for top in tops for n in range(tiles_n) for m in range(top, min(top + group, tiles_m))]


def _tile(where: Callable, index: int, tiles_m: int, tiles_n: int, group: int) -> Tile:
    setting = f"{_setting(tiles_m, tiles_n, group)}: tile {index}"
    try:
        answer = bounded(where, index, tiles_m, tiles_n, group)
    except ZeroDivisionError:
        raise Wrong(
            f"{setting} makes it divide by zero. How many rows has a group when {group} divides {tiles_m}? "
            "tiles_m % group is 0 then, and on the GPU nothing would complain."
        ) from None
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(type(x) is int for x in answer):
        raise Wrong(f"{setting} is {answer!r} with you; wanted are two integers (row, column).")
    return answer


def _setting(tiles_m: int, tiles_n: int, group: int) -> str:
    return f"{tiles_m} x {tiles_n} tiles in groups of {group} row{'s' * (group > 1)}"


def _check_order(got: list[Tile], tiles_m: int, tiles_n: int, group: int) -> None:
    want = grouped(tiles_m, tiles_n, group)
    if got == want:
        return
    number = next(i for i, (mine, right) in enumerate(zip(got, want, strict=True)) if mine != right)
    text = [f"{_setting(tiles_m, tiles_n, group)}: tile {number} is {got[number]} with you, wanted is {want[number]}."]
    text += _damage(got, want)
    why = next((why for why, order in _typical(tiles_m, tiles_n, group) if order == got), None)
    if why is None and tiles_m % group and want[number][0] >= tiles_m // group * group:
        why = f"The last group has only {tiles_m % group} row{'s' * (tiles_m % group > 1)}; the whole groups before it are right."
    raise Wrong(" ".join([*text, why or ""]).strip())


def _damage(got: list[Tile], want: list[Tile]) -> list[str]:
    """Which tiles do not exist, are computed twice, or never."""
    text = []
    if outside := [tile for tile in got if tile not in set(want)]:
        text.append(f"There is no tile {outside[0]}.")
    if twice := [tile for tile, times in Counter(got).items() if times > 1 and tile not in outside]:
        first, second = [i for i, tile in enumerate(got) if tile == twice[0]][:2]
        text.append(f"Tile {twice[0]} comes twice, as number {first} and number {second}.")
    if never := [tile for tile in want if tile not in set(got)]:
        text.append(f"{len(never)} tile{'s are' if len(never) > 1 else ' is'} never computed, such as {never[0]}.")
    return text


def _typical(tiles_m: int, tiles_n: int, group: int) -> list[tuple[str, list[Tile]]]:
    """(sentence, the order that this mistake makes)"""
    per = group * tiles_n
    places = [
        (i // per * group, i % per) for i in range(tiles_m * tiles_n)
    ]  # first row of the group, number inside of it
    places = [(top, min(group, tiles_m - top), inside) for top, inside in places]
    full = "You divide by `group` also in the last group, which is shorter: a column has as many tiles as the group has rows."
    return [
        (
            "You take the last group for a whole one: its rows are what is left of tiles_m, if that is less than group.",
            [(top + inside % group, inside // group) for top, _, inside in places],
        ),
        (full, [(top + inside - inside // group * rows, inside // group) for top, rows, inside in places]),
        (full, [(top + inside % rows, inside // group) for top, rows, inside in places]),
        (full, [(top + inside % group, inside // rows) for top, rows, inside in places]),
        (
            "Inside a group it goes down the rows of a column first, then one column on.",
            [(top + inside // tiles_n, inside % tiles_n) for top, _, inside in places],
        ),
        (
            "Row and column are right inside the group, but a group does not begin at row 0: add its first row.",
            [(inside % rows, inside // rows) for _, rows, inside in places],
        ),
        ("Row and column are exchanged: return the row first.", [t[::-1] for t in grouped(tiles_m, tiles_n, group)]),
        ("That is row after row, without groups.", list(product(range(tiles_m), range(tiles_n)))),
        ("That is column after column, without groups.", grouped(tiles_m, tiles_n, tiles_m)),
    ]


def _walked(go: Callable, cta: int, ctas: int, tiles_m: int, tiles_n: int, group: int) -> list[Tile]:
    done: list[Tile] = []
    bounded(go, cta, ctas, tiles_m, tiles_n, group, lambda row, column: done.append((row, column)))
    return done


def _check_walk(got: list[list[Tile]], tiles_m: int, tiles_n: int, group: int) -> None:
    """got: the tiles of each CTA."""
    order, ctas = grouped(tiles_m, tiles_n, group), len(got)
    if not any(got):
        raise Wrong(
            f"`walk` is not filled in yet, or it never calls `work`: {len(order)} tiles and {ctas} "
            f"CTA{'s' * (ctas > 1)}, and no CTA takes one."
        )
    number = {tile: i for i, tile in enumerate(order)}
    for cta, done in enumerate(got):
        want = order[cta::ctas]
        if done == want:
            continue
        mine = [number.get(tile, tile) for tile in done]
        text = [
            f"{len(order)} tiles and {ctas} CTA{'s' * (ctas > 1)}: CTA {cta} takes {_some(mine)}; wanted are "
            f"{_some(list(range(cta, len(order), ctas)))}."
        ]
        text += _damage([tile for tiles in got for tile in tiles], order)
        if [tile[::-1] for tile in done] == want:
            why = "Row and column are exchanged: work(row, column)."
        elif mine == list(range(len(order))) and ctas > 1:
            why = "Every CTA walks over all tiles: begin with your own number, and step over the other CTAs' tiles."
        elif mine and set(mine) == set(want_numbers := range(cta, len(order), ctas)) and mine != list(want_numbers):
            why = "The right tiles in another order: CTAs that run at the same time should be at neighbouring numbers."
        elif done and mine == list(range(mine[0], mine[0] + len(mine))) and len(mine) > 1:
            why = (
                "A row of neighbouring numbers for one CTA: the CTAs that run at the same time are then far apart, and share "
                "nothing in L2."
            )
        elif len(done) > len(want):
            why = f"Stop below {len(order)}: the last round is not for every CTA."
        elif len(done) < len(want):
            why = "The last round is for those CTAs that still find a tile."
        else:
            why = "CTA c of C takes the tiles c, c + C, c + 2C, ..."
        raise Wrong(" ".join([*text, why]))


def _some(numbers: list) -> str:
    if not numbers:
        return "no tile"
    return "tiles " + ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")


def _check_compiled(walk) -> None:
    """The same walks from the learner's code compiled for the host, where numbers are Int32."""
    most = 128

    @cute.jit
    def on_host(out: cute.Tensor, cta: Int32, ctas: Int32, tiles_m: Int32, tiles_n: Int32, group: Int32):
        def work(row, column):
            at = out[0, 0]
            out[1 + at % most, 0] = row
            out[1 + at % most, 1] = column
            out[0, 0] = at + 1

        walk(cta, ctas, tiles_m, tiles_n, group, work)

    found = torch.zeros(most + 1, 2, dtype=torch.int32)
    compiled = harness.compile_for_cpu(on_host, from_dlpack(found), *map(Int32, (0, 1, 1, 1, 1)))
    for *shape, ctas in WALKS:
        got = []
        for cta in range(ctas):
            found.zero_()
            compiled(from_dlpack(found), cta, ctas, *shape)
            got.append([tuple(tile) for tile in found[1 : 1 + int(found[0, 0])].tolist()])
        try:
            _check_walk(got, *shape)
        except Wrong as why:
            raise Wrong(f"As plain Python it is right, but not compiled, where numbers have 32 bits. {why}") from None


# 05b

CLUSTERS = (
    (2, 4),
    (1, 1),
    (2, 1),
    (1, 2),
    (2, 2),
    (4, 1),
    (1, 4),
    (4, 2),
)  # along M, along N; first one where mistakes differ
TILES = ((128, 256), (256, 128), (64, 192))
ROW = 64 * 2  # bytes of one row of a k-tile, bf16


@checker("05b")
def multicast(load_a, load_b, barriers):
    """A cluster in Python: who sends which rows to whom, what arrives, and who has to say that it was read."""
    for (along_m, along_n), (tile_m, tile_n) in product(CLUSTERS, TILES):
        cluster = Cluster(along_m, along_n)
        sent = [cluster.check_load("A", load_a, tile_m), cluster.check_load("B", load_b, tile_n)]
        for groups, pingpong in ((1, False), (2, False), (3, False), (2, True)):
            cluster.check_barriers(barriers, (tile_m, tile_n), groups, pingpong, sent)
    yield (
        f"{len(CLUSTERS)} clusters up to 8 CTAs, {len(TILES)} tiles: every CTA gets each row of its boxes once, and nothing of "
        "others'"
    )
    yield "full and empty barriers, cooperative and pingpong: they complete with what arrives, not before"
    from ...compile import compile_only
    from ...hopper.config import TileConfig

    for config in (
        TileConfig(128, 256, cluster=(2, 2), stages=4),
        TileConfig(128, 128, cluster=(2, 1), stages=6, schedule="pingpong"),
    ):
        full, empty = barriers(*config.cluster, config.tile_m, config.tile_n, config.warp_groups, config.pingpong)
        announced, arrivals = initialised(compile_only("gemm", config=config).ptx, config.stages)
        if (full, empty) != (announced, arrivals):
            raise Wrong(
                f"The finished gemm {config.name} announces {announced:,} bytes and waits for {arrivals} arrivals; you say "
                f"{full:,} and {empty}."
            )
        yield (
            f"the finished gemm, {config.schedule}, cluster {config.cluster[0]} x {config.cluster[1]}: its PTX announces "
            f"{announced:,} bytes and initialises its empty barriers for {arrivals} arrivals"
        )


def initialised(ptx: str, stages: int) -> tuple[int, int]:
    """(bytes announced on a full barrier, arrive count of the empty barriers) in a finished kernel's PTX."""
    constants = {name: int(value) for name, value in re.findall(r"mov\.b32\s+(%r\d+), (\d+);", ptx)}

    def value(operand: str) -> int:
        return constants[operand] if operand.startswith("%") else int(operand)

    ring = re.findall(r"mbarrier\.init\.shared\.b64\s+\[%r\d+(?:\+(\d+))?\], ([%\w]+);", ptx)
    empty = {value(count) for offset, count in ring if int(offset or 0) >= 8 * stages}
    (announced,) = re.findall(r"mbarrier\.arrive\.expect_tx\S* %rd\d+, \[%r\d+\], ([%\w]+);", ptx)
    (arrivals,) = empty
    return value(announced), arrivals


class Cluster:
    """CTA (m, n) of along_m x along_n, its rank m + along_m * n."""

    def __init__(self, along_m: int, along_n: int):
        self.shape = (along_m, along_n)
        self.ctas = [(m, n) for n in range(along_n) for m in range(along_m)]  # by rank

    def __str__(self) -> str:
        return f"cluster {self.shape[0]} x {self.shape[1]}"

    def sharing(self, operand: str, cta: Tile) -> list[Tile]:
        """The CTAs that need the same rows of this operand: of A the row of the cluster, of B the column."""
        axis = 0 if operand == "A" else 1
        return [other for other in self.ctas if other[axis] == cta[axis]]

    def mask(self, ctas: list[Tile]) -> int:
        return sum(1 << self.ctas.index(cta) for cta in ctas)

    def check_load(self, operand: str, load: Callable, tile: int) -> list[tuple[Tile, Tile, int]]:
        """Ask every CTA for its (mask, first row, rows); who sends how many rows to whom: (sender, receiver, rows)."""
        shares: dict[Tile, tuple[int, int]] = {}
        deliveries = []
        for cta in self.ctas:
            got = load(*cta, *self.shape, tile)
            setting = f"{self}, CTA {cta}, {operand} box of {tile} rows"
            if not isinstance(got, tuple) or len(got) != 3 or not all(type(x) is int for x in got):
                raise Wrong(f"{setting}: it returns {got!r}; wanted are three integers (mask, first row, rows).")
            mask, first, rows = got
            self._check_mask(operand, cta, mask, setting)
            if rows < 1 or first < 0 or first + rows > tile:
                mates = len(self.sharing(operand, cta))
                why = f"{mates} CTA{'s share' if mates > 1 else ' needs'} it, so each loads {tile // mates} rows, at its place"
                raise Wrong(f"{setting}: rows {first} to {first + rows - 1} are not all in the box. {why}.")
            shares[cta] = (first, rows)
            deliveries += [(cta, other, rows) for other in self.sharing(operand, cta)]
        for cta in self.ctas:
            self._check_box(operand, cta, shares, tile)
        return deliveries

    def _check_mask(self, operand: str, cta: Tile, mask: int, setting: str) -> None:
        mates = self.sharing(operand, cta)
        want = self.mask(mates)
        if mask == want:
            return
        m, n = cta
        along_m, along_n = self.shape
        way, other = ("N", "M") if operand == "A" else ("M", "N")
        text = f"{setting}: your mask is {mask:#b}, wanted is {want:#b}, for {', '.join(map(str, mates))}. "
        slow = (
            {m * along_n + j for j in range(along_n)} if operand == "A" else {j * along_n + n for j in range(along_m)}
        )
        step = along_m if operand == "A" else 1
        if mask >> len(self.ctas):
            why = f"Bit {mask.bit_length() - 1} is no CTA of this cluster. "
        else:
            why = ""
        if mask == self.mask(self.sharing("B" if operand == "A" else "A", cta)):
            why += f"You send {operand} along {other}, to CTAs that need other rows: {operand} goes along {way}."
        elif mask == sum(1 << bit for bit in slow):
            why += "You count the ranks along N first: CTA (m, n) is number m + cluster_m * n."
        elif mask == (1 << len(self.ctas)) - 1:
            why += f"All CTAs would get it; those at another place along {other} need other rows."
        elif mask == want & ~self.mask([cta]):
            why += "The sender's own bit is missing: it needs its share, too."
        elif mask == self.mask([cta]):
            why += f"It goes to the sender alone; the CTAs along {way} need the same rows."
        elif mask == sum(1 << step * j for j in range(len(mates))):
            why += f"That is the mask of CTA {(0, n) if operand == 'A' else (m, 0)}: shift it to this one's place along {other}."
        elif mask & ~want and not mask >> len(self.ctas):
            wrong = next(c for rank, c in enumerate(self.ctas) if mask & ~want & 1 << rank)
            why += f"CTA {wrong} is a receiver with you; it needs other rows of {operand}."
        raise Wrong(text + why)

    def _check_box(self, operand: str, cta: Tile, shares: dict[Tile, tuple[int, int]], tile: int) -> None:
        """Every row of this CTA's box must come from exactly one of those that send to it."""
        mates = self.sharing(operand, cta)
        senders = [[mate for mate in mates if shares[mate][0] <= row < sum(shares[mate])] for row in range(tile)]
        setting = f"{self}, {operand} box of {tile} rows of CTA {cta}: "
        loads = "; ".join(f"CTA {mate} sends rows {shares[mate][0]} to {sum(shares[mate]) - 1}" for mate in mates)
        twice = next((row for row in range(tile) if len(senders[row]) > 1), None)
        never = next((row for row in range(tile) if not senders[row]), None)
        share, rows = tile // len(mates), {shares[mate][1] for mate in mates}
        if twice is None and never is None and rows == {share}:
            return
        if rows != {share}:
            why = f"{len(mates)} CTA{'s share' if len(mates) > 1 else ' needs'} this box, so each loads {share} rows."
        elif len({shares[mate] for mate in mates}) == 1:
            why = f"All send the same rows: the first row follows from the CTA's place along {'N' if operand == 'A' else 'M'}."
        else:
            why = "The shares must cover the box, each row once."
        what = "" if never is None else f"nobody sends row {never} "
        what = what if twice is None else f"row {twice} arrives {len(senders[twice])} times "
        raise Wrong(f"{setting}{what}({loads}). {why}")

    def check_barriers(self, barriers, tile, groups, pingpong, sent) -> None:
        """sent: the deliveries of A and of B."""
        schedule = "pingpong" if pingpong else "cooperative"
        setting = f"{self}, tile {tile[0]} x {tile[1]}, {groups} consumer warp group{'s' * (groups > 1)}, {schedule}: "
        got = barriers(*self.shape, *tile, groups, pingpong)
        if not isinstance(got, tuple) or len(got) != 2 or not all(type(x) is int for x in got):
            raise Wrong(f"{setting}it returns {got!r}; wanted are two integers (bytes, arrivals).")
        for cta in self.ctas:
            arriving = sum(rows * ROW for deliveries in sent for _, receiver, rows in deliveries if receiver == cta)
            if got[0] != arriving:
                raise Wrong(setting + self._explain_bytes(got[0], arriving, tile))
            receivers = {receiver for deliveries in sent for sender, receiver, _ in deliveries if sender == cta}
            readers = 4 if pingpong else 4 * groups
            arrivals = sum(readers for _ in receivers)
            if got[1] != arrivals:
                raise Wrong(setting + self._explain_arrivals(got[1], arrivals, groups, pingpong, sorted(receivers)))

    def _explain_bytes(self, got: int, arriving: int, tile: tuple[int, int]) -> str:
        along_m, along_n = self.shape
        text = f"{arriving:,} bytes land in a CTA's stage, your full barrier waits for {got:,}. "
        if got == (tile[0] // along_n + tile[1] // along_m) * ROW:
            text += "That is what this CTA loads itself; it receives the others' shares, too."
        elif 2 * got == arriving:
            text += "Those are elements: a bf16 has 2 bytes."
        elif got in (tile[0] * ROW, tile[1] * ROW):
            text += "A and B land on the same barrier."
        elif got == arriving * len(self.ctas):
            text += "That is the whole cluster's; each CTA has a barrier of its own."
        return text + (" It waits for ever." if got > arriving else " It opens before all have landed.")

    def _explain_arrivals(self, got: int, want: int, groups: int, pingpong: bool, receivers: list[Tile]) -> str:
        text = f"you say {got} arrivals on an empty barrier, {want} come. "
        peers = len(receivers)
        if pingpong and got == 4 * groups * peers:
            text += "A pingpong stage is read by one of the warp groups, not by all: 4 warps of each CTA release it."
        elif not pingpong and groups > 1 and got == 4 * peers:
            text += f"All {groups} warp groups read a stage when they share the tile, each warp releases it."
        elif peers > 1 and got in (4, 4 * groups):
            text += f"Those are the warps of one CTA. It sends to {peers}: {', '.join(map(str, receivers))}."
        elif got in (4 * len(self.ctas), 4 * groups * len(self.ctas)):
            text += f"Not all {len(self.ctas)} CTAs receive from this one, but its row and its column: {peers} CTAs."
        elif got in (4 * (peers + 1), 4 * groups * (peers + 1)):
            text += "This CTA is in its row and in its column, but its warps arrive once."
        elif got == 32 * want:
            text += "One thread of a warp arrives, for the whole warp."
        return text + (
            " The barrier never completes: a hang." if got > want else " The stage is overwritten while it is read."
        )
