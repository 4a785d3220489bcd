"""Random calls on a Hopper GPU against fp32 and the documented rules, each seed in a child process with a time limit.

CUTE_KERNELS_FUZZ=150 sets the cases of a seed; CUTE_KERNELS_RECORD=1 keeps the counts as evidence (fuzz.json).
"""

import json
import os
from pathlib import Path

import pytest
import torch

from cute_kernels import evidence, records
from cute_kernels._require import DSL_VERSION
from cute_kernels.lab import child

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a Hopper GPU")
CASES = int(os.environ.get("CUTE_KERNELS_FUZZ", "40"))
RUN = """
import sys, json
sys.path.insert(0, {folder!r})
import fuzzing
print(json.dumps(fuzzing.campaign({seed}, {cases})))
"""


@pytest.mark.parametrize("seed", range(16))
def test_random_calls(seed):
    source = RUN.format(folder=str(Path(__file__).parents[1]), seed=seed, cases=CASES)
    outcome = child.run(source, 60 + 2 * CASES)
    assert outcome.finished and outcome.returncode == 0, f"{outcome}\n{outcome.stderr[-3000:]}"
    said = json.loads(outcome.stdout.splitlines()[-1])
    assert said["cases"] >= 0.9 * CASES and said["right"] > said["refused"] > 0
    if os.environ.get("CUTE_KERNELS_RECORD") == "1":
        with records.locked("fuzz"):
            seeds = (records.load("fuzz", records.folder_name(torch.cuda.get_device_name())) or {}).get("seeds", {})
            seeds[str(seed)] = {"digest": evidence.fuzz_digest(), "cutlass_dsl": DSL_VERSION, **said}
            records.save("fuzz", {"seeds": seeds})
