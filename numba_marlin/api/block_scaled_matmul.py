"""Products of block-scaled matrices, both operands: what a user calls. ``numba_marlin`` exports
``block_scaled_matmul`` and ``interleave_gated``.

    a = nm.quantize_blocks(x)                                   # x [m, k] -> BlockScaled, NVFP4
    b = nm.quantize_blocks(w.T)                                 # w [k, n]: B is [n, k]; or from a
        file: formats.block_scaled.from_weight
    y = nm.block_scaled_matmul(a, b)                            # [m, n] float16
    h = nm.block_scaled_matmul(a, b, activation="silu", out_format="nvfp4", out_global_scale=0.01)
        # BlockScaled: the next product's operand

Bad input is a TypeError or a ValueError that names the value and the rule, raised before anything
is written.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver, launch, scratch
from numba_marlin.execution.plan import BACKENDS
from numba_marlin.formats.floats import float_type, number, round_to
from numba_marlin.formats.operands import BLOCK_FORMATS, BlockScaled
from numba_marlin.hardware import devices
from numba_marlin.hardware.limits import GRID_BLOCKS
from numba_marlin.heuristics import rank
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled import KERNEL
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.kernels.nvfp4.block_scaled.kernel import OPERAND_POWER
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import LARGEST_DIMENSION, BlockProblem
from numba_marlin.problems.operands import K_STEP, N_STEP, column_step

FLOAT_RESULTS = ("float16", "bfloat16", "float32")


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
    config: BlockScaledConfig | BlockDecodeConfig | None = None,
    stream=None,
    compiler: str = compiler_room.COMPILERS[0],
):
    """activation(alpha * A @ B^T + beta * C + bias) of NVFP4 matrices a [m, k] and b [n, k] -> D
    [m, n], or [m, n/2] if gated.

    out_format: "float16", "bfloat16" or "float32": an array where a.data is, on a device of its
    library, on the host of NumPy; or "nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2": a BlockScaled,
    its scales in 128x4 order, computed by the kernel (``quantize.block_scaled`` has the rules;
    NVFP4 with ``out_global_scale``, MX with ``out_rounding``). c [m, n], only with out_format
    float16 or bfloat16, and of that type. bias [n], float32. activation: "relu", "gelu" (tanh
    form), "silu", or "gated_silu": of every 16 columns eight of the gate and the eight they open
    (``interleave_gated`` puts rows of B so). k a multiple of 32, n of 8; of a block-scaled result,
    of its block as well, twice that if gated. c without a gate. Of a block-scaled result,
    infinities are cut off, and NaN is NaN in the formats that have it.

    Arrays are NumPy's, or all on one device, with scales in 128x4 order there, zeros where they
    complete a tile (NaN there is NaN in the result, if k is no multiple of 64). backend, stream,
    compiler: as ``matmul`` has them; config: default ``heuristics.rank``'s choice, which
    has a kernel of its own for up to 64 rows where D is an array and no gate is asked for.
    """
    m, n, k = _check_operands(a, b)
    (a, views), (b, more) = _readable("a", a), _readable("b", b)
    views |= more
    _check_views(views)
    gated = activation == "gated_silu"
    alpha, beta, out_global_scale = (
        number(*each)
        for each in (("alpha", alpha), ("beta", beta), ("out_global_scale", out_global_scale))
    )
    _check_epilogue(activation, out_format, n, out_global_scale, out_rounding)
    extra = _epilogue_arrays(views["a"], m, n, out_format, c, beta, bias, gated)
    factors = _factors(a, b, alpha, beta, out_global_scale)
    epilogue = {
        "result": out_format,
        "source": "c" in extra,
        "bias": "bias" in extra,
        "activation": activation,
    }
    # of nothing else: the same kernel then
    epilogue["rounding"] = out_rounding if _has_powers(out_format) else "floor"
    _check_config(config, epilogue, m)
    if compiler not in compiler_room.COMPILERS:
        raise ValueError(
            f"compiler={compiler!r} must be one of {', '.join(compiler_room.COMPILERS)}"
        )
    where = _place(backend, views["a"])
    if where == "reference":
        from numba_marlin.reference.operands import block_scaled_bounds

        value, _ = block_scaled_bounds(
            a,
            b,
            alpha=alpha,
            beta=beta,
            **{name: view.host for name, view in extra.items()},
            activation=activation,
        )
        return _rounded(value, out_format, out_global_scale, out_rounding)
    device = driver.describe(views["a"].device or 0) if where == "cuda" else devices.MODEL
    if config is None:
        config = rank(BlockProblem(m, n, k, **epilogue), device)[0].config
    if where == "emulator":
        results = _run_machine(views | extra, factors, config, (m, n, k), device, compiler)
    else:
        given = (a.data, a.scales, b.data, b.scales, c, bias)
        made = {
            view.stream
            for view in (views | extra).values()
            if not any(view.owner is each for each in given)
        } | {views["a"].stream}
        results = _run_cuda(
            views | extra, factors, config, (m, n, k), device, stream, compiler, made
        )
    if config.result not in BLOCK_FORMATS:
        return results["d"]
    return BlockScaled(
        out_format,
        (m, n // 2 if gated else n),
        results["d"],
        results["sfd"],
        float(np.float32(out_global_scale)) if out_format == "nvfp4" else 1.0,
        "128x4",
    )


# ---- checks


def _check_operands(a, b) -> tuple[int, int, int]:
    """-> m, n, k"""
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, BlockScaled):
            raise TypeError(
                f"{name} is a {type(operand).__name__}, must be a BlockScaled: nm.quantize_blocks"
                " makes one"
            )
        if operand.format != "nvfp4":
            raise ValueError(
                f"{name}.format={operand.format!r} must be 'nvfp4': no other is multiplied"
            )
    (m, k), (n, other) = a.shape, b.shape
    if k != other:
        raise ValueError(f"a.shape={a.shape} and b.shape={b.shape} must have the same k as columns")
    if k % K_STEP or n % N_STEP:
        raise ValueError(f"k={k} must be a multiple of {K_STEP} and n={n} of {N_STEP}")
    if max(m, n, k) > LARGEST_DIMENSION:
        raise ValueError(f"m={m}, n={n} and k={k} must fit in 32 bits")
    return m, n, k


def _readable(name: str, operand: BlockScaled) -> tuple[BlockScaled, dict[str, arrays.ArrayView]]:
    """The operand, and its arrays, as a kernel can read them: on a device as they are, on the host
    NumPy's, with scales in 128x4 order."""
    data, scales = (
        arrays.view(f"{name}.{part}", getattr(operand, part)) for part in ("data", "scales")
    )
    if data.on_host and scales.on_host:
        operand = replace(operand, data=arrays.to_host(data), scales=arrays.to_host(scales))
        # whatever completed its tiles is zeros then: the kernel multiplies by it
        operand = operand.with_scales("plain").with_scales("128x4")
        data, scales = arrays.view("data", operand.data), arrays.view("scales", operand.scales)
    elif operand.scale_order != "128x4":
        raise ValueError(
            f"{name}.scale_order={operand.scale_order!r} must be '128x4' on a device: use"
            " with_scales('128x4') before the arrays are moved there"
        )
    return operand, {
        name: arrays.contiguous(f"{name}.data", data),
        f"sf{name}": arrays.contiguous(f"{name}.scales", scales),
    }


