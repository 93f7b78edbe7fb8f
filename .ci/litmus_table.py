"""docs/litmus.md: how the litmus tests of the PTX memory model end on the machine, where the
schedule makes memory weak, beside what the model's axioms allow.

    python .ci/litmus_table.py [--schedules 400]

The tests and the axioms are those of the machine's own tests (``tests/emulator/litmus_cases.py``,
``litmus_model.py``); a schedule is a seed, so the page is the same each time it is made.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "litmus.md"
sys.path.insert(0, str(ROOT))

from numba_marlin.bench.tables import markdown
from numba_marlin.emulator import Machine, Schedule
from numba_marlin.emulator.scheduling.schedules import APART, WEAK
from tests.emulator.litmus_cases import (
    LITMUS,
    STRENGTHS,
    Litmus,
    Strength,
    allowed,
    memory,
    outcome,
    program,
)

SCHEDULES = 400
GPU_WIDE = ("weak", "relaxed", "acquire and release", "fences", "sequentially consistent")
COLUMNS = [
    *((name, "blocks") for name in (*GPU_WIDE, "fences, cta")),
    ("fences, cta", "warps of a block"),
]

HEAD = """# The memory model, by its litmus tests

Made by `python .ci/litmus_table.py`; every number is counted by that run.

[The memory consistency model of
PTX](https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model) says which
values loads may return. Its litmus tests (Lustig, Sahasrabuddhe and Giroux, *A formal analysis of
the NVIDIA PTX memory consistency model*, ASPLOS 2019) are programs of two to four threads whose
outcomes tell models apart.
The machine does one access after the other by default. With `Schedule(seed, "lanes apart",
memory="weak")` loads may return older values than the last, stores may come before others in the
coherence order, and loads may be done behind later accesses and fences of their thread, as far as
the model allows: a kernel that lacks a fence then gives wrong results on some schedules, as on a
GPU.

What the model allows is calculated from its axioms (`tests/emulator/litmus_model.py`), by trying
all executions, independently of the machine. Each cell below is how many of {schedules} schedules
had an outcome; `-` is an outcome that the model forbids, and that none had. Threads are one of
each block, but in the last column.

{summary}

What is not reached: a load is done late within its basic block only. Accesses of several sizes to
one place, asynchronous copies and matrices see the last value. Barriers and mbarriers hand over
more than they must.
"""


def counted(litmus: Litmus, strength: Strength, where: str, schedules: int) -> Counter:
    """Outcomes of so many schedules."""
    x, launch, machines = memory(), program(litmus, strength, where)[1:], []
    for first in range(len(litmus.threads)):
        machines.append(Machine(program(litmus, strength, where, first)[0]))
        machines[-1].memory.buffer(x, "x")
    found: Counter = Counter()
    for seed in range(schedules):
        schedule = Schedule(seed, APART, memory=WEAK)
        found[outcome(machines[seed % len(machines)], x, launch, litmus, schedule)] += 1
    return found


def names(litmus: Litmus) -> list[str]:
    """Of the numbers of an outcome: loads by their threads, and places in the end."""
    loads = [
        f"{op} in {number}"
        for number, thread in enumerate(litmus.threads)
        for op in thread
        if "=" not in op
    ]
    return [*loads, *(f"{place} at end" for place in litmus.places)]


def section(litmus: Litmus, schedules: int) -> tuple[str, list[tuple[bool, int]]]:
    """(its text, for every outcome that is allowed or seen: whether it is, and how often it was
    seen)"""
    columns = []
    for name, where in COLUMNS:
        strength = STRENGTHS[name]
        legal = allowed(litmus, strength, where)
        columns.append((legal, counted(litmus, strength, where, schedules)))
    every = sorted(set().union(*(legal | set(found) for legal, found in columns)))
    rows, judged = [], []
    for values in every:
        cells = []
        for legal, found in columns:
            seen, may = found[values], values in legal
            cells.append(str(seen) if may else f"**{seen}, forbidden**" if seen else "-")
            if may or seen:
                judged.append((may, seen))
        rows.append([*map(str, values), *cells])
    threads = "; ".join(
        f"thread {number}: `{', '.join(ops)}`" for number, ops in enumerate(litmus.threads)
    )
    head = [name if where == "blocks" else f"{name}, in a block" for name, where in COLUMNS]
    text = [
        f"## {litmus.short}: {litmus.name}",
        f"{threads[0].upper()}{threads[1:]}.",
        markdown([*names(litmus), *head], rows, left=0),
    ]
    return "\n\n".join(text) + "\n", judged


def page(schedules: int) -> str:
    sections, judged = [], []
    for litmus in LITMUS:
        text, found = section(litmus, schedules)
        sections.append(text)
        judged += found
    may = [seen for legal, seen in judged if legal]
    forbidden = sum(not legal for legal, _ in judged)
    summary = (
        f"Of {len(may)} outcomes that are allowed {sum(seen > 0 for seen in may)} were seen, and"
        f" {forbidden or 'none'} that {'are' if forbidden != 1 else 'is'} forbidden."
    )
    return HEAD.format(schedules=schedules, summary=summary) + "\n" + "\n".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    PAGE.write_text(page(parser.parse_args().schedules), encoding="utf-8")


if __name__ == "__main__":
    main()
