"""Digests, records and the words that they give."""

import contextlib
import json

import pytest

import cute_kernels as ck
from cute_kernels import evidence, records, registry, validate
from cute_kernels._require import DSL_VERSION


@contextlib.contextmanager
def edited(mark):
    """As if the code of every module in which `mark` stands had changed."""
    digests = (evidence.kernel_digest, evidence.validation_digest, evidence.bench_digest, evidence.fuzz_digest)
    real = evidence.code_only
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "code_only", lambda s: real(s) + ("x" if mark in s else ""))
        for cached in digests:
            cached.cache_clear()
        try:
            yield
        finally:
            for cached in digests:
                cached.cache_clear()


def test_prose_does_not_count_code_does():
    base = "x = 1\n\ndef f():\n    return x  # why\n"
    prose = '"""Docstring."""\n# comment\nx = 1\n\n\ndef f():\n    """What\n    it does."""\n    return x\n'
    assert evidence.code_only(base) == evidence.code_only(prose)
    assert evidence.code_only(base) != evidence.code_only(base.replace("x = 1", "x = 2"))
    assert evidence.code_only("s = '# not a comment'\n") == "s = '# not a comment'"


def test_closure_is_what_the_kernel_is_made_of():
    names = evidence.closure("cute_kernels.hopper.swiglu_stacked")
    for part in ("activation", "config", "epilogue", "kernel", "mainloop", "scheduler", "tiles", "swiglu_stacked"):
        assert f"cute_kernels.hopper.{part}" in names
    assert not [n for n in names if not n.startswith("cute_kernels.hopper.")]
    assert "cute_kernels.hopper.activation" not in evidence.closure("cute_kernels.hopper.gemm")


def test_digest_follows_a_shared_part():
    before = {spec.name: evidence.kernel_digest(spec.module) for spec in ck.kernels()}
    with edited("def silu("):
        after = {spec.name: evidence.kernel_digest(spec.module) for spec in ck.kernels()}
    assert before["gemm"] == after["gemm"] and before["swiglu_stacked"] != after["swiglu_stacked"]


def test_speed_depends_on_the_choice_and_the_benchmark():
    numerics = evidence.kernel_digest("cute_kernels.hopper.gemm")
    seen = {evidence.bench_digest("cute_kernels.hopper.gemm")}
    marks = (
        "def predicted_seconds(",
        "def time_swiglu(",
        "def turns(",
        "def fuses(",
        "def max_clusters(",
        "QWEN25",
        "def run_swiglu(",
        "def look(",
        "def kernels(",
    )
    for mark in marks:
        with edited(mark):
            seen.add(evidence.bench_digest("cute_kernels.hopper.gemm"))
            assert evidence.kernel_digest("cute_kernels.hopper.gemm") == numerics
    assert len(seen) == 1 + len(marks)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MEASURED", tmp_path)
    (tmp_path / records.REFERENCE_GPU).mkdir()

    def write(name, value):
        (tmp_path / records.REFERENCE_GPU / f"{name}.json").write_text(json.dumps(value))

    return write


def test_words(measured):
    spec = registry.get("gemm")
    assert spec.evidence.status == "missing"
    stamp = {"gpu": "NVIDIA H200", "date": "2026-01-01", "cutlass_dsl": DSL_VERSION}
    entry = {"digest": "old", "stamp": stamp, "cases": 3, "worst_error": 0.001, "failures": []}
    measured("validation", {"kernels": {"gemm": entry}})
    assert spec.evidence.status == "stale" and spec.evidence.cases == 3
    entry["digest"] = evidence.validation_digest(spec.module)
    measured("validation", {"kernels": {"gemm": entry}})
    assert spec.evidence.current and spec.evidence.gpu == "NVIDIA H200"
    measured("validation", {"kernels": {"gemm": {**entry, "failures": ["128x128 wrong"]}}})
    assert spec.evidence.status == "failed"
    measured("validation", {"kernels": {"gemm": {**entry, "stamp": {**stamp, "cutlass_dsl": "4.0.0"}}}})
    assert spec.evidence.status == "stale"


