"""docs/programs.md: what the machine says of right programs, of programs with one error, and of bad
input.

    python .ci/programs_table.py

The programs are those of tests/emulator, ``right_programs``, ``planted_errors`` and
``hostile_texts``; each is run here, and the page says what came of it.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from numba_marlin.emulator import Machine, MachineError
from numba_marlin.emulator.checks import CHECKS
from tests.emulator.checked import SCHEDULES, check_of, launch, strict
from tests.emulator.hostile_texts import RUNS, TEXTS
from tests.emulator.planted_errors import PLANTED
from tests.emulator.ptx_cases import frame
from tests.emulator.right_programs import RIGHT

PAGE = ROOT / "docs" / "programs.md"
INTRODUCTION = """# Right programs, programs with one error, and bad input

Made by `.ci/programs_table.py`: each program of `tests/emulator/right_programs.py`,
`planted_errors.py` and `hostile_texts.py` was run, with nothing else written down.

## One error each

*Races on*, *races off*: what the machine says first, with all that is wrong or undefined an error.
*Twin*: the same program with the error mended, by every check there is. *Works on chips* is what
the ISA leaves undefined while measured chips go on; `--checks hardware` makes it a warning.

{found} of {programs} are found with races on and {plain} of them with races off; {alarms} false
alarms on their twins.

| error | kind | races on | races off | twin |
|---|---|---|---|---|
"""
RIGHT_ONES = """
## Right, and easily taken for wrong

Each under {schedules} schedules, with races looked for under the first; {alarms} false alarms.

| program | threads | blocks | found |
|---|---|---|---|
"""
BAD_INPUT = """
## Bad input

Texts made to take time or memory. Each is read, or refused with the error's line, in {limits} at
most: the tests hold all of them to it.

| text | characters | the machine |
|---|--:|---|
"""
ENDLESS = """
Kernels that ask for more than there is once they run, all refused.

| kernel | the machine |
|---|---|
"""
LONGEST = 110  # characters of a message
KINDS = {"wrong": "wrong", "undefined": "works on chips", "style": "style"}


def said(program, body: str, seed, races: bool, checks: str) -> str:
    """The check that ends the run, or a value of x that is not what it must be; "" for neither."""
    try:
        x, result = launch(program, body, seed, races, checks)
    except MachineError as error:
        return check_of(error)
    if result.warnings:
        return check_of(result.warnings[0])
    want = getattr(program, "x", ())
    return "" if tuple(x[: len(want)]) == want else "other values"


def refused(task, *given) -> str:
    """What the machine says, cut where the text itself is long; "" if it does as it is told."""
    try:
        task(*given)
    except MachineError as error:
        message = str(error).splitlines()[0].replace("|", "\\|")
        return f"`{message if len(message) <= LONGEST else message[:LONGEST] + ' ...'}`"
    return ""


def read(text: str) -> None:
    machine = Machine(text)
    for entry in machine.entries:
        machine.kernel(entry)


def run(body: str, before: str, options: dict[str, Any]) -> None:
    Machine(frame(body, 0, before)).run(**options)


def bad_input() -> list[str]:
    lines = [BAD_INPUT.format(limits="15 s and 1 GiB").rstrip()]
    for name, made in TEXTS.items():
        text = made()
        lines.append(f"| {name} | {len(text):,} | {refused(read, text) or 'read'} |")
    lines.append(ENDLESS.rstrip())
    lines += [f"| {name} | {refused(run, *each) or 'runs'} |" for name, each in RUNS.items()]
    return lines


def page() -> str:
    planted = [
        (
            each,
            said(each, each.body, None, True, strict(each)),
            said(each, each.body, None, False, strict(each)),
            said(each, each.body.replace(*each.fix), None, True, "style"),
        )
        for each in PLANTED
    ]
    lines = [
        INTRODUCTION.format(
            programs=len(planted),
            found=sum(bool(on) for _, on, _, _ in planted),
            plain=sum(bool(off) for _, _, off, _ in planted),
            alarms=sum(bool(twin) for _, _, _, twin in planted),
        ).rstrip()
    ]
    for each, on, off, twin in planted:
        kind = KINDS[CHECKS[each.check].kind]
        lines.append(
            f"| {each.name} | {kind} | {on or 'nothing'} | {off or 'nothing'} | {twin or 'right'} |"
        )
    right = [
        (
            each,
            next(
                filter(
                    None,
                    (said(each, each.body, seed, seed is None, "strict") for seed in SCHEDULES),
                ),
                "",
            ),
        )
        for each in RIGHT
    ]
    alarms = sum(bool(found) for _, found in right)
    lines.append(RIGHT_ONES.format(schedules=len(SCHEDULES), alarms=alarms).rstrip())
    lines += [
        f"| {each.name} | {each.threads} | {each.blocks} | {found or 'nothing'} |"
        for each, found in right
    ]
    return "\n".join([*lines, *bad_input()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
