"""``quantize_activations``: activations in 8 bits, the left operand of W4A8 products; and these
products, which ``matmul`` hands on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numba_marlin.api.checks import check_no_gradient, check_same_place, refuse_torch_compile
from numba_marlin.api.matmul import check_beside, check_out, device_of, hand_back, kept_arrays
from numba_marlin.api.packing import check_packed
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.execution.binding import activation_operands
from numba_marlin.execution.plan import RunInfo
from numba_marlin.execution.product import Options, Product, run
from numba_marlin.formats import PackedBlocks, PackedWeight
from numba_marlin.formats.activations import QuantizedActivations, check_depth, check_kind
from numba_marlin.formats.floats import HALF_TYPES, round_to
from numba_marlin.formats.residence import HOST

LABELS = {"a": "x.codes", "a_scales": "x.scales", "offsets": "x.offsets"}


def quantize_activations(
    x, kind: str = "int8", group_size: int | None = None, *, stream=None
) -> QuantizedActivations:
    """Quantise x [m, k] to 8 bits, with a scale per row (token): the x of ``matmul`` with 4-bit
    weights.

    x: float16 or bfloat16 [m, k] of any array library, k a multiple of 16.
    kind: "int8" (-127 to 127) or "fp8" (e4m3).
    group_size: numbers of k that share a scale, a multiple of 16 that divides k; None: all of a
        row.
    stream: as in ``matmul``, for x on a device.

    Returns a QuantizedActivations where x is: NumPy arrays on the host; on a device arrays of x's
    library, made by a kernel that nothing waits for. Raises TypeError or ValueError for wrong
    arguments. NaN and infinity are refused on the host; on a device their rows get scale NaN, so
    that their products are NaN. ``quantizers.activations`` specifies the arithmetic.
    """
    return _quantized(_checked("x", x), kind, group_size, stream)


def _checked(name: str, x: object) -> arrays.ArrayView:
    view = arrays.view(name, x)
    check_no_gradient(name, view)
    return view


def _quantized(
    view: arrays.ArrayView, kind: str, group_size: int | None, stream: object
) -> QuantizedActivations:
    if view.on_host:
        from numba_marlin.quantizers.activations import quantize_rows

        return quantize_rows(arrays.to_host(view, exact=True), kind, group_size)
    from numba_marlin.execution.quantizing import quantize_on_device

    check_kind(kind)
    if view.type_name not in HALF_TYPES:
        raise TypeError(f"x.dtype={view.dtype} must be one of {', '.join(HALF_TYPES)}")
    if len(view.shape) != 2 or view.shape[0] == 0:
        raise ValueError(f"x.shape={view.shape} must be (m, k) with m of at least 1")
    check_depth(view.shape[1], group_size)
    handle = arrays.stream_handle(stream, view.stream)
    return quantize_on_device(view, kind, group_size, handle)


def quantized_matmul(
    x,
    p: PackedWeight,
    activations: str | None,
    backend: str,
    out,
    bias,
    kernel: str | None,
    config,
    batch_invariant: bool,
    options: Options,
) -> tuple[object, RunInfo]:
    """``matmul`` of quantised activations, or of x that are to be quantised to ``activations``
    first -> (result, RunInfo). ValueError also for scales per group of x, unless
    backend="reference": no kernel takes them."""
    from numba_marlin.problems import ActivationsProblem

    refuse_torch_compile()
    check_packed(p)
    if isinstance(p, PackedBlocks):
        raise TypeError("p is a PackedBlocks, must have integer codes for activations in 8 bits")
    given = None
    if not isinstance(x, QuantizedActivations):
        given = _checked("x", x)
        if p.permutation is not None:
            x, p = arrays.take_columns("x", given, p.permutation), p.sorted_rows
        x = _quantized(arrays.view("x", x), check_kind(activations), None, options.stream)
    elif activations not in (None, x.kind):
        raise ValueError(f"activations={activations!r} must be {x.kind!r}, x's, or None")
    if p.permutation is not None:
        raise ValueError(
            "p has a permutation (activation order): quantise x in the order of its rows,"
            " nm.quantize_activations(x[:, p.permutation]), and multiply by p.sorted_rows; or pass"
            f" activations={x.kind!r} and x as it is"
        )
    x = replace(x)  # checked as by the constructor: one that was unpickled has not been
    if x.k != p.k:
        raise ValueError(f"x.shape={x.shape} must be (m, k) with k={p.k}, the weight's")
    if x.group_size is not None and backend != "reference":
        raise ValueError(
            f"group_size={x.group_size} of x must be None, a scale per row: no kernel takes scales"
            " per group yet (backend='reference' does)"
        )
    inputs = {name: arrays.view(LABELS[name], a) for name, a in activation_operands(x).items()}
    codes = inputs["a"]
    for name in inputs.keys() - {"a"}:
        check_same_place(LABELS[name], inputs[name], codes, LABELS["a"])
    problem = ActivationsProblem.of_quantized(x, p, bias is not None, batch_invariant)
    if bias is not None:
        inputs["bias"] = check_beside("bias", bias, codes, (problem.n,), "(n,)", x.dtype)
    out_view = None
    if out is not None:
        shape = (problem.m, problem.n)
        out_view = check_out(out, codes, shape, inputs.get("bias"), x.dtype)
    ordinal = device_of(p, codes)
    plan = planning.plan(problem, backend, kernel, config, ordinal)
    if plan.backend != "cuda" and not codes.on_host:
        error = CapabilityMissing if backend == "auto" else ValueError
        raise error(
            f"x.codes is on cuda:{codes.device}, must be on the host for"
            f" backend={plan.backend!r} ({plan.reason})"
        )
    kept = kept_arrays(p, plan.backend)
    product = Product(
        problem,
        inputs,
        lambda: {"c": _by_reference(x, p.to(HOST), inputs.get("bias"), batch_invariant)},
        LABELS,
        weight=p,
        kept=kept,
        ordinal=ordinal or 0,
    )
    on_device = not codes.on_host
    if on_device and out_view is not None:
        options = replace(options, out={"c": out_view})
    outcome = run(product, plan, options)
    repeat.log_run(outcome.info)
    result = outcome.results["c"]
    if on_device:
        return (result if out is None else out), outcome.info
    return hand_back(result, given or codes, out_view, x.dtype), outcome.info


def _by_reference(
    x: QuantizedActivations, p: PackedWeight, bias: arrays.ArrayView | None, batch_invariant: bool
):
    """batch_invariant: row by row, because NumPy's reduction order depends on m."""
    from numba_marlin.reference.activations import matmul

    of_bias = None if bias is None else arrays.to_host(bias, exact=True)
    parts = [x]
    if batch_invariant:
        parts = [x.rows(slice(row, row + 1)) for row in range(x.m)]
    exact = [matmul(part, p, of_bias) for part in parts]
    return round_to(np.concatenate(exact), x.dtype)
