"""Extracts the rows of experiments that the package shows, to numba_marlin/data/measured/.

    python experiments/package_data.py            # after an experiment has recorded new rows
    python experiments/package_data.py --check    # exit code 1 if a file is not what it would write

The package never reads experiments/, so an installed wheel shows what a checkout does.
"""

import argparse
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "numba_marlin" / "data" / "measured"
PROBLEM = ("m", "n", "k", "group_size", "dtype", "bits", "zeros", "scale_dtype", "bias")
TIMED = ("kernel", "config", *PROBLEM, "batch_invariant", "us", "device", "date")
BLOCK_TIMED = ("kernel", "config", "m", "n", "k", "us", "cublas_us", "device", "date")
PROBED = ("probe", "covers", "outcome", "device", "driver", "measured")
REACHED = ("probe", "level", "unit", "cycles", "per_cycle_and_sm", "per_cycle", "device", "date")


def rows(experiment: str) -> list[dict]:
    text = (HERE / experiment / "results.jsonl").read_text(encoding="utf-8")
    return list(map(json.loads, text.splitlines()))


def only(row: dict, names: tuple[str, ...]) -> dict:
    return {name: row[name] for name in names if name in row}


def extract() -> dict[str, list[dict]]:
    """{file: its rows}."""
    newest = {}
    for row in rows("11_block_scaled"):
        if row["part"] == "whole":
            short = only(row, BLOCK_TIMED)
            cell = json.dumps([short[name] for name in ("kernel", "config", "m", "n", "k")])
            newest.pop(cell, None)
            newest[cell] = short
    return {
        "weight_times": [
            only(row, TIMED)
            for experiment in ("01_faithful", "02_hopper")
            for row in rows(experiment)
        ],
        "ladder_times": [only(row, TIMED) for row in rows("18_ladder")],
        "block_times": list(newest.values()),
        "witness": [only(row, PROBED) for row in rows("05_hardware")],
        "levels": [only(row, REACHED) for row in rows("30_levels")],
    }


def texts() -> dict[str, str]:
    """{file name: what belongs into it}."""
    return {
        f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in found)
        for name, found in extract().items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    args = parser.parse_args()
    stale = []
    for name, text in texts().items():
        path = TARGET / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not args.check:
                path.write_text(text, encoding="utf-8")
    print(f"{'stale' if args.check else 'written'}: {', '.join(stale) or 'nothing'}")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
