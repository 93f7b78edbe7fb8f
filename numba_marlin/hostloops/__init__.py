"""Compiled CPU loops that give the same bytes as the NumPy specifications in ``formats``, much
faster.

This is the only room on the host side that needs Numba, and importing it imports Numba. So import
it where a loop is called (``from numba_marlin.hostloops import pack_marlin``), not at the top of a
module. It imports ``formats`` for its checks.
"""

from numba_marlin.hostloops.marlin import (
    pack_marlin,
    pack_marlin_codes,
    unpack_marlin,
    unpack_marlin_codes,
)
from numba_marlin.hostloops.streams import Compiled

__all__ = ["Compiled", "pack_marlin", "pack_marlin_codes", "unpack_marlin", "unpack_marlin_codes"]
