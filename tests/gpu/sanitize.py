"""Small odd shapes of every finished kernel, for compute-sanitizer:

compute-sanitizer --report-api-errors no --tool memcheck python tests/gpu/sanitize.py      (and racecheck, synccheck)
"""

import sys

import torch

import cute_kernels as ck
from cute_kernels import validate

SHAPES = [(1, 8, 8), (65, 72, 136), (130, 264, 328)]

for spec in ck.kernels():
    for config in spec.configs[: int(sys.argv[1]) if sys.argv[1:] else None]:
        kernel = spec.compile(config)
        for m, n, k in SHAPES:
            args = validate.inputs(spec, m, n, k, torch.bfloat16)
            error = validate.relative_error(
                validate.run_case(kernel, spec, config, args), validate.expected(spec, args)
            )
            assert error < 0.006, (spec.name, config.name, m, n, k, error)
        print(spec.name, config.name, "right")
