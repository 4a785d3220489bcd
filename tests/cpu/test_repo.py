"""The repository's own promises: style, dependencies said once, README true, nothing foreign in it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cute_kernels import _require, api, readme, records

ROOT = Path(__file__).parents[2]
if sys.version_info >= (3, 11):
    import tomllib

    PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
else:
    PROJECT = None
needs_toml = pytest.mark.skipif(PROJECT is None, reason="tomllib came with Python 3.11")
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def test_ruff():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@needs_toml
def test_environment_agrees_with_pyproject():
    env = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(d for d in env["dependencies"] if isinstance(d, str) and d.startswith("python"))
    assert python.removeprefix("python").strip() == PROJECT["project"]["requires-python"]
    pip = next(d["pip"] for d in env["dependencies"] if isinstance(d, dict))
    assert pip == ["-e .[lab]"] and "lab" in PROJECT["project"]["optional-dependencies"]


@needs_toml
def test_dsl_pin_is_the_version_that_import_checks():
    assert f"nvidia-cutlass-dsl[cu13]=={_require.DSL_VERSION}" in PROJECT["project"]["dependencies"]


def test_ci_runs_the_command_of_the_readme():
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"
    assert command in (ROOT / "README.md").read_text() and command in (ROOT / ".ci" / "run").read_text()


def test_readme_is_what_the_records_say():
    text = (ROOT / "README.md").read_text()
    assert readme.render(text) == text, "python -m cute_kernels readme"


def test_readme_links_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_notebooks_are_listed_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for file in NOTEBOOKS:
        assert f"notebooks/{file.name}" in text


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_notebook_form(file):
    notebook = json.loads(file.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert file.stat().st_size < 700_000
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert "compile_counts()" in code[-1], "a run says at its end how many kernels it compiled"
    assert "printf" not in "".join(code), "no verdict may hang on device output"


def test_nothing_foreign_in_tracked_files():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = re.compile(r"/(home|root|work|tmp/site)/|\.device/(?!$)")
    for name in files:
        if name.endswith((".py", ".md", ".toml", ".yml", ".ipynb", ".json")) and name != "tests/cpu/test_repo.py":
            found = paths.search((ROOT / name).read_text())
            assert not found, f"{name}: {found and found[0]}"


def test_records_are_stamped():
    for file in records.MEASURED.rglob("*.json"):
        stamp = json.loads(file.read_text())["stamp"]
        assert stamp["gpu"].startswith("NVIDIA") and stamp["cutlass_dsl"] == _require.DSL_VERSION
        assert file.parent.name == records.folder_name(stamp["gpu"])


def test_the_readme_says_once_which_sizes_work():
    """The rule of api.STEP, in one row of one table: what works, and what the rest gets."""
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| N, K |")]
    assert len(rows) == 1 and api.STEP == 8
    assert all(
        words in rows[0] for words in ("multiples of 8", "16-byte", "`ValueError` with the dimension", 'kernel="torch"')
    )


def requirements():
    """Rows of the table in tests/README.md: number -> (named tests, named files, where they run)."""
    found = {}
    for line in (ROOT / "tests" / "README.md").read_text().splitlines():
        if row := re.match(r"\| (\d+) \|(.*)\|([^|]*)\|$", line):
            names = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", row[2])
            assert int(row[1]) not in found, f"{row[1]} twice"
            found[int(row[1])] = names, row[3].strip()
    return found


def test_every_requirement_names_its_tests():
    found = requirements()
    assert sorted(found) == list(range(1, 19))
    for number, (names, where) in found.items():
        for file, name in names:
            text = (ROOT / "tests" / file).read_text()
            assert not name or re.search(rf"^def {name}\(", text, re.M), f"{number}: {file}::{name}"
            assert name or "def test_" not in text, f"{number}: {file} has tests, name them"
        places = {file.split("/")[0] for file, name in names if name}
        assert where == " and ".join(w for w, place in (("CPU", "cpu"), ("H200", "gpu")) if place in places), number
        assert names or number == 12, f"{number} has no test"