def test_a_broken_record_is_named(measured, capsys):
    (records.MEASURED / records.REFERENCE_GPU / "validation.json").write_text('{"kernels": {')
    with pytest.raises(records.RecordError, match="validation.json is no JSON.*git checkout"):
        records.load("validation")
    assert evidence.main() == 1 and "validation.json is no JSON" in capsys.readouterr().out


def test_code_beside_a_docstring_counts():
    assert "return x + 1" in evidence.code_only('def f(x): "doc"; return x + 1\n')


def notebook(code, **metadata):
    cell = {"cell_type": "code", "source": code, "outputs": [{"output_type": "stream"}], "metadata": {}}
    return {"cells": [cell], "metadata": metadata}


def test_notebook_goes_stale_with_its_cells_and_its_parts(tmp_path):
    code = "%matplotlib inline\nfrom cute_kernels.hopper import tiles\nx = 1"
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps(notebook(code)))
    assert evidence.of_notebook(file).status == "missing"
    mark = {"gpu": "NVIDIA H200", "date": "2026-01-01", "cutlass_dsl": DSL_VERSION}
    mark["digest"] = evidence.notebook_digest(notebook(code))
    file.write_text(json.dumps(notebook(code, cute_kernels=mark)))
    assert evidence.of_notebook(file).current
    file.write_text(json.dumps(notebook(code + "0", cute_kernels=mark)))
    assert evidence.of_notebook(file).status == "stale"
    file.write_text(json.dumps(notebook(code, cute_kernels=mark)))
    with edited("def tma_load("):
        assert evidence.of_notebook(file).status == "stale"


def test_evidence_command_fails_on_stale(monkeypatch, capsys):
    good = evidence.Evidence("a", "NVIDIA H200", "2026-01-01", 3, 0.001, "current")
    monkeypatch.setattr(evidence, "table", lambda: [good])
    assert evidence.main() == 0
    monkeypatch.setattr(evidence, "table", lambda: [good, evidence.Evidence("b", "", "", 0, None, "stale")])
    assert evidence.main() == 1 and "stale" in capsys.readouterr().out


def test_records_need_a_gpu(monkeypatch):
    monkeypatch.setattr(records, "current_gpu", lambda: None)
    with pytest.raises(RuntimeError, match="on a GPU only"):
        records.save("x", {})


