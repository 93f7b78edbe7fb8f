"""What do 8-bit activations cost a model whose weights have 4 bits, and does smoothing help?

    python experiments/32_activations/run.py synthetic    # the model of experiment 07; on the CPU
    python experiments/32_activations/run.py sentences    # that of experiment 20, and its packages
    python experiments/32_activations/run.py report       # the tables into README.md

Rows are appended to results.jsonl; the newest of a variant counts.
"""

import argparse
import datetime
import importlib
import json
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent
OTHERS = {"synthetic": "07_quantisers", "sentences": "20_sentences"}
sys.path[:0] = [str(HERE), str(EXPERIMENTS.parent)]

import numpy
import report

from numba_marlin.bench.environment import commit, cpu_model

RESULTS = HERE / "results.jsonl"


def measure(name):
    sys.path.append(str(EXPERIMENTS / OTHERS[name]))
    facts = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "device": cpu_model(),
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__},
    }
    for row in importlib.import_module(name).measure():
        print(json.dumps(row), flush=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | facts, allow_nan=False) + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=(*OTHERS, "report"))
    part = parser.parse_args().part
    if part == "report":
        report.write(HERE)
    else:
        measure(part)


if __name__ == "__main__":
    main()
