"""The published Marlin on the problems of its authors' own test, on the PTX machine.

    git clone https://github.com/IST-DASLab/marlin FOLDER/marlin-2f6d7c1
    ZOO_SOURCES=FOLDER python experiments/29_zoo/marlin_problems.py measure   # minutes; needs nvcc
    python experiments/29_zoo/marlin_problems.py report                       # README.md's table

The problems are those of ``test.py`` there (commit 2f6d7c1), each with the tile that it names: all
35. The kernel is launched as ``marlin_cuda`` launches it, for devices of 3 multiprocessors (blocks
have several tiles) and of 108 (an A100; most have one or none). Rows go to marlin_problems.jsonl:
right or not by the derived bound and, of exact data, bit for bit; what ``--checks hardware`` warns
of; the first race.
"""

import argparse
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from judge import CHECKS, said
from problem import poisoned
from sources import ptx_of, unpacked

from numba_marlin import testing
from numba_marlin.bench.tables import markdown, replace_between
from numba_marlin.emulator import Machine, MachineError, Race
from numba_marlin.formats import marlin
from numba_marlin.formats.floats import round_to
from numba_marlin.quantizers import quantize
from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.reference import bounds
from numba_marlin.reference import matmul as reference

RESULTS, README = HERE / "marlin_problems.jsonl", HERE / "README.md"
MARKERS = ("<!-- marlin: begin -->", "<!-- marlin: end -->")
TARGET = "sm_80"  # sm_90's text differs in its .target only
THREADS, SHARED, MOST_PARALLEL = 256, 96 * 1024, 16
SMS = (3, 108)
ROWS_AT_ONCE = 64  # of x, in one launch: more of them are more "parallel" problems


@dataclass(frozen=True)
class Problem:
    """of: the test of test.py that has it. group: -1, one scale a column, or 128."""

    of: str
    m: int
    n: int
    k: int
    thread_k: int
    thread_n: int
    group: int = -1


def problems() -> list[Problem]:
    wide, narrow = (64, 256), (128, 128)
    found = [
        Problem("test_tiles", m, 512, 1024, *tile)
        for m in (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 118, 128, 152, 768, 1024)
        for tile in (wide, narrow)
        if m <= 16 or tile == wide
    ]
    found += [
        Problem("test_k_stages_divisibility", 16, 512, 3 * 64 + 64 * 4 * 2 + 64 * i, *wide)
        for i in range(1, 4)
    ]
    found += [Problem("test_very_few_stages", 16, 512, k, *wide) for k in (64, 128, 192)]
    found += [
        Problem("test_groups", 16, n, k, *tile, 128)
        for n, k in ((256, 512), (256, 1024), (256 * 128, 1024))
        for tile in (narrow, wide)
    ]
    return found


@dataclass(frozen=True)
class Part:
    """One launch: ``rows`` rows of x from ``first`` on, in tiles of ``blocks`` times 16."""

    first: int
    rows: int
    blocks: int


