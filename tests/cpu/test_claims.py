"""The paper's claims are answered from the record: by hand for one row."""

import pytest

from cute_kernels import benchmark
from cute_kernels.lab import claims, traffic


def row(model="0.5B", m=1024, **us):
    k, n = benchmark.QWEN25[model]
    times = {"eager": 60.0, "torch.compile": 50.0, "stacked + pointwise": 45.0, "gemm": 33.0, "auto": 30.0}
    times.update({"swiglu_pingpong": 35.0, "swiglu_interleaved": 32.0, "swiglu_stacked": 30.0, **us})
    return {"model": model, "M": m, "N": n, "K": k, "us": times, "off": {"auto": 0.0001, "eager": 0.0013}}


RECORD = {
    "stamp": {"gpu": "NVIDIA H200", "date": "2026-01-01"},
    "ceilings": {"copy_tbs": 4.0, "gemm_tflops": 800.0},
    "swiglu": {"rows": [row(), row("72B", swiglu_interleaved=20.0), row(m=16, auto=1.0)]},
}


def test_one_row_by_hand():
    one = row()
    m, n, k = 1024, 4864, 896
    assert claims.utilisation(one) == pytest.approx(4 * m * n * k / 30e-6 / 989e12)
    assert traffic.extra_passes("eager") == 6
    saved = 2 * (6 * m * n + m * k)  # six passes over M x N, and x read once instead of twice
    left = 60.0 - saved / 4e12 * 1e6
    assert claims.allowed(one, RECORD["ceilings"]) == pytest.approx(60 / left)
    assert claims.efficiency(one, RECORD["ceilings"]) == pytest.approx(2.0 * left / 60)


def test_wins_and_table():
    rows = RECORD["swiglu"]["rows"]
    assert claims.wins(rows) == {"stacked": 2, "Kernel-2": 1}
    assert claims.wins(rows, ["swiglu_pingpong", "swiglu_interleaved"]) == {"Kernel-2": 3}
    table = {line["claim"]: line for line in claims.table(RECORD)}
    assert table["best speed-up over eager"]["here"] == "2.00 x"  # M = 16 is none of the paper's sizes
    assert (
        table["Kernel-1 : Kernel-2, wins"]["paper"] == "7 : 13"
        and table["Kernel-1 : Kernel-2, wins"]["here"] == "0 : 2"
    )
    assert table["torch.compile's share of eager's speed"]["here"] == "120 %"
    assert table["elements off by over 1 %, eager"]["here"] == "0.130 %"
    assert claims.table(None) == []


def test_win_map_shows_each_row():
    figure = claims.win_map(RECORD)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert sorted(texts) == ["2.00 x", "2.00 x", "60.00 x"]
    assert claims.win_map(None) is None


def test_summaries():
    found = {over: (mean, least) for over, mean, least in benchmark.summaries([row(), row(auto=40.0)])}
    assert found["eager"][1] == pytest.approx(1.5) and found["eager"][0] == pytest.approx((2 * 1.5) ** 0.5)
    assert found["best unfused"][1] == pytest.approx(45 / 40)
