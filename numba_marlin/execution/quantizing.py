"""Activations to 8 bits by the kernel of ``kernels.quantize_activations``: bound here, and run on a
GPU. ``api.activations`` asks for it when x is on a device.

    quantize_on_device(x, kind, group_size, stream) -> QuantizedActivations on the same device

The bytes are those of ``quantizers.activations``; nothing is waited for.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver, gpu
from numba_marlin.execution.binding import OPERAND, RESULT, Binding, Buffer
from numba_marlin.formats.activations import (
    KINDS,
    QuantizedActivations,
    check_depth,
    offset_shape,
)
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels.quantize_activations import RowTypes, definition_of
from numba_marlin.kernels.quantize_activations.definitions import EARLY
from numba_marlin.kernels.quantize_activations.definitions import KINDS as LEAST_TARGETS


@functools.cache
def _compiled(config: RowTypes, target: str, compiler: str):
    return compiler_room.build(definition_of(config), config, target, compiler)


def binding(
    config: RowTypes,
    m: int,
    k: int,
    target: str,
    x: np.ndarray | None = None,
    compiler: str = compiler_room.COMPILERS[0],
) -> Binding:
    """The launch for x [m, k], of as many threads as its rows want. x: the array that it reads, for
    the PTX machine."""
    early = target_named(target).supports(EARLY)
    config = replace(config.for_rows(m, k), early=early)
    definition = definition_of(config)
    buffers = {
        name: Buffer(
            OPERAND if name == "x" else RESULT,
            shape,
            "float32" if name == "scales" else "int32",
            array=x.view(np.int32) if name == "x" and x is not None else None,
        )
        for name, shape in definition.shapes(config, m, 0, k).items()
    }
    compiled = _compiled(config, target, compiler)
    return Binding(
        definition, config, compiled, definition.grid(config, m, 0, k, 0), (m, 0, k, k), buffers
    )


def quantize_on_device(
    x: arrays.ArrayView, kind: str, group_size: int | None, stream: int
) -> QuantizedActivations:
    """x [m, k] float16 or bfloat16 on a device, k and group_size checked -> arrays of its library
    there, enqueued on ``stream``. CapabilityMissing if the device cannot round to that kind."""
    m, k = x.shape
    check_depth(k, group_size)
    device = driver.describe(x.device)
    if not target_named(device.target).supports(LEAST_TARGETS[kind]):
        raise CapabilityMissing(
            f"{device.name} is {device.arch}, kind={kind!r} needs {LEAST_TARGETS[kind]}"
        )
    x = arrays.contiguous("x", x)
    launch = binding(RowTypes(kind, x.type_name, group_size), m, k, device.target)
    groups = launch.buffers["scales"].shape[1]
    codes = arrays.empty_like(x, (m, k), KINDS[kind])
    scales = arrays.empty_like(x, (m,) if group_size is None else (m, groups), "float32")
    made, offsets = {"codes": codes, "scales": scales}, None
    if launch.config.offsets:
        made["offsets"] = offsets = arrays.empty_like(
            x, offset_shape(m, k, x.type_name), x.type_name
        )
    addresses = {name: arrays.view(name, each).address for name, each in made.items()}
    addresses["x"] = x.address
    launcher = gpu.loaded(launch, x.device)
    # the library allocates, and reuses, in the order of its own stream (``product``)
    if stream != x.stream:
        driver.follow(x.device, stream, x.stream)
    launcher(launch.grid, gpu.arguments(launch, addresses, x.device), stream)
    if stream != x.stream:
        driver.follow(x.device, x.stream, stream)
    return QuantizedActivations(kind, codes, scales, group_size, x.type_name, offsets)
