"""How long does a load from each level of the memory hierarchy take, and how much can an SM take
from it? And the same of its units of arithmetic.

    python experiments/30_levels/run.py measure [--out DIRECTORY]   # needs a Hopper GPU, 10 s
    python experiments/30_levels/run.py check     # the same kernels, small, on the PTX machine
    python experiments/30_levels/run.py report    # the table into README.md

A kernel is probed five times; a row has the median of what a step took, its extremes, and how many
cycles and nanoseconds all of it took. Rows go to results.jsonl.
"""

import argparse
import json
import statistics
import sys
from datetime import date
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import probes

from numba_marlin.bench.tables import markdown, replace_between
from numba_marlin.witness.probe import machine_code, run_on_hardware, run_on_machine

RESULTS = HERE / "results.jsonl"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
TIMES, WARMING = 5, 20
SMALL = {"size": 1 << 13, "short": 16, "long": 64}


def step_cycles(level, times: np.ndarray) -> np.ndarray:
    """Cycles that a step takes, for each block; times [blocks, 6]."""
    begin, end, begin_long, end_long = times[:, :4].astype(np.float64).T
    return ((end_long - begin_long) - (end - begin)) / (level.long - level.short)


def measured(level) -> dict:
    cycles, totals = [], []
    for _ in range(TIMES):
        times = run_on_hardware(level.probe, level.probe.buffers())["times"].astype(np.int64)
        each = step_cycles(level, times)
        cycles.append(float(each.mean()))
        totals.append(float((level.amount / each).sum()))
    middle = statistics.median(cycles)
    row = {
        "probe": level.name,
        "level": level.level,
        "unit": level.unit,
        "cycles": round(middle, 2),
        "cycles_least": round(min(cycles), 2),
        "cycles_most": round(max(cycles), 2),
        "blocks": level.probe.grid,
    }
    if level.unit != "cycles":
        row["per_cycle_and_sm"] = round(level.amount / middle, 2)
    if level.probe.grid > 2:
        row["per_cycle"] = round(statistics.median(totals), 1)
    row["whole"] = [int(times[0, 3] - times[0, 0]), int(times[0, 5] - times[0, 4])]
    return row


def megahertz(rows: list[dict]) -> float:
    """The SMs' clock, of the probe that took longest: the nanosecond clock has coarse steps."""
    cycles, nanoseconds = max((row["whole"] for row in rows), key=lambda whole: whole[1])
    return cycles / nanoseconds * 1e3


def measure(args) -> None:
    from numba_marlin.execution import driver

    found = driver.probe()
    device = found.devices[0]
    about = {
        "device": device.name,
        "sms": device.sms,
        "driver": found.driver_version,
        "date": date.today().isoformat(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / RESULTS.name).open("w", encoding="utf-8") as out:
        levels = probes.levels(device.sms)
        for _ in range(WARMING):  # an idle GPU's clock is low
            measured(levels[0])
        for level in levels:
            row = measured(level) | about
            out.write(json.dumps(row) + "\n")
            print(f"{row['level']:28} {row['probe']:46} {row['cycles']:9.2f} cycles a step", end="")
            print(f" {row.get('per_cycle_and_sm', '')} {row.get('per_cycle', '')}", flush=True)


def check(args) -> None:
    for level in probes.levels(2, **SMALL):
        _, resources = machine_code(level.probe.text)
        times = run_on_machine(level.probe, level.probe.buffers())["times"]
        if not (times[:, 3] > times[:, 0]).all() or resources.spill_stores:
            raise SystemExit(f"{level.name}: times {times.tolist()}, {resources}")
        print(f"{level.level:28} {level.name:46} runs, {resources.registers} registers")


def table(rows: list[dict]) -> str:
    lines, clock = [], megahertz(rows)
    for row in rows:
        rate = row["unit"] != "cycles"
        per_sm = f"{row['per_cycle_and_sm']:.1f} {row['unit']}" if rate else ""
        seconds = row["per_cycle"] * clock * 1e6 if "per_cycle" in row else None
        lines.append(
            [
                row["level"],
                f"`{row['probe']}`",
                "" if rate else f"{row['cycles']:.1f}",
                "" if rate else f"{row['cycles'] / clock * 1e3:.0f}",
                per_sm,
                f"{seconds / 1e12:.2f} TB/s" if seconds else "",
            ]
        )
    head = ["level", "probe", "latency, cycles", "ns", "a cycle and SM", "all SMs"]
    first = rows[0]
    said = f"{first['device']}, driver {first['driver']}, {first['date']}; SMs at {clock:.0f} MHz."
    return f"{markdown(head, lines)}\n\n{said}"


def report(args) -> None:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    replace_between(HERE / "README.md", MARKERS, table(rows))


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for run in (measure, check, report):
        command = commands.add_parser(run.__name__)
        command.add_argument("--out", type=Path, default=HERE)
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
