"""Runs a product on any backend: the public functions call this after they have checked their
arguments.

``run(product, plan)`` -> ``Outcome``. Results are NumPy arrays, except for device arrays on a GPU:
then they are arrays of a's library, on its device.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from numba_marlin.execution import arrays, driver, expected, gpu, machine
from numba_marlin.execution.arrays import ArrayView
from numba_marlin.execution.binding import OPERAND, Binding, Scaling, bind
from numba_marlin.execution.plan import Plan, RunInfo
from numba_marlin.execution.scratch import Workspace, workspace_views
from numba_marlin.execution.summing import Sum
from numba_marlin.formats.floats import float_type
from numba_marlin.wording import duration, number

log = logging.getLogger("numba_marlin")


@dataclass(frozen=True, eq=False)
class Product:
    """The operands of a product.

    inputs: {parameter: array} as given, all on the same device or all on the host. labels: their
    names in messages. weight, kept: the weight object, and its arrays by parameter: NumPy's, which
    are copied to a device once, or views on the device. behind: inputs of a pass behind the launch
    alone, by its parameters, where inputs are. ordinal: of the GPU that inputs on the host
    go to. reference(): {parameter: result} of the float64 reference, rounded.
    scaling: for two block-scaled operands.
    """

    problem: Any
    inputs: dict[str, ArrayView]
    reference: Callable[[], dict[str, Any]]
    labels: dict[str, str] = field(default_factory=dict)
    weight: object = None
    kept: dict[str, Any] = field(default_factory=dict)
    behind: dict[str, ArrayView] = field(default_factory=dict)
    scaling: Scaling | None = None
    ordinal: int = 0

    @property
    def given(self) -> dict[str, ArrayView]:
        """All inputs, of the launch and of a pass behind it."""
        return {**self.inputs, **self.behind}

    def ready(self, strided: bool = False) -> dict[str, ArrayView]:
        """All inputs in a form that a kernel can read; copies if necessary. strided: whether the
        kernel takes the stride of a's rows."""
        return {
            name: (arrays.rows if strided and name == "a" else arrays.contiguous)(
                self.labels.get(name, name), view
            )
            for name, view in self.given.items()
        }


@dataclass(frozen=True)
class Options:
    """Options of a launch: the compiler, the stream (a handle, a stream object, or None for the
    current one of a's library), the caller's workspace; out: {parameter: array} to write results
    to."""

    compiler: str
    stream: object = None
    workspace: Workspace | None = None
    out: dict[str, ArrayView] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outcome:
    """results: {parameter: array}; info: the RunInfo; prepared: the launch, if it can be repeated
    for other inputs of the same shapes and strides."""

    results: dict[str, Any]
    info: RunInfo
    prepared: gpu.Prepared | None = None


def run(product: Product, plan: Plan, options: Options) -> Outcome:
    """Run the product by its plan. CapabilityMissing or ValueError if the plan's device or kernel
    cannot do it."""
    if plan.backend == "reference":
        start = time.perf_counter()
        results = product.reference()
        return Outcome(results, plan.info(product.problem, time.perf_counter() - start))
    programs = _compiled(product, plan, options.compiler)
    if plan.backend == "emulator":
        return _on_machine(product, plan, options, programs)
    if product.inputs["a"].on_host:
        return _from_host(product, plan, options, programs)
    return _on_device(product, plan, options, programs)


@dataclass(frozen=True)
class _Programs:
    """What runs: the plan's kernel, compiled, and the pass behind it, None if there is none."""

    kernel: Any
    behind: Sum | None


def _compiled(product: Product, plan: Plan, compiler: str) -> _Programs:
    """Both before the first is launched: a compiler takes seconds."""
    kernel = plan.compile(compiler, product.problem)
    found = plan.compile_behind(compiler, product.problem)
    behind = [Sum(product.problem, each, compiled) for each, compiled in found.items()]
    return _Programs(kernel, *behind or [None])


def binding_of(
    product: Product, plan: Plan, compiled, ready: dict[str, Any], row_distance: int | None = None
) -> Binding:
    """Bind the plan's kernel to a product's ready inputs and its weight."""
    return bind(
        plan.definition,
        plan.candidate.config,
        product.problem,
        {**{name: ready[name] for name in product.inputs}, **product.kept},
        sms=plan.device.sms,
        compiled=compiled,
        grid=plan.candidate.grid,
        row_distance=row_distance,
        scaling=product.scaling,
    )


