"""The arguments of a launch: arrays by the names of the kernel's parameters, and sizes, but no
addresses.

``bind(definition, config, problem, operands, ...)`` -> ``Binding``. ``operands``: {parameter:
array} of what the product reads, NumPy arrays or views. Results and scratch memory are described
here and allocated by the backend (``machine`` or ``gpu``). Every launch of a kernel is bound here,
so this is the only place that knows the kernel's arrays and their required contents before a
launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_marlin.formats.floats import float_type

OPERAND, RESULT, PARTIALS, LOCKS = "operand", "result", "partials", "locks"
ALIGNMENT = 16  # of an array's address
OFFSETS = "offsets"  # of fp8 activations, which only some of their kernels read


@dataclass(frozen=True)
class Scaling:
    """Scalars of a launch with two block-scaled operands. alpha: multiplies the accumulators and
    includes both operands' global scales; beta: multiplies C; inverse: 1 / D's global scale."""

    alpha: float = 1.0
    beta: float = 0.0
    inverse: float = 1.0


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a parameter points to. zero: whether it must be zero before a launch; array: an
    existing NumPy array or ``arrays.ArrayView``, or None if the backend allocates it."""

    role: str
    shape: tuple[int, ...]
    dtype: str
    zero: bool = False
    array: Any = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * float_type(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Binding:
    """One launch without addresses. sizes: m, n, k, and the stride of a's rows in elements;
    workspace: (bytes of partial sums, number of locks), (0, 0) for kernels without a reduction
    between blocks; in_workspace: {parameter: offset} of results of the launch that lie in that
    memory behind the partial sums, because a pass behind it makes the product's of them. (The PTX
    machine has memory of its own for each.)"""

    definition: Any
    config: Any
    compiled: Any
    grid: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    buffers: dict[str, Buffer]
    workspace: tuple[int, int] = (0, 0)
    in_workspace: dict[str, int] = field(default_factory=dict)

    def arguments(self, addresses: dict[str, int], encode: Callable[[Any, int], bytes]) -> tuple:
        """The kernel's arguments, in order. ``encode(TensorMap, address)`` encodes tensor maps."""
        return self.definition.arguments(self.config, addresses, *self.sizes, encode)

    def with_role(self, *roles: str) -> dict[str, Buffer]:
        return {name: each for name, each in self.buffers.items() if each.role in roles}

    @property
    def boxes(self) -> dict[str, list[int]]:
        """{parameter: [bytes per row in shared memory, swizzle in bytes]} of operands that TMA
        copies, from which the origin of a byte in shared memory follows."""
        maps = self.definition.tensor_maps(self.config, *self.sizes)
        return {name: [each.row_bytes, each.swizzle] for name, each in maps.values()}

    @property
    def written(self) -> set[str]:
        return set(self.with_role(RESULT, PARTIALS, LOCKS))

    @property
    def used_by_the_launch_before(self) -> set[str]:
        """Parameters that the previous kernel on the stream may still be writing: all but weights
        if the launch uses programmatic dependent launch, otherwise none."""
        dependent = self.definition.dependent(self.config)
        early = self.definition.reads_early if dependent else tuple(self.buffers)
        return set(self.buffers) - set(early)


def bind(
    definition,
    config,
    problem,
    operands: dict[str, Any],
    *,
    sms: int,
    compiled=None,
    grid: tuple[int, ...] | None = None,
    row_distance: int | None = None,
    scaling: Scaling | None = None,
) -> Binding:
    """Bind a kernel to ``problem`` and operands, for a device of ``sms`` SMs. operands: those that
    are None are left out, and offsets of x that the kernel does not take; grid: default: the
    kernel's own for these SMs; row_distance: stride of a's rows in elements, default k; scaling:
    for two block-scaled operands."""
    m, n, k = problem.m, problem.n, problem.k
    sizes = (m, n, k, k if row_distance is None else row_distance)
    told = {name for name, _ in definition.parameters}
    told |= {name for name, _ in definition.tensor_maps(config, *sizes).values()}
    read = {name: each for name, each in operands.items() if each is not None}
    if OFFSETS not in told:
        read.pop(OFFSETS, None)
    if scaling is not None:
        read |= _factors(definition, scaling)
    buffers = {
        name: Buffer(OPERAND, tuple(each.shape), str(each.dtype), array=each)
        for name, each in read.items()
    }
    buffers |= {
        name: Buffer(RESULT, shape, dtype, zero=name in problem.zero_before)
        for name, (shape, dtype) in problem.launch_shapes.items()
    }
    partials_bytes, locks_bytes = definition.workspace_bytes(config, m, n, k, sms) or (0, 0)
    if partials_bytes or locks_bytes:
        scratch = {
            # at least 16 bytes: addresses of arrays must differ
            "partials": Buffer(PARTIALS, (max(4, -(-partials_bytes // 4)),), "float32"),
            "locks": Buffer(LOCKS, (max(1, -(-locks_bytes // 4)),), "int32", zero=True),
        }
        buffers |= {name: each for name, each in scratch.items() if name in told}
    in_workspace = {}
    if problem.launch_shapes != problem.result_shapes:
        for name in problem.launch_shapes:
            partials_bytes += -partials_bytes % ALIGNMENT
            in_workspace[name] = partials_bytes
            partials_bytes += buffers[name].nbytes
    return Binding(
        definition,
        config,
        compiled,
        tuple(definition.grid(config, m, n, k, sms) if grid is None else grid),
        sizes,
        buffers,
        (partials_bytes, locks_bytes // 4),
        in_workspace,
    )


def _factors(definition, scaling: Scaling) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore"):
        found = definition.factors(scaling.alpha, scaling.beta, scaling.inverse)
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"alpha={scaling.alpha} (with the global scales of both operands), beta="
                f"{scaling.beta} and 1 / the result's global scale={scaling.inverse}: {name} of"
                f" kernel {definition.name!r} must be finite in float32"
            )
    return found


def weight_operands(weight) -> dict[str, Any]:
    """The arrays of a packed weight, {kernel parameter: array}, wherever they are."""
    found = {"b": weight.qweight, "scales": weight.scales} | {
        name: getattr(weight, name, None) for name in ("zeros", "factors")
    }
    return {name: array for name, array in found.items() if array is not None}


def experts_operands(experts) -> dict[str, Any]:
    """The arrays of ``formats.experts.PackedExperts``, {kernel parameter: array}, wherever they
    are."""
    return {"b" if name == "qweight" else name: each for name, each in experts.arrays.items()}


def routing_operands(routing) -> dict[str, Any]:
    """The lists of a ``formats.routing.Routing`` that a kernel reads, {parameter: array}."""
    return {"pairs": routing.pairs, "offsets": routing.offsets}


def activation_operands(x) -> dict[str, Any]:
    """The arrays of ``formats.activations.QuantizedActivations``, {kernel parameter: array},
    wherever they are."""
    return activation_rows(x) | ({} if x.offsets is None else {OFFSETS: x.offsets})


def activation_rows(x) -> dict[str, Any]:
    """The same of what kernels of mixtures read, whose ``offsets`` are those of the routing."""
    return {"a": x.codes, "a_scales": x.scales}


def block_operands(a, b) -> dict[str, Any]:
    """The arrays of two ``formats.BlockScaled`` with scales in 128x4 order, {kernel parameter:
    array}."""
    return {"a": a.data, "b": b.data, "sfa": a.scales, "sfb": b.scales}
