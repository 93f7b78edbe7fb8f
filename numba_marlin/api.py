"""The public functions: quantize, pack, unpack, dequantize, matmul, explain. ``numba_marlin`` exports them.

Bad input is a TypeError (wrong kind of thing) or a ValueError (wrong value) that names the value and the rule, raised before
anything is written; ``CapabilityMissing`` says that this machine lacks what was asked for by name.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import numpy as np

from numba_marlin import backends, devices, driver, heuristics
from numba_marlin.backends import RunInfo, Workspace
from numba_marlin.compiler import COMPILERS
from numba_marlin.formats import PackedWeight, QuantizedWeight, find_format
from numba_marlin.heuristics import Problem
from numba_marlin.interop import arrays
from numba_marlin.quantize import dequantize
from numba_marlin.quantize import quantize as _round_to_nearest

log = logging.getLogger("numba_marlin")
_METHODS = {"rtn": _round_to_nearest}
_thread = threading.local()


def quantize(
    w, bits: int = 4, group_size: int = 128, symmetric: bool = True, method: str = "rtn"
) -> QuantizedWeight:
    """w [k, n], float, finite -> codes and scales on a grid. ``group_size`` rows of a column share a scale (-1: all of them).

    method "rtn": round to nearest (``numba_marlin.quantize.rtn`` has the rule and its edge cases).
    """
    if method not in _METHODS:
        raise ValueError(f"method={method!r} must be one of {sorted(_METHODS)}")
    host = w if isinstance(w, np.ndarray) or not _is_array(w) else arrays.to_host(arrays.view("w", w))
    return _METHODS[method](host, bits=bits, group_size=group_size, symmetric=symmetric)


def _is_array(value: object) -> bool:
    return any(hasattr(value, name) for name in ("__cuda_array_interface__", "__dlpack__", "__array__"))


# Weights from which on the compiled loops pay for loading Numba and, once, compiling them (seconds).
_MANY_WEIGHTS = 1 << 24


def pack(q: QuantizedWeight, layout: str = "marlin") -> PackedWeight:
    """A quantised weight -> the bytes that a kernel reads. ``unpack`` gives the same weight back exactly."""
    form = find_format(layout)
    if layout == "marlin" and isinstance(q, QuantizedWeight) and q.codes.size >= _MANY_WEIGHTS:
        from numba_marlin.hostloops import pack_marlin

        return pack_marlin(q)
    return form.pack(q)


def unpack(p: PackedWeight) -> QuantizedWeight:
    """The inverse of ``pack``."""
    _check_packed(p)
    if p.layout == "marlin" and p.k * p.n >= _MANY_WEIGHTS:
        from numba_marlin.hostloops import unpack_marlin

        return unpack_marlin(p)
    return find_format(p.layout).unpack(p)


def last_run() -> RunInfo | None:
    """What this thread's last successful ``matmul`` did: backend and why, kernel, configuration, grid, device."""
    return getattr(_thread, "last", None)


def _check_packed(p: object) -> None:
    if isinstance(p, QuantizedWeight):
        raise TypeError("p is a QuantizedWeight, must be a PackedWeight: pass nm.pack(q)")
    if not isinstance(p, PackedWeight):
        raise TypeError(f"p is a {type(p).__name__}, must be a PackedWeight (nm.pack(nm.quantize(w)))")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")


def _check_x(x: object, p: PackedWeight) -> arrays.ArrayView:
    view = arrays.view("x", x)
    if view.dtype != np.float16:
        convert = "x.half()" if view.kind == "torch" else "x.astype(numpy.float16)"
        raise TypeError(f"x.dtype={view.dtype} must be float16 in native byte order; convert with {convert}")
    if len(view.shape) != 2:
        raise ValueError(f"x.shape={view.shape} must have 2 dimensions (m, k); reshape with x.reshape(-1, {p.k})")
    if view.shape[1] != p.k:
        raise ValueError(f"x.shape={view.shape} must be (m, k) with k={p.k}, the weight's")
    if view.shape[0] == 0:
        raise ValueError(f"x.shape={view.shape} must have at least one row")
    return view


def _check_out(out: object, x: arrays.ArrayView, shape: tuple[int, int]) -> arrays.ArrayView:
    view = arrays.view("out", out)
    if view.dtype != np.float16:
        raise TypeError(f"out.dtype={view.dtype} must be float16")
    if view.shape != shape:
        raise ValueError(f"out.shape={view.shape} must be (m, n)={shape}")
    if view.device != x.device:
        places = ["the host" if each.on_host else f"cuda:{each.device}" for each in (view, x)]
        raise ValueError(f"out is on {places[0]}, must be where x is: {places[1]}")
    if view.readonly:
        raise ValueError("out is read-only, must be writable")
    if not view.on_host and (not view.contiguous or view.address % 16):
        raise ValueError(f"out (strides {view.strides}) on a device must be C-contiguous and 16-byte aligned")
    if arrays.overlap(x, view):
        raise ValueError("out overlaps x: every row of x is read after rows of out are written, so they must be separate")
    return view


