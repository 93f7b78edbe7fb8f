"""Products of a mixture of experts on the PTX machine or a GPU, by a kernel of
``kernels.experts``: bound and launched here. ``api.experts`` checks the arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin.execution import arrays, driver, gpu, machine
from numba_marlin.execution.arrays import ArrayView
from numba_marlin.execution.binding import Binding, bind
from numba_marlin.execution.plan import target_for
from numba_marlin.execution.scratch import Workspace
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.routing import Routing
from numba_marlin.hardware import devices
from numba_marlin.kernels.experts.choose import KERNELS, configured, definition_of, refusals, taken

__all__ = [
    "KERNELS",
    "ExpertsProduct",
    "binding",
    "chosen",
    "on_device",
    "on_machine",
    "refusals",
    "taken",
]


@dataclass(frozen=True, eq=False)
class ExpertsProduct:
    """The operands: x [m, k] or [m top_k, k], the experts, the routing, bias [E, n] or None."""

    problem: Any  # problems.experts.ExpertsProblem
    x: ArrayView
    experts: PackedExperts
    routing: Routing
    bias: ArrayView | None = None

    def lists(self) -> dict[str, Any]:
        """{parameter: array} of the routing that the kernel reads."""
        routing = self.routing
        found = {"pairs": routing.pairs, "offsets": routing.offsets}
        return found | ({"weights": routing.weights} if self.problem.combine else {})

    def weights(self) -> dict[str, Any]:
        """The same of the experts."""
        names = {"qweight": "b"}
        return {names.get(name, name): array for name, array in self.experts.arrays.items()}

    def inputs(self) -> dict[str, ArrayView]:
        return {"a": self.x} | ({} if self.bias is None else {"bias": self.bias})


def chosen(problem, batch_invariant: bool = False, kernel: str | None = None) -> Any:
    """A configuration of the kernel of that name, by default of the one that the problem gets on
    the machine."""
    name = kernel or taken(problem, devices.MODEL, batch_invariant)
    if name is None:
        raise ValueError(f"no kernel takes {problem.in_words()}")
    return configured(name, problem, batch_invariant)


def binding(
    product: ExpertsProduct,
    config: Any,
    device: devices.Device,
    operands: dict[str, Any],
    row_distance: int | None = None,
    compiler: str = compiler_room.COMPILERS[0],
) -> Binding:
    """The launch on a device, of operands by parameter."""
    definition = definition_of(config)
    return bind(
        definition,
        config,
        product.problem,
        operands,
        sms=device.sms,
        compiled=_compiled(config, target_for(definition, device), compiler),
        row_distance=row_distance,
    )


@functools.cache
def _compiled(config: Any, target: str, compiler: str):
    return compiler_room.build(definition_of(config), config, target, compiler)


def on_machine(product: ExpertsProduct, config: Any) -> np.ndarray:
    """Run on the PTX machine -> c, NumPy. Rows of pairs that no expert has are 0."""
    held = {
        name: arrays.contiguous(name, arrays.view(name, arrays.to_host(view, exact=True))).host
        for name, view in product.inputs().items()
    }
    operands = {**held, **product.weights(), **product.lists()}
    bound = binding(product, config, devices.MODEL, operands)
    given = {}
    if not product.routing.complete:
        shape, dtype = product.problem.result_shapes["c"]
        given["c"] = np.zeros(shape, float_type(dtype))
    launch = machine.set_up(bound, given=given)
    launch.run()
    return launch.results["c"]


def on_device(
    product: ExpertsProduct,
    config: Any,
    out: ArrayView,
    stream: object = None,
    workspace: Workspace | None = None,
) -> gpu.Prepared:
    """Enqueue on the device that holds x, and the routing; nothing is waited for. -> the launch,
    which can be enqueued again."""
    x, ordinal = product.x, product.x.device
    handle = arrays.stream_handle(stream, x.stream)
    ready = {"a": arrays.rows("x", x)}
    if product.bias is not None:
        ready["bias"] = arrays.contiguous("bias", product.bias)
    lists = {name: arrays.view(name, each) for name, each in product.lists().items()}
    weights = product.weights()
    if product.experts.place == "cpu":
        held = gpu.kept_on_device(product.experts, weights, ordinal)
        weights = {name: arrays.view(name, each) for name, each in held.items()}
    else:
        weights = {name: arrays.view(name, each) for name, each in weights.items()}
    operands = {**ready, **lists, **weights}
    made_here = {x.stream} - {handle}
    for other in made_here:  # the library allocates in the order of its own stream (``product``)
        driver.follow(ordinal, handle, other)
    bound = binding(
        product, config, driver.describe(ordinal), operands, arrays.row_distance(ready["a"])
    )
    if not product.routing.complete:
        gpu.clear(out.address, bound.buffers["c"].nbytes, ordinal, handle)
    addresses = {name: each.address for name, each in {**operands, "c": out}.items()}
    prepared = gpu.prepare(
        bound, addresses, ordinal, handle, None, workspace, tuple(operands.values())
    )
    prepared.bound.enqueue()
    for other in made_here:
        driver.follow(ordinal, other, handle)
    return prepared
