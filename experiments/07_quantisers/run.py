"""How much do the quantisers differ, on single layers and on a whole (synthetic) model? Runs on the
CPU, in about a quarter of an hour on two quiet cores.

    python experiments/07_quantisers/run.py [model clipping hessian cost] [--no-record]

Appends one object per measurement to results.jsonl; then ``report.py`` rewrites the tables and the
plot of the README from the newest ones. Run ``cost`` in a separate process, because its memory
figures are those of the whole process.
"""

import argparse
import datetime
import importlib.metadata as metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import model
import report
import single
import transformer

RESULTS = HERE / "results.jsonl"
GRIDS = [(variant, 128, True) for variant in model.VARIANTS]
GRIDS += [
    (variant, group_size, symmetric)
    for group_size, symmetric in ((-1, True), (32, True), (128, False))
    for variant in ("rtn", "mse", "gptq", "gptq, act order")
]


def whole_models():
    net = transformer.build()
    for variant, group_size, symmetric in GRIDS:
        yield from model.measure(net, variant, group_size, symmetric)


PARTS = {
    "model": whole_models,
    "clipping": single.clipping,
    "hessian": single.precision,
    "cost": single.costs,
}


def facts():
    git = [
        "git",
        "-C",
        str(HERE),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    described = subprocess.run(git, capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": described.stdout.strip() or None,
        "device": f"CPU, {os.cpu_count()} threads ({platform.machine()})",
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "scipy")},
        },
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    common = facts()
    for part in args.parts or PARTS:
        for row in PARTS[part]():
            print(json.dumps(row), flush=True)
            if not args.no_record:
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row | common) + "\n")
    if not args.no_record:
        report.main()


if __name__ == "__main__":
    main()
