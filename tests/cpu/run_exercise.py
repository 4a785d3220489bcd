"""Child process of test_exercises: runs lists of code cells as a notebook would and prints what `check` made of them.

Each cell is a file of its own, as in IPython, because CuTe DSL reads the source of what it traces.
"""

import contextlib
import io
import json
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path

from cute_kernels.lab import exercises


def run(cells, folder):
    verdicts = []
    examine = exercises.examine

    def recording(*args, **named):
        verdicts.append(examine(*args, **named))
        return verdicts[-1]

    exercises.examine = recording
    printed, error = io.StringIO(), None
    scope = {"__name__": "__main__"}
    try:
        with contextlib.redirect_stdout(printed):
            for number, cell in enumerate(cells):
                path = folder / f"cell_{number}.py"
                path.write_text(cell)
                exec(compile(cell, str(path), "exec"), scope)
    except exercises.ExerciseFailed:
        pass
    except BaseException:
        error = traceback.format_exc()
    finally:
        exercises.examine = examine
    return {"verdicts": [asdict(v) for v in verdicts], "printed": printed.getvalue(), "error": error}


if __name__ == "__main__":
    results = []
    for cells in json.loads(sys.stdin.read()):
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(cells, Path(folder)))
    print(json.dumps(results))