def _on_machine(product: Product, plan: Plan, options: Options, programs: _Programs) -> Outcome:
    start = time.perf_counter()
    held = {
        name: arrays.contiguous(name, arrays.view(name, arrays.to_host(view, exact=True))).host
        for name, view in product.given.items()
    }
    binding = binding_of(product, plan, programs.kernel, held)
    given = {}
    if options.workspace is not None:
        views = workspace_views(options.workspace, binding.workspace, None)
        given = dict(zip(("partials", "locks"), (each.host for each in views)))
    launch = machine.set_up(binding, given=given)
    wanted = expected.launch(product.problem, plan.candidate)
    log.info(
        "%s begins on the PTX machine: about %s, %s warp instructions",
        plan.candidate.kernel,
        duration(wanted.seconds),
        number(wanted.instructions),
    )
    instructions, results = launch.run().instructions, launch.results
    if programs.behind is not None:
        sums, more = programs.behind.on_machine(results["c"], held["weights"])
        instructions, results = instructions + more, {"c": sums}
    seconds = time.perf_counter() - start
    info = plan.info(product.problem, seconds, binding.compiled, instructions)
    return Outcome(results, info)


def _from_host(product: Product, plan: Plan, options: Options, programs: _Programs) -> Outcome:
    """Run host arrays on a GPU: copy to the device, launch, wait, copy back."""
    start, ordinal = time.perf_counter(), product.ordinal
    handle = arrays.stream_handle(options.stream, product.inputs["a"].stream)
    copies = {
        name: arrays.view(
            name, driver.DeviceArray.from_host(np.ascontiguousarray(view.host), ordinal)
        )
        for name, view in product.given.items()
    }
    results = {
        name: driver.DeviceArray(shape, float_type(dtype), ordinal)
        for name, (shape, dtype) in product.problem.result_shapes.items()
    }
    there = {name: arrays.view(name, each) for name, each in results.items()}
    prepared = _enqueued(product, plan, options, copies, there, ordinal, handle, programs)
    driver.synchronize(ordinal, handle)
    seconds = time.perf_counter() - start
    return Outcome(
        {name: each.to_host() for name, each in results.items()},
        replace(prepared.info, seconds=seconds),
    )


def _on_device(product: Product, plan: Plan, options: Options, programs: _Programs) -> Outcome:
    start = time.perf_counter()
    a = product.inputs["a"]
    handle = arrays.stream_handle(options.stream, a.stream)
    ready = product.ready(plan.strided)
    wanted = product.problem.result_shapes
    # The library allocates copies and results in the order of its own stream, and reuses their
    # memory in that order.
    made = {given.stream for name, given in product.given.items() if ready[name] is not given} | (
        {a.stream} if wanted.keys() - options.out.keys() else set()
    )
    crossed = made - {handle}
    for stream in crossed:
        driver.follow(a.device, handle, stream)
    results = {
        name: (
            options.out[name]
            if name in options.out
            else arrays.view(name, arrays.empty_like(a, shape, dtype))
        )
        for name, (shape, dtype) in wanted.items()
    }
    prepared = _enqueued(product, plan, options, ready, results, a.device, handle, programs)
    for stream in crossed:
        driver.follow(a.device, stream, handle)
    lies_as_given = all(ready[name] is given for name, given in product.given.items())
    return Outcome(
        {name: each.owner for name, each in results.items()},
        replace(prepared.info, seconds=time.perf_counter() - start),
        prepared if lies_as_given else None,
    )


def _enqueued(
    product: Product,
    plan: Plan,
    options: Options,
    inputs: dict[str, ArrayView],
    results: dict[str, ArrayView],
    ordinal: int,
    handle: int,
    programs: _Programs,
) -> gpu.Prepared:
    """Prepare the launch, and enqueue it and the pass behind it on the stream."""
    distance = arrays.row_distance(inputs["a"]) if plan.strided else None
    binding = binding_of(product, plan, programs.kernel, inputs, distance)
    weights = product.kept
    if any(isinstance(each, np.ndarray) for each in weights.values()):
        weights = gpu.kept_on_device(product.weight, weights, ordinal)
    numbers = {
        name: gpu.numbers_on_device(each.array, ordinal, handle)
        for name, each in binding.with_role(OPERAND).items()
        if name not in inputs and name not in product.kept
    }
    left = {name: each.address for name, each in results.items()}  # by the launch
    if binding.in_workspace:
        scratch = gpu.scratch_addresses(binding, ordinal, handle, options.workspace)
        left |= {name: scratch[name] for name in binding.in_workspace}
    for name, buffer in binding.buffers.items():
        if buffer.zero and name in left:
            gpu.clear(left[name], buffer.nbytes, ordinal, handle)
    addresses = {
        name: each.address for held in (inputs, weights, numbers) for name, each in held.items()
    }
    prepared = gpu.prepare(
        binding,
        addresses | left,
        ordinal,
        handle,
        plan.info(product.problem, None, binding.compiled, ordinal=ordinal),
        options.workspace,
        (*weights.values(), *numbers.values()),
        in_capture=bool(numbers),
    )
    prepared.bound.enqueue()
    if programs.behind is not None:
        reads = {name: inputs[name].address for name in product.behind}
        ends = {"rows": left["c"], "c": results["c"].address}
        programs.behind.enqueue(reads | ends, ordinal, handle)
    return prepared
