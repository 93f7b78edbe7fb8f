"""Traces: recordings of one run on the PTX machine, and views of them. Views show only what was
recorded.

``record(machine, ...)`` runs a kernel and returns a Trace: plain arrays and a header that ``file``
saves and opens again. ``recorder`` listens to the machine. ``history`` has the values of registers
over time, ``traffic`` the origin of bytes, ``stages`` the pipeline, ``roles`` the roles of warps.
``pages`` makes a page (``views``) of a trace, one module per section; ``perfetto`` a file for
ui.perfetto.dev; ``compare`` a page of two traces. The room imports ``counts``, ``emulator``,
``formats``, ``layout``, ``devices``, ``sizes`` and ``views``.
"""

from numba_marlin.trace.file import open_trace, save
from numba_marlin.trace.record import Trace
from numba_marlin.trace.recording import record

__all__ = ["Trace", "open_trace", "record", "save"]
