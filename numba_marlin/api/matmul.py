"""``matmul``: activations times a packed weight. Arguments are checked here; ``execution`` runs the
product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numba_marlin.api.checks import (
    check_launch,
    check_no_gradient,
    check_same_place,
    place_name,
    refuse_torch_compile,
)
from numba_marlin.api.packing import check_packed
from numba_marlin.api.reports import thread
from numba_marlin.compiler import COMPILERS
from numba_marlin.execution import arrays, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.execution.binding import weight_operands
from numba_marlin.execution.product import Options, Outcome, Product, run
from numba_marlin.execution.reference import weight_product
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.residence import HOST, place_of_weight
from numba_marlin.problems import WeightProblem


def _check_x(x: object, p: PackedWeight | PackedBlocks) -> arrays.ArrayView:
    view = arrays.view("x", x)
    check_no_gradient("x", view)
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


def check_beside(
    name: str,
    array: object,
    x: arrays.ArrayView,
    shape: tuple[int, ...],
    meaning: str,
    dtype: str | None = None,
) -> arrays.ArrayView:
    """A view of an array, checked to have the type ``dtype`` (default: that of x), this shape, and
    to be on x's device."""
    view = arrays.view(name, array)
    check_no_gradient(name, view)
    dtype = dtype or x.type_name
    if view.type_name != dtype:
        raise TypeError(f"{name}.dtype={view.dtype} must be {dtype}, x's")
    if view.shape != shape:
        raise ValueError(f"{name}.shape={view.shape} must be {meaning}={shape}")
    check_same_place(name, view, x, "x")
    return view


def check_out(
    out: object,
    x: arrays.ArrayView,
    shape: tuple[int, int],
    bias: arrays.ArrayView | None,
    dtype: str | None = None,
) -> arrays.ArrayView:
    """A view of ``out``, checked to be written to. dtype: as in ``check_beside``."""
    view = check_beside("out", out, x, shape, "(m, n)", dtype)
    if view.readonly:
        raise ValueError("out is read-only, must be writable")
    if arrays.overlaps_itself(view):
        raise ValueError(
            f"out (strides {view.strides}) overlaps itself: every element needs memory of its own"
        )
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


def device_of(p: PackedWeight | PackedBlocks, x: arrays.ArrayView) -> int | None:
    """The ordinal of the GPU that holds x or p; None if both are on the host. ValueError if they
    are on two."""
    place = place_of_weight(p)
    if place == HOST:
        return x.device
    ordinal = int(place.partition(":")[2])
    if x.device not in (None, ordinal):
        raise ValueError(
            f"p is on {place}, must be where x is: p.to({place_name(x)!r}), or on the host"
        )
    return ordinal


def kept_arrays(p: PackedWeight | PackedBlocks, backend: str) -> dict[str, object]:
    """The weight's arrays by parameter: NumPy's, or views on the device that holds it."""
    if place_of_weight(p) == HOST or backend != "cuda":
        return {name: np.ascontiguousarray(a) for name, a in weight_operands(p.to(HOST)).items()}
    return views_on_device("p", weight_operands(p))


