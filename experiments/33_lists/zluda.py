"""ZLUDA's tests of PTX, with its values: one kernel a file, one block, as its own runner launches
it (``run_cuda`` of mod.rs): pointers to what goes in and to what comes out, which is zero before,
and 1,024 bytes of dynamic shared memory. Those for addresses of 32 bits get memory that has them.
"""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import rust_values
from judging import CHECKS, MOST_INSTRUCTIONS, Case, Found, bound, compared

from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.global_memory import GlobalMemory

SHARED_BYTES = 1024
LOW = "addresses of 32 bits"
LOW_ADDRESS = 0x1000_0000  # of memory whose addresses have 32 bits


class LowMemory(GlobalMemory):
    """Gives addresses of 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self._next = LOW_ADDRESS


def versions(given) -> dict[str, str]:
    command = ["git", "-C", str(given.zluda), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return {"ZLUDA": done.stdout.strip() or "?"}


def cases(given) -> Iterator[Case]:
    """Every test, and every text that no test names. ``given.zluda``: a checkout."""
    folder = given.zluda / "ptx/src/test/spirv_run"
    tests = rust_values.tests((folder / "mod.rs").read_text(encoding="utf-8"))
    for test in tests:
        group = "without values" if test.wanted is None else "with values"
        yield case(group, folder / f"{test.name}.ptx", test)
    for test in tests:
        if test.in_32_bits:
            yield case(LOW, folder / "32" / f"{test.name}.ptx", test)
    named = {test.name for test in tests}
    for path in sorted(folder.glob("*.ptx")):
        if path.stem not in named:
            test = rust_values.Test(path.stem, None, None, 1, False)
            yield case("in no test", path, test)


def case(group: str, path: Path, test: rust_values.Test) -> Case:
    text = path.read_text(encoding="utf-8")
    return Case(group, test.name, partial(run, text, test, group == LOW))


def run(text: str, test: rust_values.Test, low: bool) -> Found:
    machine = Machine(text, races=True, checks=CHECKS, memory=LowMemory() if low else None)
    entry = test.name if test.name in machine.entries else machine.entries[0]
    if test.wanted is None:
        return bound(machine, entry)
    got = np.zeros_like(test.wanted)
    args = [machine.memory.buffer(got, "output").address] * 2
    if test.given is not None:
        args[0] = machine.memory.buffer(test.given.copy(), "input").address
    parameters = machine.kernel(entry).parameters
    result = machine.run(
        entry,
        block=test.threads,
        shared_bytes=SHARED_BYTES,
        args=args[: len(parameters)],
        max_instructions=MOST_INSTRUCTIONS,
    )
    return compared(got, test.wanted, result)
