"""Shared by all tests: GPU tests skip without a Hopper GPU and say so; the evidence table closes every run."""

import contextlib
import io

import pytest
import torch

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def pytest_collection_modifyitems(items):
    if HOPPER:
        return
    skip = pytest.mark.skip(reason="needs a Hopper GPU (compute capability 9.0)")
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
    if hasattr(config, "workerinput"):  # once, not in every worker
        return
    from cute_kernels import evidence

    terminalreporter.section("evidence: what was measured, and is it about today's code?")
    with contextlib.redirect_stdout(io.StringIO()) as text:
        evidence.main()
    terminalreporter.write(text.getvalue())
