"""Where the ``ptx/`` files are.

In a checkout they stand at the top of the repository; setup.cfg installs the same directory as the
data package ``numba_marlin.isa.ptx``. (``numba_marlin.ptx`` is the module by which kernels call
them.)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def ptx_directory() -> Path:
    """The directory of the project's own instructions. FileNotFoundError if the installation lost
    it."""
    room = Path(__file__).resolve().parent
    candidates = (room / "ptx", room.parent.parent / "ptx")
    for candidate in candidates:
        if any(candidate.glob("*.ptx")):
            return candidate
    raise FileNotFoundError(
        f"no ptx/ directory with *.ptx files at {' or '.join(map(str, candidates))}"
    )
