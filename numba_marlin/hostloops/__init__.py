"""Compiled CPU loops that give the same bytes as the NumPy specifications in ``formats``, much
faster.

This is the only room on the host side that wants Numba, and importing it imports Numba. So import
it where a loop is called (``from numba_marlin.hostloops import pack_marlin``), not at the top of a
module. Where Numba cannot be imported, the names are those of the specifications, and the log
("numba_marlin", WARNING) says so once. It imports ``formats`` for its checks.
"""

try:
    import numba  # noqa: F401
except ImportError as error:
    import logging

    from numba_marlin.formats.marlin import pack as pack_marlin
    from numba_marlin.formats.marlin import pack_codes as pack_marlin_codes
    from numba_marlin.formats.marlin import unpack as unpack_marlin
    from numba_marlin.formats.marlin import unpack_codes as unpack_marlin_codes
    from numba_marlin.formats.streams import Plain as Compiled

    logging.getLogger("numba_marlin").warning(
        "large weights are packed and unpacked by NumPy, on one core, up to tens of times slower:"
        " Numba cannot be imported (%s); pip install 'numba-marlin[fast]'",
        error,
    )
else:
    from numba_marlin.hostloops.marlin import (
        pack_marlin,
        pack_marlin_codes,
        unpack_marlin,
        unpack_marlin_codes,
    )
    from numba_marlin.hostloops.streams import Compiled

__all__ = ["Compiled", "pack_marlin", "pack_marlin_codes", "unpack_marlin", "unpack_marlin_codes"]
