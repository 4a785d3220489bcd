"""The lab's checks find planted faults and name them; its timings are medians of turns; its pictures show the numbers."""

import math
import time
import warnings

import pytest
import torch

from cute_kernels import records
from cute_kernels.lab import bench, check, child, draw, show


def result(rows=300, columns=384):
    torch.manual_seed(0)
    ref = torch.randn(rows, columns)
    return ref.clone(), ref


def planted(name, out):
    if name == "second half of each tile's rows":
        for m in range(0, out.shape[0], 128):
            out[m + 64 : m + 128] += 1
    elif name == "rows of the tail":
        out[256:] = math.nan
    elif name == "one tile":
        out[128:256, 128:256] += 1
    elif name == "scale":
        out *= 0.5
    elif name == "noise":
        out[torch.rand_like(out) < 0.3] += 1
    return out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("second half of each tile's rows", "rows 64..127 of each tile are wrong: the second warp group's share"),
        ("rows of the tail", "only rows from 256 on are wrong (they hold NaN: never written): the M tail"),
        ("one tile", "1 of 9 tiles hold all wrong elements: (1, 1)"),
        ("scale", "every element is 0.5 times the right one"),
        ("noise", "scattered over all 9 tiles"),
    ],
)
def test_faults_are_named(name, words):
    out, ref = result()
    report = check.compare(planted(name, out), ref)
    assert not report.ok() and words in str(report) and report.bad_share > 0


def test_n_tail_and_transpose():
    out, ref = result(256, 264)
    out[:, 256:] = 0
    assert "only columns from 256 on are wrong: the N tail" in str(check.compare(out, ref))
    _, square = result(256, 256)
    assert "transpose" in str(check.compare(square.T.contiguous(), square))


def test_millions_of_wrong_elements_are_explained_at_once():
    """Counted one by one, half of a large result took as long as a hang is given."""
    bad = torch.zeros(4096, 8192, dtype=torch.bool)
    bad[:, ::2] = True
    bad[128:256, 256:384] = False
    value = torch.ones_like(bad, dtype=torch.float32)
    began = time.perf_counter()
    said = check.explain(bad, value, value)
    assert said == "2047 of 2048 tiles hold all wrong elements: (0, 0), (0, 1), (0, 2), (0, 3)"
    assert time.perf_counter() - began < 3


def test_clean_result_passes_and_nan_never_does():
    out, ref = result()
    assert check.compare(out, ref).ok(0.0) and check.compare(out, ref).where == ""
    assert check.compare(ref.bfloat16(), ref).rel < 0.004
    out[7, 9] = math.nan
    report = check.compare(out, ref)
    assert report.rel == math.inf and report.worst[0] == (7, 9) and report.bad.sum() == 1
    with pytest.raises(check.CheckFailed, match="shape"):
        check.compare(out[1:], ref)
    assert report.picture().axes


def test_a_few_wrong_elements_in_a_large_result_do_not_pass():
    """The norm hides them: what a race leaves."""
    ref = torch.randn(2048, 2048)
    out = ref.bfloat16().float()
    assert check.compare(out, ref).ok()
    out[500:516, 700:702] = 0
    report = check.compare(out, ref)
    assert report.rel < 0.004 and not report.ok() and report.far > 16


def test_what_is_not_finite_must_agree():
    nan, inf = torch.full((64, 64), math.nan), torch.full((64, 64), math.inf)
    finite = torch.randn(64, 64)
    for out, ref in ((finite, nan), (nan, inf), (inf, -inf), (nan, finite), (finite, inf)):
        assert not check.compare(out, ref).ok()
    assert check.compare(nan, nan).ok() and check.compare(inf, inf).ok()
    for shape in ((0, 8), (8,), (2, 2, 2)):
        with pytest.raises(check.CheckFailed, match="two matrices"):
            check.compare(torch.zeros(shape), torch.zeros(shape))


