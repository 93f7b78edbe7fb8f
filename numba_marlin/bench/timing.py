"""GPU time per launch in microseconds, without host overhead: a CUDA graph of many launches is
replayed between two events. Needs torch.

``GraphTimer`` captures one contender; ``interleave`` replays several in rounds, each round
beginning with another of them, so that clock drift affects all of them alike and none always
follows the same one. A graph holds only addresses: the timer keeps the launch alive, and the launch
must keep its buffers. A kernel that does not end within a deadline raises ``KernelStuck``; the
process then can only exit, without cleaning up.
"""

from __future__ import annotations

import atexit
import os
import time

from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver

# length of a graph: long beside the events around it, short beside the drift of clocks
TARGET_US = 3000.0
MOST_LAUNCHES = 400
DEADLINE_SECONDS = 60.0


class KernelStuck(RuntimeError):
    """A launch did not end within the deadline."""


def torch_on_gpu():
    """The torch module. CapabilityMissing, with what to install, unless it is there and can use a
    GPU that this package can use."""
    probe = driver.probe()
    if not probe.usable:
        raise CapabilityMissing(f"timing needs a GPU: {probe.reason}")
    try:
        import torch
    except ImportError as error:
        raise CapabilityMissing(
            "timing on a GPU needs torch, which makes the data and brings cuBLAS: pip install"
            f" torch ({error})"
        ) from error
    if not torch.cuda.is_available():
        raise CapabilityMissing(
            f"torch {torch.__version__} cannot use the GPU: install a build of torch for CUDA"
        )
    return torch


def eager_us(launch, launches: int = 3) -> float:
    """Microseconds a launch of ``launches`` in a row, after as many to load the code and grow
    workspaces; the host's share is in it."""
    _timed(lambda: [launch(index) for index in range(launches)], launches)
    return _timed(lambda: [launch(index) for index in range(launches)], launches)


def _timed(enqueue, launches: int, during=None) -> float:
    event = torch_on_gpu().cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    enqueue()
    end.record()
    if during is not None:
        during()
    wait(end)
    return start.elapsed_time(end) * 1e3 / launches


class GraphTimer:
    """Times one contender. ``launch(index)`` enqueues one launch on torch's current stream; the
    index selects a copy of its data, cyclically.

    ``launches``: number of launches in the graph: those that fit in ``target_us``, and at least
    ``least``, so that all copies of the data are used.
    """

    def __init__(self, launch, target_us: float = TARGET_US, least: int = 3):
        torch = torch_on_gpu()
        self._launch = launch  # keeps the buffers alive: the graph only has their addresses
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.launches = max(least, min(MOST_LAUNCHES, int(target_us / eager_us(launch))))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            for index in range(self.launches):
                launch(index)
        self.replay()

    def replay(self, during=None) -> float:
        """Microseconds per launch of one replay; ``during()`` is called while it runs."""
        return _timed(self._graph.replay, self.launches, during)


def wait(event, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for ``event``; KernelStuck after ``seconds``."""
    end = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > end:
            atexit.register(os._exit, 1)  # freeing memory would wait for the kernel
            raise KernelStuck(f"a kernel did not end within {seconds:g} s")
        time.sleep(2e-5)


def interleave(timers: dict, rounds: int, during=None) -> dict[object, list[float]]:
    """{name: microseconds per launch in each round}."""
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    names = list(timers)
    found: dict[object, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(timers[name].replay(during))
    return found
