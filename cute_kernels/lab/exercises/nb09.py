"""Checkers of the exercises of notebook 09: two turns for a tile, and the budget of registers.

`TwoTurns` is the CTA of the first; `watch` shows the learner what it does with a given, faulty consumer. `spills` compiles
for the second.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from . import Wrong, checker, harness, nb06
from .harness import ORDER
from .nb06 import GROUPS, ROLES, Pingpong, _many
from .simulator import SCHEDULES, Fault, Simulator, State, as_python, bounded

PARTS = ("gate", "up")

# 09a


class TwoTurns(Pingpong):
    """One CTA of Kernel-1: each tile is two loops over K, each loop is a turn. The producer loads the gates of two tiles, then
    their ups; of an odd last tile both, one behind the other.

    overlap: SiLU and the store take until the other consumer has begun with its next loop.
    """

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.loops = [
            (tile, part)
            for pair in range(0, self.tiles, 2)
            for part in (0, 1)
            for tile in range(pair, min(self.tiles, pair + 2))
        ]
        self.begun_loops: set[tuple[int, int]] = set()
        self.done: dict[int, list[tuple[str, int]]] = {warp: [] for group in GROUPS for warp in group}

    def callables(self, group: int) -> tuple[Callable, ...]:
        """What a consumer calls: gate, activate, up, store."""

        def gate(index, state):
            return self.multiply_loop(group, index, 0, state)

        def activate(index, last):
            self.finish_loop(group, index, 0, last)

        def up(index, state):
            return self.multiply_loop(group, index, 1, state)

        def store(index, last):
            self.finish_loop(group, index, 1, last)

        return gate, activate, up, store

    def loads(self) -> list[str]:
        return [f"{PARTS[part]} of {self.number(tile)}" for tile, part in self.loops]

    def behind(self, tile: int, part: int) -> tuple[int, int] | None:
        """The other consumer's loop that runs under SiLU of a tile (part 0) or under its store (part 1)."""
        at = self.loops.index((tile, part)) + 1
        return self.loops[at] if at < len(self.loops) and self.loops[at][0] % 2 != tile % 2 else None

    def multiply_loop(self, group: int, index: int, part: int, state: State) -> tuple[State, State]:
        """`mainloop.issue` of one warp."""
        ordinal, warp = self.ordinal(group, index), self.current.index
        name = f"{PARTS[part]} of tile {index}"
        if ordinal >= self.tiles:
            self.phantom = (group, int(index))
        if part and ("activate", ordinal) not in self.done[warp]:
            raise Fault("order", f"{ROLES[1 + group]} multiplies {name} before it has activated its gate")
        self.check_alone(group, name)
        self.note(f"begins {PARTS[part]} of {index}")
        self.begun_loops.add((ordinal, part))
        self.at[warp] = ordinal
        self.done[warp].append((PARTS[part], ordinal))
        loop = self.loops.index((ordinal, part)) if ordinal < self.tiles else len(self.loops)
        return self.issue(loop * self.k_tiles, state)

    def finish_loop(self, group: int, index: int, part: int, last: State) -> None:
        """`mainloop.finish`, then SiLU or the epilogue, of one warp."""
        ordinal, warp = self.ordinal(group, index), self.current.index
        what = ("activate", "store")[part]
        if (PARTS[part], ordinal) not in self.done[warp]:
            raise Fault("order", f"{ROLES[1 + group]} {what}s tile {index} before it has multiplied its {PARTS[part]}")
        self.note(f"{('activates', 'stores')[part]} {index}")
        self.wait_group(0)
        self.ring.consumer_release(last)
        if part:
            Simulator.named_barrier(self, 1 + group, 128, wait=True)  # the store's own, none of the learner's
        behind = self.behind(ordinal, part) if ordinal < self.tiles else None
        if self.overlap and behind:
            tile, other = behind
            name = "SiLU" if part == 0 else "the store"
            text = (
                f"{name} of tile {index}, under which {PARTS[other]} of tile {self.number(tile)} should be multiplied"
            )
            self.pause(text, lambda: behind in self.begun_loops)
        self.done[warp].append((what, ordinal))

    def _check_done(self, group: int) -> None:
        mine = range(group, self.tiles, 2)
        want = [(step, tile) for tile in mine for step in ("gate", "activate", "up", "store")]
        for warp in GROUPS[group]:
            if self.done[warp] != want:
                missing = [each for each in want if each not in self.done[warp]]
                step, tile = missing[0] if missing else self.done[warp][-1]
                told = f"{step} of tile {self.number(tile)} is missing" if missing else "the order is another one"
                raise Fault("order", f"{ROLES[1 + group]} has done {_many(len(self.done[warp]), 'step')}: {told}")

    def told(self, fault: Fault) -> str:
        def place(match) -> str:
            number, k = divmod(int(match[1]), self.k_tiles)
            if number >= len(self.loops):
                return f"k-tile {k} of a tile that does not exist"
            tile, part = self.loops[number]
            return f"k-tile {k} of {PARTS[part]} of tile {self.number(tile)}"

        text = re.sub(r"k-tile (\d+)", lambda match: f"k_tile {match[1]}", str(fault))
        return re.sub(r"k_tile (\d+)", place, super().told(Fault(fault.kind, text)))