def test_without_a_gpu_nothing_is_claimed(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(records, "load", lambda name, gpu="h200": None)
    assert check.gemm(None, "x") is None and bench.gemm_row(None, "x") is None
    assert "not checked here (no GPU), and nothing is recorded yet" in capsys.readouterr().out
    stamp = {"gpu": "NVIDIA H200", "date": "2026-01-02"}
    rows = [{"M": 1, "N": 8, "K": 8, "relative error": 0.001}]
    monkeypatch.setattr(records, "load", lambda name, gpu="h200": {"stamp": stamp, "rows": rows})
    assert len(check.gemm(None, "x")) == 1
    assert "not checked here (no GPU); recorded on NVIDIA H200, 2026-01-02" in capsys.readouterr().out


def test_turns_are_medians_in_changing_order():
    order = []

    def timer(name, calls):
        values = iter([1.0, 1.0, 5.0, 1.0, 3.0] if name == "a" else [2.0] * 5)

        def run(replays):
            order.append((name, replays))
            return next(values)

        return run

    got = bench.turns({"a": [int], "b": [int, int]}, rounds=3, target_ms=0.004, timer=timer)
    assert got["a"].median_us == 3.0 and got["a"].samples == (5.0, 1.0, 3.0) and got["a"].spread > 0
    assert got["b"].median_us == 2.0 and got["b"].spread == 0
    assert ("a", 4) in order and ("b", 1) in order  # 4 us a turn: 4 replays of 1 us, 1 replay of 2 x 2 us
    assert bench.Timing.of([7.0]).spread == 0


def test_input_sets_rotate_through_more_than_l2():
    assert len(bench.input_sets(lambda: 0, 10 << 20)) * (10 << 20) >= 2 * bench.L2_BYTES
    assert len(bench.input_sets(lambda: 0, 10 << 30)) == 2 and len(bench.input_sets(lambda: 0, 1)) == 16
    assert bench.tflops((1000, 1000, 1000), 1.0) == 2000.0


def test_excerpts_and_sources():
    lines = show.excerpt("a\nb\nx1\nc\nd\nx2", "x", around=1)
    assert lines == ["  b", "> x1", "  c", "  d", "> x2", "(2 lines match 'x')"]
    assert show._without_docstrings('def f():\n    """Doc."""\n    return 1') == "def f():\n    return 1"


def test_child_tells_a_hang_from_a_failure():
    done = child.run("print('here')", 60)
    assert done.finished and done.returncode == 0 and "here" in str(done)
    failed = child.run("raise ValueError('inside')", 60)
    assert failed.returncode == 1 and "ValueError: inside" in str(failed)
    hang = child.run("import time\nprint('before', flush=True)\ntime.sleep(60)", 3)
    assert not hang.finished and str(hang).startswith("HANG") and "before" in str(hang)
    itself = "from cute_kernels.lab import child\nimport time\nprint('ready')\nchild.stop_after(0.5)\ntime.sleep(60)"
    stopped = child.run(itself, 60)
    assert not stopped.finished and stopped.seconds < 50 and "ready" in str(stopped)
    with pytest.raises(ValueError, match="stands 2 times"):
        child.edit("a a", "a", "b")
    assert child.kernel_cells(["# kernel: x\n1", "2"]) == "# kernel: x\n1"
    assert (
        child.kernel_cells(["# kernel: x\n1", "# kernel: y\n", "# kernel: x\n3"]) == "# kernel: x\n3\n\n# kernel: y\n"
    )


def test_swizzle_and_banks():
    for span, bits in ((128, 3), (64, 2), (32, 1), (16, 0)):
        moved = [draw.swizzle_bytes(16 * i, span) for i in range(64)]
        assert sorted(moved) == [16 * i for i in range(64)]
        assert max(a ^ 16 * i for i, a in enumerate(moved)) == ((1 << bits) - 1) << 4
    assert draw.bank_conflicts([128 * r for r in range(8)]) == 8
    assert draw.bank_conflicts([16 * r for r in range(8)]) == 1
    assert draw.bank_conflicts([0, 0, 0, 0]) == 1  # the same word is broadcast
    assert draw.bank_conflicts([0, 2, 130], 2) == 2 and draw.words_by_bank([0, 2], 2)[:2] == [1, 0]  # halves of a word
    (axis,) = draw.banks({"halves": [0, 2]}, width=2).axes
    assert axis.get_title() == "halves: 1 pass"


def test_pictures_show_what_they_are_given():
    assert len(draw.layout([[0, 1], [2, 3]]).axes[0].patches) == 4
    bars = draw.timeline({"a": [(0, 1, "x", "load"), (1, 3, "", "mma")], "b": []}).axes[0].patches
    assert [p.get_width() for p in bars] == [1, 2]
    (axis,) = draw.roofline({"p": (10, 5), "q": (11, 5), "r": (900, 5)}, 800, 4).axes
    texts = [t.get_text() for t in axis.texts]
    assert texts[:2] == ["1, 2", "3"] and any("ridge 200" in t for t in texts)
    assert [t.get_text() for t in axis.get_legend().get_texts()] == ["1  p", "2  q", "3  r"]
    assert len(draw.banks({"one": [0], "two": [0, 128]}).axes) == 2
    assert "(0, 64)" in [t.get_text() for t in draw.tma_box((8, 100), (8, 64), [(0, 0), (0, 64)]).axes[0].texts]
    assert "3:1" in [t.get_text() for t in draw.tv_map([[(0, 0), (0, 1)]] * 3 + [[(1, 0), (1, 1)]], 2, 2).axes[0].texts]


def test_explanations_say_no_more_than_is_there():
    def said(rows, columns, where, ref=None):
        bad = torch.zeros(rows, columns, dtype=torch.bool)
        bad[where] = True
        want = torch.randn(rows, columns) if ref is None else ref
        return check.explain(bad, torch.where(bad, want + 9, want), want)

    constant = torch.ones(256, 256)
    assert said(256, 256, (3, 4), constant) == "1 of 4 tiles hold all wrong elements: (0, 0)"
    assert said(1024, 1024, (100, 5)) == "1 of 64 tiles hold all wrong elements: (0, 0)"
    assert said(1024, 1024, (slice(70, 80), slice(0, 5))) == "1 of 64 tiles hold all wrong elements: (0, 0)"
    for rows, columns, where in ((1, 256, (0, slice(128, 256))), (63, 136, (slice(None), slice(0, 136, 8)))):
        assert "M tail" not in said(rows, columns, where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said(1, 1, (0, 0))
