"""Every exercise on disk: in step with its solution, within its line budget, and judged rightly by its checker.

The cells of an exercise run in a child process of their own, because a wrong kernel may abort the compiler.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

from cute_kernels import lab
from cute_kernels import reference as ck_reference
from cute_kernels.hopper import scheduler
from cute_kernels.lab import exercises
from cute_kernels.lab.exercises import (
    ExerciseFailed,
    NotRun,
    Verdict,
    Wrong,
    checker,
    harness,
    nb05,
    nb06,
    nb07,
    nb08,
    nb09,
    nb10,
    regions,
)
from cute_kernels.lab.exercises.simulator import SCHEDULES, Barrier, Fault, Simulator, State, as_python, bounded

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "exercises"
NAMES = sorted({path.stem for folder in (FOLDER, FOLDER / "solutions") for path in folder.glob("*.ipynb")})
LIMIT = 120  # seconds for one exercise's child process

each = pytest.mark.parametrize("name", NAMES)


def code_cells(path: Path) -> list[str]:
    return [source for kind, source in regions.cells(path) if kind == "code"]


def wrong_answers(name: str) -> list[tuple[str, str, str]]:
    path = Path(__file__).parent / "wrong_answers" / f"nb{name[:2]}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WRONG[name[:3]]


def edited(cells: list[str], old: str, new: str) -> list[str]:
    """The cells with `old` replaced by `new`; `old` must stand exactly once, inside a region."""
    inside = "".join(f"{line}\n" for cell in cells for region in regions.regions(cell) for line in region.lines)
    assert inside.count(old) == 1, f"{old!r} stands {inside.count(old)} times in the solution's regions"
    holders = [index for index, cell in enumerate(cells) if old in cell]
    assert len(holders) == 1 and cells[holders[0]].count(old) == 1, f"{old!r} also stands outside of the regions"
    return [cell.replace(old, new) for cell in cells]


def run_in_child(variants: list[list[str]], **variables: str) -> list[dict]:
    """Run each list of code cells in one fresh interpreter; for each the verdicts, printed text or the traceback."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_exercise.py"))],
        input=json.dumps(variants),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def judged(name: str) -> dict[str, dict]:
    """The solution, the untouched exercise and the typical wrong answers, judged by the checker."""
    solution = code_cells(FOLDER / "solutions" / f"{name}.ipynb")
    variants = {"solution": solution, "untouched": code_cells(FOLDER / f"{name}.ipynb")}
    for number, (old, new, words) in enumerate(wrong_answers(name)):
        variants[f"wrong answer {number}: {words}"] = edited(solution, old, new)
    return dict(zip(variants, run_in_child(list(variants.values())), strict=True))


def test_exercises_come_in_pairs():
    assert NAMES, "no exercise found"
    for name in NAMES:
        assert re.fullmatch(r"\d\d[a-z]_\w+", name), name
        assert (FOLDER / f"{name}.ipynb").is_file() and (FOLDER / "solutions" / f"{name}.ipynb").is_file(), name
    assert len({name[:3] for name in NAMES}) == len(NAMES), "two exercises have the same number"


@each
def test_solution_equals_exercise_outside_of_the_regions(name):
    assert regions.differences(FOLDER / f"{name}.ipynb", FOLDER / "solutions" / f"{name}.ipynb") == []


@each
def test_solution_keeps_to_its_line_budget(name):
    found = [region for cell in code_cells(FOLDER / "solutions" / f"{name}.ipynb") for region in regions.regions(cell)]
    assert found, "the solution has no FILL region"
    for region in found:
        assert 0 < len(region.code) <= region.budget, f"{len(region.code)} lines where {region.budget} are announced"


@each
def test_exercise_is_empty_and_explains_itself(name):
    path = FOLDER / f"{name}.ipynb"
    assert all(region.empty for cell in code_cells(path) for region in regions.regions(cell))
    text = "\n".join(source for kind, source in regions.cells(path) if kind == "markdown")
    assert text.count("<summary>Hint") >= 1
    assert f'check("{name[:3]}"' in code_cells(path)[-1]


