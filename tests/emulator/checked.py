"""How ``right_programs`` and ``planted_errors`` are run: by ``test_checks``, and for the table of
docs/programs.md."""

import numpy as np

from numba_marlin.emulator import Machine, Race, Schedule
from numba_marlin.emulator.checks import CHECKS
from tests.emulator.ptx_cases import frame

SCHEDULES = (
    None,
    Schedule(1),
    Schedule(2, "slowest warp", "late"),
    Schedule(3, "one block ahead", "early"),
    Schedule(4, "reverse"),
    Schedule(5, "lanes apart"),
)


def strict(program):
    """At most what strict finds, and the check of the program whatever its kind."""
    wrong = CHECKS[program.check].kind == "wrong"
    return "strict" if wrong else f"strict,{program.check}=error"


def launch(program, body, seed, races, checks="strict"):
    x = np.zeros(256, np.uint32)
    machine = Machine(frame(body), races, checks=checks)
    address = machine.memory.buffer(x, "x").address
    result = machine.run(
        "k", program.blocks, program.threads, args=[address], seed=seed, max_instructions=200_000
    )
    return x, result


def check_of(error):
    return error.check or ("race" if isinstance(error, Race) else error.kind)