watch = functools.partial(nb06.watch, kind=TwoTurns)


@checker("09a")
def two_turns(consumer):
    """The protocol of two turns with every small number of tiles, then in Kernel-1."""
    for cta in nb06.hostile(TwoTurns):
        _turns(consumer, cta)
    yield (
        f"1 to {nb06.MOST} tiles, loops of {', '.join(map(str, nb06.LENGTHS))} k-tiles, {len(SCHEDULES)} hostile schedules: "
        "nothing hangs, one consumer multiplies at a time, in the order of loads, no turn is given for nothing"
    )
    for cta in nb06.overlapping(TwoTurns):
        _turns(consumer, cta)
    yield "SiLU lies under the other's gate or up, the store under the loop behind it"
    compiled = harness.finished("09a", consumer)
    if compiled.spill_bytes:
        raise Wrong(
            f"In Kernel-1 {compiled.spill_bytes} bytes a thread are spilled. One gate and one up loop is all there is."
        )
    yield (
        f"Kernel-1 compiles for sm_90a with it: {compiled.mnemonics['BAR.ARV']} BAR.ARV, {compiled.registers} registers at "
        "launch, nothing spilled"
    )
    yield from harness.run_on_gpu("09a", consumer, nb06.HINT)


def _turns(consumer: Callable, cta: TwoTurns) -> None:
    try:
        cta.go(nb06.protocol(consumer, cta))
    except Fault as fault:
        test = (
            "A test of overlap: here SiLU and the store end when the other has begun its next loop. "
            if cta.overlap
            else ""
        )
        why = _explain_walk(consumer, cta) or _explain_turns(fault, cta)
        raise Wrong(f"{test}{cta.setting()}: {cta.told(fault)}. {why}".strip()) from None


def alone(consumer: Callable, cta: TwoTurns, group: int) -> list[tuple[str, int]]:
    """What a consumer would do, were nothing ever waited for: ("turn", -1) where it waits for one, ("gate" or "up", tile)."""
    dry = TwoTurns(SCHEDULES[0], cta.tiles, cta.k_tiles, cta.stages, cta.first, cta.step)
    events: list[tuple[str, int]] = []

    def named_barrier(number, threads, wait):
        if wait:
            events.append(("turn", -1))

    def loop(part: str) -> Callable:
        def multiply(index, state):
            events.append((part, int(index)))
            return state, state.clone()

        return multiply

    def ignore(*_):
        pass

    dry.named_barrier = named_barrier
    plain, state = as_python(consumer, dry), State(cta.stages, 0)
    rest = (loop("gate"), ignore, loop("up"), ignore)
    bounded(plain, group, cta.first, cta.step, cta.end, cta.k_tiles, state, *rest, lines=10_000)
    return events


def _explain_walk(consumer: Callable, cta: TwoTurns) -> str:
    """Wrong tiles, or a loop without a wait: what can be seen of a consumer by itself."""
    both = [alone(consumer, cta, group) for group in (0, 1)]
    mine, others = ([index for what, index in events if what == "gate"] for events in both)
    if twice := sorted(set(mine) & set(others)):
        return (
            f"Tile {twice[0]} is taken twice, by consumer 1 and by consumer 2: the tiles of one begin at first + group * "
            "step and go on by 2 * step."
        )
    last = cta.number(cta.tiles - 1)
    for group, tiles in enumerate((mine, others)):
        if phantoms := [index for index in tiles if index > last]:
            return (
                f"{ROLES[1 + group].capitalize()} takes tile {phantoms[0]}, and the last is {last}: for that one no "
                "producer loads anything."
            )
    for group, events in enumerate(both):
        before = [("", -1), *events]
        for (what, _), (part, index) in zip(before, events, strict=False):
            if part == "turn" or what == "turn" or (part == "up" and index == last and cta.tiles % 2):
                continue
            text = f"{ROLES[1 + group].capitalize()} does not wait for its turn before {part} of tile {index}"
            if part == "gate":
                return f"{text}."
            return f"{text}: between its loops there is one of the tile beside it, which {ROLES[2 - group]} has."
    return ""


