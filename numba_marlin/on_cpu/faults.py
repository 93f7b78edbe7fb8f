"""What went wrong in a kernel, in words of the Python program: file, line, thread, array index."""

from __future__ import annotations

import linecache

from numba_marlin.emulator.errors import MachineError
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.text.program import Instruction


class KernelError(RuntimeError):
    """A kernel did something wrong. ``error`` is the machine's; ``file`` and ``line`` are of the
    Python source and ``thread`` is (x, y, z) in ``block``, None where that is unknown."""

    def __init__(self, message: str, error: MachineError, file, line, thread) -> None:
        super().__init__(message)
        self.error, self.file, self.line = error, file, line
        self.thread, self.block, self.kind = thread, error.block, error.kind


def fault(error: MachineError, kernel, block: tuple, called) -> KernelError:
    """The machine's ``error`` in a launch of ``kernel`` with ``block`` threads."""
    name = getattr(getattr(called, "function", None), "__name__", kernel.name)
    file, line = place(error, kernel)
    said = [f"{type(error).__name__} in kernel {name}"]
    if file is not None:
        source = linecache.getline(file, line).strip()
        said.append(f"  {file}, line {line}" + (f": {source}" if source else ""))
    thread = None
    if error.block is not None:
        said.append(f"  block {error.block}, {threads(error, block)}")
        if error.lanes:
            thread = position(error, error.lanes[0], block)
    said.append(f"  {error.detail}")
    if error.line is not None:
        said.append(f"  PTX line {error.line}: {error.text}")
    return KernelError("\n".join(said), error, file, line, thread)


def place(error: MachineError, kernel) -> tuple[str | None, int | None]:
    """(file, line) of the source of the instruction at the error's PTX line."""
    if error.line is None:
        return None, None
    try:
        instructions = kernel.kernel.instructions
    except MachineError:  # the text could not be read
        return None, None
    for ins in instructions:
        if ins.line == error.line and ins.source is not None:
            return source_of(ins, kernel)
    return None, None


def source_of(ins: Instruction, kernel) -> tuple[str | None, int | None]:
    number, line = ins.source
    return kernel.kernel.files.get(number), line


def threads(error: MachineError, block: tuple) -> str:
    """ "thread (3, 0, 0)", and how many others of its warp did the same."""
    lanes = error.lanes or ()
    if not lanes:
        return f"warp {error.warp}"
    first = f"thread {position(error, lanes[0], block)}"
    return first + (f" and {len(lanes) - 1} more of its warp" if len(lanes) > 1 else "")


def position(error: MachineError, lane: int, block: tuple) -> tuple[int, int, int]:
    """(x, y, z) of a lane in its block."""
    number = (error.warp or 0) * WARP + lane
    return number % block[0], number // block[0] % block[1], number // (block[0] * block[1])
