"""decode and wgmma with block-scaled FP4 under compute-sanitizer: see ``experiments/sanitizer.py``;
experiments/02_hopper/README.md says what the tools can see of these kernels.

    python experiments/06_nvfp4/sanitize.py all       # on a GPU
    python experiments/06_nvfp4/sanitize.py report    # tables into README.md

The weights are all that differs from experiment 02, so there is a configuration of each way in
which scales and words get to registers, not each arrangement.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import beside
import sanitizer
from problems import Case

from numba_marlin.heuristics import Problem

hopper = beside.script("02_hopper/sanitize.py")
ARRANGEMENTS = {  # by kernel: pairs of k16 rows and single ones; one, two and four words a warp
    "decode": (
        {"batch": 8, "warps_n": 2},
        {"batch": 16, "warps_n": 4},
        {"batch": 32, "warps_n": 2},
    ),
    "wgmma": (
        {"tile_m": 16, "tile_n": 128},
        {"tile_m": 64, "tile_n": 128, "warpgroups": 2, "split": False},
        {"tile_m": 64, "tile_n": 256, "split": False},
    ),
}
TYPES = ((16, "float16", False), (32, "bfloat16", True))  # rows of a block; bias


def configuration(kernel, problem, fields):
    """The first that the heuristics propose with these fields."""
    return next(
        each
        for each in hopper.CHOICES[kernel].configurations(problem, hopper.H200)
        if all(getattr(each, name) == value for name, value in fields.items())
    )


def cases():
    for group_size, dtype, bias in TYPES:
        problem = Problem(600, 328, 848, group_size, dtype, codes="e2m1", bias=bias)
        k = problem.k if group_size == 16 else 832
        for kernel, wanted in ARRANGEMENTS.items():
            for fields in wanted:
                config = configuration(kernel, problem, fields)
                yield from (
                    Case(
                        kernel,
                        m,
                        problem.n,
                        k,
                        group_size,
                        sms=hopper.SMS,
                        chosen=config,
                        padding=24,
                    )
                    for m in (3, hopper.rows_of(config) + 2)
                )


def plant_in(kernel, arrangement):
    problem = Problem(600, 128, 256, 16, codes="e2m1", bias=True)  # of whose factors all are read
    return Case(
        kernel,
        5,
        problem.n,
        problem.k,
        problem.group_size,
        sms=hopper.SMS,
        chosen=configuration(kernel, problem, arrangement),
    )


def plants():
    for kernel, arrangement in (
        ("decode", {"batch": 16, "warps_n": 4, "warps_k": 2}),
        ("wgmma", {"tile_m": 32, "k_groups": 2, "split": False}),
    ):
        case = plant_in(kernel, arrangement)
        yield sanitizer.Plant("memcheck", "factors too short (loads)", case, short="factors")
        yield sanitizer.Plant("initcheck", "factors never copied (loads)", case, missing="factors")
        yield sanitizer.Plant(
            "racecheck",
            "warps that add up through shared memory do not wait for each other",
            case,
            edit=hopper.without_named_barriers,
        )
        yield sanitizer.Plant(
            "synccheck", "odd threads skip a barrier", case, edit=hopper.half_a_barrier
        )


CASES = tuple(cases())
SUITE = sanitizer.Suite(
    Path(__file__).resolve(),
    CASES,
    tuple(plants()),
    hopper.by_configuration(CASES),
    ("numba-cuda",),
    hopper.SUITE.more,
)

if __name__ == "__main__":
    sys.exit(sanitizer.main(SUITE))
