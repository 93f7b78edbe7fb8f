"""docs/lists.md: case by case, what runs on the PTX machine and under its switch, what is refused
and what fails.

    python .ci/lists_table.py

The page counts what experiments recorded (their results.jsonl) and what other pages hold, which
scripts of their own make; it runs nothing itself.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, EXPERIMENTS = ROOT / "docs", ROOT / "experiments"
PAGE = DOCS / "lists.md"
LINES_A_SECOND, WARP_INSTRUCTIONS_A_SECOND = 50_000, 2_000_000  # goals
RACES_FACTOR, OLD_SIMULATOR_FACTOR, COMPILER_FACTOR = 3, 3, 3
SAID = 160  # characters
OUTCOMES = ("pass", "skip", "refuse", "report", "fail")

HEAD = """# What runs, what is refused, what fails

Made by `.ci/lists_table.py` from what experiments recorded and other pages hold.
"""
PROGRAMS = """
## Programs that nobody here wrote

Whole programs of CUDA C++ with their own checks of their results, races looked for.
[Experiment 31](../experiments/31_programs/README.md) has a row for each, and says what the columns
mean.

"""
CASES = """
## Lists of cases

One kernel a case, with a value that somebody else says is right.
[Experiment 33](../experiments/33_lists/README.md) has a row for each, and says what the columns
mean.

"""
TOOLCHAINS = """
## Kernels of other toolchains

Compiled without a GPU by Triton, tinygrad, the CuTe DSL and Warp, and compared with NumPy in
float64, races looked for. [Experiment 34](../experiments/34_toolchains/README.md) has a row for
each case.

"""
SWITCH = """
## The switch

