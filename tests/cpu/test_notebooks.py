"""CI would notice: a failing cell, a dead kernel and an endless cell each make the notebook run fail."""

import subprocess
import sys

import nbformat
import pytest


@pytest.mark.parametrize(
    ("cell", "passes"),
    [
        ("assert 1 + 1 == 2", True),
        ("assert 1 + 1 == 3", False),
        ("import os; os._exit(3)", False),
        ("import time; time.sleep(120)", False),
    ],
    ids=["good", "failing", "dead", "endless"],
)
def test_nbmake_notices(cell, passes, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "a.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=15", "-p", "no:cacheprovider", "a.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (done.returncode == 0) is passes, done.stdout[-2000:]
