"""docs/programs.md: small right programs that a checker may complain of, and small wrong ones that
it may miss, and what the machine says of each.

    python .ci/programs_table.py

The programs are those of the machine's own tests (``tests/emulator/right_programs.py``,
``planted_errors.py``), run as these run them; nothing else is written down.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "programs.md"
sys.path.insert(0, str(ROOT))

from numba_marlin.bench.tables import markdown
from numba_marlin.emulator import MachineError
from numba_marlin.emulator.checks import CHECKS
from tests.emulator.planted_errors import PLANTED
from tests.emulator.right_programs import RIGHT
from tests.emulator.test_checks import SCHEDULES, check_of, launch, strict

HEAD = """# Right programs and wrong ones

Made by `python .ci/programs_table.py` from programs of `tests/emulator`; each was run under {count}
schedules of every kind. A wrong program has one line that is wrong, and a twin in which that line
is mended, and of which the machine says nothing. [What it checks](checks.md) says what each check
is, and which of them can be a warning.
"""


def of_right(program) -> str:
    """ "passes", or what the machine says of it."""
    for seed in SCHEDULES:
        try:
            x, _ = launch(program, program.body, seed, races=seed is None)
        except MachineError as error:
            return f"**false alarm: {check_of(error)}**"
        if tuple(x[: len(program.x)]) != program.x:
            return "**wrong result**"
    return "passes"


def of_wrong(program) -> str:
    """The check that finds it, under every schedule; or that it is missed."""
    found = set()
    for seed in SCHEDULES:
        try:
            launch(program, program.body, seed, True, strict(program))
        except MachineError as error:
            found.add(f"`{check_of(error)}`")
        else:
            found.add("**missed**")
    return ", ".join(sorted(found))


def page() -> str:
    right = [[each.name, of_right(each)] for each in RIGHT]
    wrong = [[each.name, of_wrong(each), CHECKS[each.check].kind] for each in PLANTED]
    return "\n".join(
        [
            HEAD.format(count=len(SCHEDULES)),
            f"## Right\n\n{markdown(['program', 'the machine'], right, left=2)}\n",
            f"## Wrong\n\n{markdown(['program', 'found by', 'kind'], wrong, left=3)}\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
