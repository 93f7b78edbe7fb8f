"""Compile what tests will want, by all cores at once, before the first of them runs: a worker of
pytest-xdist does it, the others wait."""

import concurrent.futures
import fcntl
import multiprocessing
import os
import tempfile
from pathlib import Path

from numba_marlin import compiler, heuristics


def _build(kernel, config, target):
    """In a process of its own: the result goes by the disk cache."""
    compiler.build(heuristics.find_kernel(kernel), config, target=target)


def warm_cache(wanted, target):
    """wanted: (kernel's name, configuration) each. One process a core, as compiling takes one."""
    with concurrent.futures.ProcessPoolExecutor(
        mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for future in [pool.submit(_build, *each, target) for each in dict.fromkeys(wanted)]:
            future.result()


def warm_cache_once(wanted, target):
    """``warm_cache``, by the worker of this test run that comes first."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return warm_cache(wanted, target)
    with open(Path(tempfile.gettempdir()) / f"numba_marlin_warm_{run}", "a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        if stamp.tell() == 0:
            warm_cache(wanted, target)
            stamp.write("done\n")
