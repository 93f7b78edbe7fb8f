"""Compiled CPU loops that give the same bytes as the NumPy specifications in ``formats``, much
faster.

The only room on the host side that needs Numba, and it imports it when it is imported: ``from
numba_marlin.hostloops import pack_marlin`` where the loop is wanted, not at the top of a module. It
imports ``formats`` for its checks.
"""

from numba_marlin.hostloops.marlin import (
    pack_marlin,
    pack_marlin_codes,
    unpack_marlin,
    unpack_marlin_codes,
)
from numba_marlin.hostloops.streams import Compiled

__all__ = ["Compiled", "pack_marlin", "pack_marlin_codes", "unpack_marlin", "unpack_marlin_codes"]
