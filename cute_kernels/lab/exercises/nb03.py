"""Checkers of the exercises of notebook 03: position in a ring of stages, and the moment at which a stage may be
released."""

from __future__ import annotations

from . import Wrong, checker, harness
from .simulator import SCHEDULES, Barrier, Fault, Ring, Simulator, as_python

WARPS = 4
TILE_K = 64


@checker("03a")
def ring_position(position):
    """(stage, full parity, empty parity) of k-tile k: run as a ring between one producer and one consumer warp."""
    laps = 5
    for stages in range(1, 8):
        _simulate_ring(position, stages, laps * stages + 1)
    yield (
        f"rings of 1 to 7 stages, {laps} laps and one k-tile each: every k-tile finds its own bytes, and nobody "
        "waits for ever"
    )
    for stages, k in ((4, 3), (4, 4), (7, 6), (7, 7), (6, 2**20), (5, 2**31 - 1)):
        lap = k // stages
        _compare(position, k, stages, (k % stages, lap % 2, (lap + 1) % 2))
    yield "also right for k-tiles far out, such as number 2**31 - 1 of a ring of 5"


def _ask(position, k: int, stages: int) -> tuple[int, int, int]:
    answer = position(k, stages)
    if not isinstance(answer, tuple) or len(answer) != 3 or not all(isinstance(x, int) for x in answer):
        raise Wrong(
            f"For k = {k} and {stages} stages it returns {answer!r}; wanted are three integers (stage, "
            "full_parity, empty_parity)."
        )
    stage, *parities = map(int, answer)
    if not 0 <= stage < stages:
        raise Wrong(f"For k = {k} it returns stage {stage}: a ring of {stages} stages has stages 0 to {stages - 1}.")
    if not set(parities) <= {0, 1}:
        raise Wrong(
            f"For k = {k} and {stages} stages it returns the parities {parities[0]} and {parities[1]}: a parity is "
            "one bit."
        )
    return stage, parities[0], parities[1]


def _compare(position, k, stages, wanted):
    got = _ask(position, k, stages)
    if got != wanted:
        raise Wrong(
            f"k-tile {k} of a ring of {stages} is on lap {k // stages} (counted from 0): you say stage {got[0]}, "
            f"full parity {got[1]}, "
            f"empty parity {got[2]}. The stage's full barrier has completed {k // stages} times before this k-tile."
        )


def _simulate_ring(position, stages: int, k_tiles: int) -> None:
    for schedule in SCHEDULES:
        simulator = Simulator(schedule, stages, {"A": 16384, "B": 16384})
        ring = Ring(simulator, 1)

        def produce(simulator=simulator, ring=ring):
            for k in range(k_tiles):
                stage, _, parity = _ask(position, k, stages)
                simulator.wait(ring.empty[stage], parity)
                simulator.arrive(ring.full[stage], ring.bytes, once=True)
                for operand in ("A", "B"):
                    simulator.load(operand, k, stage, ring.full[stage])

        def consume(simulator=simulator, ring=ring):
            for k in range(k_tiles):
                stage, parity, _ = _ask(position, k, stages)
                simulator.wait(ring.full[stage], parity)
                simulator.multiply(k, stage)
                simulator.wait_group(0)
                simulator.arrive(ring.empty[stage], once=True)

        try:
            simulator.run([produce, consume])
        except Fault as fault:
            raise Wrong(_explain_ring(fault, position, stages, k_tiles)) from None


def _explain_ring(fault: Fault, position, stages: int, k_tiles: int) -> str:
    who = (
        str(fault)
        .replace("warp 0", "the producer")
        .replace("warp 1's", "the consumer's")
        .replace("warp 1", "the consumer")
    )
    text = f"With {stages} stage{'s' * (stages > 1)}: {who}."
    for k in range(k_tiles):
        stage, full, empty = _ask(position, k, stages)
        lap = k // stages
        if stage != k % stages:
            return f"{text} You put k-tile {k} into stage {stage}: a ring hands out its stages in turn."
        if full != lap % 2:
            upto = f"So K <= {k * TILE_K} is right and K > {k * TILE_K} is not. " if k else ""
            return (
                f"{text} It begins with k-tile {k}, on lap {lap}: the consumer waits for full parity {full}. {upto}"
                "The phase of a stage's barrier flips once per lap of the ring."
            )
        if empty != (lap + 1) % 2:
            return (
                f"{text} It begins with k-tile {k}, on lap {lap}: the producer waits for empty parity {empty}. On "
                "lap 0 every stage is free, "
                "and a wait for parity 1 passes on a barrier that has never completed; from then on the parity "
                "flips once per lap."
            )
    return text


