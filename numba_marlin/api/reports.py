"""``explain`` says what would run, ``last_run`` what did."""

from __future__ import annotations

import threading

from numba_marlin import heuristics
from numba_marlin.execution import driver
from numba_marlin.execution.plan import RunInfo
from numba_marlin.hardware import devices

thread = threading.local()  # last: the RunInfo of this thread's last product


def last_run() -> RunInfo | None:
    """What this thread's last successful ``matmul`` did: backend and why, kernel, configuration,
    grid, device."""
    return getattr(thread, "last", None)


def explain(
    m: int,
    n: int,
    k: int,
    group_size: int = 128,
    device: str | devices.Device | None = None,
    **types,
):
    """What would run for ``x [m, k] @ w [k, n]``, on which grid, and why; ``str()`` it, or take
    ``.to_dict()``.

    device: a name (``devices.names()``) or a Device; None: this machine's GPU, or an H200 by its
    data sheet. types: what is not the default of ``heuristics.Problem``: dtype="bfloat16", bits=8,
    zeros="integer" or "float16", scale_dtype, bias=True, batch_invariant=True, codes="e2m1"
    (block-scaled FP4: NVFP4 with group_size=16, MXFP4 with 32).
    """
    if device is None:
        probe = driver.probe()
        device = probe.devices[0] if probe.usable else "H200"
    return heuristics.explain(m, n, k, group_size, device, **types)
