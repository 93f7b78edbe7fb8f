"""Scratch memory (workspace) of kernels with a reduction between blocks (split-K, stream-K): fp32
partial sums, and int32 locks, which each launch finds and leaves zero.

``workspace(device, stream, partials_bytes, locks)`` returns the addresses of scratch memory that
belongs to that stream or, while the stream is being captured, to that part of the graph alone. It
grows and never shrinks; an outgrown buffer stays allocated, because a launch or a captured graph
may still point to it. ``release_workspaces`` frees everything. ``Workspace`` is memory that the
caller provides.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np

from numba_marlin.execution import arrays, driver


@dataclass(frozen=True, eq=False)
class Workspace:
    """Scratch memory that the caller provides to ``matmul`` or ``block_scaled_matmul``.

    partials: array of any dtype, for fp32 partial sums; locks: int32 array of zeros, which the
    kernel leaves zero. Both must be on the device that runs the kernel (NumPy arrays for the
    emulator), C-contiguous and 16-byte aligned; if they are too small, a ValueError names the
    size needed. Launches that may run at the same time must not share a Workspace. Without one, the
    package keeps its own per device and stream.
    """

    partials: object
    locks: object

    def __repr__(self) -> str:
        partials, locks = (getattr(each, "shape", "?") for each in (self.partials, self.locks))
        return f"<Workspace partials {partials}, locks {locks}>"


def check_workspace(partials_bytes: int, locks: int, *, needs_bytes: int, needs_locks: int) -> None:
    """ValueError if a workspace of ``partials_bytes`` bytes and ``locks`` int32 is too small for a
    kernel."""
    if partials_bytes < needs_bytes:
        raise ValueError(
            f"workspace partials have {partials_bytes} bytes, the kernel needs {needs_bytes}"
        )
    if locks < needs_locks:
        raise ValueError(
            f"workspace locks have {locks} entries, the kernel needs {needs_locks} int32"
        )


PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: the same handle is another stream in each host thread
_workspaces: dict[tuple, driver.DeviceArray] = {}
_registry_lock = threading.RLock()  # reentrant: freeing memory may run while it is held
_outgrown: list[driver.DeviceArray] = []


def _scratch(ordinal: int, stream: int, apart: object, role: str, nbytes: int) -> int:
    key = (ordinal, stream, apart, role)
    with _registry_lock:
        held = _workspaces.get(key)
        if held is None or held.nbytes < nbytes:
            # Doubling bounds what outgrown buffers can add up to.
            size = max(nbytes, 4096, 0 if held is None else 2 * held.nbytes)
            fresh = driver.DeviceArray((-(-size // 4),), "int32", ordinal).clear()
            if held is not None:
                _outgrown.append(held)
            _workspaces[key] = held = fresh
    return held.address


def workspace(ordinal: int, stream: int, partials_bytes: int, locks: int) -> tuple[int, int]:
    """(address of at least ``partials_bytes`` bytes, address of at least ``locks`` zeroed int32),
    which belong to the stream.

    Each graph capture has its own, because two graphs captured on one stream may be replayed at the
    same time.
    """
    with driver.on_device(ordinal):
        apart = driver.capture_id(stream)
    if stream == PER_THREAD_STREAM:
        apart = (threading.get_ident(), apart)
    return _scratch(ordinal, stream, apart, "partials", partials_bytes), _scratch(
        ordinal, stream, apart, "locks", 4 * locks
    )


_to_forget: list = []


def before_release(forget) -> None:
    """Register ``forget()``, called before scratch memory is freed, to drop stored addresses of
    it."""
    _to_forget.append(forget)


def release_workspaces() -> None:
    """Free all scratch memory. No launch may be in flight, and no captured graph may be replayed
    afterwards."""
    with _registry_lock:
        for forget in _to_forget:
            forget()
        _workspaces.clear()
        _outgrown.clear()


def workspace_views(
    workspace: Workspace, needs: tuple[int, int], ordinal: int | None
) -> tuple[arrays.ArrayView, arrays.ArrayView]:
    """Views of the caller's two arrays. ValueError if they are too small, not contiguous, aligned
    and writable, or not on device ``ordinal`` (None: the host)."""
    partials, locks = (
        arrays.view("workspace.partials", workspace.partials),
        arrays.view("workspace.locks", workspace.locks),
    )
    if locks.dtype != np.int32:
        raise TypeError(f"workspace.locks.dtype={locks.dtype} must be int32")
    for name, each in (("partials", partials), ("locks", locks)):
        if each.device != ordinal:
            where, wanted = (
                "the host" if device is None else f"cuda:{device}"
                for device in (each.device, ordinal)
            )
            raise ValueError(
                f"workspace.{name} is on {where}, must be where the kernel runs: {wanted}"
            )
        if not each.contiguous or each.address % 16 or each.readonly:
            raise ValueError(f"workspace.{name} must be writable, C-contiguous and 16-byte aligned")
    nbytes = math.prod(partials.shape) * np.dtype(partials.dtype).itemsize
    check_workspace(nbytes, math.prod(locks.shape), needs_bytes=needs[0], needs_locks=needs[1])
    if locks.on_host and locks.host.any():
        first = int(np.flatnonzero(locks.host)[0])
        raise ValueError(
            f"workspace.locks[{first}]={locks.host.ravel()[first]} must be 0: blocks would deadlock"
        )
    return partials, locks