@each
def test_checker_judges(name):
    """The solution passes, the untouched exercise fails with a message, typical wrong answers are named."""
    outcomes = judged(name)
    for what, outcome in outcomes.items():
        assert outcome["error"] is None, f"{what}: {outcome['error']}"
        assert [verdict["exercise"] for verdict in outcome["verdicts"]] == [name[:3]], what
    wrong = {what: outcome["verdicts"][0]["wrong"] for what, outcome in outcomes.items()}
    assert wrong.pop("solution") is None
    assert outcomes["solution"]["verdicts"][0]["shown"], "the checker shows nothing"
    assert re.search("not filled in yet|still `...`", wrong.pop("untouched"))
    assert wrong, "no typical wrong answer"
    for what, says in wrong.items():
        words = what.split(": ", 1)[1]
        assert says is not None and words in says, f"{what!r} gets: {says}"


# The mechanism itself


@pytest.fixture
def toy():
    """A checker for exercise "99z" that wants a function returning 4, and cannot check the rest."""

    @checker("99z")
    def check_four(four):
        if four() != 4:
            raise Wrong(f"it returns {four()}, not 4")
        yield "it returns 4"
        yield NotRun("the colour: needs a GPU")

    yield
    del exercises._checkers["99z"]


def test_a_verdict_with_something_unchecked_is_not_called_passed(toy, capsys):
    exercises.check("99z", lambda: 4)
    printed = capsys.readouterr().out
    assert "not run" in printed and "needs a GPU" in printed and "passed" not in printed
    assert str(Verdict("99z", shown=["all"])).startswith("99z: passed")


def test_a_wrong_answer_raises_and_jupyter_shows_only_the_verdict(toy):
    with pytest.raises(ExerciseFailed, match="it returns 5, not 4") as caught:
        exercises.check("99z", lambda: 5)
    assert caught.value._render_traceback_() == [str(caught.value.verdict)]


def test_an_exception_in_the_answer_is_a_sentence_with_its_line(toy):
    def four():
        return [][4]

    wrong = exercises.examine("99z", four).wrong
    assert "`four` raised IndexError" in wrong and "return [][4]" in wrong


def test_an_exception_in_the_checker_is_not_blamed_on_the_learner():
    @checker("99y")
    def check_broken(answer):
        yield "so far"
        raise KeyError("a bug of the checker")

    try:
        with pytest.raises(KeyError):
            exercises.examine("99y", regions.regions)
    finally:
        del exercises._checkers["99y"]


def test_unfilled_answers_are_told_apart(toy):
    def four():
        # FILL (about 1 line)
        ...
        # END FILL

    assert "not filled in yet" in exercises.examine("99z", four).wrong
    assert "still `...`" in exercises.examine("99z", ...).wrong


def test_unknown_exercises_are_named():
    with pytest.raises(ValueError, match="no exercise '98q'"):
        exercises.check("98q", 1)


def test_regions():
    source = (
        "a\n# FILL (about 2 lines)\nx = ...\n# END FILL\nb\n# FILL (about 1 line)\ny = 1  # one\n\n# why\n# END FILL"
    )
    outside, found = regions.split(source)
    assert [line for line in outside if "FILL" not in line] == ["a", "b"]
    assert [(r.budget, r.empty, len(r.code)) for r in found] == [(2, True, 1), (1, False, 1)]
    for lost in ("# END FILL", "# FILL (about 1 line)\nx", "# FILL (about 1 line)\n# FILL (about 1 line)\n# END FILL"):
        with pytest.raises(ValueError, match="partner|no # END FILL"):
            regions.split(lost)


def test_differences_are_found(tmp_path):
    import nbformat

    def write(path, *cells):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbformat.write(notebook, path)
        return path

    base = "a = 1\n# FILL (about 1 line)\nx = ...\n# END FILL"
    ours = write(tmp_path / "a.ipynb", base)
    assert regions.differences(ours, write(tmp_path / "b.ipynb", base.replace("x = ...", "x = 2"))) == []
    assert "a = 1" in regions.differences(ours, write(tmp_path / "c.ipynb", base.replace("a = 1", "a = 2")))[0]
    assert (
        "budget"
        in regions.differences(ours, write(tmp_path / "d.ipynb", base.replace("about 1 line", "about 9 lines")))[-1]
    )
    assert "1 cells" in regions.differences(ours, write(tmp_path / "e.ipynb", base, "b"))[0]


# The simulator, against the rules of the PTX ISA


def simulated(*bodies, schedule=("first", "late"), stages=1, registers=0):
    run = Simulator(schedule, stages, {"A": 100}, launch_registers=registers)
    run.run([lambda body=body: body(run) for body in bodies])
    return run