def _check_views(views: dict[str, arrays.ArrayView]) -> None:
    for name, view in views.items():
        _same_place(name, view, views["a"])
        if view.itemsize != 1:
            raise TypeError(f"{name} has elements of {view.dtype}, must be of one byte")


def _same_place(name: str, view: arrays.ArrayView, a: arrays.ArrayView) -> None:
    if view.device != a.device:
        raise ValueError(
            f"{name} is on {_place_name(view)}, must be where a.data is: {_place_name(a)}"
        )


def _place_name(view: arrays.ArrayView) -> str:
    return "the host" if view.on_host else f"cuda:{view.device}"


def _check_epilogue(
    activation, out_format: str, n: int, out_global_scale: float, out_rounding: str
) -> None:
    from numba_marlin.quantizers.operands import check_rounding
    from numba_marlin.reference.operands import ACTIVATIONS

    if activation not in tuple(ACTIVATIONS):
        raise ValueError(
            f"activation={activation!r} must be one of {', '.join(map(str, ACTIVATIONS))}"
        )
    if out_format not in (*FLOAT_RESULTS, *BLOCK_FORMATS):
        raise ValueError(
            f"out_format={out_format!r} must be one of"
            f" {', '.join((*FLOAT_RESULTS, *BLOCK_FORMATS))}"
        )
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