def parts(m: int) -> list[Part]:
    """What marlin_cuda launches, one after the other."""
    blocks, found, first = -(-m // 16), [], 0
    while first < blocks:
        left, rows, step = blocks - first, m - 16 * first, 4
        if left > 4:  # whole multiples of 64 rows, many at once
            parallel = min((16 * left - (16 * blocks - m)) // ROWS_AT_ONCE, MOST_PARALLEL)
            rows, left, step = ROWS_AT_ONCE * parallel, 4, 4 * parallel
        found.append(Part(16 * first, rows, left))
        first += step
    return found


@cache
def texts() -> dict[str, str]:
    """Every kernel of the source in a text of its own, by its name: reading all takes longer."""
    whole = ptx_of(unpacked("marlin") / "marlin/marlin_cuda_kernel.cu", TARGET)
    head, *entries = whole.split(".visible .entry")
    entries[-1], end, files = entries[-1].rpartition("\n}\n")
    entries[-1] += end
    return {each.split("(")[0].strip(): f"{head}.visible .entry{each}\n{files}" for each in entries}


def run(problem: Problem, x, weight, sms: int, races: bool):
    """-> (results [m, n], warnings)."""
    packed, group_blocks = marlin.pack(weight), problem.group // 16 if problem.group > 0 else -1
    out = poisoned((problem.m, problem.n))
    locks = np.zeros(problem.n // 128 * MOST_PARALLEL, np.int32)
    warnings = []
    for part in parts(problem.m):
        tile = (part.blocks, problem.thread_n // 16, problem.thread_k // 16, 4, group_blocks)
        mangled = "".join(f"Li{each}E" if each >= 0 else "Lin1E" for each in tile)
        (entry,) = [name for name in texts() if f"MarlinILi{THREADS}E{mangled}" in name]
        machine = Machine(texts()[entry], races=races, checks=CHECKS)
        rows = slice(part.first, part.first + part.rows)
        arrays = {
            "A": np.ascontiguousarray(x[rows]),
            "B": packed.qweight,
            "C": out[rows],
            "s": packed.scales,
        }
        there = [
            machine.memory.buffer(array, name, readonly=name != "C")
            for name, array in arrays.items()
        ]
        sizes = (part.rows, problem.n, problem.k)
        result = machine.run(
            entry,
            grid=(sms, 1, 1),
            block=(THREADS, 1, 1),
            shared_bytes=SHARED,
            args=[
                *(each.address for each in there),
                *sizes,
                machine.memory.buffer(locks, "locks").address,
            ],
        )
        warnings += result.warnings
    return out, warnings


def gaussian(problem: Problem):
    generator = np.random.default_rng(29)
    x = generator.standard_normal((problem.m, problem.k)).astype(np.float16)
    w = generator.standard_normal((problem.k, problem.n)).astype(np.float32)
    return x, quantize(w, group_size=problem.group)


def handed_on(problem: Problem, sms: int) -> int:
    """How often a sum is rounded to fp16 and handed on to another block, at most."""
    tiles = problem.k // problem.thread_k
    parallel = max(part.rows // (16 * part.blocks) or 1 for part in parts(problem.m))
    stripe = -(-tiles * (problem.n // problem.thread_n) * parallel // sms)
    return min(sms, -(-tiles // stripe) + 1) - 1


def judge(problem: Problem, sms: int) -> dict:
    begun = time.perf_counter()
    x, weight = gaussian(problem)
    row = {**asdict(problem), "sms": sms}
    try:
        y, warnings = run(problem, x, weight, sms, races=False)
    except MachineError as error:
        return {**row, "outcome": "refused", "said": str(error)}
    row |= {"warnings": once(said(warnings))}
    held = bounds(x, weight, method="sums" if problem.group == -1 else "weights")
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(dequantize(weight))
    bound = held.rounded + handed_on(problem, sms) * 2.0**-11 * magnitude
    error = np.abs(y.astype(np.float64) - reference(x, weight))
    good = np.isfinite(y).all() and (error <= bound).all()
    row |= {"ratio": round(float((error / bound).max()), 3), "handed_on": handed_on(problem, sms)}
    exact = testing.exact_problem(problem.m, problem.n, problem.k, problem.group, seed=29)
    y, _ = run(problem, exact.x, exact.weight, sms, races=False)
    expected = round_to(reference(exact.x, exact.weight), y.dtype)
    row["exact"] = int((y.astype(np.float64) != expected.astype(np.float64)).sum())
    try:
        run(problem, x, weight, sms, races=True)
        row["races"] = []
    except Race as error:  # the first one ends the run
        row["races"] = said([error])
    row["outcome"] = "right" if good and not row["exact"] else "wrong"
    return {**row, "seconds": round(time.perf_counter() - begun, 1)}


def once(warnings: list[dict]) -> list[dict]:
    """Places of all launches, each once."""
    places = {(each["check"], each["line"]): each["text"] for each in warnings}
    return [{"check": check, "line": line, "text": text} for (check, line), text in places.items()]


def measure(workers: int) -> None:
    text = next(iter(texts().values()))
    made_by = re.search(r"release [\d.]+, V([\d.]+)", text)[1]
    about = {"version": unpacked("marlin").name, "compiler": f"nvcc {made_by}", "target": TARGET}
    rows = []
    every = [(each, sms) for sms in SMS for each in problems()]
    with ProcessPoolExecutor(workers) as pool:
        for row in pool.map(judge, *zip(*every)):
            rows.append({**row, **about})
            shown = ("of", "sms", "m", "n", "k", "thread_k", "outcome", "ratio", "exact", "seconds")
            print(*(row.get(each) for each in shown), race_of(row), flush=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def race_of(row: dict) -> str:
    """What the first race of a row is about: "" for none."""
    if not row.get("races"):
        return ""
    (first,) = row["races"]
    known = {"st.shared": "reduction", "cp.async": "scales"}
    return next((name for each, name in known.items() if first["text"].startswith(each)), "another")


def table(rows: list[dict]) -> str:
    heads = [
        "test",
        "multiprocessors",
        "problems",
        "right",
        "of these with warnings",
        "wrong",
        "refused",
        "first race: the reduction",
        "scales",
        "another",
        "none",
        "largest error / bound",
    ]
    kinds = dict.fromkeys((row["of"], row["sms"]) for row in rows)
    lines = []
    for of, sms in kinds:
        those = [row for row in rows if (row["of"], row["sms"]) == (of, sms)]
        right = [row for row in those if row["outcome"] == "right"]
        counts = [
            len(those),
            len(right),
            sum(bool(row["warnings"]) for row in right),
            *(sum(row["outcome"] == each for row in those) for each in ("wrong", "refused")),
            *(
                sum(race_of(row) == each for row in those if "races" in row)
                for each in ("reduction", "scales", "another", "")
            ),
        ]
        ratio = max((row["ratio"] for row in those if "ratio" in row), default=0.0)
        lines.append([f"`{of}`", str(sms), *(str(each or "") for each in counts), f"{ratio:.2g}"])
    return markdown(heads, lines)


def report() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    replace_between(README, MARKERS, table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("measure", "report"))
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.action == "measure":
        measure(args.workers)
    else:
        report()


if __name__ == "__main__":
    main()
