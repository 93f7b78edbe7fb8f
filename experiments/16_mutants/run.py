"""Does the PTX machine notice when a kernel loses one of its guards? Every mutant of every cell,
judged.

    python experiments/16_mutants/run.py [--cell NAME ...] [--processes 2] [--again]    # what
        results.jsonl does not have yet; then the report
    python experiments/16_mutants/run.py --report                                       # the table
        in README.md, the list of survivors

No GPU. Stop it when you like: what is judged is kept, and a later call goes on. Rows belong to the
skeleton of a kernel's PTX (``numba_marlin.mutation.mutants``); those of another one are judged
again. ``--again`` forgets who survived without a proof, for a machine, a problem or a schedule that
sees more. results.jsonl: one object a mutant.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import sys
from pathlib import Path

# a process a core; before NumPy is imported
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from cells import CELLS, COMPILER, SCHEDULES, compiler_of
from proofs import proof_of
from report import report, settled

from numba_marlin.cli.progress import bar
from numba_marlin.mutation.judge import budgets, judge
from numba_marlin.mutation.mutants import mutants, skeleton
from numba_marlin.mutation.program import Program

RESULTS = HERE / "results.jsonl"
_prepared = {}  # of a worker, by cell: (Program, mutants by name, budgets)


def read(path=RESULTS):
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def judged(task):
    """(name of a cell, name of a mutant) -> its row"""
    cell, name = CELLS[task[0]], task[1]
    ptx, schedules = cell.compiled.ptx, SCHEDULES
    if cell.name not in _prepared:
        _prepared[cell.name] = (
            Program(ptx),
            {each.name: each for each in mutants(ptx)},
            budgets(ptx, cell.launches, schedules),
        )
    program, found, budget = _prepared[cell.name]
    mutant = found[name]
    if proof_of(cell, program, mutant):
        # nobody will catch it, or the proof is wrong, which shows at once if it shows
        schedules = schedules[:1]
    catch = judge(mutant.apply(ptx), cell.launches, schedules, budget)
    row = {
        "kernel": cell.kernel,
        "cell": cell.name,
        "mutant": name,
        "kind": mutant.kind,
        "line": mutant.line,
        "original": mutant.original,
        "mutated": mutant.mutated,
    }
    if catch is None:
        row |= {"outcome": "survived", "how": f"nothing, in {len(schedules)} schedules"}
    else:
        row |= {
            "outcome": "caught",
            "how": catch.how,
            "what": catch.what.splitlines()[0][:160],
            "launch": catch.launch,
            "schedule": catch.schedule,
        }
    return row | {
        "skeleton": skeletons(cell),
        "compiler": compiler_of(cell),
        "date": datetime.date.today().isoformat(),
    }


_skeletons = {}


def skeletons(cell):
    if cell.name not in _skeletons:
        _skeletons[cell.name] = skeleton(cell.compiled.ptx)
    return _skeletons[cell.name]


def current(rows):
    """Those of ``rows`` that say something about today's kernels, by (cell, mutant)."""
    return {
        (row["cell"], row["mutant"]): row
        for row in rows
        if row["cell"] in CELLS and row["skeleton"] == skeletons(CELLS[row["cell"]])
    }


def write(rows):
    """In the order of cells and texts, so that a diff shows what changed."""
    order = {name: number for number, name in enumerate(CELLS)}
    ordered = sorted(rows, key=lambda row: (order[row["cell"]], row["line"], row["mutant"]))
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in ordered), encoding="utf-8")


def run(names, processes, again):
    known = current(read())
    if again:
        known = {
            key: row
            for key, row in known.items()
            if row["outcome"] != "survived" or row["cell"] not in names
        }
    write(known.values())
    tasks = [
        (name, mutant.name)
        for name in names
        for mutant in mutants(CELLS[name].compiled.ptx)
        if (name, mutant.name) not in known
    ]
    print(f"{len(tasks)} mutants to judge, {len(known)} known", flush=True)
    survived = 0
    with (
        multiprocessing.get_context("spawn").Pool(processes) as pool,
        open(RESULTS, "a", encoding="utf-8") as file,
        bar("judging", "mutants") as advance,
    ):
        for done, row in enumerate(pool.imap_unordered(judged, tasks, chunksize=4), 1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            survived += row["outcome"] == "survived"
            advance(done, len(tasks), f"{survived} survived, {row['cell']}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cell", action="append", choices=CELLS, help="only this one; may be given again"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--again", action="store_true", help="judge again who survived without a proof"
    )
    parser.add_argument("--report", action="store_true", help="judge nothing")
    args = parser.parse_args()
    if not args.report:
        run(args.cell or list(CELLS), args.processes, args.again)
    rows = settled(current(read()).values())
    write(rows)
    sys.exit(
        report(
            rows,
            HERE / "README.md",
            f"{COMPILER},"
            f" {', '.join(dict.fromkeys(cell.compiled.target for cell in CELLS.values()))}",
        )
    )


if __name__ == "__main__":
    main()