def _loops(cta: TwoTurns, group: int) -> str:
    """Where a consumer stands: the last thing that it has done or begun, for the first of its warps."""
    done = cta.done[GROUPS[group][0]]
    return done[-1][0] if done else ""


def _explain_turns(fault: Fault, cta: TwoTurns) -> str:
    single = cta.tiles - 1 if cta.tiles % 2 else None  # the odd last tile
    if fault.kind == "hang" and cta.overlap:
        if "under which" in str(fault) and "SiLU of" in str(fault):
            return (
                "The results are right, but SiLU does not overlap: the turn is given away after it. Give it when the "
                "gate's WGMMAs are issued."
            )
        return (
            "The results are right, but the store does not overlap: the turn is given away after it. Give it when up's "
            "WGMMAs are issued."
        )
    if fault.kind == "hang" and (waiting := cta.waiting()):
        group, number = waiting[0]
        name, other, at = ROLES[1 + group].capitalize(), ROLES[2 - group], _loops(cta, group)
        if wrong := nb06.wrong_barrier(group, number):
            return wrong
        tile = cta.done[GROUPS[group][0]][-1][1] if cta.done[GROUPS[group][0]] else None
        if at in ("gate", "activate") and tile == single:
            return (
                f"Tile {cta.number(single)} is the last and has none beside it: between its loops nobody takes a turn, and "
                "so nobody gives one back."
            )
        if at in ("gate", "activate") and group == 1:
            return (
                f"{name} waits for its second turn, up of tile {cta.number(tile)}. {other.capitalize()} gives it when its "
                "own up is issued: this tile, at index + step, comes next."
            )
        if at in ("gate", "activate"):
            return (
                f"{name} waits for its second turn, up of tile {cta.number(tile)}. {other.capitalize()} gives it when it "
                "has issued its own gate, whatever is behind: who has a tile beside his gives the turn after the gate."
            )
        if at == "store" and not [t for t in range(group, cta.tiles, 2) if t > tile]:
            return f"{name} waits for a turn with nothing to multiply. Count each one's rounds by themselves."
        return (
            f"{name} has a gate to multiply, and nobody gives it the turn. {other.capitalize()} gives it when a loop of "
            "its own is issued and the other's gate comes next in the order of loads."
        )
    if fault.kind == "leftover":
        if single is not None and cta.named.get(ORDER + 1) and cta.named[ORDER + 1].come:
            return (
                f"A turn was given for a loop that does not exist: beside tile {cta.number(single)}, the last, consumer 2 "
                "has none, and will not come to wait."
            )
        return (
            "A turn was given for a loop that does not exist: behind the last up comes a gate only if there is a tile at "
            "index + step. Who comes to this barrier next goes through too early."
        )
    if fault.kind == "hang" and "empty barrier" in str(fault) and "full barrier" not in str(fault):
        return (
            "A stage is not handed back: `activate` and `store` do that for the last one of their own loop, which `gate` "
            "and `up` returned as the second thing."
        )
    if fault.kind in ("hang", "stale", "early") and "bar.sync" not in str(fault):
        return _explain_stages(cta, single)
    return {
        "together": "Both feed the tensor cores at once. A consumer waits for its turn before each loop, and gives it "
        "away when its own last WGMMA is issued.",
        "barrier": "A turn has 256 threads: the 128 that arrive and the 128 that wait.",
        "order": "For each tile: gate, activate, up, store. The accumulators of up are filled while the activated gate waits.",
        "tile": "Every second tile is this consumer's, from first + group * step on.",
        "arrivals": "`activate` and `store` hand back the last stage of their own loop, once: the second thing that "
        "`gate` and `up` returned.",
        "unfinished": "`activate` and `store` wait for the last WGMMA group.",
        "overwrite": "`activate` and `store` hand back the last stage of their own loop: the second thing that `gate` and "
        "`up` returned.",
    }.get(fault.kind, "")


