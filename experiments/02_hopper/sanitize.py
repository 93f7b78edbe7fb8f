"""decode and wgmma under compute-sanitizer, in every arrangement that ``heuristics`` proposes: see
``experiments/sanitizer.py``, and README.md for what the tools can see of them.

python experiments/02_hopper/sanitize.py all       # on a GPU, minutes
python experiments/02_hopper/sanitize.py report    # tables into README.md
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import sanitizer
from problems import Case

from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.wgmma import choose as wgmma

H200 = devices.device("H200")
CHOICES = {"decode": decode, "wgmma": wgmma}
TILES_AND_WARPS = (
    "batch",
    "warps_n",
    "warps_k",
    "whole",
    "tile_m",
    "tile_n",
    "warpgroups",
    "k_groups",
)
SMS = 3  # of the grid: a few blocks share every tile that may be shared
# fills tiles and stages of every arrangement; of its rows only the arrangements depend
WHOLE = Problem(600, 512, 1024, 128)
# one for each arrangement, in turns
RAGGED = (
    Problem(600, 200, 784, -1),
    Problem(600, 136, 800, 32),
    Problem(600, 72, 832, 64),
    Problem(600, 328, 896, 128),
)
# mbarriers of a block: the tools count those in the source, of which inline PTX shows them none
BARRIERS_AT_MOST = 32


def rows_of(config):
    return config.batch if hasattr(config, "batch") else config.tile_m


def cases_of(kernel):
    """For each arrangement of tiles and warps two configurations, in float16 and, with bias, tails
    and rows of x that lie apart, in bfloat16, who shares a tile in turns; each on a tile of rows
    that is not full and on two."""
    for number, plain in enumerate(by_arrangement(kernel, WHOLE)):
        ragged = RAGGED[number % len(RAGGED)]
        others = by_arrangement(
            kernel, replace(ragged, dtype="bfloat16", scale_dtype="bfloat16", bias=True)
        )[number]
        config, other = plain[number % len(plain)], others[(number + 1) % len(others)]
        yield from (
            Case(kernel, m, WHOLE.n, WHOLE.k, WHOLE.group_size, sms=SMS, chosen=config)
            for m in (rows_of(config) - 3, rows_of(config) + 2)
        )
        yield from (
            Case(
                kernel, m, ragged.n, ragged.k, ragged.group_size, sms=SMS, chosen=other, padding=24
            )
            for m in (1, rows_of(config) + 5)
        )


def by_arrangement(kernel, problem):
    """Lists of the configurations that differ in nothing but who shares a tile."""
    found = {}
    for config in CHOICES[kernel].configurations(problem, H200):
        found.setdefault(
            tuple(getattr(config, name) for name in TILES_AND_WARPS if hasattr(config, name)), []
        ).append(config)
    return list(found.values())


CASES = (*cases_of("decode"), *cases_of("wgmma"))


def by_configuration(cases):
    """Indexes of the cases of each configuration: a process each, so that a place in the machine
    code is one instruction."""
    found = {}
    for index, case in enumerate(cases):
        found.setdefault(case.config, []).append(index)
    return tuple(map(tuple, found.values()))


NAMED_BARRIER = re.compile(r"bar\.sync\s+%\w+,\s*%\w+;")
BLOCK_BARRIER = re.compile(r"bar(?:rier)?\.(?:cta\.)?sync(?:\.aligned)?\s+0\s*;")
SOME_THREADS = (
    "{{ .reg .pred %planted; .reg .b32 %part; mov.u32 %part, %tid.x; and.b32 %part, %part, {mask};"
    " setp.{compare}.u32 %planted, %part, 0; @%planted {instruction} }}"
)


def without_named_barriers(ptx):
    return NAMED_BARRIER.sub("", ptx)


def without_waiting_for_copies(ptx):
    return re.sub(r"mbarrier\.try_wait\.parity\S*\s+(\w+),[^;]*;", r"setp.eq.u32 \1, 0, 0;", ptx)


def without_initialised_barriers(ptx):
    return re.sub(r"mbarrier\.init\S*[^;]*;", "", ptx)


def half_a_barrier(ptx):
    return BLOCK_BARRIER.sub(
        SOME_THREADS.format(mask=1, compare="eq", instruction="bar.sync 0;"), ptx, count=1
    )


def three_warps_commit(ptx):
    return re.sub(
        r"wgmma\.commit_group\.sync\.aligned;",
        SOME_THREADS.format(mask=96, compare="ne", instruction="wgmma.commit_group.sync.aligned;"),
        ptx,
        count=1,
    )


def plants_in(case):
    plants = (
        ("memcheck", "bias one number too short (loads)", {"short": "bias"}),
        (
            "memcheck",
            f"C one row too short ({'tensor copies' if case.kernel == 'wgmma' else 'stores'})",
            {"short": "c", "must": case.kernel == "decode"},
        ),
        (
            "memcheck",
            f"weights one row too short ({'tensor' if case.kernel == 'wgmma' else 'bulk'} copies)",
            {"short": "b", "must": False},
        ),
        (
            "racecheck",
            "warps that add up through shared memory do not wait for each other",
            {"edit": without_named_barriers},
        ),
        (
            "racecheck",
            "nobody waits for copies",
            {"edit": without_waiting_for_copies, "must": False},
        ),
        ("initcheck", "bias never copied (loads)", {"missing": "bias"}),
        (
            "initcheck",
            f"weights never copied ({'tensor' if case.kernel == 'wgmma' else 'bulk'} copies)",
            {"missing": "b", "must": False},
        ),
        ("synccheck", "odd threads skip a barrier", {"edit": half_a_barrier}),
        (
            "synccheck",
            "mbarriers are never initialised",
            {"edit": without_initialised_barriers, "must": False},
        ),
    )
    return tuple(sanitizer.Plant(tool, what, case, **error) for tool, what, error in plants)


def plant_in(kernel, arrangement):
    """A problem with fewer steps than stages, so that a kernel that does not wait still ends; its
    warps add up through shared memory."""
    problem = Problem(600, 72, 256, 64, bias=True)
    config = next(
        each
        for each in CHOICES[kernel].configurations(problem, H200)
        if all(getattr(each, name) == value for name, value in arrangement.items())
    )
    return Case(kernel, 5, problem.n, problem.k, problem.group_size, sms=SMS, chosen=config)


IN_DECODE, IN_WGMMA = (
    plant_in("decode", {"batch": 16, "warps_n": 4, "warps_k": 2}),
    plant_in("wgmma", {"tile_m": 32, "k_groups": 2, "split": False}),
)
PLANTS = (
    *plants_in(IN_DECODE),
    *plants_in(IN_WGMMA),
    sanitizer.Plant(
        "synccheck",
        "one warp of a warpgroup does not commit its wgmma",
        IN_WGMMA,
        edit=three_warps_commit,
        must=False,
    ),
)
SUITE = sanitizer.Suite(
    Path(__file__).resolve(),
    CASES,
    PLANTS,
    by_configuration(CASES),
    ("numba-cuda",),
    {tool: ("--num-cuda-barriers", str(BARRIERS_AT_MOST)) for tool in ("racecheck", "synccheck")},
)

if __name__ == "__main__":
    sys.exit(sanitizer.main(SUITE))
