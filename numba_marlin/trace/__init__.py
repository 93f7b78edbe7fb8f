"""What one run on the PTX machine did, recorded, and views of it: nothing is shown that was not in
the record.

``record(machine, ...)`` runs a kernel and returns a Trace: plain arrays and a header that ``file``
saves and opens again. ``recorder`` listens to the machine, ``history`` answers questions about
registers (what was in it when, what was made of it), ``traffic`` about bytes (who copied them from
where), ``stages`` about the pipeline, ``roles`` about who does what. ``pages`` makes a page
(``views``) of a trace, one module a section; ``perfetto`` a file for ui.perfetto.dev; ``compare`` a
page of two. The room imports ``counts``, ``emulator``, ``formats``, ``layout``, ``devices``,
``sizes`` and ``views``.
"""

from numba_marlin.trace.file import open_trace, save
from numba_marlin.trace.record import Trace
from numba_marlin.trace.recording import record

__all__ = ["Trace", "open_trace", "record", "save"]