@checker("03b")
def release(main_loop):
    """The consumer's side of the ring: which WGMMA groups may run on, and which stage is then handed back."""
    longest, depths = 13, (2, 3, 4, 6)
    gemm = harness.GEMMS["03b"](main_loop)
    for stages in depths:
        for k_tiles in (1, 2, 3, stages, stages + 1, longest):
            for schedule in SCHEDULES:
                drained = _simulate_release(main_loop, gemm.boxes, stages, k_tiles, schedule)
                if drained:
                    raise Wrong(
                        f"Right, but no WGMMA group stays in flight: when k-tile {drained[0]} is issued, the one before is done, "
                        "and the tensor cores idle. Let the newest group run and wait only for the one before it."
                    )
    yield (
        f"rings of {', '.join(map(str, depths))} stages, up to {longest} k-tiles, {len(SCHEDULES)} hostile "
        "schedules: no stage is refilled "
        "while a WGMMA may read it, none is kept for ever, one group stays in flight"
    )
    compiled = harness.compile_(gemm, "03b")
    waits = sum(n for name, n in compiled.mnemonics.items() if name.startswith("WARPGROUP.DEPBAR"))
    multiplies = compiled.instructions.get("HGMMA", 0)
    if waits >= multiplies:
        raise Wrong(
            f"ptxas serialises your WGMMAs: {waits} waits for {multiplies} of them. The accumulator is touched "
            "while a group runs."
        )
    yield (
        f"compiles for sm_90a: {multiplies} WGMMAs, {waits} waits, {compiled.registers} registers, "
        f"{compiled.spill_bytes} bytes spilled"
    )
    yield from harness.run_on_gpu("03b", main_loop, "The usual cause: a stage that some warp never releases.")


def _simulate_release(main_loop, boxes, stages, k_tiles, schedule) -> list[int]:
    """The k-tiles that were issued with nothing in flight; raises Wrong."""
    simulator = Simulator(schedule, stages, {"A": boxes["a"], "B": boxes["b"]})
    ring = Ring(simulator, WARPS)

    def load(k, stage, barrier: Barrier):
        simulator.load("A", k, stage, barrier)
        simulator.load("B", k, stage, barrier)

    loop = as_python(main_loop, simulator)
    try:
        simulator.run(
            [lambda warp=warp: loop(warp, ring, stages, k_tiles, load, simulator.multiply) for warp in range(WARPS)]
        )
    except Fault as fault:
        raise Wrong(_explain_release(fault, stages, k_tiles)) from None
    if missed := simulator.k_tiles_missed(range(WARPS), k_tiles):
        raise Wrong(f"{missed[0].upper()}{missed[1:]}.")
    return simulator.drained


def _explain_release(fault: Fault, stages: int, k_tiles: int) -> str:
    happened = f"With {stages} stages and {k_tiles} k-tile{'s' * (k_tiles > 1)}: {fault}."
    why = {
        "overwrite": "You release a stage before the WGMMA that reads it has finished: move the release behind the "
        "wait_group that covers it. wait_group(n) leaves the n newest groups running.",
        "hang": "A stage is not given back: every warp must release every stage, in the order in which they were "
        "filled, or warp 0 waits for ever.",
        "arrivals": "A stage is released more often than it was filled: one release per warp and k-tile.",
        "unfinished": "After the loop the last group still runs, and the epilogue would read its accumulator.",
        "stale": "The stage was refilled too early: release it only when wait_group says that its group is done.",
    }
    return f"{happened} {why.get(fault.kind, '')}".strip()
