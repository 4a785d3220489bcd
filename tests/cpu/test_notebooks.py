"""CI would notice: a failing cell, a dead kernel and an endless cell each make the notebook run fail."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))


def run(folder, notebooks, seconds):
    """pytest --nbmake over notebooks of these cells."""
    for name, cells in notebooks.items():
        notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, folder / f"{name}.ipynb")
    files = [f"{name}.ipynb" for name in notebooks]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbmake",
        f"--nbmake-timeout={seconds}",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)


def below(file):
    """How many cells stand below the last code cell."""
    kinds = [cell["cell_type"] for cell in json.loads(file.read_text())["cells"]]
    return kinds[::-1].index("code")


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
    done = run(tmp_path, {"a": [cell]}, 15)
    assert (done.returncode == 0) is passes, done.stdout[-2000:]


def test_every_notebook_has_a_kernel_of_its_own(tmp_path):
    first = "import os, pathlib; left_over = 1; pathlib.Path('kernel').write_text(str(os.getpid()))"
    second = (
        "import os, pathlib; assert 'left_over' not in globals()\n"
        "assert pathlib.Path('kernel').read_text() != str(os.getpid())"
    )
    done = run(tmp_path, {"a": [first], "b": [second]}, 60)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-2000:]


def test_a_run_says_how_many_kernels_it_compiled(tmp_path):
    """Every notebook ends with the same line; here it is run behind one compilation, and with nothing but it."""
    lines = {json.loads(file.read_text())["cells"][-1 - below(file)]["source"][-1] for file in NOTEBOOKS}
    (line,) = lines
    check = "\nassert said == [('kernels compiled in this run:', {})], said"
    start = "import cute_kernels as ck\nsaid = []\ndef print(*what): said.append(what)"
    one = [start, "c = ck.compile_only('gemm')", line + check.format({"sm_90a": 1})]
    done = run(tmp_path, {"one": one, "none": [start, line + check.format({})]}, 100)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-2000:]
