"""The comparison with a peer: what is printed, kept and shown, without the peer."""

import sys

import pytest
import torch

from cute_kernels import __main__ as command
from cute_kernels import peers

ROWS = [
    {"model": "7B", "M": 16, "us": {"quack": 30.0, "auto": 20.0}},
    {"model": "7B", "M": 4096, "us": {"quack": 300.0, "auto": 300.0}},
    {"model": "72B", "M": 16, "us": {"quack": 20.0, "auto": 20.0}},
]


def test_ratios_and_table():
    found = peers.ratios(ROWS)
    assert [(what, round(mean, 4), least) for what, mean, least in found] == [
        ("decode", 1.2247, 1.0),
        ("prefill", 1.0, 1.0),
    ]
    text = peers.table({"quack": "0.0", "rows": ROWS})
    assert "| 7B | 1.50 | 1.00 |" in text and "| 72B | 1.00 |  |" in text and "minimum 1.000" in text
    assert peers.table(None) == "Not recorded yet.\n"


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "quack", None)
    with pytest.raises(peers.PeerMissing, match="pip install quack-kernels"):
        peers.quack()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu(capsys):
    assert command.main(["peers"]) == 2
    assert "needs a Hopper GPU" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["peers", "--models", "8B"])
    assert "'8B' unknown" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["peers", "--record", "--M", "16"])
