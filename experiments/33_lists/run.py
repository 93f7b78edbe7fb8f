"""Lists of cases on the PTX machine: which are right, refused, reported, wrong.

    python experiments/33_lists/run.py measure zluda --zluda FOLDER
    python experiments/33_lists/run.py measure cuda_cpp flags cub fuzzed
    python experiments/33_lists/run.py measure texts --texts NAME=FOLDER ...
    python experiments/33_lists/run.py report              # the tables of README.md

``measure`` runs every case of the lists that are named and puts their rows into results.jsonl, in
place of those that the list had. zluda: FOLDER is a checkout of vosen/ZLUDA. texts: of each
NAME=FOLDER all files *.ptx in it or below.
"""

import argparse
import datetime
import importlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import numpy as np
from judging import Case, judged
from report import LISTS

from numba_marlin.bench.environment import commit

RESULTS = HERE / "results.jsonl"


def rows(cases: Iterator[Case], verbose: bool) -> Iterator[dict]:
    """One a case."""
    for case in cases:
        found = judged(case.run)
        if verbose or found.outcome not in ("right", "read") or found.warnings:
            print(case.group, case.name, found.outcome, found.said, *found.warnings, flush=True)
        yield {"group": case.group, "case": case.name, **asdict(found)}


def measure(names: list[str], given: argparse.Namespace) -> None:
    for name in names:
        module = importlib.import_module(name)
        origin = {
            "date": str(datetime.date.today()),
            "commit": commit(),
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                **module.versions(given),
            },
        }
        mine = [{"list": name, **row, **origin} for row in rows(module.cases(given), given.verbose)]
        text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        others = [row for row in map(json.loads, text.splitlines()) if row["list"] != name]
        found = sorted([*others, *mine], key=lambda row: list(LISTS).index(row["list"]))
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("measure", "report"))
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}")
    parser.add_argument("--zluda", type=Path, help="a checkout of vosen/ZLUDA")
    parser.add_argument("--texts", nargs="+", default=[], metavar="NAME=FOLDER", help="of *.ptx")
    parser.add_argument("--verbose", action="store_true", help="print what is right too")
    given = parser.parse_args()
    unknown = [name for name in given.lists if name not in LISTS]
    if unknown:
        parser.error(f"{unknown[0]} must be one of {', '.join(LISTS)}")
    if given.action == "measure":
        measure(given.lists or list(LISTS), given)
    else:
        from report import write

        write(RESULTS, HERE / "README.md")


if __name__ == "__main__":
    main()
