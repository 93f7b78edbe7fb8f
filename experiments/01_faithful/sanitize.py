"""The faithful kernel, and those before it, under compute-sanitizer: see
``experiments/sanitizer.py``.

python experiments/01_faithful/sanitize.py all       # on a GPU
python experiments/01_faithful/sanitize.py report    # table into README.md
"""

import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import sanitizer
from problems import Case

from numba_marlin import compiler

WIDE, DEEP = (16, 4), (8, 8)
CASES = (  # m, n, k, group size
    Case("general", 3, 64, 64, 32),
    Case("general", 2, 64, 48, -1),
    Case("naive", 2, 64, 48, 16),
    Case("tiled", 17, 64, 80, 16),
    Case("tiled", 5, 128, 64, 32),
    Case("buffered", 17, 64, 80, 16),
    Case("buffered", 5, 128, 192, 64),
    Case("ampere", 1, 64, 64, 32, tile=DEEP, sms=2),  # one tile, half empty
    Case("ampere", 5, 192, 208, -1, tile=WIDE, sms=3),  # tails of n and k
    # a block with parts of two slices, slices shared by two blocks
    Case("ampere", 16, 256, 512, 128, tile=DEEP, sms=3),
    Case("ampere", 20, 320, 320, 64, tile=WIDE, sms=4),
    Case("ampere", 40, 256, 512, 128, tile=WIDE, sms=3),  # two tiles of k to a group
    Case("ampere", 64, 256, 512, -1, tile=WIDE, sms=5),  # a slice shared by five blocks
    Case("ampere", 150, 256, 256, 32, tile=WIDE, sms=3),  # several row tiles, the last one short
)
PLANT_IN = Case("tiled", 17, 64, 128, 32)
BARRIER = re.compile(r"(?:bar|barrier)\.(?:cta\.)?sync(?:\.aligned)?\s+0\s*;")
HALF_A_BARRIER = (
    "{ .reg .pred %planted; .reg .b32 %odd; mov.u32 %odd, %tid.x; and.b32 %odd, %odd, 1;"
    " setp.eq.u32 %planted, %odd, 0; @%planted bar.sync 0; }"
)


def without_barriers(ptx):
    return BARRIER.sub("", ptx)


def half_a_barrier(ptx):
    return BARRIER.sub(HALF_A_BARRIER, ptx, count=1)


PLANTS = (
    sanitizer.Plant("memcheck", "C one row too short", PLANT_IN, short="c"),
    sanitizer.Plant("racecheck", "no barriers", PLANT_IN, edit=without_barriers),
    sanitizer.Plant("initcheck", "weights never copied", PLANT_IN, missing="b"),
    sanitizer.Plant("synccheck", "odd threads skip a barrier", PLANT_IN, edit=half_a_barrier),
)
SUITE = sanitizer.Suite(
    Path(__file__).resolve(),
    CASES,
    PLANTS,
    (tuple(range(len(CASES))),),
    compiler.available_compilers(),
)

if __name__ == "__main__":
    sys.exit(sanitizer.main(SUITE))
