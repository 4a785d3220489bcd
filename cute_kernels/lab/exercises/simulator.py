"""Warps, mbarriers, named barriers, TMA loads and WGMMA groups in plain Python: what a main loop may do, under hostile timing.

The learner's own `@cute.jit` function runs here as plain Python: `as_python` exchanges `cute`, `cutlass`, `warpgroup`
and the package's `mainloop` in its globals for the objects below. Every warp is a thread, but only one runs at a
time; each simulated operation is a point at which another may go on. What the hardware leaves open is decided against
the learner: TMA writes land at once or as late as possible, a WGMMA group reads shared memory until somebody waits
for it, and warps run ahead or lag. A fault that one of the `SCHEDULES` shows is a fault; the converse is not claimed.

Model of an mbarrier (PTX ISA): a phase completes when no arrivals and no bytes are pending; waiting with parity p
passes when the running phase's parity is not p. Of a named barrier: it counts the threads of whole warps, those that
`bar.sync` and wait and those that `bar.arrive` and go on; when its count is reached it opens, and is empty again.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import Wrong, file_of, python

SCHEDULES = (
    ("first", "now"),
    ("last", "now"),
    ("first", "late"),
    ("last", "late"),
    (1, "late"),
    (2, "now"),
    (3, "any"),
    (4, "any"),
)
MAX_STEPS = 100_000


class Fault(Exception):
    """What went wrong in a simulated run. kind: hang, early, stale, overwrite, arrivals, unfinished, registers, and of named
    barriers: barrier (not used as the PTX ISA allows), leftover (threads that came for nothing).

    k: the k-tile that it happened to; found: the k-tile that lay in its place (stale). lapped: a barrier moved on by
    two phases while a warp was still to wait for the first, which one bit cannot tell from none (hang).
    """

    def __init__(self, kind: str, text: str, k: int | None = None, found: int | None = None, lapped: bool = False):
        super().__init__(text)
        self.kind, self.k, self.found, self.lapped = kind, k, found, lapped


class _Stop(BaseException):
    """Ends a warp's thread after another one's fault."""


class _Warp(threading.Thread):
    def __init__(self, simulator: Simulator, index: int, body: Callable[[], None]):
        super().__init__(daemon=True)
        self.simulator, self.index, self.body = simulator, index, body
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.waits: str | Callable[[], str] = ""
        self.finished = False
        self.error: BaseException | None = None
        self.elected = False
        self.groups: list[tuple[int, int]] = []  # WGMMA groups that may still run: (stage, k-tile) that they read
        self.multiplied: list[int] = []
        self.passed: dict[int, int] = {}  # waits passed, by barrier
        self.blocked_on: Barrier | None = None

    def run(self) -> None:
        self.turn.acquire()
        try:
            if not self.simulator.stopped:
                self.body()
        except _Stop:
            pass
        except BaseException as why:
            self.error = why
        self.finished = True
        self.simulator.back.release()


class Barrier:
    """An mbarrier: `count` arrivals and the announced bytes complete a phase."""

    def __init__(self, simulator: Simulator, name: str, count: int):
        self.simulator, self.name, self.count = simulator, name, count
        self.phase, self.pending, self.bytes = 0, count, 0

    def arrive(self, times: int = 1, expect: int = 0) -> None:
        self.bytes += expect
        self.pending -= times
        if self.pending < 0:
            raise Fault(
                "arrivals", f"{self.name} gets more arrivals in one phase than the {self.count} it was initialised for"
            )
        self._complete()

    def deliver(self, bytes_: int) -> None:
        self.bytes -= bytes_
        self._complete()

    def _complete(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count

    def passed(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def __str__(self) -> str:
        missing = [f"{self.pending} arrival{'s' * (self.pending != 1)}"] if self.pending else []
        missing += [f"{self.bytes} bytes"] if self.bytes > 0 else []
        state = f"misses {' and '.join(missing)}" if missing else "misses nothing"
        surplus = f", has {-self.bytes} bytes too many" if self.bytes < 0 else ""
        return f"{self.name} ({self.phase} phase{'s' * (self.phase != 1)} complete, the next {state}{surplus})"


class NamedBarrier:
    """One of the 16 barriers of a CTA: opens when `threads` have come, in whole warps, and is then empty again."""

    def __init__(self, number: int):
        if not 0 <= number < 16:
            raise Fault("barrier", f"there is no named barrier {number}: a CTA has the numbers 0 to 15")
        self.number, self.threads, self.come, self.opened = number, 0, 0, 0

    def arrive(self, threads: int) -> None:
        """A warp comes and says how many threads open the barrier."""
        if threads % 32 or not 32 <= threads <= 1024:
            raise Fault(
                "barrier", f"{self} is to open for {threads} threads: it counts whole warps, 32 to 1024 threads"
            )
        if self.come and threads != self.threads:
            raise Fault(
                "barrier",
                f"{self} waits for {self.threads} threads, and another warp comes to it with a count of {threads}",
            )
        self.threads = threads
        self.come += 32
        if self.come == threads:
            self.come, self.opened = 0, self.opened + 1

    def __str__(self) -> str:
        return f"named barrier {self.number}"


class Simulator:
    """One CTA. `stages` slots of shared memory; operand name -> bytes of its box in `boxes`."""

    def __init__(
        self, schedule: tuple, stages: int = 1, boxes: dict[str, int] | None = None, launch_registers: int = 0
    ):
        self.order, self.timing = schedule
        self.random = random.Random(repr(schedule))
        self.back = threading.Semaphore(0)
        self.warps: list[_Warp] = []
        self.current: _Warp | None = None
        self.stopped = False
        self.boxes = boxes or {}
        self.smem: list[dict[str, Any]] = [{name: None for name in self.boxes} for _ in range(stages)]
        self.in_flight: list[Callable[[], None]] = []
        self.sync_generation, self.sync_count = 0, 0
        self.named: dict[int, NamedBarrier] = {}
        self.launch_registers, self.free_registers = launch_registers, 0
        self.drained: list[int] = []  # k-tiles that were issued when nothing was in flight any more
        self.expected_bytes: list[int] = []
        self.register_calls: list[tuple[int, int, bool]] = []

    # The scheduler

    def run(self, bodies: list[Callable[[], None]]) -> None:
        """Run one body per warp to its end. Raises Fault, or what a body raised."""
        self.warps = [_Warp(self, index, body) for index, body in enumerate(bodies)]
        for warp in self.warps:
            warp.start()
        try:
            for _ in range(MAX_STEPS):
                if all(warp.finished for warp in self.warps):
                    break
                self._step()
            else:
                raise Fault("hang", "the loop does not come to an end")
        finally:
            self.stopped = True
            for warp in self.warps:
                if not warp.finished:
                    warp.turn.release()
                    self.back.acquire()
        for warp in self.warps:
            if warp.groups:
                many = f"{len(warp.groups)} WGMMA groups" if len(warp.groups) > 1 else "one WGMMA group"
                raise Fault("unfinished", f"warp {warp.index} ends while {many} may still run", warp.groups[0][1])
        for barrier in self.named.values():
            if barrier.come:
                text = f"at the end {barrier} is left with {barrier.come} of {barrier.threads} threads"
                raise Fault("leftover", f"{text}: nobody waits for them any more")

    def _step(self) -> None:
        runnable = [w for w in self.warps if not w.finished and (w.ready is None or w.ready())]
        if self.in_flight and (not runnable or (self.timing == "any" and self.random.random() < 0.3)):
            self.in_flight.pop(0 if self.timing != "any" else self.random.randrange(len(self.in_flight)))()
            return
        if not runnable:
            waits = {}
            for warp in self.warps:
                if not warp.finished:
                    waits.setdefault(warp.waits() if callable(warp.waits) else warp.waits, []).append(warp.index)
            lapped = any(
                w.blocked_on and w.blocked_on.phase >= w.passed.get(id(w.blocked_on), 0) + 2 for w in self.warps
            )
            text = "; ".join(f"{_warps(who)} for ever in {what}" for what, who in waits.items())
            raise Fault("hang", text, lapped=lapped)
        if self.order == "first":
            warp = runnable[0]
        elif self.order == "last":
            warp = runnable[-1]
        else:
            warp = self.random.choice(runnable)
        self.current, warp.ready = warp, None
        warp.turn.release()
        self.back.acquire()
        if warp.error is not None:
            raise warp.error

    def pause(self, waits: str | Callable[[], str] = "", ready: Callable[[], bool] | None = None) -> None:
        """Let others run; go on when `ready()`. waits: for what, or a function that says it when nobody can go on."""
        warp = self.current
        warp.ready, warp.waits = ready, waits
        self.back.release()
        warp.turn.acquire()
        if self.stopped:
            raise _Stop

    def k_tiles_missed(self, warps: list[int], k_tiles: int) -> str | None:
        """A sentence when one of these warps did not multiply 0, 1, ..., k_tiles - 1 in this order."""
        for index in warps:
            done = self.warps[index].multiplied
            if done != list(range(k_tiles)):
                return f"of {k_tiles} k-tiles, warp {index} multiplies {done if done else 'none'}"
        return None

    # What a warp can do

    def together(self, what: str) -> None:
        """`what` is done by a whole warp: inside elect_one, one thread would do it and the others go past."""
        if self.current.elected:
            raise Wrong(
                f"{what} stands inside elect_one(): one thread would do it alone. It is the whole warp's: what must happen once "
                "chooses its thread itself, what waits must hold back every thread. Only an arrive belongs there."
            )

    def arrive(self, barrier: Barrier, expect: int = 0, once: bool = False) -> None:
        self.pause()
        if expect:
            self.expected_bytes.append(expect)
        barrier.arrive(1 if once or self.current.elected else 32, expect)

    def expect(self, barrier: Barrier, count: int) -> None:
        """Announce bytes without arriving."""
        self.pause()
        self.expected_bytes.append(count)
        barrier.bytes += count * (1 if self.current.elected else 32)

    def wait(self, barrier: Barrier, parity: int) -> None:
        self.together("A wait for a barrier")
        parity, warp = int(parity), self.current
        self.pause()
        if not barrier.passed(parity):
            warp.blocked_on = barrier
            self.pause(f"a wait for {barrier} with parity {parity}", lambda: barrier.passed(parity))
            warp.blocked_on = None
        warp.passed[id(barrier)] = warp.passed.get(id(barrier), 0) + 1

    def load(self, operand: str, k: int, stage: int, barrier: Barrier) -> None:
        """A TMA load of k-tile `k` into a stage; its bytes go to the barrier when they have landed."""
        self.together("A TMA load")
        self.pause()
        k, stage = int(k), int(stage)
        for warp in self.warps:
            for read, other in warp.groups:
                if read == stage:
                    text = (
                        f"TMA writes k-tile {k} into stage {stage} while warp {warp.index}'s WGMMA of k-tile "
                        f"{other} may still read it"
                    )
                    raise Fault("overwrite", text, k)
        slot = self.smem[stage]
        slot[operand] = ("arriving", k)

        def land() -> None:
            slot[operand] = k
            barrier.deliver(self.boxes[operand])

        if self.timing == "now":
            land()
        else:
            self.in_flight.append(land)

    def multiply(self, k: int, stage: int) -> None:
        """Issue and commit one WGMMA group that reads a stage and should find k-tile `k` there."""
        self.together("A WGMMA")
        self.pause()
        warp, k, stage = self.current, int(k), int(stage)
        for operand, found in self.smem[stage].items():
            if isinstance(found, tuple):
                text = (
                    f"warp {warp.index} multiplies k-tile {k} while {operand} of k-tile {found[1]} is on its way "
                    f"to stage {stage}"
                )
                raise Fault("stale" if found[1] != k else "early", text, k, found[1])
            if found is None:
                raise Fault(
                    "early",
                    f"warp {warp.index} multiplies k-tile {k} before {operand} was loaded into stage {stage}",
                    k,
                )
            if found != k:
                text = f"warp {warp.index} multiplies k-tile {k}, but stage {stage} holds {operand} of k-tile {found}"
                raise Fault("stale", text, k, found)
        if warp.multiplied and not warp.groups:
            self.drained.append(k)
        warp.multiplied.append(k)
        warp.groups.append((stage, k))

    def wait_group(self, left: int) -> None:
        self.together("wait_group")
        self.pause()
        groups = self.current.groups
        del groups[: max(0, len(groups) - int(left))]

    def sync_threads(self) -> None:
        self.together("sync_threads")
        self.pause()
        generation = self.sync_generation
        self.sync_count += 1
        if self.sync_count == len(self.warps):
            self.sync_count, self.sync_generation = 0, generation + 1
        self.pause("sync_threads", lambda: self.sync_generation != generation)

    def named_barrier(self, number: int, threads: int, wait: bool) -> None:
        """bar.sync (wait) or bar.arrive of one warp."""
        self.together("bar.sync" if wait else "bar.arrive")
        self.pause()
        number = int(number)
        barrier = self.named[number] = self.named.get(number) or NamedBarrier(number)
        opened = barrier.opened
        barrier.arrive(int(threads))
        if wait:
            self.pause(
                lambda: f"bar.sync on {barrier} ({barrier.come} of {barrier.threads} threads have come)",
                lambda: barrier.opened != opened,
            )

    @contextlib.contextmanager
    def elect_one(self):
        warp = self.current
        warp.elected = True
        try:
            yield
        finally:
            warp.elected = False

    def set_registers(self, count: int, increase: bool) -> None:
        """setmaxnreg of one warp: a decrease feeds the CTA's pool, an increase waits until the pool has enough."""
        self.together("setmaxnreg")
        self.register_calls.append((self.current.index, int(count), increase))
        change = (int(count) - self.launch_registers) * 32
        if count % 8 or not 24 <= count <= 256:
            raise Fault("registers", f"setmaxnreg takes multiples of 8 from 24 to 256, not {count}")
        if increase != (change >= 0):
            raise Fault(
                "registers",
                f"{count} is no {'increase' if increase else 'decrease'} from the {self.launch_registers} at launch",
            )
        self.pause()
        if increase:
            self.pause(f"setmaxnreg.inc to {count}", lambda: self.free_registers >= change)
        self.free_registers -= change