def _factors(
    a: BlockScaled, b: BlockScaled, alpha: float, beta: float, out_global_scale: float
) -> np.ndarray:
    """The kernel's four numbers (``kernels.block_scaled_epilogue``)."""
    from numba_marlin.quantizers.operands import inverse_of

    inverse = inverse_of(out_global_scale, "out_global_scale")
    with np.errstate(over="ignore"):
        factors = np.array(
            [
                alpha * a.global_scale * b.global_scale * 2.0**OPERAND_POWER,
                beta,
                inverse,
                inverse / np.float32(6),
            ],
            np.float32,
        )
    if not np.isfinite(factors).all():
        raise ValueError(
            f"alpha={alpha}, beta={beta}: with the global scales {a.global_scale} and"
            f" {b.global_scale} they must be finite in float32"
        )
    return factors


def _has_powers(out_format: str) -> bool:
    return out_format in BLOCK_FORMATS and BLOCK_FORMATS[out_format].scale_grid == "e8m0"


def _check_config(config, epilogue: dict[str, object], m: int) -> None:
    if config is None:
        return
    if not isinstance(config, (BlockScaledConfig, BlockDecodeConfig)):
        raise TypeError(
            f"config is a {type(config).__name__}, must be a BlockScaledConfig or a"
            " BlockDecodeConfig (numba_marlin.kernels.block_scaled_config, block_decode_config)"
        )
    if isinstance(config, BlockDecodeConfig) and (
        epilogue["result"] in BLOCK_FORMATS or epilogue["activation"] == "gated_silu"
    ):
        raise ValueError(
            f"config={config} has no block-scaled results and no gate: leave it out, or give a"
            " BlockScaledConfig"
        )
    if isinstance(config, BlockDecodeConfig) and config.grid(m, 1)[1] > GRID_BLOCKS[1]:
        raise ValueError(
            f"m={m} with tokens={config.tokens} of config are more than {GRID_BLOCKS[1]} rows"
            " of blocks: leave config out, or give a BlockScaledConfig"
        )
    wanted = {name: value for name, value in epilogue.items() if hasattr(config, name)}
    if {name: getattr(config, name) for name in wanted} != wanted:
        raise ValueError(
            f"config={config} must have"
            f" {', '.join(f'{name}={value!r}' for name, value in wanted.items())}: what was"
            " asked for"
        )


def _epilogue_arrays(
    a: arrays.ArrayView, m: int, n: int, out_format: str, c, beta: float, bias, gated: bool
) -> dict[str, arrays.ArrayView]:
    if (c is None) != (beta == 0):
        raise ValueError(
            f"beta={beta} {'needs c' if c is None else 'leaves c out'}: give both or neither"
        )
    if c is not None and gated:
        raise ValueError(
            "c must be None with activation='gated_silu': the result has half as many columns"
        )
    if c is not None and out_format not in ("float16", "bfloat16"):
        raise ValueError(
            f"c must be None with out_format={out_format!r}: it is added to results of float16 or"
            " bfloat16 only"
        )
    found = {}
    for name, array, type_name, shape in (
        ("c", c, out_format, (m, n)),
        ("bias", bias, "float32", (n,)),
    ):
        if array is None:
            continue
        view = arrays.view(name, array)
        if view.type_name != type_name or view.shape != shape:
            raise ValueError(
                f"{name} is {view.type_name}{list(view.shape)}, must be {type_name}{list(shape)}"
            )
        _same_place(name, view, a)
        found[name] = arrays.contiguous(name, view)
    return found


def _place(backend: str, a: arrays.ArrayView) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if backend in ("auto", "cuda"):
        reason = _unusable(a.device or 0)
        if reason and (backend == "cuda" or not a.on_host):
            raise CapabilityMissing(f"backend={backend!r}: {reason}")
        backend = "emulator" if reason else "cuda"
    if backend != "cuda" and not a.on_host:
        raise ValueError(
            f"a.data is on {_place_name(a)}, must be on the host for backend={backend!r}"
        )
    return backend


def _unusable(ordinal: int) -> str:
    """Why the kernel cannot run on a device; empty if it can."""
    probe = driver.probe()
    if not probe.usable:
        return probe.reason
    device = driver.describe(ordinal)
    return (
        ""
        if device.runs(KERNEL.min_arch)
        else f"{device.name} is {device.arch}, the kernel needs {KERNEL.min_arch}"
    )


# ---- runs


def _rounded(value: np.ndarray, out_format: str, global_scale: float, rounding: str):
    if out_format in BLOCK_FORMATS:
        from numba_marlin.quantizers.operands import round_blocks

        return round_blocks(value, BLOCK_FORMATS[out_format], global_scale, rounding).with_scales(
            "128x4"
        )
    return round_to(value, out_format)