def _explain_stages(cta: TwoTurns, single: int | None) -> str:
    """A consumer is at the wrong stage: it stepped over too many or too few."""
    if single is not None and any(
        cta.done[warp] and cta.done[warp][-1][1] == single and cta.done[warp][-1][0] in ("activate", "up")
        for warp in GROUPS[single % 2]
    ):
        return (
            f"Tile {cta.number(single)} is the last and has none beside it: behind its gate's stages lie its up's own, and "
            "there is nothing to step over."
        )
    return (
        "The ring knows an order: gate of t, gate of t + 1, up of t, up of t + 1. Behind each of its loops a consumer "
        "steps over the other's k_tiles: state.advance(k_tiles)."
    )


# 09b

LIMIT = 240  # registers of a consumer thread, by setmaxnreg
CAPACITY = 232_448  # bytes of dynamic shared memory of a CTA
ROW = 128  # bytes of one row of a stage: 64 elements of K
HELD = ("fp32", "packed")
MEASURED = ((128, "fp32"), (128, "packed"), (64, "fp32"), (64, "packed"))


@functools.cache
def spills(rows: int, columns: int, held: str) -> tuple[int, int]:
    """(bytes spilled, WGMMA fences and waits) of Kernel-1 with a tile of rows x columns, compiled for sm_90a. 4 stages."""
    from ...hopper import swiglu_pingpong
    from ...registry import get

    class Unchecked(swiglu_pingpong.TwoLoopConfig):
        def validate(self, *_: Any) -> Unchecked:
            return self

    if held not in HELD or rows not in (64, 128) or columns % 8 or not 8 <= columns <= 256:
        raise ValueError(f"rows 64 or 128, columns 8 to 256 in steps of 8, held one of {HELD}")
    config = Unchecked(rows, columns, cluster=(1, 1), stages=4, epi_slots=1, packed=held == "packed")
    compiled = get("swiglu_pingpong").compile(config)
    return compiled.spill_bytes, compiled.instructions["WARPGROUP"]


def table(rows: int, held: str, columns: Iterable[int]) -> None:
    """Print what `spills` finds, one line a width."""
    for t in columns:
        spilled, waits = spills(rows, t, held)
        up = rows * t // 128
        gate = up if held == "fp32" else up // 2
        print(
            f"{rows} x {t:3}, gate {held:<6}: {gate + up:3} registers of gate and up; {spilled:4} bytes spilled, "
            f"{waits:2} WGMMA fences and waits"
        )


@checker("09b")
def register_budget(registers, widest, others):
    """The budget against the configurations' own numbers, then against what ptxas makes of it."""
    from ...hopper.swiglu_pingpong import CONFIGS, TwoLoopConfig

    _check_others(others)
    for rows in (64, 128):
        for t in range(8, 257, 8):
            for held in ("packed", "fp32"):
                want = TwoLoopConfig(rows, t, packed=held == "packed").accumulators(1)
                _check_registers(registers, rows, t, held, want, 0)
                _check_registers(registers, rows, t, held, want, 37)
    yield "gate and up of every tile of 64 and 128 rows: as TwoLoopConfig.accumulators counts them, and what else is given"
    cases = [
        (rows, held, limit, stages, ring, other)
        for rows in (64, 128)
        for held in HELD
        for limit in (128, 168, 240)
        for stages in (2, 4, 6, 8)
        for ring in (CAPACITY - 1024 - 16384, 100_000)
        for other in (30, 80)
    ]
    for case in cases:
        _check_widest(widest, *case)
    yield f"the widest tile in {len(cases)} budgets of registers and shared memory"
    for config in CONFIGS:
        held = HELD[config.packed]
        if registers(config.tile_m, config.tile_n, held, others[held]) > LIMIT:
            raise Wrong(
                f"By your others = {others} the shipped tile {config.tile_m} x {config.tile_n} ({held}) needs more than {LIMIT} "
                f"registers, {registers(config.tile_m, config.tile_n, held, others[held])}; it compiles without a spill."
            )
    found = []
    for rows, held in MEASURED:
        t = widest(rows, held, LIMIT, 4, CAPACITY - 1024 - 16384, others[held])
        fits, wider = spills(rows, t, held)[0], spills(rows, t + 8, held)[0]
        what = f"others[{held!r}] = {others[held]} gives T = {t} for {rows} rows"
        if fits:
            raise Wrong(
                f"{what}, {registers(rows, t, held, 0)} registers of gate and up, and ptxas spills {fits} bytes a thread. "
                f"More is alive than you allow for.{PACKED if held == 'packed' else ''}"
            )
        if not wider:
            raise Wrong(
                f"{what}, but ptxas does not spill at {t + 8}, either. Less is alive besides gate and up than you allow for."
            )
        found.append(f"{rows} rows, {held}: {t}")
    yield f"ptxas for sm_90a: nothing spilled at your widest tiles ({'; '.join(found)}), and something 8 columns further"


