"""Kernels of other toolchains' own compilers on the PTX machine.

    python experiments/34_toolchains/run.py make [TOOLCHAIN ...] [--only WORD]     # cases
    python experiments/34_toolchains/run.py measure [TOOLCHAIN ...] [--only WORD]  # results.jsonl
    python experiments/34_toolchains/run.py report                                 # README's tables

``make`` compiles where a toolchain is installed, and writes what it would launch to a folder below
--folder, with what is expected; ``measure`` runs that, and needs no toolchain.
"""

import argparse
import importlib
import json
import re
import sys
import tempfile
import traceback
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from recording import Case, Missing

RESULTS = HERE / "results.jsonl"
TOOLCHAINS = ("triton", "tinygrad", "cute", "cutlass", "hopper", "warp")
KEY = ("toolchain", "target", "case")


def make(chosen: list[str], folder: Path, only: str) -> None:
    """A toolchain's module ``on_NAME`` has ``version()`` and ``cases()``: (name, target, function
    that fills a Case); ``write`` of its own, if that is not all."""
    for name in chosen:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(f"on_{name}")
        version = module.version()
        for title, target, fill in module.cases():
            if not re.search(only, f"{target} {title}"):
                continue
            case = Case(name, title, target, version)
            try:
                found = fill(case)
                if hasattr(module, "write"):
                    module.write(case, place, found)
                else:
                    case.write(place)
            except Missing as error:
                print(f"{name} {target} {title}: skipped, {error}", flush=True)
                continue
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                place_of = f"{Path(last.filename).name}:{last.lineno}"
                text = " ".join(str(error).split())[:300]
                print(f"{name} {target} {title}: {type(error).__name__} {text} ({place_of})")
                continue
            print(f"{name} {target} {title}: {len(case.launches)} launches", flush=True)


def measure(chosen: list[str], folder: Path, only: str, limit: int, commit: str) -> None:
    from judge import judge

    for name in chosen:
        for path in sorted((folder / name).glob("*.case")):
            if not re.search(only, path.stem.replace("_", " ")):
                continue
            row = judge(path, limit) | {"date": str(date.today()), "commit": commit}
            known = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
            rows = [row, *map(json.loads, known)]
            latest = {tuple(each[key] for key in KEY): each for each in reversed(rows)}
            text = "".join(json.dumps(latest[key]) + "\n" for key in sorted(latest))
            RESULTS.write_text(text, encoding="utf-8")
            shown = (*KEY, "outcome", "worst", "instructions", "seconds", "warnings", "said")
            print(*(row.get(each, "") for each in shown), flush=True)


def commit_of(folder: Path) -> str:
    import subprocess

    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("make", "measure", "report"))
    parser.add_argument("names", nargs="*", metavar="TOOLCHAIN", help=", ".join(TOOLCHAINS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "toolchains"))
    parser.add_argument("--only", default="", help="a pattern: cases whose target and name match")
    parser.add_argument("--limit", type=int, default=60, help="seconds of the processor a case")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in TOOLCHAINS]
    if unknown:
        parser.error(f"{unknown[0]} must be one of {', '.join(TOOLCHAINS)}")
    names, folder = given.names or list(TOOLCHAINS), given.folder.resolve()
    if given.action == "make":
        make(names, folder, given.only)
    elif given.action == "measure":
        measure(names, folder, given.only, given.limit, commit_of(HERE))
    else:
        from report import write

        write(RESULTS, HERE / "README.md")


if __name__ == "__main__":
    main()
