"""Checkers of the exercises of notebook 06: whose turn it is, and the step over the other consumer's stages.

`Pingpong` is the CTA that both run in; `watch` and `sweep` show the learner what it does with a given, faulty consumer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import cutlass.cute as cute
import torch
from cutlass import Int32
from cutlass.cute.runtime import from_dlpack

from . import Wrong, checker, harness
from .harness import ORDER
from .simulator import SCHEDULES, Fault, Ring, Simulator, State, as_python, bounded

GROUPS = (range(1, 5), range(5, 9))  # warps of the two consumers; warp 0 produces
ROLES = ("producer", "consumer 1", "consumer 2")
TILE_K = 64
HINT = "The usual cause: a turn or a stage that somebody waits for and nobody gives."


class Pingpong(Simulator):
    """One CTA with `tiles` tiles, numbers first, first + step, ... below `end`; a producer warp, two consumer warp groups.

    overlap: a store takes until the other consumer has begun with the next tile.
    """

    def __init__(self, schedule, tiles, k_tiles, stages=4, first=0, step=1, slack=0, overlap=False):
        super().__init__(schedule, stages, {"A": 16384, "B": 16384})
        self.tiles, self.k_tiles, self.stages, self.overlap = tiles, k_tiles, stages, overlap
        self.first, self.step, self.end = first, step, first + (tiles - 1) * step + 1 + slack
        self.ring = Ring(self, 4)
        self.multiplying: set[int] = set()  # warps between the first and the last WGMMA of a tile
        self.begun: set[int] = set()  # tiles whose multiplication has begun, counted from 0
        self.at: dict[int, int] = {}  # warp -> tile that it multiplied last
        self.stored: dict[int, list[int]] = {warp: [] for group in GROUPS for warp in group}
        self.syncs: dict[int, int] = {}  # warp -> named barrier that it waits for
        self.turns = [0, 0]  # how often each consumer has come to wait for a turn
        self.phantom: tuple[int, int] | None = None  # (consumer, tile) that does not exist
        self.notes: list[tuple[int, str]] = []  # (role, what it does)

    def go(self, follow: Callable[..., None]) -> None:
        """Run it; follow(group, state, *self.callables(group)) is a consumer. Raises Fault."""

        def consume(group: int) -> None:
            follow(group, State(self.stages, 0), *self.callables(group))

        self.run([self.produce, *(lambda group=group: consume(group) for group in (0, 1) for _ in GROUPS[group])])
        for group in (0, 1):
            self._check_done(group)

    def callables(self, group: int) -> tuple[Callable, ...]:
        """What a consumer calls: multiply, store."""

        def multiply(index, state):
            return self.multiply_tile(group, index, state)

        def store(index, last):
            self.store_tile(group, index, last)

        return multiply, store

    def note(self, what: str) -> None:
        warp = self.current.index
        role = next((1 + group for group in (0, 1) if warp in GROUPS[group]), 0)
        if warp in (0, GROUPS[0][0], GROUPS[1][0]):
            self.notes.append((role, what))

    def produce(self) -> None:
        state = State(self.stages, 1)
        for loop, what in enumerate(self.loads()):
            self.note(f"loads {what}")
            for k in range(self.k_tiles):
                self.ring.producer_acquire(state)
                for operand in ("A", "B"):
                    self.load(operand, loop * self.k_tiles + k, state.index, self.ring.full[state.index])
                state.advance()
        self.note("has loaded all")
        self.ring.producer_tail(state)

    def loads(self) -> list[str]:
        """What the producer loads, one loop through K after the other."""
        return [f"tile {self.number(ordinal)}" for ordinal in range(self.tiles)]

    def number(self, ordinal: int) -> int:
        return self.first + ordinal * self.step

    def ordinal(self, group: int, index: int) -> int:
        ordinal, rest = divmod(int(index) - self.first, self.step)
        if rest or ordinal < 0:
            numbers = ", ".join(str(self.number(t)) for t in range(self.tiles))
            raise Fault("tile", f"{ROLES[1 + group]} takes tile {index}; the CTA has the tiles {numbers}")
        if ordinal % 2 != group:
            raise Fault("tile", f"{ROLES[1 + group]} takes tile {index}, which is {ROLES[2 - group]}'s")
        return ordinal

    def multiply_tile(self, group: int, index: int, state: State) -> tuple[State, State]:
        """`mainloop.issue` of one warp."""
        ordinal, warp = self.ordinal(group, index), self.current.index
        if ordinal >= self.tiles:
            self.phantom = (group, int(index))
        self.check_alone(group, f"tile {index}")
        self.note(f"begins with tile {index}")
        self.begun.add(ordinal)
        self.at[warp] = ordinal
        return self.issue(ordinal * self.k_tiles, state)

    def check_alone(self, group: int, what: str) -> None:
        """Nobody else may be multiplying when this consumer begins with `what`."""
        if others := self.multiplying & set(GROUPS[1 - group]):
            other = self.number(self.at[min(others)])
            text = f"{ROLES[1 + group]} multiplies {what} while {ROLES[2 - group]} is still at tile {other}"
            raise Fault("together", text)

    def issue(self, first: int, state: State) -> tuple[State, State]:
        """The k-tiles first, first + 1, ... of one loop through K; returns (state behind them, state of the last)."""
        warp = self.current.index
        self.multiplying.add(warp)
        last = state.clone()
        for k in range(self.k_tiles):
            self.ring.consumer_wait(state)
            self.multiply(first + k, state.index)
            if k:
                self.wait_group(1)
                self.ring.consumer_release(last)
                last.advance()
            state.advance()
        self.multiplying.discard(warp)
        return state, last

    def store_tile(self, group: int, index: int, last: State) -> None:
        """`mainloop.finish` and the epilogue of one warp."""
        ordinal, warp = self.ordinal(group, index), self.current.index
        if self.at.get(warp) != ordinal:
            raise Fault("tile", f"{ROLES[1 + group]} stores tile {index}, which it has not multiplied")
        self.note(f"stores tile {index}")
        self.wait_group(0)
        self.ring.consumer_release(last)
        self.named_barrier(1 + group, 128, wait=True)
        if self.overlap and ordinal + 1 < self.tiles:
            text = f"the store of tile {index}, under which tile {self.number(ordinal + 1)} should be multiplied"
            self.pause(text, lambda: ordinal + 1 in self.begun)
        self.stored[warp].append(ordinal)

    def named_barrier(self, number: int, threads: int, wait: bool) -> None:
        if ORDER <= number <= ORDER + 1:
            self.note("waits for a turn" if wait else f"gives {ROLES[1 + number - ORDER]} a turn")
        warp = self.current.index
        if wait:
            self.syncs[warp] = int(number)
            for group in (0, 1):
                self.turns[group] += warp == GROUPS[group][0] and number in (ORDER, ORDER + 1)
        super().named_barrier(number, threads, wait)
        self.syncs.pop(warp, None)

    def _check_done(self, group: int) -> None:
        mine = list(range(group, self.tiles, 2))
        for warp in GROUPS[group]:
            done = self.warps[warp].multiplied
            if done != [t * self.k_tiles + k for t in mine for k in range(self.k_tiles)] or self.stored[warp] != mine:
                numbers = [self.number(t) for t in mine]
                stored = [self.number(t) for t in self.stored[warp]]
                raise Fault("tile", f"{ROLES[1 + group]} owns the tiles {numbers} and stores {stored}")

    def told(self, fault: Fault) -> str:
        """A fault's text with roles for warps, and tiles for running numbers of k-tiles."""

        def roles(warps: str) -> str:
            found = [range(int(a), int(b or a) + 1) for a, b in re.findall(r"(\d+)(?:\.\.(\d+))?", warps)]
            who = sorted({(w + 3) // 4 for part in found for w in part})
            return " and ".join(ROLES[role] for role in who)

        def waiting(match) -> str:
            who = roles(match[1])
            return f"{who} wait{'' if ' and ' in who else 's'}"

        text = re.sub(r"warps? ([\d., ]*\d) waits?", waiting, str(fault))
        text = re.sub(r"warp (\d+)", lambda match: roles(match[1]), text)
        return re.sub(
            r"k-tile (\d+)",
            lambda match: f"k-tile {int(match[1]) % self.k_tiles} of tile {self.number(int(match[1]) // self.k_tiles)}",
            text,
        )

    def setting(self) -> str:
        numbers = ", ".join(str(self.number(t)) for t in range(self.tiles))
        which = f" ({numbers}; step {self.step}, all below {self.end})" if self.step > 1 else ""
        return f"{_many(self.tiles, 'tile')}{which} of {_many(self.k_tiles, 'k-tile')}, {_many(self.stages, 'stage')}"

    def waiting(self) -> list[tuple[int, int]]:
        """(consumer, the named barrier that it waits for) of every warp that waits for one."""
        return [(group, self.syncs[warp]) for group in (0, 1) for warp in GROUPS[group] if warp in self.syncs]

    def owned(self, group: int) -> list[int]:
        return [self.number(t) for t in range(group, self.tiles, 2)]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# 06a


def protocol(consumer: Callable, cta: Pingpong) -> Callable:
    """The learner's consumer as what `go` of this kind of CTA runs."""
    plain = as_python(consumer, cta)

    def follow(group, state, *callables):
        plain(group, cta.first, cta.step, cta.end, cta.k_tiles, state, *callables)

    return follow


def watch(consumer: Callable, tiles: int = 3, k_tiles: int = 2, kind: type[Pingpong] = Pingpong) -> None:
    """Run a consumer in a simulated CTA and print what each role does, one line after the other, and how it ends."""
    cta = kind(SCHEDULES[4], tiles, k_tiles)
    end = "and all are done"
    try:
        cta.go(protocol(consumer, cta))
    except Fault as fault:
        end = f"{fault.kind.upper()}: {cta.told(fault)}".replace("; ", ";\n      ")
    width = 26
    print(cta.setting())
    print("".join(f"{role:<{width}}" for role in ROLES).rstrip())
    for role, what in cta.notes:
        print(" " * (width * role) + what)
    print(end)


MOST, LENGTHS = 6, (1, 3, 5)  # tiles of a CTA, k-tiles of a tile


def hostile(kind: type[Pingpong] = Pingpong) -> Iterator[Pingpong]:
    """CTAs with every small number of tiles, under every schedule, that walk in several ways."""
    walks = ((0, 1, 0), (2, 3, 0), (1, 5, 4))
    for tiles in range(1, MOST + 1):
        for k_tiles in LENGTHS:
            for number, schedule in enumerate(SCHEDULES):
                yield kind(schedule, tiles, k_tiles, 4, *walks[number % len(walks)])


def overlapping(kind: type[Pingpong] = Pingpong) -> Iterator[Pingpong]:
    """CTAs that come to an end only if one consumer works under the other's multiplication."""
    for tiles in range(2, MOST + 1):
        yield kind(SCHEDULES[4], tiles, 3, overlap=True)


@checker("06a")
def whose_turn(consumer):
    """The consumer's protocol with every small number of tiles, then in the finished gemm."""
    for cta in hostile():
        _turns(consumer, cta)
    yield (
        f"1 to {MOST} tiles of {', '.join(map(str, LENGTHS))} k-tiles, {len(SCHEDULES)} hostile schedules: nothing hangs, one "
        "consumer multiplies at a time, no turn is given for nothing"
    )
    for cta in overlapping():
        _turns(consumer, cta)
    yield "one consumer's store lies under the other's multiplication"
    yield from _in_the_gemm("06a", consumer, HINT)


def _in_the_gemm(exercise: str, answer: Callable, hint: str):
    compiled = harness.finished(exercise, answer)
    arrives = compiled.mnemonics["BAR.ARV"]
    yield (
        f"the finished gemm compiles for sm_90a with it: {arrives} BAR.ARV, {compiled.registers} registers at launch, "
        f"{compiled.spill_bytes} bytes spilled"
    )
    yield from harness.run_on_gpu(exercise, answer, hint)


def _turns(consumer: Callable, cta: Pingpong) -> None:
    try:
        cta.go(protocol(consumer, cta))
    except Fault as fault:
        test = "A test of overlap: here a store ends when the other has begun the next tile. " if cta.overlap else ""
        why = _explain_twice(consumer, cta) or _explain_turns(fault, cta)
        raise Wrong(f"{test}{cta.setting()}: {cta.told(fault)}. {why}".strip()) from None


def taken(consumer: Callable, cta: Pingpong, group: int) -> list[int]:
    """The tiles that a consumer would take, were nothing ever waited for."""
    alone = Pingpong(SCHEDULES[0], cta.tiles, cta.k_tiles, cta.stages, cta.first, cta.step)
    alone.named_barrier = lambda *_, **__: None
    tiles: list[int] = []

    def multiply(index, state):
        tiles.append(int(index))
        return state, state.clone()

    plain, state = as_python(consumer, alone), State(cta.stages, 0)
    bounded(plain, group, cta.first, cta.step, cta.end, cta.k_tiles, state, multiply, lambda *_: None, lines=10_000)
    return tiles


def _explain_twice(consumer: Callable, cta: Pingpong) -> str:
    """Both consumers take a tile: how far apart are those of one?"""
    mine, others = (taken(consumer, cta, group) for group in (0, 1))
    both = sorted(set(mine) & set(others))
    if not both:
        return ""
    text = f"Tile {both[0]} is taken twice, by consumer 1 and by consumer 2. "
    strides = {b - a for tiles in (mine, others) for a, b in zip(tiles, tiles[1:], strict=False)}
    if strides == {cta.step}:
        return text + f"Yours go on by step = {cta.step}; every second tile is the other's, so the stride is 2 * step."
    return text + "The tiles of one begin at first + group * step and go on by 2 * step."


def _explain_turns(fault: Fault, cta: Pingpong) -> str:
    last = cta.number(cta.tiles - 1)
    if cta.phantom:
        group, index = cta.phantom
        return (
            f"{ROLES[1 + group].capitalize()} takes tile {index}, and the last is {last}: for that one no producer loads "
            "anything. The two do not have the same number of rounds."
        )
    if fault.kind == "hang" and cta.overlap:
        return (
            "The results are right, but nothing overlaps: the turn is given away after the store. Give it when the WGMMAs "
            "are issued."
        )
    if fault.kind == "hang" and cta.syncs:
        return _explain_waiting(cta)
    if fault.kind == "leftover":
        for group in (0, 1):
            if cta.turns[group] < len(cta.owned(group)) and cta.named[ORDER + group].come:
                return f"{ROLES[1 + group].capitalize()} does not wait for its turn before each of its tiles."
    if fault.kind == "hang" and "empty barrier" in str(fault):
        return "A stage is not handed back: `store` does that for the last one, which `multiply` returned as the second thing."
    if fault.kind in ("hang", "stale", "early") and "bar.sync" not in str(fault):
        return "Behind its own k_tiles stages a consumer steps over the k_tiles of the other: state.advance(k_tiles)."
    return {
        "leftover": "A turn was given for a tile that does not exist. Who comes to this barrier next finds it half full, and "
        "goes through too early.",
        "together": "Both feed the tensor cores at once, and drift into step. A consumer waits for its turn, and gives it away "
        "when its own last WGMMA is issued.",
        "barrier": "A turn has 256 threads: the 128 that arrive and the 128 that wait.",
        "tile": "Every second tile is this consumer's, from first + group * step on, each multiplied and then stored.",
        "arrivals": "`store` hands back the last stage of its own tile, once: the second thing that `multiply` returned.",
        "unfinished": "`store` waits for the last WGMMA group.",
        "overwrite": "`store` hands back the last stage of its own tile: the second thing that `multiply` returned.",
    }.get(fault.kind, "")


def wrong_barrier(group: int, number: int) -> str:
    """Why a consumer that waits for named barrier `number` does not wait for its turn; "" when it does."""
    if number == ORDER + 1 - group:
        return f"{ROLES[1 + group].capitalize()}'s own barrier is {ORDER + group}; {number} is the other's."
    if number != ORDER + group:
        return "Barriers 1 and 2 are those of the stores, 0 is __syncthreads: turns have 3 and 4."
    return ""


def _explain_waiting(cta: Pingpong) -> str:
    """Some warps wait for a turn that does not come."""
    waiting = cta.waiting()
    for group, number in waiting:
        name, mine = ROLES[1 + group].capitalize(), cta.owned(group)
        if wrong := wrong_barrier(group, number):
            return wrong
        if cta.turns[group] > len(mine):
            tiles = (
                f"the tiles {', '.join(map(str, mine))}" if len(mine) > 1 else f"tile {mine[0]}" if mine else "no tile"
            )
            return f"{name} waits for a turn with nothing to multiply: it has {tiles}. Count each one's rounds by themselves."
    name, number = ROLES[1 + waiting[0][0]].capitalize(), waiting[0][1]
    return (
        f"{name} has a tile, and nobody gives it the turn. The other one gives it, on barrier {number}, whenever there is a tile "
        "behind its own: at index + step."
    )


# 06b


def stepping(step_over: Callable, cta: Pingpong) -> Callable:
    """The right protocol, with the learner's step over the other's stages."""
    step, in_turn = as_python(step_over, cta), as_python(harness.in_turn, cta)

    def skip(state: State) -> State:
        index, phase = step(state.index, state.phase, cta.k_tiles, state.stages)
        return State(state.stages, phase, index, state.count + cta.k_tiles)

    def follow(group, state, multiply, store):
        in_turn(group, cta.first, cta.step, cta.end, skip, state, multiply, store)

    return follow


def outcomes(
    step_over: Callable, stages: int, tiles: int, k_tiles: int, schedules: tuple = SCHEDULES
) -> list[tuple[str, str]]:
    """(kind, what happens) for each hostile schedule under which something goes wrong."""
    found = []
    for schedule in schedules:
        cta = Pingpong(schedule, tiles, k_tiles, stages)
        try:
            cta.go(stepping(step_over, cta))
        except Fault as fault:
            found.append((fault.kind, cta.told(fault)))
    return found


def sweep(step_over: Callable, stages: int = 6, tiles: int = 2, longest: int | None = None) -> None:
    """Run a step in a simulated CTA with K longer and longer, under some hostile schedules, and print what comes out."""
    some = SCHEDULES[1::2]
    print(f"{_many(tiles, 'tile')} a CTA, {_many(stages, 'stage')}, {len(some)} schedules")
    examples: dict[str, str] = {}
    for k_tiles in range(1, (longest or 2 * stages + 2) + 1):
        found = outcomes(step_over, stages, tiles, k_tiles, some)
        hangs = sum(kind == "hang" for kind, _ in found)
        counts = [f"{count} {what}" for count, what in ((len(found) - hangs, "wrong"), (hangs, "hang")) if count]
        print(f"{k_tiles:4d} k-tiles, K = {k_tiles * TILE_K:4d}: {', '.join(counts) or 'right'}")
        for kind, what in found:
            examples.setdefault(
                "a hang" if kind == "hang" else "a wrong one", f"with {_many(k_tiles, 'k-tile')} {what}"
            )
    for what, example in examples.items():
        print(f"{what}: {example}")


@checker("06b")
def many_k_tiles(step_over, right_up_to):
    """A step over k_tiles stages against as many single ones, in constant time; and where the faulty one begins to fail."""
    plain = as_python(step_over, Simulator(SCHEDULES[0]))
    rings, laps = (6, 1, 2, 3, 4, 5, 7, 8), 6
    for stages in rings:
        for k_tiles in range(laps * stages + 2):
            for at in ((index, phase) for index in range(stages) for phase in (0, 1)):
                _check_step(plain, *at, k_tiles, stages)
    yield f"rings of 1 to {rings[-1]} stages, 0 to {laps} laps and one k-tile, from everywhere: where single steps lead, too"
    for k_tiles in (10**3, 10**6):
        why = f"{k_tiles:,} k-tiles take no longer than one: count the laps, walk none"
        bounded(plain, 1, 0, k_tiles, 7, lines=100, why=why)
        _check_step(plain, 1, 0, k_tiles, 7)
    yield "in constant time"
    shapes = [(stages, tiles) for stages in (6, 2, 3, 4, 5, 7, 8) for tiles in range(2, 12)]
    for stages, tiles in shapes:
        _check_limit(right_up_to, stages, tiles)
    _check_compiled(step_over)
    yield "compiled for the CPU: the same"
    for stages, tiles, lengths in ((4, 3, (1, 4, 6, 9)), (3, 5, (2, 3, 7))):
        for k_tiles in lengths:
            for _, wrong in outcomes(step_over, stages, tiles, k_tiles):
                raise Wrong(f"{stages} stages, {tiles} tiles of {k_tiles} k-tiles: {wrong}.")
    yield f"with a producer and two consumers, {len(SCHEDULES)} hostile schedules, K up to three times the ring: nobody hangs"
    for stages, tiles in ((6, 2), (5, 3)):
        limit = right_up_to(stages, tiles)
        if outcomes(index_only, stages, tiles, limit) or not outcomes(index_only, stages, tiles, limit + 1):
            raise AssertionError("the simulator disagrees with the arithmetic")  # a fault of this checker
    yield f"where the faulty step is right: {len(shapes)} rings and walks, two of them run in the simulator"
    yield from _in_the_gemm("06b", step_over, "The usual cause: a phase that never comes.")


def index_only(index, phase, k_tiles, stages):
    """The public fault."""
    return (index + k_tiles) % stages, phase


def _check_step(plain: Callable, index: int, phase: int, k_tiles: int, stages: int) -> None:
    want = State(stages, phase, index)
    for _ in range(k_tiles % (2 * stages)):  # two laps change nothing
        want.advance()
    answer = plain(index, phase, k_tiles, stages)
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(x, int) for x in answer):
        raise Wrong(f"It returns {answer!r}; wanted are two integers (index, phase).")
    got = tuple(map(int, answer))
    if got == (want.index, want.phase):
        return
    text = (
        f"{_many(k_tiles, 'k-tile')} on from stage {index}, phase {phase}, in a ring of {stages}: you say stage {got[0]}, phase "
        f"{got[1]}; {_many(k_tiles, 'single step')} lead{'s' * (k_tiles == 1)} to stage {want.index}, phase {want.phase}. "
    )
    laps = (index + k_tiles) // stages
    if not 0 <= got[0] < stages:
        why = f"A ring of {stages} has the stages 0 to {stages - 1}, however many laps lie between."
    elif got[0] != want.index:
        why = "The stages come in turn: the index goes round the ring."
    elif got[1] not in (0, 1):
        why = "A phase is one bit."
    elif laps and laps % 2 == 0:
        why = f"That passes the end of the ring {laps} times: the phase flips with each lap, so that an even number cancels."
    elif laps == 1:
        why = "That passes the end of the ring once: the phase flips."
    elif laps:
        why = f"That passes the end of the ring {laps} times, and each time the phase flips."
    else:
        why = "The end of the ring is not passed: the phase stays what it was."
    raise Wrong(text + why)


def _check_compiled(step_over: Callable) -> None:
    @cute.jit
    def on_host(out: cute.Tensor, index: Int32, phase: Int32, k_tiles: Int32, stages: Int32):
        out[0], out[1] = step_over(index, phase, k_tiles, stages)

    found = torch.zeros(2, dtype=torch.int32)
    compiled = harness.compile_for_cpu(on_host, from_dlpack(found), *map(Int32, (0, 0, 1, 1)))

    def step(*numbers: int) -> tuple[int, int]:
        compiled(from_dlpack(found), *numbers)
        return tuple(found.tolist())

    for stages in (1, 2, 5, 6):
        for k_tiles in (0, 1, stages - 1, stages, stages + 1, 2 * stages, 3 * stages + 1, 100_000):
            for index, phase in ((0, 0), (stages - 1, 0), (stages // 2, 1)):
                try:
                    _check_step(step, index, phase, k_tiles, stages)
                except Wrong as why:
                    raise Wrong(
                        f"As plain Python it is right, but not compiled, where numbers have 32 bits. {why}"
                    ) from None


def crossings(stages: int, tiles: int, k_tiles: int) -> list[int]:
    """The tiles that a consumer of the faulty kernel comes to with the wrong phase."""
    wrong = []
    for group in (0, 1):
        phase = 0
        for tile in range(tiles):
            begin, end = tile * k_tiles, (tile + 1) * k_tiles
            if tile % 2 == group:
                if phase != begin // stages % 2:
                    wrong.append(tile)
                phase ^= (end // stages - begin // stages) % 2  # its own stages, one by one
    return sorted(wrong)


def _check_limit(right_up_to: Callable, stages: int, tiles: int) -> None:
    got: Any = right_up_to(stages, tiles)
    if not isinstance(got, int) or isinstance(got, bool):
        raise Wrong(f"right_up_to({stages}, {tiles}) is {got!r}; wanted is a number of k-tiles, an int.")
    want = next(k for k in range(1, 2 * stages) if crossings(stages, tiles, k)) - 1
    if got == want:
        return
    text = f"{stages} stages, {tiles} tiles: you say {got}. "
    if got > want:
        tile = crossings(stages, tiles, want + 1)[0]
        text += (
            f"With {_many(want + 1, 'k-tile')} tile {tile} begins at k-tile {tile * (want + 1)} of the CTA, on lap "
            f"{tile * (want + 1) // stages}, and its consumer has the phase of another lap: it stepped over the end of the ring."
        )
    else:
        text += (
            f"{_many(got + 1, 'k-tile')} would do as well: the last tile begins at k-tile {(tiles - 1) * (got + 1)} of the CTA, "
            f"and the first lap ends behind k-tile {stages - 1}."
        )
    raise Wrong(text)
