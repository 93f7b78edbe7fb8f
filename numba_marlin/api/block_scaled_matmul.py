"""``block_scaled_matmul``: the product of two block-scaled matrices with a fused epilogue.
Arguments are checked here; ``execution`` runs the product.

    a = nm.quantize_blocks(x)       # x [m, k] -> BlockScaled, NVFP4
    b = nm.quantize_blocks(w.T)     # w [k, n]: B is [n, k]; or formats.operands.from_weight
    y = nm.block_scaled_matmul(a, b)                            # [m, n] float16
    h = nm.block_scaled_matmul(a, b, activation="silu", out_format="nvfp4", out_global_scale=0.01)
                                    # BlockScaled: the next product's operand
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numba_marlin.api.checks import (
    check_choice,
    check_launch,
    check_no_gradient,
    check_same_place,
    place_name,
    refuse_torch_compile,
)
from numba_marlin.api.reports import thread
from numba_marlin.compiler import COMPILERS
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, repeat
from numba_marlin.execution import plan as planning
from numba_marlin.execution.binding import Scaling, block_operands
from numba_marlin.execution.product import Options, Product, run
from numba_marlin.execution.reference import block_product
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats.floats import number
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled
from numba_marlin.problems import LARGEST_DIMENSION, BlockProblem
from numba_marlin.problems.operands import FLOAT_BYTES, K_STEP, N_STEP, column_step

LABELS = {"a": "a.data", "sfa": "a.scales", "b": "b.data", "sfb": "b.scales"}


def block_scaled_matmul(
    a: BlockScaled,
    b: BlockScaled,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c=None,
    bias=None,
    activation: str | None = None,
    out_format: str = "float16",
    out_global_scale: float = 1.0,
    out_rounding: str = "floor",
    backend: str = "auto",
    kernel: str | None = None,
    config=None,
    stream=None,
    compiler: str = COMPILERS[0],
    workspace: Workspace | None = None,
    return_info: bool = False,
):
    """D = activation(alpha * A @ B^T + beta * C + bias), [m, n], or [m, n/2] if gated.

    a, b: A [m, k] and B [n, k] as ``BlockScaled`` of one format (``quantize_blocks`` makes them).
        k must be a multiple of 32, n of 8. Their arrays are NumPy arrays, or all are on one
        device. On a device, scales must be in 128x4 order with zeros as padding. Rows have
        padding along k if k is not a multiple of 64 (NVFP4) or 128 (MXFP4, MXFP8: four blocks
        of 32); NaN in it becomes NaN in D.
    alpha, beta: real numbers, finite in float32, also after alpha is multiplied by both global
        scales.
    c: C [m, n] of float16, bfloat16 or float32, whatever out_format. Give c and a beta other than 0
        together; neither can be combined with a gate. (C of the result's own 16-bit type is read
        ahead, by way of shared memory; any other when it is added.)
    bias: float32 [n].
    activation: None, "relu", "gelu" (tanh form), "silu" or "gated_silu". For the gated form each 16
        columns of A @ B^T are eight of the gate followed by the eight that it multiplies;
        ``interleave_gated`` puts the rows of B in this order.
    out_format: "float16", "bfloat16" or "float32" gives an array of the same library and on the
        same device as a.data (NumPy on the host). "nvfp4", "mxfp4", "mxfp8-e4m3" or "mxfp8-e5m2"
        gives a ``BlockScaled`` with scales in 128x4 order, quantised in the epilogue by the rules
        of ``quantizers.operands``. n must then be a multiple of the format's block too (twice the
        block if gated); infinities saturate, and NaN stays NaN in the formats that have it.
    out_global_scale: the global scale of an NVFP4 result; 1 for every other format.
    out_rounding: rounding of the scales of an MX result, "floor" or "ceil".
    kernel, config: one of the kernels for two operands, and its configuration. Default: the choice
        of ``explain(..., format=a.format)``. Kernels made of another architecture's instructions
        (tensor memory, block-scaled mma) are taken by name only: on that architecture, and on the
        PTX machine.
    backend, stream, compiler, workspace, return_info: as in ``matmul``.

    Raises TypeError or ValueError for arguments that break these rules, CapabilityMissing as in
    ``matmul``. The formats' sources are named in ``formats.operands``.
    """
    operands = _operands(a, b)
    given = (*block_operands(a, b).values(), *(each for each in (c, bias) if each is not None))
    choice = (
        *(alpha, beta, activation, out_format, out_global_scale, out_rounding),
        *(backend, kernel, compiler, getattr(c, "dtype", None), bias is None),
        *((each.format, each.shape, each.global_scale, each.scale_order) for each in operands),
    )
    plain = config is None and workspace is None and stream is None
    if plain and not return_info:
        found = repeat.again_operands(b, given, choice)
        if found is not None:
            results, thread.last = found
            return _result(results, thread.last.problem, out_global_scale)

    refuse_torch_compile()
    m, n, k = _check_operands(a, b)
    readable = {"a": _readable("a", a), "b": _readable("b", b)}
    views = {
        name: arrays.view(LABELS[name], each) for name, each in block_operands(**readable).items()
    }
    _check_views(views)
    alpha, beta, out_global_scale = (
        number(*each)
        for each in (("alpha", alpha), ("beta", beta), ("out_global_scale", out_global_scale))
    )
    _check_epilogue(activation, out_format, n, out_global_scale, out_rounding)
    gated = activation == "gated_silu"
    extra = _epilogue_arrays(views["a"], m, n, c, beta, bias, gated)
    scaling = _scaling(a, b, alpha, beta, out_global_scale)
    check_launch(compiler, workspace, stream)
    problem = BlockProblem(
        *(m, n, k, a.format, out_format),
        source="c" in extra,
        bias="bias" in extra,
        activation=activation,
        rounding=out_rounding,
        c_dtype=extra["c"].type_name if "c" in extra else None,
    )
    plan = planning.plan(problem, backend, kernel, config, views["a"].device)
    if plan.backend != "cuda" and not views["a"].on_host:
        error = CapabilityMissing if backend == "auto" else ValueError
        raise error(
            f"a.data is on {place_name(views['a'])}, must be on the host for"
            f" backend={plan.backend!r} ({plan.reason})"
        )

    def reference() -> dict:
        host = {name: view.host for name, view in extra.items()}
        return block_product(
            *readable.values(),
            *(out_format, out_global_scale, out_rounding),
            **host,
            alpha=alpha,
            beta=beta,
            activation=activation,
        )

    product = Product(problem, views | extra, reference, LABELS, scaling=scaling)
    outcome = run(product, plan, Options(compiler, stream, workspace))
    if plain and outcome.prepared is not None:
        inputs = dict(zip((*views, *extra), given))
        repeat.remember_operands(b, inputs, choice, outcome.prepared, views["a"].device)
    thread.last = outcome.info
    repeat.log_run(outcome.info)
    result = _result(outcome.results, problem, out_global_scale)
    return (result, outcome.info) if return_info else result


def _result(results: dict, problem: BlockProblem, global_scale: float):
    """D: an array, or a BlockScaled."""
    if problem.result not in BLOCK_FORMATS:
        return results["d"]
    has_global_scale = BLOCK_FORMATS[problem.result].has_global_scale
    return BlockScaled(
        problem.result,
        (problem.m, problem.columns),
        results["d"],
        results["sfd"],
        float(np.float32(global_scale)) if has_global_scale else 1.0,
        "128x4",
    )


def _operands(a: object, b: object) -> tuple[BlockScaled, BlockScaled]:
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, BlockScaled):
            raise TypeError(
                f"{name} is a {type(operand).__name__}, must be a BlockScaled: nm.quantize_blocks"
                " makes one"
            )
    return a, b


def _check_operands(a: BlockScaled, b: BlockScaled) -> tuple[int, int, int]:
    """-> m, n, k"""
    if a.format != b.format:
        raise ValueError(f"b.format={b.format!r} must be {a.format!r}, a's")
    (m, k), (n, other) = a.shape, b.shape
    if k != other:
        raise ValueError(f"a.shape={a.shape} and b.shape={b.shape} must have the same k as columns")
    if k % K_STEP or n % N_STEP:
        raise ValueError(f"k={k} must be a multiple of {K_STEP} and n={n} of {N_STEP}")
    if max(m, n, k) > LARGEST_DIMENSION:
        raise ValueError(f"m={m}, n={n} and k={k} must fit in 32 bits")
    return m, n, k


def _readable(name: str, operand: BlockScaled) -> BlockScaled:
    """The operand as a kernel can read it: on a device as it is, on the host NumPy's, with scales
    in 128x4 order."""
    data, scales = (
        arrays.view(f"{name}.{part}", getattr(operand, part)) for part in ("data", "scales")
    )
    if data.on_host and scales.on_host:
        operand = replace(operand, data=arrays.to_host(data), scales=arrays.to_host(scales))
        # this fills the padding of the scales with zeros, which the kernel multiplies by
        return operand.with_scales("plain").with_scales("128x4")
    if operand.scale_order != "128x4":
        raise ValueError(
            f"{name}.scale_order={operand.scale_order!r} must be '128x4' on a device: use"
            " with_scales('128x4') before the arrays are moved there"
        )
    return operand


def _check_views(views: dict[str, arrays.ArrayView]) -> None:
    for name, view in views.items():
        check_same_place(LABELS[name], view, views["a"], "a.data")
        if view.itemsize != 1:
            raise TypeError(f"{LABELS[name]} has elements of {view.dtype}, must be of one byte")


def _scaling(
    a: BlockScaled, b: BlockScaled, alpha: float, beta: float, out_global_scale: float
) -> Scaling:
    from numba_marlin.quantizers.operands import inverse_of

    inverse = inverse_of(out_global_scale, "out_global_scale")
    scaling = Scaling(alpha * a.global_scale * b.global_scale, beta, inverse)
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.array([alpha, scaling.alpha, beta], np.float32)).all()
    if not finite:
        raise ValueError(
            f"alpha={alpha}, beta={beta}: with the global scales {a.global_scale} and"
            f" {b.global_scale} they must be finite in float32"
        )
    return scaling


def _check_epilogue(
    activation, out_format: str, n: int, out_global_scale: float, out_rounding: str
) -> None:
    from numba_marlin.quantizers.operands import check_rounding
    from numba_marlin.reference.operands import ACTIVATIONS

    check_choice("activation", activation, tuple(ACTIVATIONS))
    check_choice("out_format", out_format, (*FLOAT_BYTES, *BLOCK_FORMATS))
    if out_global_scale != 1 and out_format != "nvfp4":
        raise ValueError(
            f"out_global_scale={out_global_scale!r} must be 1: out_format={out_format!r} has none"
        )
    check_rounding("out_rounding", out_rounding)
    step = column_step(out_format, activation)
    if n % step:
        raise ValueError(
            f"n={n} must be a multiple of {step} for"
            f" out_format={out_format!r}{' and a gate' if activation == 'gated_silu' else ''}"
        )


def _epilogue_arrays(
    a: arrays.ArrayView, m: int, n: int, c, beta: float, bias, gated: bool
) -> dict[str, arrays.ArrayView]:
    if (c is None) != (beta == 0):
        raise ValueError(
            f"beta={beta} {'needs c' if c is None else 'leaves c out'}: give both or neither"
        )
    if c is not None and gated:
        raise ValueError(
            "c must be None with activation='gated_silu': the result has half as many columns"
        )
    found = {}
    for name, array, type_names, shape in (
        ("c", c, tuple(FLOAT_BYTES), (m, n)),
        ("bias", bias, ("float32",), (n,)),
    ):
        if array is None:
            continue
        view = arrays.view(name, array)
        check_no_gradient(name, view)
        if view.type_name not in type_names or view.shape != shape:
            raise ValueError(
                f"{name} is {view.type_name}{list(view.shape)}, must be"
                f" {' or '.join(type_names)}{list(shape)}"
            )
        check_same_place(name, view, a, "a.data")
        found[name] = view
    return found