def _result_shapes(
    config: BlockScaledConfig | BlockDecodeConfig, m: int, n: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """{array: (shape, type)}"""
    columns = n // 2 if config.gated else n
    if config.result not in BLOCK_FORMATS:
        return {"d": ((m, columns), config.result)}
    form = BLOCK_FORMATS[config.result]
    return {
        "d": (form.data_shape(m, columns), "uint8"),
        "sfd": (form.scales_shape(m, columns, "128x4"), "uint8"),
    }


@functools.lru_cache(maxsize=256)
def _compiled(config: BlockScaledConfig | BlockDecodeConfig, target: str, compiler: str):
    return compiler_room.build(kernel_of(config), config, target=target, compiler=compiler)


def _run_machine(views, factors, config, sizes, device, compiler) -> dict[str, np.ndarray]:
    from numba_marlin.emulator import Machine

    m, n, k = sizes
    compiled = _compiled(config, device.target, compiler)
    results = {
        name: np.zeros(shape, float_type(kind))
        for name, (shape, kind) in _result_shapes(config, m, n).items()
    }
    machine = Machine(compiled.ptx)
    readable = {name: view.host for name, view in views.items()} | {"factors": factors}
    written = results | {"locks": np.zeros(1, np.int32)}
    addresses = {
        name: machine.memory.buffer(array, name=name, readonly=name in readable).address
        for name, array in (readable | written).items()
    }
    kernel = kernel_of(config)
    arguments = kernel.arguments(
        config, addresses, m, n, k, k, lambda tensor_map, address: tensor_map.encode(address)
    )
    machine.run(
        compiled.entry,
        grid=kernel.grid(config, m, n, k, device.sms),
        block=(compiled.threads,),
        shared_bytes=compiled.shared_bytes,
        args=arguments,
        cluster=kernel.cluster(config),
    )
    return results


@functools.lru_cache(maxsize=256)
def _device_factors(values: bytes, ordinal: int) -> driver.DeviceArray:
    """Kept for a while: freeing it would wait for launches that have not begun."""
    return driver.DeviceArray.from_host(np.frombuffer(values, np.float32), ordinal)


_captured_factors: list = []  # for good: graphs that captured a launch point to them
scratch.before_release(_captured_factors.clear)


def _factors_address(factors: np.ndarray, ordinal: int, stream: int) -> int:
    found = _device_factors(factors.tobytes(), ordinal)
    with driver.on_device(ordinal):
        if driver.capture_id(stream) is not None:
            _captured_factors.append(found)
    return found.address


def _run_cuda(
    views, factors, config, sizes, device, stream, compiler, made: set[int]
) -> dict[str, object]:
    """made: streams in whose order libraries made copies, and will make the result, and hand their
    memory on."""
    m, n, k = sizes
    a = views["a"]
    ordinal, handle = a.device or 0, arrays.stream_handle(stream, a.stream)
    compiled = _compiled(config, device.target, compiler)
    crossed = set() if a.on_host else made - {handle}
    for each in crossed:
        driver.follow(ordinal, handle, each)
    copies = {
        name: (
            arrays.view(
                name, driver.DeviceArray.from_host(np.ascontiguousarray(view.host), ordinal)
            )
            if view.on_host
            else view
        )
        for name, view in views.items()
    }
    results = {
        name: _result_array(copies["a"] if a.on_host else a, shape, kind, ordinal, handle)
        for name, (shape, kind) in _result_shapes(config, m, n).items()
    }
    addresses = {name: view.address for name, view in copies.items()} | {
        name: arrays.view(name, each).address for name, each in results.items()
    }
    addresses["factors"] = _factors_address(factors, ordinal, handle)
    addresses["locks"] = scratch.workspace(ordinal, handle, 16, 1)[1]
    kernel = kernel_of(config)
    arguments = kernel.arguments(
        config, addresses, m, n, k, k, functools.partial(driver.encode_tensor_map, ordinal=ordinal)
    )
    launch.launcher(compiled, ordinal, **kernel.launch_options(config))(
        kernel.grid(config, m, n, k, device.sms), arguments, stream=handle
    )
    for each in crossed:
        driver.follow(ordinal, each, handle)
    if not a.on_host:
        return results
    driver.synchronize(ordinal, handle)
    return {name: each.to_host() for name, each in results.items()}


def _result_array(like: arrays.ArrayView, shape, kind: str, ordinal: int, handle: int):
    result = arrays.empty_like(like, shape, kind)
    if kind == "uint8":  # scales that complete a tile are zeros
        view = arrays.view("result", result)
        with driver.on_device(ordinal):
            driver.call(
                "cuMemsetD8Async",
                view.address,
                0,
                int(np.prod(shape)),
                driver.bindings().CUstream(handle),
            )
    return result
