"""Layers of experts (``testing.experts``), run on the PTX machine."""

import numpy as np

from numba_marlin import reference
from numba_marlin.testing import launches
from numba_marlin.testing.experts import Layer, prepare


def run(given: Layer, *, sms=3, seed=None, races=False, edit_ptx=None, a_stride=None, order=None):
    """-> c [rows, n]. order: of the pairs of each expert, if not that of tokens: a function of
    (pairs)."""
    pairs = None if order is None else order(given.routing.pairs)
    prepared = prepare(given, sms=sms, a_stride=a_stride, pairs=pairs)
    launches.on_machine(prepared, seed, edit_ptx, races)
    launches.check_locks(prepared.buffers)
    return prepared.buffers["c"]


def check(given: Layer, **options) -> np.ndarray:
    """Within its bounds -> c."""
    c = run(given, **options)
    report = reference.judged(c, given.bounds())
    assert report.ok, report
    return c