def test_record_is_stamped_and_lies_under_its_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MEASURED", tmp_path)
    monkeypatch.setattr(records, "current_gpu", lambda: "NVIDIA H100 80GB HBM3")
    file = records.save("x", {"a": 1})
    assert file.parent.name == "h100-80gb-hbm3"
    assert records.load("x", "h100-80gb-hbm3")["stamp"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert list(file.parent.iterdir()) == [file]  # no half-written file left


def test_numerics_depend_on_references_and_validation():
    seen = {evidence.validation_digest("cute_kernels.hopper.gemm")}
    for mark in ("def far_off(", "def run_case(", "def build(", "def kernels("):
        with edited(mark):
            seen.add(evidence.validation_digest("cute_kernels.hopper.gemm"))
    assert len(seen) == 5


def test_numerics_depend_on_compilation_and_what_trees_are_made_of():
    gemm, stacked = "cute_kernels.hopper.gemm", "cute_kernels.hopper.swiglu_stacked"
    before = evidence.validation_digest(gemm), evidence.validation_digest(stacked)
    for mark, changes in (
        ("def gelu(x: Float32", (True, True)),  # gemm's trees, and the gated family
        ("def _fake_operand(", (True, True)),
        ("def build(", (True, True)),
        ("def split(expression", (True, False)),
        ("def predicted_seconds(", (False, False)),
    ):
        with edited(mark):
            after = evidence.validation_digest(gemm), evidence.validation_digest(stacked)
        assert tuple(a != b for a, b in zip(before, after, strict=True)) == changes, mark


def test_a_call_counts_as_what_it_runs():
    calls = {
        "ck.gemm(a, b)": "def choose(",
        "ck.swiglu(x, g, u)": "def sigmoid_times(",
        "ep.gelu(ep.acc)": "def gelu(x: Float32",
        "lab.host.call_times('12')": "def watched(",
        "lab.bench.gemm_row(f)": "def turns(",
        "lab.check.gemm(f)": "def far_off(",
        "lab.timeline.capture(f)": "def capture(",
        "lab.claims.table(r)": "def swiglu_rows(",
        "traffic.claim(r)": "def moved(",
        "lab.ladder.figure(r)": "STEPS = (",
        "sizes = QWEN25": "QWEN25",
        "from cute_kernels.hopper import gemm": "class KernelSpec",
        "from cute_kernels.hopper import tiles": "def kernels(",
        "import cute_kernels.hopper.trace": "def build(",
    }
    for code, mark in calls.items():
        before = evidence.cells_digest([code])
        with edited(mark):
            assert evidence.cells_digest([code]) != before, code


def test_ladder_depends_on_its_notebooks(monkeypatch, measured):
    from cute_kernels.lab import ladder

    assert evidence.of_ladder().status == "missing"
    stamp = {"gpu": "NVIDIA H200", "date": "2026-01-01", "cutlass_dsl": DSL_VERSION}
    rows = [{"size": [1, 1, 1], "us": {"cuBLAS": 1.0}}]
    measured("ladder", {"digest": evidence.ladder_digest(), "rows": rows, "stamp": stamp})
    assert evidence.of_ladder().current
    real = ladder.cells
    monkeypatch.setattr(ladder, "cells", lambda step: [*real(step), "# kernel: more"])
    evidence.ladder_digest.cache_clear()
    assert evidence.of_ladder().status == "stale"
    evidence.ladder_digest.cache_clear()


def test_random_calls_depend_on_the_way_to_the_kernels(measured):
    assert evidence.of_fuzz().status == "missing"
    stamp = {"gpu": "NVIDIA H200", "date": "2026-01-01", "cutlass_dsl": DSL_VERSION}
    one = {"digest": evidence.fuzz_digest(), "cutlass_dsl": DSL_VERSION, "cases": 10}
    seeds = {str(i): {**one, "worst_error": i / 1000} for i in range(2)}
    measured("fuzz", {"seeds": seeds, "stamp": stamp})
    found = evidence.of_fuzz()
    assert found.current and found.cases == 20 and found.worst_error == 0.001
    measured("fuzz", {"seeds": {**seeds, "2": {**one, "cutlass_dsl": "4.8.0", "worst_error": 0.0}}, "stamp": stamp})
    assert evidence.of_fuzz().status == "stale"
    measured("fuzz", {"seeds": seeds, "stamp": stamp})
    parts = (
        "def watched(",
        "class Memory:",
        "def run_swiglu(",
        "def sigmoid_times(",
        "def choose(",
        "def relative_error(",
    )
    for mark in parts:
        with edited(mark):
            assert evidence.of_fuzz().status == "stale", mark


@pytest.mark.parametrize("spec", ck.kernels(), ids=lambda s: s.name)
def test_validation_covers_the_shapes_that_break_rings_and_walks(spec):
    """Of every configuration: tile counts around the multiples of what 132 SMs hold, one k-tile, k-tiles around the stages,
    fewer rows than a WGMMA, tails of all sizes."""
    for config in spec.configs:
        rows, columns = config.tile_m * config.cluster[0], config.tile_n * config.cluster[1]
        found = list(validate.shapes(config))
        whole = {n // columns for m, n, k in found if m == rows and n % columns == 0 and k <= 64}
        clusters = 132 // (config.cluster[0] * config.cluster[1])
        assert whole >= {1, 2, 3, *(turns * clusters + i for turns in (1, 2) for i in (-1, 0, 1))}, config.name
        tiles = {-(-k // 64) for m, n, k in found if (m, n) == (rows, columns)}
        assert tiles >= {1, 2, config.stages - 1, config.stages, config.stages + 1}, config.name
        assert {m for m, *_ in found} >= {1, 63, 65} and any(n % columns for _, n, _ in found), config.name
        assert any(k % 64 for *_, k in found), config.name
    assert set(spec.dtypes) == {"bfloat16", "float16"}