[Feature by feature](on_cpu.md#feature-by-feature), with both compilers; and numba-cuda's own tests
of its CUDA target, with races looked for ([experiment 24](../experiments/24_on_cpu/README.md)).

"""
ISA = """
## Instructions, checks, the memory model, published defects

| list | cases | pass | otherwise |
|---|--:|--:|---|
"""
SPEED = """
## Speed

Each goal beside what was measured last, in [experiment 14](../experiments/14_machine/README.md) and
[24](../experiments/24_on_cpu/README.md), which have the dates and the whole tables.

| goal | of | measured | |
|---|---|--:|---|
"""
ZOO = """
## Public 4-bit kernels

From their own packages' PTX ([experiment 29](../experiments/29_zoo/README.md)).

| kernel | compiler | target | m | result | races |
|---|---|---|--:|---|---|
"""
MARLIN = """
The published Marlin on the problems of its authors' own test, by its source from
[IST-DASLab/marlin](https://github.com/IST-DASLab/marlin):

| launched for | problems | right | of these with reads of unwritten memory | wrong | race |
|---|--:|--:|--:|--:|--:|
"""


def rows_of(path: str) -> list[dict]:
    text = (EXPERIMENTS / path).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def switch() -> list[str]:
    results = rows_of("24_on_cpu/results.jsonl")
    found = {each: sum(row[each] for row in results) for each in OUTCOMES}
    cut = sum(row["cut"] for row in results)
    return [
        f"| tests of numba-cuda | {' | '.join(OUTCOMES)} | modules cut short |",
        "|---|" + (len(OUTCOMES) + 1) * "--:|",
        f"| {len(results)} modules | {' | '.join(f'{found[each]:,}' for each in OUTCOMES)}"
        f" | {cut} |",
    ]


def number(text: str, pattern: str) -> tuple[int, ...]:
    """The numbers of a sentence, which may be broken over lines."""
    match = re.search(pattern, " ".join(text.split()))
    if match is None:
        raise ValueError(f"no page says {pattern!r}")
    return tuple(int(each.replace(",", "")) for each in match.groups())


def pages() -> list[str]:
    ptx, programs, museum, litmus = (
        (DOCS / f"{name}.md").read_text(encoding="utf-8")
        for name in ("ptx", "programs", "museum", "litmus")
    )
    forms, run = number(ptx, r"the page has ([\d,]+) of them, of which ([\d,]+) run")
    found, planted = number(programs, r"(\d+) of (\d+) are found with races on")
    (alarms,) = number(programs, r"looked for under the first; (\d+) false alarms")
    right = rows_under(programs, "| program | threads | blocks | found |")
    exhibits = rows_under(museum, "| | exhibit | published | the machine | fixed |")
    clean = [row for row in exhibits if "clean in" in row[-1]]
    allowed, seen = number(litmus, r"Of (\d+) outcomes that are allowed (\d+) were seen")
    return [
        f"| [instructions](ptx.md), a form for each kind | {forms} | {run} |"
        f" {forms - run} refused by name |",
        f"| [right programs](programs.md) | {len(right)} | {len(right) - alarms} |"
        f" {alarms} false alarms |",
        f"| [programs with one error](programs.md) | {planted} | {found} |"
        f" {planted - found} missed |",
        f"| [outcomes of litmus tests](litmus.md) that the model allows | {allowed} | {seen} |"
        f" {allowed - seen} not seen |",
        f"| [published defects](museum.md), and each mended | {len(exhibits)} | {len(clean)} |"
        f" {len(exhibits) - len(clean)} not clean |",
    ]


def rows_under(page: str, head: str) -> list[list[str]]:
    """Rows of the table with this head."""
    lines = page.splitlines()
    found = []
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            break
        found.append(line.strip("| ").split(" | "))
    return found


def verdict(met: bool) -> str:
    return "pass" if met else "**fail**"


def speed() -> list[str]:
    lines = []
    for row in rows_of("14_machine/reading.jsonl"):
        lines.append(
            f"| {LINES_A_SECOND:,} lines read a second | {row['text']} |"
            f" {row['lines_a_second']:,} | {verdict(row['lines_a_second'] >= LINES_A_SECOND)} |"
        )
    latest = {
        (row["kernel"], row["blocks"], row["races"]): row
        for row in rows_of("14_machine/factors.jsonl")
        if row["label"] == "after"
    }
    for (kernel, blocks, races), row in sorted(latest.items()):
        if races:
            factor = row["seconds"] / latest[kernel, blocks, False]["seconds"]
            lines.append(
                f"| races at most {RACES_FACTOR} times a plain run |"
                f" {kernel.replace('_', ' ')}, {blocks:,} blocks | {factor:.1f} |"
                f" {verdict(factor <= RACES_FACTOR)} |"
            )
    for count in (16, 256, 1024):
        plain = [
            row["a_second"]
            for (_, blocks, races), row in latest.items()
            if not races and blocks == count
        ]
        mean = sum(plain) / len(plain)
        lines.append(
            f"| {WARP_INSTRUCTIONS_A_SECOND:,} warp instructions a second on the mean |"
            f" {len(plain)} kernels, {count:,} blocks | {mean:,.0f} |"
            f" {verdict(mean >= WARP_INSTRUCTIONS_A_SECOND)} |"
        )
    return lines + beside_the_simulator() + compiler()


def beside_the_simulator() -> list[str]:
    lines, seconds = [], {}
    for row in rows_of("24_on_cpu/speed.jsonl"):
        seconds[row["case"], row["blocks"], row["on"]] = row["seconds"]
    for (case, blocks, on), before in seconds.items():
        if on != "simulator":
            continue
        factor = seconds[case, blocks, "machine, races auto"] / before
        least = OLD_SIMULATOR_FACTOR if blocks < 16 else 1
        goal = f"at most {least} times the old simulator" if least > 1 else "ahead of it"
        lines.append(
            f"| {goal}, with races | {case}, {blocks} block{'s' * (blocks > 1)} | {factor:.3f} |"
            f" {verdict(factor <= least)} |"
        )
    return lines


def compiler() -> list[str]:
    return [
        f"| Numba's CPU compiler, kept if {COMPILER_FACTOR} times as fast |"
        f" {row['kernel'].replace('_', ' ')}, {row['blocks']} blocks |"
        f" {row['plain'] / row['compiled']:.2f} |"
        f" {'kept' if row['plain'] / row['compiled'] >= COMPILER_FACTOR else 'not kept'} |"
        for row in rows_of("14_machine/compiled.jsonl")
    ]


def zoo() -> list[str]:
    lines = []
    for row in rows_of("29_zoo/results.jsonl"):
        races = row.get("races")
        said = "none" if races == [] else races[0]["said"].split(":")[0] if races else ""
        if races and any(row.get("orders", ())):
            said += "; results depend on the order of blocks"
        lines.append(
            f"| {row['kernel']} | {row['compiler']} | {row['target']} | {row.get('m', '')} |"
            f" {row['outcome']} | {said} |"
        )
    return lines


def published_marlin() -> list[str]:
    rows = rows_of("29_zoo/marlin_problems.jsonl")
    lines = []
    for sms in dict.fromkeys(row["sms"] for row in rows):
        those = [row for row in rows if row["sms"] == sms]
        right = [row for row in those if row["outcome"] == "right"]
        lines.append(
            f"| {sms} multiprocessors | {len(those)} | {len(right)} |"
            f" {sum(bool(row['warnings']) for row in right)} |"
            f" {sum(row['outcome'] == 'wrong' for row in those)} |"
            f" {sum(bool(row['races']) for row in right)} |"
        )
    return lines


def first_table(experiment: str) -> list[str]:
    """Of its page, the first table of results."""
    text = (EXPERIMENTS / experiment / "README.md").read_text(encoding="utf-8")
    _, marker, rest = text.partition("<!-- results:begin -->\n")
    if not marker:
        raise SystemExit(f"{experiment}/README.md has no table of results")
    return rest.partition("\n\n")[0].splitlines()


def not_right() -> list[str]:
    """Cases of experiment 34 that are not right."""
    lines = ["| not right | target | outcome | said |", "|---|---|---|---|"]
    for row in rows_of("34_toolchains/results.jsonl"):
        if row["outcome"] != "right":
            also = f"; {row['without']} without looking for races" if "without" in row else ""
            whole = " ".join(row["said"].split())
            said = whole[:SAID].replace("|", "\\|") + (" ..." if len(whole) > SAID else "")
            lines.append(
                f"| {row['toolchain']}: {row['case']} | {row['target']} | {row['outcome']}{also} |"
                f" {said} |"
            )
    return lines


def page() -> str:
    return "\n".join(
        [
            HEAD.rstrip(),
            PROGRAMS.rstrip() + "\n",
            *first_table("31_programs"),
            CASES.rstrip() + "\n",
            *first_table("33_lists"),
            TOOLCHAINS.rstrip() + "\n",
            *first_table("34_toolchains"),
            "",
            *not_right(),
            SWITCH.rstrip() + "\n",
            *switch(),
            ISA.rstrip(),
            *pages(),
            SPEED.rstrip(),
            *speed(),
            ZOO.rstrip(),
            *zoo(),
            MARLIN.rstrip(),
            *published_marlin(),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
