"""``matmul``: activations times a packed weight, checked here and run by ``execution``."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from numba_marlin.api.packing import check_packed
from numba_marlin.api.reports import thread
from numba_marlin.compiler import COMPILERS
from numba_marlin.execution import arrays, driver, gpu, machine, reference, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.heuristics import Problem


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")


def _check_x(x: object, p: PackedWeight | PackedBlocks) -> arrays.ArrayView:
    view = arrays.view("x", x)
    if view.type_name not in HALF_TYPES:
        convert = "x.half()" if view.kind == "torch" else "x.astype(numpy.float16)"
        raise TypeError(
            f"x.dtype={view.dtype} must be float16 or bfloat16, in native byte order; convert with"
            f" {convert}"
        )
    if len(view.shape) != 2:
        raise ValueError(
            f"x.shape={view.shape} must have 2 dimensions (m, k); reshape with x.reshape(-1, {p.k})"
        )
    if view.shape[1] != p.k:
        raise ValueError(f"x.shape={view.shape} must be (m, k) with k={p.k}, the weight's")
    if getattr(p, "dtype", view.type_name) != view.type_name:
        raise ValueError(
            f"x.dtype={view.type_name} must be {p.dtype}, which p is packed for:"
            f" nm.pack(nm.unpack(p), dtype={view.type_name!r})"
        )
    if view.shape[0] == 0:
        raise ValueError(f"x.shape={view.shape} must have at least one row")
    return view


def _check_beside(
    name: str, array: object, x: arrays.ArrayView, shape: tuple[int, ...], meaning: str
) -> arrays.ArrayView:
    """An array of x's type and ``shape`` that is where x is."""
    view = arrays.view(name, array)
    if view.type_name != x.type_name:
        raise TypeError(f"{name}.dtype={view.dtype} must be {x.type_name}, x's")
    if view.shape != shape:
        raise ValueError(f"{name}.shape={view.shape} must be {meaning}={shape}")
    if view.device != x.device:
        places = ["the host" if each.on_host else f"cuda:{each.device}" for each in (view, x)]
        raise ValueError(f"{name} is on {places[0]}, must be where x is: {places[1]}")
    return view


def _check_out(
    out: object, x: arrays.ArrayView, shape: tuple[int, int], bias: arrays.ArrayView | None
) -> arrays.ArrayView:
    view = _check_beside("out", out, x, shape, "(m, n)")
    if view.readonly:
        raise ValueError("out is read-only, must be writable")
    if not view.on_host and (not view.contiguous or view.address % 16):
        raise ValueError(
            f"out (strides {view.strides}) on a device must be C-contiguous and 16-byte aligned"
        )
    if arrays.overlap(x, view):
        raise ValueError(
            "out overlaps x: every row of x is read after rows of out are written, so they must be"
            " separate"
        )
    if bias is not None and arrays.overlap(bias, view):
        raise ValueError(
            "out overlaps bias, which is read after some of out is written: they must be separate"
        )
    return view