PACKED = (
    " What is packed saves registers while up is multiplied. While SiLU is computed, the gate's accumulators, their packed "
    "copies and the intermediate values of several elements are there at once."
)


def _check_others(others: Any) -> None:
    if not isinstance(others, dict) or set(others) != set(HELD):
        raise Wrong(f'others is {others!r}; wanted is a dict with a number for "fp32" and one for "packed".')
    for held, number in others.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise Wrong(f"others[{held!r}] is {number!r}: a number of registers is an int; `...` is still to be found.")


def _whole(answer: Any, question: str) -> int:
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise Wrong(f"{question} is {answer!r}; wanted is an int.")
    return answer


def _check_registers(registers: Callable, rows: int, t: int, held: str, accumulators: int, other: int) -> None:
    got, want = (
        _whole(registers(rows, t, held, other), f"registers({rows}, {t}, {held!r}, {other})"),
        accumulators + other,
    )
    if got == want:
        return
    up = rows * t // 128
    gate = up if held == "fp32" else up // 2
    text = (
        f"A tile of {rows} x {t}, gate as {held}, {other} others: you say {got}. "
        f"Gate is {gate} registers of a thread, up {up}: {want} with the others. "
    )
    if got == want - other and other:
        why = "The others are missing."
    elif got == up + other:
        why = "That is one of the two: while up's loop runs, the gate waits beside it."
    elif held == "packed" and got == 2 * up + other:
        why = "Packed, two 16-bit values share a register."
    elif rows == 64 and got == 2 * accumulators + other:
        why = "A tile of 64 rows has half as many accumulators as one of 128: rows * T values over 128 threads."
    elif got == (accumulators - gate) // 2 + gate // 2 + other:
        why = "A consumer of pingpong has its tile alone: 128 threads share rows * T values, not 256."
    elif held == "fp32" and got == up + up // 2 + other:
        why = "As fp32, the gate takes as many registers as up."
    elif got - other == 128 * accumulators:
        why = "That is of the warp group; a budget is of one of its 128 threads."
    else:
        why = "128 threads of one warp group share rows * T values, each in a register of 32 bits."
    raise Wrong(text + why)


def _check_widest(widest: Callable, rows: int, held: str, limit: int, stages: int, ring: int, other: int) -> None:
    def fits(t: int) -> tuple[bool, bool, bool]:
        up = rows * t // 128
        return up + (up if held == "fp32" else up // 2) + other <= limit, t <= 256, stages * (rows + t) * ROW <= ring

    want = max((t for t in range(8, 513, 8) if all(fits(t))), default=0)
    question = f"widest({rows}, {held!r}, {limit}, {stages}, {ring}, {other})"
    got = _whole(widest(rows, held, limit, stages, ring, other), question)
    if got == want:
        return
    text = f"{question} is {got}. "
    if got % 8 or got < 0:
        raise Wrong(f"{text}A WGMMA's width is a multiple of 8.")
    if got > want:
        registers, wgmma, smem = fits(got)
        if not wgmma:
            why = "A WGMMA is at most 256 columns wide; each of the two loops is one."
        elif not registers:
            up = rows * got // 128
            need = up + (up if held == "fp32" else up // 2) + other
            why = f"That needs {need} registers of {limit}."
        else:
            need = stages * (rows + got) * ROW
            why = f"Its {stages} stages are {need:,} bytes of {ring:,}. "
            why += f"A stage holds rows of A and T rows of one weight, {ROW} bytes each."
        raise Wrong(f"{text}{why}")
    both = stages * (rows + 2 * (got + 8)) * ROW > ring >= stages * (rows + got + 8) * ROW
    if both and stages * (rows + 2 * got) * ROW <= ring:
        why = "A stage holds one weight at a time, gate's or up's: rows + T, not rows + 2 T."
    elif got + 8 == want:
        why = "A limit may be reached: what is just full fits."
    else:
        why = "All three limits allow more."
    raise Wrong(f"{text}{want} fits, too: {_need(rows, want, held, stages, other, limit, ring)}. {why}")


def _need(rows: int, t: int, held: str, stages: int, other: int, limit: int, ring: int) -> str:
    up = rows * t // 128
    registers = up + (up if held == "fp32" else up // 2) + other
    return f"{registers} of {limit} registers, {stages * (rows + t) * ROW:,} of {ring:,} bytes"
