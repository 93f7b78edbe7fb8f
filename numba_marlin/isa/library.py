"""Where the ``ptx/`` files are, and all of them loaded.

In a checkout they stand at the top of the repository; setup.cfg installs the same directory as the data package ``numba_marlin.ptx``.
"""
from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from numba_marlin.isa.instruction import Instruction, InstructionError, parse_instruction


@lru_cache(maxsize=None)
def ptx_directory() -> Path:
    """The directory of the project's own instructions. FileNotFoundError if the installation lost it."""
    package = Path(__file__).resolve().parent.parent
    candidates = (package / "ptx", package.parent / "ptx")
    for candidate in candidates:
        if any(candidate.glob("*.ptx")):
            return candidate
    raise FileNotFoundError(f"no ptx/ directory with *.ptx files at {' or '.join(map(str, candidates))}")


def load_instructions(directory=None) -> dict[str, Instruction]:
    """Name -> Instruction for every ``*.ptx`` of a directory (default: the project's own). InstructionError with file and line."""
    if directory is None:
        return dict(_own_instructions())
    return _load(Path(directory))


@lru_cache(maxsize=None)
def _own_instructions():
    return _load(ptx_directory())


def _load(directory):
    instructions = {}
    for path in sorted(directory.glob("*.ptx")):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = path.read_bytes()[:error.start].count(b"\n") + 1
            raise InstructionError(f"{path}:{line}: not UTF-8") from error
        instructions[path.stem] = parse_instruction(text, str(path), path.stem)
    return instructions
