"""Loads all files of a ``ptx/`` directory."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from numba_marlin.isa.directory import ptx_directory
from numba_marlin.isa.instruction import Instruction, InstructionError
from numba_marlin.isa.parsing import parse_instruction


def load_instructions(directory=None) -> dict[str, Instruction]:
    """Return {name: Instruction} for every ``*.ptx`` file of a directory; default: the project's
    own. Raises InstructionError, which names file and line, if a file breaks the format."""
    if directory is None:
        return dict(_own_instructions())
    return _load(Path(directory))


@cache
def _own_instructions():
    return _load(ptx_directory())


def _load(directory):
    instructions = {}
    for path in sorted(directory.glob("*.ptx")):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = path.read_bytes()[: error.start].count(b"\n") + 1
            raise InstructionError(f"{path}:{line}: the file is not valid UTF-8") from error
        instructions[path.stem] = parse_instruction(text, str(path), path.stem)
    return instructions
