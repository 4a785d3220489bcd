"""Checkers of the exercises of notebook 04: arrive counts and register budgets, and the two roles of a specialised
kernel."""

from __future__ import annotations

import re

from . import Wrong, checker, harness
from .simulator import SCHEDULES, Fault, Ring, Simulator, State, as_python

REGISTERS = 65536  # of an SM
WARP_GROUP = 128


@checker("04a")
def counts(empty_arrivals, register_budget):
    """Arrivals on an empty barrier, and what setmaxnreg can give to whom."""
    clusters = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (2, 4))
    for groups in (1, 2, 3):
        for cluster in clusters:
            _check_arrivals(empty_arrivals, groups, *cluster)
    yield f"arrive counts for 1 to 3 consumer warp groups in {len(clusters)} cluster shapes"
    for groups in (2, 3, 4):
        _check_budget(register_budget, groups)
    from ...compile import compile_only

    compiled = compile_only("gemm")
    at_launch = register_budget(compiled.threads // WARP_GROUP - 1)[0]
    if compiled.registers != at_launch:
        raise Wrong(
            f"ptxas gives the finished gemm {compiled.registers} registers a thread at launch, you say {at_launch}."
        )
    yield (
        f"register budgets for 2 to 4 consumer warp groups; at launch as in the finished gemm ({compiled.threads} "
        f"threads, {compiled.registers} registers)"
    )


def _check_arrivals(empty_arrivals, groups: int, along_m: int, along_n: int) -> None:
    got = empty_arrivals(groups, along_m, along_n)
    if not isinstance(got, int) or isinstance(got, bool):
        raise Wrong(f"empty_arrivals returns {got!r}: a barrier counts whole arrivals, an int.")
    ctas = [(m, n) for m in range(along_m) for n in range(along_n)]
    # CTA (0, 0) multicasts A to its row of the cluster and B to its column; all that receive from it must tell it.
    receivers = [cta for cta in ctas if cta[0] == 0 or cta[1] == 0]
    want = sum(4 * groups for _ in receivers)
    if got == want:
        return
    setting = f"{groups} consumer warp group{'s' * (groups > 1)}, cluster {along_m} x {along_n}: you say {got!r}, "
    if got == want * 32:
        why = "as if each thread arrived. In `consumer_release` one thread of a warp does, for the whole warp."
    elif got * 4 == want:
        why = "as if one thread of a warp group arrived. Each warp does, because each warp waits for its own WGMMAs."
    elif got == 4 * groups and len(receivers) > 1:
        why = (
            f"which forgets the other CTAs: what this CTA loads is multicast, and {len(receivers)} CTAs must be "
            "done with it."
        )
    elif got == 4 * groups * len(ctas):
        why = (
            f"as if all {len(ctas)} CTAs of the cluster received from this one. A goes to its row, B to its "
            f"column: {len(receivers)} CTAs."
        )
    elif got == 4 * groups * (along_m + along_n):
        why = "which counts this CTA twice: it is in its row and in its column."
    else:
        why = "which is not one arrival of each consumer warp that reads what this CTA loads."
    effect = (
        "The barrier never completes: a hang."
        if got > want
        else "The barrier completes too early: a stage is overwritten while it is read."
    )
    raise Wrong(f"{setting}{why} {effect}")


def _check_budget(register_budget, groups: int) -> None:
    answer = register_budget(groups)
    if not isinstance(answer, tuple) or len(answer) != 3 or not all(isinstance(x, int) for x in answer):
        raise Wrong(
            f"For {groups} consumer warp groups it returns {answer!r}; wanted are three integers (at_launch, "
            "producer, consumer)."
        )
    launch, producer, consumer = answer
    setting = (
        f"{groups} consumer warp groups ({WARP_GROUP * (groups + 1)} threads), at launch {launch}, producer "
        f"{producer}, consumer {consumer}: "
    )
    for name, value in (("at launch", launch), ("producer", producer), ("consumer", consumer)):
        if value % 8:
            raise Wrong(f"{setting}registers come in multiples of 8, and {name} is {value}.")
    threads = WARP_GROUP * (groups + 1)
    if launch * threads > REGISTERS:
        raise Wrong(f"{setting}the launch needs {launch * threads:,} registers, an SM has {REGISTERS:,}.")
    if (launch + 8) * threads <= REGISTERS:
        raise Wrong(
            f"{setting}each thread could have more at launch: {launch * threads:,} of {REGISTERS:,} registers are "
            "in use."
        )
    if not 24 <= producer < launch:
        raise Wrong(f"{setting}setmaxnreg takes 24 at least, and the producer must give registers away.")
    if not launch < consumer <= 240:
        raise Wrong(f"{setting}the consumers must gain, up to the 240 that this exercise allows.")
    simulator = Simulator(SCHEDULES[0], launch_registers=launch)
    warps = 4 * (groups + 1)

    def body(warp):
        simulator.set_registers(producer if warp < 4 else consumer, increase=warp >= 4)

    try:
        simulator.run([lambda warp=warp: body(warp) for warp in range(warps)])
    except Fault as fault:
        pool = launch * threads
        raise Wrong(
            f"{setting}{fault}. The pool is what the launch took, {pool:,} registers; you ask for "
            f"{WARP_GROUP * (producer + groups * consumer):,}."
        ) from None
    if producer > 24:
        raise Wrong(f"{setting}the producer only issues TMA loads: let it keep the least that setmaxnreg allows.")
    if consumer < 240 and simulator.free_registers >= 8 * WARP_GROUP * groups:
        raise Wrong(f"{setting}{simulator.free_registers:,} registers stay unused; the consumers can have more.")


@checker("04b")
def roles(split_roles):
    """Producer and consumer roles: twelve warps in the simulator, then the cubin."""
    gemm = harness.GEMMS["04b"](split_roles)
    longest = 11
    for k_tiles in (1, 2, 3, 4, 5, longest):
        for schedule in SCHEDULES:
            _simulate_roles(split_roles, gemm.boxes, k_tiles, schedule)
    yield (
        f"twelve warps, 4 stages, up to {longest} k-tiles, {len(SCHEDULES)} hostile schedules: all k-tiles "
        "multiplied, nothing hangs"
    )
    compiled = harness.compile_(gemm, "04b")
    down, up = (re.findall(rf"setmaxnreg\.{way}\.sync\.aligned\.u32\s+(\d+)", compiled.ptx) for way in ("dec", "inc"))
    if (down, up) != (["24"], ["240"]):
        raise Wrong(
            f"The PTX holds setmaxnreg.dec {down or 'nowhere'} and setmaxnreg.inc {up or 'nowhere'}; wanted are 24 "
            "and 240, once each."
        )
    if compiled.spill_bytes:
        raise Wrong(f"The cubin spills {compiled.spill_bytes} bytes a thread: its 128 accumulators do not fit.")
    yield (
        f"compiles for sm_90a: setmaxnreg to {down[0]} and {up[0]} ({compiled.instructions.get('USETMAXREG', 0)} "
        "USETMAXREG in the SASS), "
        f"{compiled.registers} registers at launch, nothing spilled"
    )
    yield from harness.run_on_gpu(
        "04b", split_roles, "The usual causes: setmaxnreg in one warp only, or a stage acquired by several warps."
    )


def _simulate_roles(split_roles, boxes, k_tiles, schedule, stages=4) -> None:
    simulator = Simulator(schedule, stages, {"A": boxes["a"], "B": boxes["b"]}, launch_registers=168)
    ring = Ring(simulator, 8)

    def load(k, stage, barrier):
        simulator.load("A", k, stage, barrier)
        simulator.load("B", k, stage, barrier)

    early: set[int] = set()  # warps that consume before they have their registers

    def consume():
        if simulator.current.index < 4:
            raise Fault("roles", f"warp {simulator.current.index} consumes")
        if simulator.current.index not in {warp for warp, _, increase in simulator.register_calls if increase}:
            early.add(simulator.current.index)
        state = State(stages, 0)
        for k in range(k_tiles):
            ring.consumer_wait(state)
            simulator.multiply(k, state.index)
            simulator.wait_group(0)
            ring.consumer_release(state)
            state.advance()

    loop = as_python(split_roles, simulator)
    try:
        simulator.run([lambda warp=warp: loop(warp, ring, stages, k_tiles, load, consume) for warp in range(12)])
    except Fault as fault:
        raise Wrong(_explain_roles(fault, simulator, ring, k_tiles)) from None
    if missed := simulator.k_tiles_missed(range(4, 12), k_tiles):
        raise Wrong(f"{missed[0].upper()}{missed[1:]}: who calls consume()?")
    called = {warp for warp, _, _ in simulator.register_calls}
    if called != set(range(12)):
        raise Wrong(
            f"setmaxnreg is not executed by warps {sorted(set(range(12)) - called)}: every warp of a warp group "
            "must execute it."
        )
    if early:
        raise Wrong(
            "consume() is called before setmaxregister_increase: its 128 accumulators a thread need the registers from the "
            "first WGMMA on."
        )


def _explain_roles(fault: Fault, simulator: Simulator, ring: Ring, k_tiles: int) -> str:
    happened = f"With {k_tiles} k-tile{'s' * (k_tiles > 1)}: {fault}."
    if fault.kind == "hang" and "setmaxnreg" in str(fault):
        why = (
            "The consumers wait for registers that nobody gives back: all four warps of the producer group must "
            "decrease, not only the one that loads."
        )
    elif fault.kind == "arrivals":
        why = "One warp produces: were several to acquire a stage, each would arrive on its full barrier."
    elif any(barrier.bytes < 0 for barrier in ring.full):
        why = "Bytes arrive that nobody announced: acquire a stage before you load into it."
    elif fault.kind == "hang" and not any(warp.passed for warp in simulator.warps[4:]):
        why = "The consumer warps have ended without a wait: who calls consume()?"
    elif fault.kind == "hang" and "empty barrier" in str(fault):
        why = (
            "The producer waits for a stage that nobody releases, or for the wrong phase: acquire, load, advance, "
            "once per k-tile."
        )
    elif fault.kind == "hang":
        why = "The consumers wait for bytes: the producer must acquire, load and advance for every k-tile."
    elif fault.kind == "overwrite":
        why = "A stage must be acquired before it is loaded: acquiring waits until the consumers have released it."
    elif fault.kind in ("early", "stale"):
        why = "Load k-tile k into the stage that was acquired for it, with that stage's full barrier."
    elif fault.kind == "roles":
        why = "Warps 0 to 3 are the producer group."
    else:
        why = ""
    return f"{happened} {why}".strip()
