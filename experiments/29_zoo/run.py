"""Other people's 4-bit kernels on the PTX machine, beside ours.

    python experiments/29_zoo/run.py make [NAME ...]     # PTX and arrays, where a package is
    python experiments/29_zoo/run.py measure [NAME ...]  # runs what was made, into results.jsonl
    python experiments/29_zoo/run.py report              # the tables of README.md

``make`` writes a folder per kernel, target and data below --folder, and a reason for each it leaves
out. It needs NumPy and the kernel's own package, ``measure`` needs neither package nor GPU.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import problem
from launches import Missing
from subject import Subject, subjects

RESULTS = HERE / "results.jsonl"
SHOWN = ("outcome", "bound", "half_roundings", "ratio", "exact", "instructions", "seconds", "said")


def make(chosen: list[Subject], folder: Path) -> None:
    for subject in chosen:
        for target in subject.targets:
            for data in problem.DATA:
                place = folder / subject.name / target / data
                place.mkdir(parents=True, exist_ok=True)
                for old in place.iterdir():
                    old.unlink()
                try:
                    launch = subject.make(*subject.operands(data), target)
                except (Missing, ImportError) as error:
                    (place / "missing.txt").write_text(str(error), encoding="utf-8")
                    print(f"{subject.name} {target}: skipped, {error}", flush=True)
                    break
                launch.facts["version"] = subject.version()
                launch.write(place)
            else:
                print(f"{subject.name} {target}: {launch.entry}", flush=True)


def measure(chosen: list[Subject], folder: Path) -> None:
    from judge import judge

    rows = list(map(json.loads, RESULTS.read_text().splitlines())) if RESULTS.exists() else []
    for subject in chosen:
        for place in sorted((folder / subject.name).glob("sm_*")):
            start = time.perf_counter()
            missing = place / problem.DATA[0] / "missing.txt"
            if missing.exists():
                found = {"outcome": "skipped", "said": missing.read_text(encoding="utf-8")}
            else:
                found = judge(subject, place)
            row = {
                "name": subject.name,
                "kernel": subject.kernel,
                "package": subject.package,
                "compiler": subject.compiler,
                "target": place.name,
                "m": subject.m,
                "n": subject.n,
                "k": problem.K,
                **found,
                "seconds": round(time.perf_counter() - start, 1),
            }
            key = subject.name, place.name
            rows = [each for each in rows if (each["name"], each["target"]) != key]
            rows = sorted([*rows, row], key=lambda each: (each["name"], each["target"]))
            RESULTS.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
            print(
                *key, *(row.get(each) for each in SHOWN), len(row.get("warnings", ())), flush=True
            )


def main() -> None:
    known = subjects()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("make", "measure", "report"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "zoo"), help="of the PTX"
    )
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"{unknown[0]} must be one of {', '.join(known)}")
    if args.action == "report":
        from report import write

        write(RESULTS, HERE / "README.md")
    else:
        act = make if args.action == "make" else measure
        act([known[name] for name in args.names or known], args.folder.resolve())


if __name__ == "__main__":
    main()