def views_on_device(owner: str, held: dict[str, object]) -> dict[str, arrays.ArrayView]:
    """Views of what a launch reads of a weight on a device. ValueError unless all of it is on one
    device, contiguous and aligned: kernels take addresses alone, and a bulk copy from another
    place or an odd address ends the process's context. owner: its name in messages."""
    views = {name: arrays.view(name, array) for name, array in held.items()}
    first = next(iter(views.values()))
    for name, view in views.items():
        if view.address % 16:
            raise ValueError(
                f"{name} of {owner} (address % 16 = {view.address % 16}) must be aligned"
            )
        if not view.contiguous:
            raise ValueError(f"{name} of {owner} (strides {view.strides}) must be contiguous")
        if view.device != first.device:
            raise ValueError(
                f"{name} of {owner} is on {place_name(view)}, must be on {place_name(first)}"
            )
    return views


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
    activations: str | None = None,
):
    """x [m, k] @ weight [k, n] (+ bias [n]) -> [m, n], of x's library, type and device.

    x: float16 or bfloat16 [m, k], m >= 1, of NumPy, CuPy, torch or Numba. If a kernel cannot read x
        in place (strides, alignment), x is copied first. Or a QuantizedActivations
        (``quantize_activations``): the product is multiplied in 8 bits (W4A8), and is of the type
        that was quantised.
    p: the weight [k, n] as ``pack`` returns it. A weight with a ``permutation`` (activation order)
        costs a permuted copy of x. A weight on the host is copied to the GPU by its first product
        there (``p.copies``); one that ``p.to("cuda:1")`` has put on a device is read where it is.
    backend: "cuda"; "emulator" executes the same compiled kernel on the CPU; "reference" is the
        float64 product, rounded once; "auto" is CUDA if there is a usable device, else the
        emulator. ``last_run()``, ``return_info`` and the log ("numba_marlin", INFO) report which
        one ran and why.
    out: array [m, n] to write to, of x's type and on x's device; it must not overlap x or bias. On
        a device it must be C-contiguous and 16-byte aligned.
    bias: array [n] of x's type and on x's device.
    kernel, config: name of a kernel and its configuration; default: the choice that ``explain``
        reports.
    stream: a raw handle or a stream object; default: the current stream of x's library. The call is
        asynchronous for device arrays; for host arrays it returns when the result is there.
    compiler: the front end that compiles the kernel, one of ``compiler.COMPILERS``.
    workspace: scratch memory for split-K and stream-K reductions; default: one that the package
        keeps per device and stream.
    batch_invariant: each row of x gives the same bits for every m and at every position in x, on
        one device and with one version of this package. ``explain(..., batch_invariant=True)``
        predicts the cost. With ``config``, that configuration must allow it, and the caller must
        pass the same one for every m.
    return_info: return (result, RunInfo).
    activations: "int8" or "fp8" (e4m3) quantises x first, with a scale per row, where x is: the
        same result as ``matmul(quantize_activations(x, "int8"), p)``. None: 16 bits.

    Raises TypeError or ValueError for arguments that break these rules, CapabilityMissing if the
    backend asked for, or the device that holds x, cannot run the product, and under torch.compile.
    A torch tensor that requires a gradient is a ValueError while torch records gradients. Errors of
    the result are bounded in ``reference.weights``.
    """
    plain = config is None and workspace is None
    choice = (backend, kernel, compiler, bias is None, batch_invariant)
    if activations is not None or isinstance(x, QuantizedActivations):
        from numba_marlin.api.activations import quantized_matmul

        check_launch(compiler, workspace, stream)
        options = Options(compiler, stream, workspace)
        result, thread.last = quantized_matmul(
            x, p, activations, backend, out, bias, kernel, config, batch_invariant, options
        )
        return (result, thread.last) if return_info else result
    if plain and not return_info:
        found = repeat.again(x, p, out, bias, choice, stream)
        if found is not None:
            result, thread.last = found
            return result
    refuse_torch_compile()
    check_packed(p)
    check_launch(compiler, workspace, stream)
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
    options = Options(compiler, stream, workspace)
    outcome = multiply(x_view, p, backend, out, bias, kernel, config, batch_invariant, options)
    if plain and outcome.prepared is not None:
        repeat.remember(x, x_view, p, choice, outcome.prepared)
    thread.last = info = outcome.info
    repeat.log_run(info)
    result = outcome.results["c"]
    return (result, info) if return_info else result


def multiply(
    x,
    p: PackedWeight | PackedBlocks,
    backend: str = "auto",
    out=None,
    bias=None,
    kernel: str | None = None,
    config=None,
    batch_invariant: bool = False,
    options: Options | None = None,
    whole_n: int | None = None,
) -> Outcome:
    """``matmul`` of a weight without a permutation, each time the long way -> Outcome, whose
    results are {"c": array of x's library}. x: an array, or a view of one that is checked.
    whole_n: for batch_invariant, columns of the weight that p is a part of: the bits are those of
    the whole's product."""
    if not isinstance(x, arrays.ArrayView):
        x = _check_x(x, p)
    ordinal = device_of(p, x)
    problem = WeightProblem.of(x.shape[0], p, x.type_name, bias is not None, batch_invariant)
    inputs = {"a": x}
    if bias is not None:
        inputs["bias"] = check_beside("bias", bias, x, (problem.n,), "(n,)")
    out_view = None
    if out is not None:
        out_view = check_out(out, x, (problem.m, problem.n), inputs.get("bias"))
    plan = planning.plan(problem, backend, kernel, config, ordinal, whole_n)
    product = Product(
        problem,
        inputs,
        lambda: {"c": _by_reference(inputs, p.to(HOST), batch_invariant)},
        {"a": "x"},
        weight=p,
        kept=kept_arrays(p, plan.backend),
        ordinal=ordinal or 0,
    )
    options = Options(COMPILERS[0]) if options is None else options
    on_device = plan.backend == "cuda" and not x.on_host
    if on_device and out_view is not None:
        options = replace(options, out={"c": out_view})
    outcome = run(product, plan, options)
    if out is not None and on_device:
        return replace(outcome, results={"c": out})
    if on_device:
        return outcome
    return replace(outcome, results={"c": hand_back(outcome.results["c"], x, out_view)})


def _by_reference(inputs: dict, p: PackedWeight | PackedBlocks, batch_invariant: bool):
    x, bias = (
        None if name not in inputs else arrays.to_host(inputs[name], exact=True)
        for name in ("a", "bias")
    )
    return weight_product(x, p, bias, batch_invariant)


def hand_back(
    y: np.ndarray, x: arrays.ArrayView, out: arrays.ArrayView | None, dtype: str | None = None
) -> object:
    """Return a host result as an array of x's library, or written to ``out``. dtype: of the result,
    default: that of x."""
    if out is None and x.kind == "numpy":
        return y
    result = arrays.empty_like(x, y.shape, dtype) if out is None else out.owner
    arrays.assign(arrays.view("out", result), y)
    return result
