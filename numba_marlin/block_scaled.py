"""Products of block-scaled matrices, both operands: what a user calls. ``numba_marlin`` exports ``block_scaled_matmul`` and ``interleave_gated``.

    a = nm.quantize_blocks(x)                                   # x [m, k] -> BlockScaled, NVFP4
    b = nm.quantize_blocks(w.T)                                 # w [k, n]: B is [n, k]; or from a file: formats.block_scaled.from_weight
    y = nm.block_scaled_matmul(a, b)                            # [m, n] float16
    h = nm.block_scaled_matmul(a, b, activation="silu", out_format="nvfp4", out_global_scale=0.01)      # BlockScaled: the next product's operand

Bad input is a TypeError or a ValueError that names the value and the rule, raised before anything is written.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from numba_marlin import backends, devices, driver, launch
from numba_marlin import compiler as compiler_room
from numba_marlin.block_reference import ACTIVATIONS, block_scaled_bounds, interleave_gated
from numba_marlin.errors import CapabilityMissing
from numba_marlin.formats.block_scaled import BLOCK_FORMATS, BlockScaled
from numba_marlin.formats.floats import float_type, round_to
from numba_marlin.heuristics.block_scaled import choose
from numba_marlin.interop import arrays
from numba_marlin.kernels.block_scaled import KERNEL, OPERAND_POWER
from numba_marlin.kernels.block_scaled_config import BlockScaledConfig
from numba_marlin.quantize.block_scaled import inverse_of, quantize_blocks

__all__ = ["block_scaled_matmul", "interleave_gated"]

FLOAT_RESULTS = ("float16", "bfloat16", "float32")


def block_scaled_matmul(
    a: BlockScaled, b: BlockScaled, *, alpha: float = 1.0, beta: float = 0.0, c=None, bias=None, activation: str | None = None, out_format: str = "float16",
    out_global_scale: float = 1.0, out_rounding: str = "floor", backend: str = "auto", config: BlockScaledConfig | None = None, stream=None,
    compiler: str = compiler_room.COMPILERS[0],
):
    """activation(alpha * A @ B^T + beta * C + bias) of NVFP4 matrices a [m, k] and b [n, k] -> D [m, n], or [m, n/2] if gated.

    out_format: "float16", "bfloat16" or "float32": an array where a.data is, on a device of its library, on the host of NumPy; or "nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2": a BlockScaled, its scales in
    128x4 order, computed by the kernel (``quantize.block_scaled`` has the rules; NVFP4 with ``out_global_scale``, MX with ``out_rounding``).
    c [m, n], only with out_format float16 or bfloat16, and of that type. bias [n], float32. activation: "relu", "gelu" (tanh form), "silu", or "gated_silu": of every 16
    columns eight of the gate and the eight they open (``interleave_gated`` puts rows of B so).
    k a multiple of 32, n of 8; of a block-scaled result, of its block as well, twice that if gated.

    Arrays are NumPy's, or all on one device, with scales in 128x4 order there. backend, stream, compiler: as ``matmul`` has them; config: default ``heuristics.block_scaled``'s choice.
    """
    views = _operands(a, b)
    m, n, k = _check_shapes(a, b)
    gated = activation == "gated_silu"
    _check_epilogue(activation, out_format, n, out_global_scale)
    extra = _epilogue_arrays(views["a"], m, n, out_format, c, beta, bias)
    where = _place(backend, views["a"])
    epilogue = {"result": out_format, "source": "c" in extra, "bias": "bias" in extra, "activation": activation, "rounding": out_rounding}
    if where == "reference":
        value, _ = block_scaled_bounds(a, b, alpha=alpha, beta=beta, c=c, bias=bias, activation=activation)
        return _rounded(value, out_format, out_global_scale, out_rounding)
    device = driver.describe(views["a"].device or 0) if where == "cuda" else devices.MODEL
    if config is None:
        config = choose(m, n, device.sms, **epilogue)
    elif {name: getattr(config, name) for name in epilogue} != epilogue:
        raise ValueError(f"config={config} must have {', '.join(f'{name}={value!r}' for name, value in epilogue.items())}: what was asked for")
    inverse = inverse_of(out_global_scale)
    with np.errstate(over="ignore"):
        factors = np.array([alpha * a.global_scale * b.global_scale * 2.0**OPERAND_POWER, beta, inverse, inverse / np.float32(6)], np.float32)
    if not np.isfinite(factors).all():
        raise ValueError(f"alpha={alpha}, beta={beta}: with the global scales {a.global_scale} and {b.global_scale} they must be finite in float32")
    run = _run_machine if where == "emulator" else _run_cuda
    results = run(views | extra, factors, config, (m, n, k), device, stream, compiler)
    if config.result not in BLOCK_FORMATS:
        return results["d"]
    return BlockScaled(out_format, (m, n // 2 if gated else n), results["d"], results["sfd"], float(np.float32(out_global_scale)) if out_format == "nvfp4" else 1.0, "128x4")


# ---- checks


def _operands(a, b) -> dict[str, arrays.ArrayView]:
    found = {}
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, BlockScaled):
            raise TypeError(f"{name} is a {type(operand).__name__}, must be a BlockScaled: nm.quantize_blocks makes one")
        if operand.format != "nvfp4":
            raise ValueError(f"{name}.format={operand.format!r} must be 'nvfp4': this kernel multiplies no other")
        data = arrays.view(f"{name}.data", operand.data)
        if data.on_host:
            operand = replace(operand, data=data.host, scales=arrays.view(f"{name}.scales", operand.scales).host).with_scales("128x4")
            data = arrays.view(f"{name}.data", operand.data)
        elif operand.scale_order != "128x4":
            raise ValueError(f"{name}.scale_order={operand.scale_order!r} must be '128x4' on a device: use with_scales('128x4') before the arrays are moved there")
        found |= {name: arrays.contiguous(f"{name}.data", data), f"sf{name}": arrays.contiguous(f"{name}.scales", arrays.view(f"{name}.scales", operand.scales))}
    for name, view in found.items():
        _same_place(name, view, found["a"])
        if view.itemsize != 1:
            raise TypeError(f"{name} has elements of {view.dtype}, must be of one byte")
    return found


def _same_place(name: str, view: arrays.ArrayView, a: arrays.ArrayView) -> None:
    if view.device != a.device:
        raise ValueError(f"{name} is on {_place_name(view)}, must be where a.data is: {_place_name(a)}")


def _place_name(view: arrays.ArrayView) -> str:
    return "the host" if view.on_host else f"cuda:{view.device}"


def _check_shapes(a: BlockScaled, b: BlockScaled) -> tuple[int, int, int]:
    (m, k), (n, other) = a.shape, b.shape
    if k != other:
        raise ValueError(f"a.shape={a.shape} and b.shape={b.shape} must have the same k as columns")
    if k % 32 or n % 8:
        raise ValueError(f"k={k} must be a multiple of 32 and n={n} of 8")
    return m, n, k


def _check_epilogue(activation, out_format: str, n: int, out_global_scale: float) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} must be one of {', '.join(map(str, ACTIVATIONS))}")
    if out_format not in (*FLOAT_RESULTS, *BLOCK_FORMATS):
        raise ValueError(f"out_format={out_format!r} must be one of {', '.join((*FLOAT_RESULTS, *BLOCK_FORMATS))}")
    if out_global_scale != 1 and out_format != "nvfp4":
        raise ValueError(f"out_global_scale={out_global_scale!r} must be 1: out_format={out_format!r} has none")
    block = BLOCK_FORMATS[out_format].block if out_format in BLOCK_FORMATS else 8
    step = block * (2 if activation == "gated_silu" else 1)
    if n % step:
        raise ValueError(f"n={n} must be a multiple of {step} for out_format={out_format!r}{' and a gate' if activation == 'gated_silu' else ''}")


def _epilogue_arrays(a: arrays.ArrayView, m: int, n: int, out_format: str, c, beta: float, bias) -> dict[str, arrays.ArrayView]:
    if (c is None) != (beta == 0):
        raise ValueError(f"beta={beta} {'needs c' if c is None else 'leaves c out'}: give both or neither")
    if c is not None and out_format not in ("float16", "bfloat16"):
        raise ValueError(f"c must be None with out_format={out_format!r}: it is added to results of float16 or bfloat16 only")
    found = {}
    for name, array, type_name, shape in (("c", c, out_format, (m, n)), ("bias", bias, "float32", (n,))):
        if array is None:
            continue
        view = arrays.view(name, array)
        if view.type_name != type_name or view.shape != shape:
            raise ValueError(f"{name} is {view.type_name}{list(view.shape)}, must be {type_name}{list(shape)}")
        _same_place(name, view, a)
        found[name] = arrays.contiguous(name, view)
    return found


def _place(backend: str, a: arrays.ArrayView) -> str:
    if backend not in backends.BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {', '.join(backends.BACKENDS)}")
    probe = driver.probe() if backend in ("auto", "cuda") else None
    if backend == "auto":
        backend = "cuda" if probe.usable else "emulator"
    elif backend == "cuda" and not probe.usable:
        raise CapabilityMissing(f"backend='cuda': {probe.reason}")
    if backend != "cuda" and not a.on_host:
        raise ValueError(f"a.data is on {_place_name(a)}, must be on the host for backend={backend!r}")
    return backend


# ---- runs


def _rounded(value: np.ndarray, out_format: str, global_scale: float, rounding: str):
    if out_format in BLOCK_FORMATS:
        options = {"global_scale": global_scale} if BLOCK_FORMATS[out_format].has_global_scale else {"rounding": rounding}
        return quantize_blocks(value, out_format, **options).with_scales("128x4")
    return round_to(value, out_format)


def _result_shapes(config: BlockScaledConfig, m: int, n: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """{array: (shape, type)}"""
    columns = n // 2 if config.gated else n
    if config.result not in BLOCK_FORMATS:
        return {"d": ((m, columns), config.result)}
    form = BLOCK_FORMATS[config.result]
    return {"d": (form.data_shape(m, columns), "uint8"), "sfd": (form.scales_shape(m, columns, "128x4"), "uint8")}


@functools.lru_cache(maxsize=256)
def _compiled(config: BlockScaledConfig, target: str, compiler: str):
    return compiler_room.build(KERNEL, config, target=target, compiler=compiler)


def _run_machine(views, factors, config, sizes, device, stream, compiler) -> dict[str, np.ndarray]:
    from numba_marlin.emulator import Machine

    m, n, k = sizes
    compiled = _compiled(config, device.target, compiler)
    results = {name: np.zeros(shape, float_type(kind)) for name, (shape, kind) in _result_shapes(config, m, n).items()}
    machine = Machine(compiled.ptx)
    readable = {name: view.host for name, view in views.items()} | {"factors": factors}
    written = results | {"locks": np.zeros(1, np.int32)}
    addresses = {name: machine.memory.buffer(array, name=name, readonly=name in readable).address for name, array in (readable | written).items()}
    arguments = KERNEL.arguments(config, addresses, m, n, k, k, lambda tensor_map, address: tensor_map.encode(address))
    machine.run(compiled.entry, grid=KERNEL.grid(config, m, n, k, device.sms), block=(compiled.threads,), shared_bytes=compiled.shared_bytes, args=arguments)
    return results


@functools.lru_cache(maxsize=256)
def _device_factors(values: bytes, ordinal: int) -> driver.DeviceArray:
    """Kept: a launch that has not begun, or a captured graph, may still point to it."""
    return driver.DeviceArray.from_host(np.frombuffer(values, np.float32), ordinal)


def _run_cuda(views, factors, config, sizes, device, stream, compiler) -> dict[str, object]:
    m, n, k = sizes
    a = views["a"]
    ordinal, handle = a.device or 0, arrays.stream_handle(stream, a.stream)
    compiled = _compiled(config, device.target, compiler)
    copies = {name: arrays.view(name, driver.DeviceArray.from_host(np.ascontiguousarray(view.host), ordinal)) if view.on_host else view for name, view in views.items()}
    results = {name: _result_array(copies["a"] if a.on_host else a, shape, kind, ordinal, handle) for name, (shape, kind) in _result_shapes(config, m, n).items()}
    addresses = {name: view.address for name, view in copies.items()} | {name: arrays.view(name, each).address for name, each in results.items()}
    addresses["factors"] = _device_factors(factors.tobytes(), ordinal).address
    addresses["locks"] = launch.workspace(ordinal, handle, 16, 1)[1]
    arguments = KERNEL.arguments(config, addresses, m, n, k, k, functools.partial(driver.encode_tensor_map, ordinal=ordinal))
    launch.launcher(compiled, ordinal, **KERNEL.launch_options(config))(KERNEL.grid(config, m, n, k, device.sms), arguments, stream=handle)
    if not a.on_host:
        return results
    driver.synchronize(ordinal, handle)
    return {name: each.to_host() for name, each in results.items()}


def _result_array(like: arrays.ArrayView, shape, kind: str, ordinal: int, handle: int):
    result = arrays.empty_like(like, shape, kind)
    if kind == "uint8":  # scales that complete a tile are zeros
        view = arrays.view("result", result)
        with driver.on_device(ordinal):
            driver.call("cuMemsetD8Async", view.address, 0, int(np.prod(shape)), driver.bindings().CUstream(handle))
    return result
