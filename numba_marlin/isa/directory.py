"""The location of the ``ptx/`` files.

In a checkout they are in ``ptx/`` at the top of the repository. setup.cfg installs the same
directory as the data package ``numba_marlin.isa.ptx``. (``numba_marlin.ptx`` is another thing: the
module through which kernels call the instructions.)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def ptx_directory() -> Path:
    """Return the directory of the project's own instructions. Raises FileNotFoundError if the
    installation lacks it."""
    room = Path(__file__).resolve().parent
    candidates = (room / "ptx", room.parent.parent / "ptx")
    for candidate in candidates:
        if any(candidate.glob("*.ptx")):
            return candidate
    raise FileNotFoundError(
        f"no ptx/ directory with *.ptx files at {' or '.join(map(str, candidates))}"
    )