def _warps(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"warp {indices[0]} waits"
    if indices == list(range(indices[0], indices[-1] + 1)):
        return f"warps {indices[0]}..{indices[-1]} wait"
    return f"warps {', '.join(map(str, indices))} wait"


# What the learner's code sees in place of the DSL


@dataclass
class State:
    """A `PipelineState`: stage index, phase bit."""

    stages: int
    phase: int
    index: int = 0
    count: int = 0

    def advance(self, count: int = 1) -> None:
        laps, self.index = divmod(self.index + int(count), self.stages)
        self.count += int(count)
        self.phase ^= laps % 2

    def clone(self) -> State:
        return State(self.stages, self.phase, self.index, self.count)


class Ring:
    """A `PipelineTmaAsync` over the simulator's stages."""

    def __init__(self, simulator: Simulator, consumer_warps: int):
        self.simulator = simulator
        stages = range(len(simulator.smem))
        self.full = [Barrier(simulator, f"the full barrier of stage {s}", 1) for s in stages]
        self.empty = [Barrier(simulator, f"the empty barrier of stage {s}", consumer_warps) for s in stages]
        self.bytes = sum(simulator.boxes.values())

    def producer_acquire(self, state: State) -> None:
        self.simulator.wait(self.empty[state.index], state.phase)
        self.simulator.arrive(self.full[state.index], self.bytes, once=True)

    def producer_get_barrier(self, state: State) -> Barrier:
        return self.full[state.index]

    def producer_commit(self, state: State) -> None:
        """Nothing: TMA itself reports the bytes."""

    def producer_tail(self, state: State) -> None:
        state = state.clone()
        for _ in range(state.stages):
            self.simulator.wait(self.empty[state.index], state.phase)
            state.advance()

    def consumer_wait(self, state: State) -> None:
        self.simulator.wait(self.full[state.index], state.phase)

    def consumer_release(self, state: State) -> None:
        self.simulator.together("consumer_release")
        self.simulator.arrive(self.empty[state.index], once=True)


class _Names:
    """A module's stand-in; an unknown name is a sentence, not an AttributeError."""

    def __init__(self, path: str, **names: Any):
        self.__dict__.update(names)
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(key for key in self.__dict__ if key != "_path")
        raise Wrong(
            f"{self._path}.{name} is not needed here, and the simulator does not know it. It knows of "
            f"{self._path}: {known}."
        )


def as_python(function: Callable, simulator: Simulator) -> Callable:
    """The learner's function as plain Python over the simulator."""
    from ...hopper import mainloop

    def expect(barrier: Barrier, count: int, **_: Any) -> None:
        simulator.arrive(barrier, int(count))

    def sync(*, barrier_id: int | None = None, number_of_threads: int | None = None) -> None:
        if barrier_id is None and number_of_threads is None:
            simulator.sync_threads()
        else:
            simulator.named_barrier(barrier_id or 0, number_of_threads or 32 * len(simulator.warps), wait=True)

    def arrive(*, barrier_id: int, number_of_threads: int) -> None:
        simulator.named_barrier(barrier_id, number_of_threads, wait=False)

    arch = _Names(
        "cute.arch",
        mbarrier_arrive_and_expect_tx=expect,
        mbarrier_arrive=lambda barrier, **_: simulator.arrive(barrier),
        mbarrier_expect_tx=lambda barrier, count, **_: simulator.expect(barrier, int(count)),
        mbarrier_wait=lambda barrier, phase, **_: simulator.wait(barrier, phase),
        elect_one=simulator.elect_one,
        sync_threads=simulator.sync_threads,
        barrier=sync,
        barrier_arrive=arrive,
        setmaxregister_decrease=lambda count: simulator.set_registers(count, increase=False),
        setmaxregister_increase=lambda count: simulator.set_registers(count, increase=True),
    )
    warpgroup = _Names("warpgroup", wait_group=simulator.wait_group)
    cute = _Names(
        "cute",
        arch=arch,
        nvgpu=_Names("cute.nvgpu", warpgroup=warpgroup),
        jit=lambda f: f,
        ceil_div=lambda a, b: -(-a // b),
    )
    cutlass = _Names(
        "cutlass",
        cute=cute,
        range=lambda *bounds, **_: range(*map(int, bounds)),
        range_constexpr=lambda *bounds: range(*bounds),
        const_expr=lambda value: value,
        Int32=int,
        Boolean=bool,
        min=min,
        max=max,
    )
    loop = _Names(
        "mainloop", producer_state=lambda stages: State(stages, 1), consumer_state=lambda stages: State(stages, 0)
    )
    stand_in = {"cutlass": cutlass, "cutlass.cute": cute, "cutlass.cute.arch": arch, mainloop.__name__: loop}
    stand_in["cutlass.cute.nvgpu.warpgroup"] = warpgroup
    plain = python(function)
    scope: dict[str, Any] = {}
    for name, value in plain.__globals__.items():
        if isinstance(value, types.ModuleType):
            value = next((new for path, new in stand_in.items() if sys.modules.get(path) is value), value)
        elif isinstance(value, types.FunctionType):
            value = _rebound(value, scope) if file_of(value) == file_of(function) else value
        scope[name] = value
    for path, new in (("cutlass.range", cutlass.range), ("cutlass.Int32", int)):  # imported by name
        module, attribute = path.rsplit(".", 1)
        original = getattr(sys.modules[module], attribute)
        scope.update({name: new for name, value in plain.__globals__.items() if value is original})
    return _rebound(plain, scope)


def _rebound(function: Callable, scope: dict[str, Any]) -> Callable:
    plain = python(function)
    code = getattr(plain, "_original_code", plain.__code__)  # the DSL replaces the code of what it has once compiled
    new = types.FunctionType(code, scope, plain.__name__, plain.__defaults__, plain.__closure__)
    new.__kwdefaults__ = plain.__kwdefaults__
    return new


def bounded(function: Callable, *args: Any, lines: int = 20_000, why: str = "it does not come to an end") -> Any:
    """function(*args), plain Python, stopped after so many lines of code; `why` is then what is wrong."""
    left = lines

    def count(frame, event, arg):
        nonlocal left
        left -= event == "line"
        if left < 0:
            raise Wrong(f"{lines:,} lines of `{function.__name__}` have run in one call: {why}.")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return function(*args)
    finally:
        sys.settrace(before)