def test_a_barrier_completes_when_arrivals_and_bytes_are_in():
    barrier = Barrier(None, "b", 2)
    assert barrier.passed(1) and not barrier.passed(0), "an untouched barrier lets parity 1 pass"
    barrier.arrive(expect=64)
    barrier.arrive()
    assert not barrier.passed(0), "64 bytes are missing"
    barrier.deliver(64)
    assert barrier.passed(0) and not barrier.passed(1) and barrier.pending == 2
    with pytest.raises(Fault, match="more arrivals"):
        barrier.arrive(3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_right_loop_passes_under_every_schedule(schedule):
    def body(run):
        for k in range(3):
            run.arrive(full, expect=100, once=True)
            run.load("A", k, 0, full)
            run.wait(full, k % 2)
            run.multiply(k, 0)
            run.wait_group(0)

    full = Barrier(None, "full", 1)
    assert simulated(body, schedule=schedule).k_tiles_missed([0], 3) is None


def test_faults_have_names():
    full = Barrier(None, "full", 1)

    def unannounced(run):
        run.load("A", 0, 0, full)
        run.wait(full, 0)

    def too_early(run):
        run.load("A", 0, 0, Barrier(None, "b", 1))
        run.multiply(0, 0)

    def overwriting(run):
        run.load("A", 0, 0, Barrier(None, "b", 1))
        run.multiply(0, 0)
        run.load("A", 1, 0, Barrier(None, "b", 1))

    def stale(run):
        run.load("A", 0, 0, Barrier(None, "b", 1))
        run.multiply(1, 0)

    def unfinished(run):
        run.load("A", 0, 0, Barrier(None, "b", 1))
        run.multiply(0, 0)

    def alone_at_sync(run):
        run.sync_threads()

    for kind, timing, *bodies in (
        ("hang", "late", unannounced),
        ("early", "late", too_early),
        ("overwrite", "now", overwriting),
        ("stale", "now", stale),
        ("unfinished", "now", unfinished),
        ("hang", "now", alone_at_sync, lambda run: None),
    ):
        with pytest.raises(Fault) as caught:
            simulated(*bodies, schedule=("first", timing))
        assert caught.value.kind == kind, bodies[0].__name__


def test_setmaxnreg_takes_from_a_pool():
    def set_to(count, increase):
        return lambda run: run.set_registers(count, increase)

    assert simulated(set_to(24, False), set_to(240, True), registers=168).free_registers == 72 * 32
    with pytest.raises(Fault, match="setmaxnreg.inc to 240") as caught:
        simulated(set_to(240, True), set_to(120, False), registers=168)
    assert caught.value.kind == "hang"
    with pytest.raises(Fault, match="multiples of 8"):
        simulated(set_to(100, False), registers=168)


def test_a_named_barrier_counts_threads():
    """bar.sync waits for the count, bar.arrive does not; then the barrier is empty and can be used again."""
    order = []

    def giver(run):
        for turn in range(2):
            order.append(("gives", turn))
            run.named_barrier(3, 64, wait=False)
            run.named_barrier(4, 64, wait=True)

    def taker(run):
        for turn in range(2):
            run.named_barrier(3, 64, wait=True)
            order.append(("takes", turn))
            run.named_barrier(4, 64, wait=False)

    for schedule in SCHEDULES:
        order.clear()
        run = simulated(giver, taker, schedule=schedule)
        assert order == [("gives", 0), ("takes", 0), ("gives", 1), ("takes", 1)]
        assert [(barrier.opened, barrier.come) for barrier in run.named.values()] == [(2, 0), (2, 0)]


def test_named_barrier_faults_have_names():
    def use(number, threads, wait):
        return lambda run: run.named_barrier(number, threads, wait)

    for kind, says, *bodies in (
        ("hang", "named barrier 3 .32 of 64 threads", use(3, 64, True), use(4, 32, True)),
        ("leftover", "named barrier 3 is left with 32 of 64 threads", use(3, 64, False)),
        ("leftover", "left with 32 of 64", use(3, 64, False), use(3, 64, True), use(3, 64, False)),
        ("barrier", "waits for 64 threads, .* a count of 96", use(3, 64, False), use(3, 96, False)),
        ("barrier", "whole warps", use(3, 100, False)),
        ("barrier", "no named barrier 16", use(16, 32, False)),
    ):
        with pytest.raises(Fault, match=says) as caught:
            simulated(*bodies)
        assert caught.value.kind == kind

    def one_thread(run):
        with run.elect_one():
            run.named_barrier(3, 32, wait=False)

    with pytest.raises(Wrong, match="inside elect_one"):
        simulated(one_thread)


def test_a_state_advances_by_any_number_of_stages():
    for stages in (1, 2, 5):
        for count in range(4 * stages):
            one_by_one, at_once = State(stages, 1, stages - 1), State(stages, 1, stages - 1)
            for _ in range(count):
                one_by_one.advance()
            at_once.advance(count)
            assert one_by_one == at_once


@cute.jit
def fills(out, count: cutlass.Int32):
    for i in cutlass.range(count, unroll=1):
        out[i] = i + 1


def test_compiled_functions_still_run_as_python():
    """The DSL exchanges the code of a function that it has traced; a second check in a session must not notice."""
    plain, out = as_python(fills, Simulator(SCHEDULES[0])), [0, 0, 0]
    plain(out, 2)
    found = torch.zeros(3, dtype=torch.int32)
    fills(from_dlpack(found), 3)
    assert out == [1, 2, 0] and found.tolist() == [1, 2, 3]
    as_python(fills, Simulator(SCHEDULES[0]))(out, 3)
    assert out == [1, 2, 3]


def test_what_does_not_end_is_stopped():
    def counts(most):
        n = 0
        while n < most:
            n += 1
        return n

    assert bounded(counts, 10) == 10
    with pytest.raises(Wrong, match="lines of `counts` have run"):
        bounded(counts, 10**9)
    assert sys.gettrace() is None or "bounded" not in repr(sys.gettrace())


# What the checkers of notebooks 05 to 07 take for right, against the finished kernels, CuTe and the rules of the PTX ISA


def test_the_order_of_05a_is_the_schedulers():
    @cute.jit
    def order(out: cute.Tensor, tiles_m: cutlass.Int32, tiles_n: cutlass.Int32, group: cutlass.Int32):
        for i in range(tiles_m * tiles_n):
            m, n = scheduler.grouped_tile(cutlass.Int32(i), tiles_m, scheduler.divisors(tiles_m, tiles_n, group))
            out[i, 0] = m
            out[i, 1] = n

    found = torch.zeros(600, 2, dtype=torch.int32)
    compiled = cute.compile(order, from_dlpack(found), *map(cutlass.Int32, (1, 1, 1)))
    for tiles_m, tiles_n, group in nb05.SHAPES[::7] + nb05.SHAPES[:4] + nb05.SHAPES[-2:]:
        compiled(from_dlpack(found), tiles_m, tiles_n, group)
        assert [tuple(t) for t in found[: tiles_m * tiles_n].tolist()] == nb05.grouped(tiles_m, tiles_n, group)


@pytest.mark.parametrize("along_m, along_n", nb05.CLUSTERS)
def test_the_masks_of_05b_are_those_of_cute(along_m, along_n):
    cluster = nb05.Cluster(along_m, along_n)
    masks = {
        (cta, operand): cluster.mask(cluster.sharing(operand, cta)) for cta in cluster.ctas for operand in ("A", "B")
    }
    found = torch.zeros(len(masks), dtype=torch.int32)

    @cute.jit
    def probe(out: cute.Tensor):
        layout = cute.make_layout((1, along_m, along_n, 1))
        for i, ((m, n), operand) in enumerate(list(masks)):
            mask = cpasync.create_tma_multicast_mask(layout, (0, m, n, 0), mcast_mode=2 if operand == "A" else 1)
            out[i] = cutlass.Int32(mask)

    probe(from_dlpack(found))
    assert found.tolist() == list(masks.values())


def test_the_limit_of_06b_is_what_the_simulator_shows():
    for stages, tiles in ((2, 2), (3, 2), (4, 3), (3, 5)):
        for k_tiles in range(1, 2 * stages + 1):
            wrong = nb06.crossings(stages, tiles, k_tiles)
            assert bool(wrong) == bool(nb06.outcomes(nb06.index_only, stages, tiles, k_tiles)), (stages, tiles, k_tiles)


def test_the_schedules_of_07b_find_what_is_not_ordered():
    """Every order of wait, two barriers, write, fence and send, on a ring of 2: right only where happens-before makes it so."""

    def protocol(steps, left):
        def store_slab(warp, slot, in_ring, wait_stores, sync, write, fence, send):
            does = {"sync": sync, "write": lambda: write(slot), "fence": fence}
            if warp == 0:
                does |= {"wait": lambda: wait_stores(left), "send": lambda: send(slot)}
            for step in steps:
                does.get(step, lambda: None)()

        return store_slab

    def ordered(steps, left, slabs=6):
        try:
            between = steps[steps.index("write") : steps.index("send")]
            between[between.index("fence") :].index("sync")
        except ValueError:
            return False
        events = [(slab, step) for slab in range(slabs) for step in steps]
        for at, (slab, step) in enumerate(events):
            if step == "write" and slab >= 2:
                waits = [i for i in range(at) if events[i][1] == "wait" and times("sync", events[i:at])]
                if not any(times("send", events[:i]) - left >= slab - 1 for i in waits):
                    return False
        return True

    def times(what, events):
        return sum(step == what for _, step in events)

    def passes(steps, left):
        try:
            for schedule in SCHEDULES:
                nb07.Stores(schedule, 6, 2).go(protocol(steps, left))
        except Fault:
            return False
        return True

    right = 0
    for steps in sorted(set(itertools.permutations(("wait", "sync", "sync", "write", "fence", "send")))):
        for left in (0, 1, 2):
            right += ordered(steps, left)
            assert passes(steps, left) == ordered(steps, left), (steps, left)
    assert right > 5


# What the checkers of notebooks 08 to 10 take for right, against the package's own


@pytest.mark.parametrize("mistakes, right", [(nb10.MISTAKES, nb10.oai)], ids=["10a"])
def test_mistakes_can_be_told_apart(mistakes, right):
    """No mistake gives what is right, and none what another explanation is for."""
    gate, up = (t.double() for t in nb10.values())
    plain = ~((gate.abs() > 1e3) | (up.abs() > 1e3))
    results = [("", right(gate, up)), *((why, wrong(gate, up)) for why, wrong in mistakes)]
    for (why, one), (other, two) in itertools.combinations(results, 2):
        assert why == other or not nb10._same(one, two, gate)[plain].all(), (why, other)


def test_the_cpu_has_the_special_values_of_the_gpu():
    """10a's stand-ins: FMNMX takes the other operand of a NaN, or, with nan=True, the NaN; rcp(inf) is 0."""

    def least(a, b):
        return cute.arch.fmin(a, b)

    def least_nan(a, b):
        return cute.arch.fmin(a, b, nan=True)

    def most(a, b):
        return cute.arch.fmax(a, b)

    def most_nan(a, b):
        return cute.arch.fmax(a, b, nan=True)

    def tail(a, b):
        return cute.arch.rcp_approx(cute.math.exp2(a, fastmath=True)) + b

    nan, inf = float("nan"), float("inf")
    a, b = torch.tensor([nan, 1.0, nan, -inf, 1000.0]), torch.tensor([1.0, nan, nan, 3.0, 0.0])
    for function, want in (
        (least, torch.fmin(a, b)),
        (least_nan, torch.minimum(a, b)),
        (most, torch.fmax(a, b)),
        (most_nan, torch.maximum(a, b)),
        (tail, torch.tensor([nan, nan, nan, inf, 0.0])),
    ):
        assert torch.equal(nb10.on_cpu(function, a, b).nan_to_num(nan=-7), want.nan_to_num(nan=-7)), function.__name__


def test_10a_wants_what_the_package_has():
    gate, up = nb10.values()
    want = ck_reference.GATED["swiglu_oai"](gate.double(), up.double())
    assert torch.equal(nb10.oai(gate.double(), up.double()).nan_to_num(nan=-1), want.nan_to_num(nan=-1))


def test_the_maps_of_10b_are_those_of_the_epilogue():
    """Against the formulas of hopper/visitor.py and of the notebook, for the whole warp group."""
    for columns in (16, 64):
        assert nb10.cute_map(columns) == [[nb10.accumulator(t, i) for i in range(columns // 2)] for t in range(128)]
        found = nb10.pairs(columns)
        for t, v in itertools.product(range(128), range(columns // 2)):
            warp, lane = t // 32, t % 32
            assert found[t][v] == (16 * warp + lane // 4 + 8 * (v % 2), 4 * (v // 2) + lane % 4)


def test_the_order_of_loads_of_09a_is_kernel_1s():
    """gate of t, gate of t + 1, up of t, up of t + 1, as `SwigluPingpong.produce` loops, for any number of tiles."""
    for tiles in range(1, 8):
        order = [
            (tile, part)
            for index in range(0, tiles, 2)
            for part in range(2)
            for tile in range(index, min(tiles, index + 2))
        ]
        cta = nb09.TwoTurns(SCHEDULES[0], tiles, 1)
        assert cta.loops == order
        follows = {(tile, part): cta.behind(tile, part) for tile, part in order}
        assert [loop for loop in follows.values() if loop] == [
            b for a, b in itertools.pairwise(order) if a[0] % 2 != b[0] % 2
        ]


def test_09b_reads_spills():
    assert nb09.spills(128, 96, "fp32") == (0, nb09.spills(128, 96, "packed")[1])
    spilled, waits = nb09.spills(128, 128, "fp32")
    assert spilled > 0 and waits > nb09.spills(128, 96, "fp32")[1], "ptxas serialises the WGMMAs"


def test_08b_sees_what_allocates():
    x, w = torch.randn(3, 8), torch.randn(16, 8)
    with nb08.Watch() as seen:
        both = torch.nn.functional.linear(x, w)
        both.unflatten(-1, (-1, 2, 4)).unbind(-2)
        both[:, :8].contiguous()
    assert seen.products == [(3, 16)]
    assert [name for name, shape in seen.allocated if name not in nb08.PRODUCTS] == ["clone"]


def test_the_child_packs_the_weights_of_10a(monkeypatch, capsys):
    import pandas as pd

    launched = []

    def swiglu(kernel, name, expected, tile):
        x, gate, up = torch.randn(2, 8), torch.randn(8, 8), torch.randn(8, 8)
        kernel(x, gate, up, "out")
        assert torch.equal(expected(x, gate, up), ck_reference.swiglu(x, gate, up, activation="swiglu_oai"))
        assert torch.equal(launched[0][1][1::2], up)
        return pd.DataFrame({"relative error": [0.001]})

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G")
    monkeypatch.setattr(lab.bench, "launcher", lambda compiled: lambda *tensors: launched.append(tensors))
    monkeypatch.setattr(lab.check, "swiglu", swiglu)
    nb10.judge_pairs("10a", lambda gate, up: gate * up)
    verdict = json.loads(capsys.readouterr().out.removeprefix(harness.MARK))
    assert verdict["wrong"] is None and verdict["shapes"] == 1


def test_the_child_runs_kernel_1_with_every_number_of_tiles(monkeypatch, capsys):
    import pandas as pd

    def swiglu(kernel, name, shapes, tile):
        assert {n // tile[1] for _, n, _ in shapes} >= {1, 2, 3, 66, 199}
        return pd.DataFrame({"relative error": [0.001] * len(shapes)})

    config = SimpleNamespace(tile_m=128, tile_n=96, cluster=(2, 1), stages=7)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G")
    monkeypatch.setattr(harness, "finished", lambda exercise, answer: SimpleNamespace(config=config))
    monkeypatch.setattr(lab.check, "swiglu", swiglu)
    harness.judge("09a", simulated)
    verdict = json.loads(capsys.readouterr().out.removeprefix(harness.MARK))
    assert verdict["wrong"] is None and verdict["shapes"] > 20


@pytest.mark.parametrize(
    "name, says",
    [
        ("06a_whose_turn", r"begins with tile 3\n.*HANG: .*consumer 2 waits for ever in a wait for the full barrier"),
        ("06b_many_k_tiles", r" 5 k-tiles, K =  320: right\n.* 6 k-tiles, K =  384: \d wrong, \d hang"),
        (
            "09a_whose_turn_twice",
            r"activates 2\n +waits for a turn\nHANG: .*consumer 1 waits for ever in bar.sync on named barrier 3",
        ),
        ("07b_store_ring", r"at once  .* right\n.*fenced  .* 5 wrong\n.*late as it may  .* 3 wrong"),
    ],
    ids=["06a", "06b", "09a", "07b"],
)
def test_debugging_exercises_show_their_symptom(name, says):
    (found,) = run_in_child([code_cells(FOLDER / f"{name}.ipynb")])
    assert re.search(says, found["printed"], re.S), found["printed"]


# The run on a GPU, with a child process played by the test


@pytest.mark.parametrize(
    "finished, stdout, says",
    [
        (False, "", "hangs.*a parity"),
        (True, "", "breaks off:\\nTraceback"),
        (True, harness.MARK + '{"wrong": "rows 64..127 are wrong", "gpu": "G"}', "On the GPU: rows 64..127"),
        (True, "table\n" + harness.MARK + '{"wrong": null, "gpu": "G", "shapes": 9, "worst": 0.0017}', "9 shapes on G"),
    ],
)
def test_gpu_outcomes_are_told(monkeypatch, finished, stdout, says):
    def run(source, seconds):
        assert "def simulated" in source and "harness.judge('02a', simulated)" in source
        return SimpleNamespace(finished=finished, seconds=seconds, stdout=stdout, stderr="Traceback", returncode=1)

    monkeypatch.setattr(lab, "HAS_GPU", True)
    monkeypatch.setitem(sys.modules, "cute_kernels.lab.child", SimpleNamespace(run=run))
    monkeypatch.setattr(lab, "child", SimpleNamespace(run=run), raising=False)
    if "shapes on" in says:
        assert says in next(harness.run_on_gpu("02a", simulated, "Look for a parity."))
    else:
        with pytest.raises(Wrong, match=says):
            next(harness.run_on_gpu("02a", simulated, "Look for a parity."))


def test_without_a_gpu_the_numbers_are_not_run(monkeypatch):
    monkeypatch.setattr(lab, "HAS_GPU", False)
    findings = list(harness.run_on_gpu("02a", simulated, "hint"))
    assert findings == [NotRun("the numbers: running the kernel over odd shapes needs a Hopper GPU")]


@pytest.mark.parametrize("exercise", ["02a", "02b"])
def test_the_child_prints_one_verdict(monkeypatch, capsys, exercise):
    import pandas as pd

    calls = []

    def gemm(kernel, name):
        kernel("a", "b", "out")
        return pd.DataFrame({"relative error": [0.001, 0.002]})

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G")
    monkeypatch.setattr(harness, "compile_", lambda gemm, name: lambda *tensors: calls.append(tensors))
    monkeypatch.setattr(lab.check, "gemm", gemm)
    harness.judge(exercise, simulated)
    line = capsys.readouterr().out.removeprefix(harness.MARK)
    assert json.loads(line) == {"wrong": None, "gpu": "G", "shapes": 2, "worst": 0.002}
    assert calls == [("a", "b", "out") if exercise == "02a" else ("b", "a", "out")]

    def fails(kernel, name):
        raise lab.check.CheckFailed("the N tail is wrong")

    monkeypatch.setattr(lab.check, "gemm", fails)
    harness.judge(exercise, simulated)
    assert json.loads(capsys.readouterr().out.removeprefix(harness.MARK))["wrong"] == "the N tail is wrong"


def test_the_child_runs_the_finished_gemm_with_every_number_of_tiles(monkeypatch, capsys):
    import pandas as pd

    def gemm(kernel, name, shapes):
        assert set(harness.TILE_COUNTS) < set(shapes)
        return pd.DataFrame({"relative error": [0.001] * len(shapes)})

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "G")
    monkeypatch.setattr(harness, "finished", lambda exercise, answer: SimpleNamespace(config=harness.CONFIG))
    monkeypatch.setattr(lab.check, "gemm", gemm)
    for exercise in harness.FINISHED:
        harness.judge(exercise, simulated)
        verdict = json.loads(capsys.readouterr().out.removeprefix(harness.MARK))
        assert verdict["wrong"] is None and verdict["shapes"] > len(harness.TILE_COUNTS)


@pytest.mark.parametrize("arch", ["sm_89", "sm_100a", ""])
def test_another_target_is_not_the_learners_fault(arch):
    """01a's and 02b's right answers stay right whatever CUTE_DSL_ARCH or the GPU of this machine names."""
    for name in ("01a_accumulator_map", "02b_transposed_tails"):
        (found,) = run_in_child([code_cells(FOLDER / "solutions" / f"{name}.ipynb")], CUTE_DSL_ARCH=arch)
        assert found["error"] is None and [v["wrong"] for v in found["verdicts"]] == [None], found


def test_a_crash_is_a_verdict():
    """02b: a store far outside of the output ends the child process, not the learner's session."""
    cells = code_cells(FOLDER / "solutions" / "02b_transposed_tails.ipynb")
    holder = next(i for i, cell in enumerate(cells) if "out[column, row] =" in cell)
    cells[holder] = cells[holder].replace("out[column, row] =", "out[column + (1 << 28), row] =")
    (found,) = run_in_child([cells])
    assert re.search("breaks off .signal 11.*far outside", found["verdicts"][0]["wrong"], re.S), found