def matmul(
    x, p: PackedWeight, backend: str = "auto", out=None, *, kernel: str | None = None, config=None, stream=None,
    compiler: str = COMPILERS[0], workspace: Workspace | None = None, return_info: bool = False,
):
    """x fp16 [m, k] @ weight [k, n] -> fp16 [m, n], of x's library and on x's device.

    backend: "cuda"; "emulator" executes the same compiled kernel on the CPU; "reference" is the float64 product, rounded;
    "auto" takes CUDA if there is a usable device, else the emulator. ``last_run()``, ``return_info=True`` (-> result, RunInfo)
    and the log ("numba_marlin", INFO) say which it was.
    x: NumPy, CuPy, torch or Numba; strided or misaligned x is copied. out: fp16 [m, n] to write to, apart from x.
    kernel, config: a rung of the ladder and its configuration; default: ``explain``'s choice.
    stream: a raw handle or a stream object; default: the current stream of x's library. Host arrays are waited for.
    """
    _check_packed(p)
    _check_choice("compiler", compiler, COMPILERS)
    x_view = _check_x(x, p)
    problem = Problem(x_view.shape[0], p.n, p.k, p.group_size)
    shape = (problem.m, problem.n)
    out_view = None if out is None else _check_out(out, x_view, shape)
    if workspace is not None and not isinstance(workspace, Workspace):
        raise TypeError(f"workspace is a {type(workspace).__name__}, must be a numba_marlin.Workspace")

    plan = backends.plan(problem, backend, kernel, config, x_view.device or 0)
    run = _matmul_cuda if plan.backend == "cuda" else _matmul_host
    result, info = run(x_view, out_view, p, problem, plan, compiler, stream, workspace)
    _thread.last = info
    log.info("matmul m=%d n=%d k=%d ran on %s (%s)", problem.m, problem.n, problem.k, info.device, info.reason)
    result = out if out is not None else result
    return (result, info) if return_info else result


def _hand_back(y: np.ndarray, x: arrays.ArrayView, out: arrays.ArrayView | None) -> object:
    """A host result as an array of x's kind, or written to ``out``."""
    if out is None and x.kind == "numpy":
        return y
    result = arrays.empty_like(x, y.shape) if out is None else out.owner
    arrays.assign(arrays.view("out", result), y)
    return result


def _matmul_host(x, out, p, problem, plan, compiler, stream, workspace):
    host = arrays.contiguous("x", arrays.view("x", arrays.to_host(x))).host
    if plan.backend == "reference":
        y, info = backends.run_reference(host, p, problem, plan.reason)
    else:
        y, info = backends.run_emulator(host, p, problem, plan, compiler, workspace)
    return _hand_back(y, x, out), info


def _matmul_cuda(x, out, p, problem, plan, compiler, stream, workspace):
    ordinal = x.device or 0
    handle = arrays.stream_handle(stream, x.stream)
    if x.on_host:
        plan.compile(compiler)
        start = time.perf_counter()
        a = arrays.view("x", driver.DeviceArray.from_host(x.host, ordinal))
        c = arrays.view("out", driver.DeviceArray((problem.m, problem.n), np.float16, ordinal))
        info = backends.run_cuda(a, c, p, problem, plan, compiler, ordinal, handle, workspace)
        driver.synchronize(ordinal, handle)
        y = c.owner.to_host()
        return _hand_back(y, x, out), replace(info, seconds=time.perf_counter() - start)
    a = arrays.contiguous("x", x)
    c = arrays.view("out", arrays.empty_like(x, (problem.m, problem.n))) if out is None else out
    # x's library made the copy and the result in the order of its own stream, and hands their memory on in that order.
    crossing = handle != x.stream and (a is not x or out is None)
    if crossing:
        driver.follow(ordinal, handle, x.stream)
    info = backends.run_cuda(a, c, p, problem, plan, compiler, ordinal, handle, workspace)
    if crossing:
        driver.follow(ordinal, x.stream, handle)
    return c.owner, info


def explain(m: int, n: int, k: int, group_size: int = 128, device: str | devices.Device | None = None):
    """What would run for ``x [m, k] @ w [k, n]``, on which grid, and why; ``str()`` it, or take ``.to_dict()``.

    device: a name (``devices.names()``) or a Device; None: this machine's GPU, or an H200 by its data sheet.
    """
    if device is None:
        probe = driver.probe()
        device = probe.devices[0] if probe.usable else "H200"
    return heuristics.explain(m, n, k, group_size, device)