def matmul(
    x,
    p: PackedWeight | PackedBlocks,
    backend: str = "auto",
    out=None,
    *,
    bias=None,
    kernel: str | None = None,
    config=None,
    stream=None,
    compiler: str = COMPILERS[0],
    workspace: Workspace | None = None,
    batch_invariant: bool = False,
    return_info: bool = False,
):
    """x [m, k] @ weight [k, n] (+ bias [n]) -> [m, n], of x's library and type (float16 or
    bfloat16) and on x's device.

    backend: "cuda"; "emulator" executes the same compiled kernel on the CPU; "reference" is the
    float64 product, rounded; "auto" takes CUDA if there is a usable device, else the emulator.
    ``last_run()``, ``return_info=True`` (-> result, RunInfo) and the log ("numba_marlin", INFO) say
    which it was. A weight with a ``permutation`` costs a permuted copy of x. x: NumPy, CuPy, torch
    or Numba; what a kernel cannot read where it lies is copied. out: [m, n] to write to, apart from
    x and bias. bias and out are of x's type and where x is. kernel, config: a rung of the ladder
    and its configuration; default: ``explain``'s choice. stream: a raw handle or a stream object;
    default: the current stream of x's library. Host arrays are waited for. batch_invariant: a row
    of x gives the same bits whatever m is and wherever in x it stands, on one device and with one
    version of this package; what that costs, ``explain(..., batch_invariant=True)`` predicts. With
    ``config``: that one must do so; the same for all m is the caller's to give.
    """
    plain = config is None and workspace is None
    choice = (backend, kernel, compiler, bias is None, batch_invariant)
    if plain and not return_info:
        found = repeat.again(x, p, out, bias, choice, stream)
        if found is not None:
            result, thread.last = found
            return result
    check_packed(p)
    _check_choice("compiler", compiler, COMPILERS)
    x_view = _check_x(x, p)
    if p.permutation is not None:
        return matmul(
            arrays.take_columns("x", x_view, p.permutation),
            p.sorted_rows,
            backend,
            out,
            bias=bias,
            kernel=kernel,
            config=config,
            stream=stream,
            compiler=compiler,
            workspace=workspace,
            batch_invariant=batch_invariant,
            return_info=return_info,
        )
    problem = Problem.of(x_view.shape[0], p, x_view.type_name, bias is not None, batch_invariant)
    shape = (problem.m, problem.n)
    bias_view = None if bias is None else _check_beside("bias", bias, x_view, (problem.n,), "(n,)")
    out_view = None if out is None else _check_out(out, x_view, shape, bias_view)
    if workspace is not None and not isinstance(workspace, Workspace):
        raise TypeError(
            f"workspace is a {type(workspace).__name__}, must be a numba_marlin.Workspace"
        )

    plan = planning.plan(problem, backend, kernel, config, x_view.device or 0)
    if plan.backend != "cuda":
        result, info = _matmul_host(
            x_view, out_view, p, problem, plan, compiler, workspace, bias_view
        )
    elif x_view.on_host:
        result, info = _matmul_from_host(
            x_view, out_view, p, problem, plan, compiler, stream, workspace, bias_view
        )
    else:
        result, info, prepared = _matmul_cuda(
            x_view, out_view, p, problem, plan, compiler, stream, workspace, bias_view
        )
        if plain and prepared is not None:
            repeat.remember(x, x_view, p, choice, prepared)
    thread.last = info
    repeat.log_run(info)
    result = out if out is not None else result
    return (result, info) if return_info else result


def _hand_back(y: np.ndarray, x: arrays.ArrayView, out: arrays.ArrayView | None) -> object:
    """A host result as an array of x's kind, or written to ``out``."""
    if out is None and x.kind == "numpy":
        return y
    result = arrays.empty_like(x, y.shape) if out is None else out.owner
    arrays.assign(arrays.view("out", result), y)
    return result


def _matmul_host(x, out, p, problem, plan, compiler, workspace, bias):
    host, added = (
        (
            None
            if each is None
            else arrays.contiguous(name, arrays.view(name, arrays.to_host(each, exact=True))).host
        )
        for name, each in (("x", x), ("bias", bias))
    )
    if plan.backend == "reference":
        y, info = reference.run_reference(host, p, problem, plan.reason, added)
    else:
        y, info = machine.run_emulator(host, p, problem, plan, compiler, workspace, added)
    return _hand_back(y, x, out), info


def _matmul_from_host(x, out, p, problem, plan, compiler, stream, workspace, bias):
    handle = arrays.stream_handle(stream, x.stream)
    plan.compile(compiler)
    start = time.perf_counter()

    def copied(view):
        return arrays.view("copy", driver.DeviceArray.from_host(view.host, 0))

    c = arrays.view("out", driver.DeviceArray((problem.m, problem.n), x.host.dtype, 0))
    b = None if bias is None else copied(bias)
    _, info = gpu.run_cuda(copied(x), c, p, problem, plan, compiler, 0, handle, workspace, b)
    driver.synchronize(0, handle)
    y = c.owner.to_host()
    return _hand_back(y, x, out), replace(info, seconds=time.perf_counter() - start)


def _matmul_cuda(x, out, p, problem, plan, compiler, stream, workspace, bias):
    """(result, RunInfo, what was prepared if it was for x where it lies)"""
    handle = arrays.stream_handle(stream, x.stream)
    strides = any(name == "a_stride" for name, _ in plan.definition.parameters)
    a = arrays.rows("x", x) if strides else arrays.contiguous("x", x)
    b = None if bias is None else arrays.contiguous("bias", bias)
    c = arrays.view("out", arrays.empty_like(x, (problem.m, problem.n))) if out is None else out
    # A library made copies and the result in the order of its own stream, and hands their memory on
    # in that order.
    crossed = {
        given.stream
        for given, made in ((x, a is not x or out is None), (bias, b is not bias))
        if made
    } - {handle}
    for stream in crossed:
        driver.follow(x.device, handle, stream)
    prepared, info = gpu.run_cuda(a, c, p, problem, plan, compiler, x.device, handle, workspace, b)
    for stream in crossed:
        driver.follow(x.device, stream, handle)
    return c.owner, info, prepared if a is x else None
