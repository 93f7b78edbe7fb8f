"""Compiled loops on all cores: they run without the GIL on Python threads, one range of the work
each. Numba's own threads would not survive a fork: GNU OpenMP ends a child process that enters a
parallel loop after its parent did."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

_LEAST = 1 << 18  # codes that are worth a second thread


def compiled(loop, signature):
    """Compile ``loop``, with the disk cache if Numba finds a place for one."""
    import numba

    try:
        return numba.njit(signature, nogil=True, cache=True)(loop)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return numba.njit(signature, nogil=True)(loop)


def spread(loop, parts: int, codes: int) -> None:
    """Call ``loop(start, stop)`` for ranges that make up 0..parts, divided among threads; a small
    job (of few ``codes``) stays on the calling thread."""
    pieces = min(parts, 4 * _threads()) if codes >= _LEAST else 1
    cuts = [parts * each // pieces for each in range(pieces + 1)]
    if pieces == 1:
        loop(0, parts)
    else:
        list(_pool().map(loop, cuts, cuts[1:]))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), thread_name_prefix="numba-marlin-loops")


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of its threads
