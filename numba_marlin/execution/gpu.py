"""A product on a GPU: the kernel bound to addresses, and enqueued."""

from __future__ import annotations

import functools
import math
import time
import weakref
from dataclasses import dataclass, replace

from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import arrays, driver, launch, scratch
from numba_marlin.execution.operands import operands
from numba_marlin.execution.plan import Plan, RunInfo
from numba_marlin.execution.scratch import Workspace, workspace_need, workspace_views
from numba_marlin.heuristics import Problem

_device_weights: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def device_weight(weight, ordinal: int) -> dict[str, driver.DeviceArray]:
    """``operands`` on the device; copied once and kept as long as ``weight`` lives, whose arrays
    must not change."""
    copies = _device_weights.setdefault(weight, {})
    found = copies.get(ordinal)
    # of threads that copy at the same time all take the copy of one: a captured graph may already
    # point to it
    if found is None:
        found = copies.setdefault(
            ordinal,
            {
                name: driver.DeviceArray.from_host(each, ordinal)
                for name, each in operands(weight).items()
            },
        )
    return found


@dataclass(frozen=True, eq=False)
class Prepared:
    """A product on a GPU with everything fixed but where a, c and the bias are.

    places: for each of these the words of ``bound`` that hold its address; None where an address
    changes more than a word. scratch: the kernel uses a workspace, which belongs to the stream or
    to its capture. keeps: what must outlive the launches.
    """

    bound: launch.BoundLaunch
    info: RunInfo
    places: dict[str, tuple[int, ...]] | None
    scratch: bool
    keeps: tuple


def prepare_cuda(
    a: arrays.ArrayView,
    c: arrays.ArrayView,
    weight,
    problem: Problem,
    chosen: Plan,
    compiler: str,
    ordinal: int,
    stream: int,
    workspace: Workspace | None = None,
    bias: arrays.ArrayView | None = None,
) -> Prepared:
    """The product of device arrays a [m, k] and ``weight`` into c [m, n] on ``stream``, ready to be
    enqueued.

    All are aligned to 16 bytes, c and bias [n] contiguous, a's rows too; and a, unless the kernel
    is told the distance of its rows.
    """
    compiled, device = chosen.compile(compiler), chosen.device
    definition, config = chosen.definition, chosen.candidate.config
    launcher = launch.launcher(compiled, ordinal, **definition.launch_options(config))
    weights = device_weight(weight, ordinal)
    needs = workspace_need(problem, chosen)
    blocks = math.prod(chosen.candidate.grid)
    if any(needs) and definition.waits and blocks > launcher.resident_blocks:
        raise CapabilityMissing(
            f"kernel {compiled.kernel!r}: its {blocks} blocks wait for each other, {device.name}"
            f" holds {launcher.resident_blocks} of them at once ({compiled.resources.registers}"
            f" registers a thread, {compiled.shared_bytes} bytes of shared memory a block): it"
            " would never end"
        )
    addresses = {
        "a": a.address,
        "c": c.address,
        **{name: each.address for name, each in weights.items()},
    }
    if bias is not None:
        addresses["bias"] = bias.address
    if workspace is not None:
        addresses["partials"], addresses["locks"] = (
            each.address for each in workspace_views(workspace, needs, ordinal)
        )
    elif any(needs):
        addresses["partials"], addresses["locks"] = scratch.workspace(ordinal, stream, *needs)
    sizes = (problem.m, problem.n, problem.k, arrays.row_distance(a))
    encode = functools.partial(driver.encode_tensor_map, ordinal=ordinal)
    bound = launcher.bind(
        chosen.candidate.grid, definition.arguments(config, addresses, *sizes, encode), stream
    )
    places = _address_places(bound.place, definition.tensor_maps(config, *sizes), ordinal)
    info = RunInfo(
        "cuda",
        chosen.reason,
        problem,
        f"{device.name} (cuda:{ordinal}, {device.sms} SMs, {device.arch})",
        None,
        chosen.candidate,
        compiled,
    )
    return Prepared(bound, info, places, any(needs), tuple(weights.values()))


def _address_places(
    place: dict[str, int], tensor_maps: dict, ordinal: int
) -> dict[str, tuple[int, ...]] | None:
    places = {name: (place[name],) if name in place else () for name in ("a", "c", "bias")}
    for name, (source, tensor_map) in tensor_maps.items():
        template = driver.tensor_map_template(tensor_map, ordinal)
        if template is None:
            return None
        if source in places:
            places[source] += (place[name] + template[1] // launch.WORD,)
    return places


def run_cuda(
    a: arrays.ArrayView,
    c: arrays.ArrayView,
    weight,
    problem: Problem,
    chosen: Plan,
    compiler: str,
    *rest,
    **options,
) -> tuple[Prepared, RunInfo]:
    """Enqueue the product that ``prepare_cuda`` prepares from the same arguments."""
    chosen.compile(compiler)
    start = time.perf_counter()
    prepared = prepare_cuda(a, c, weight, problem, chosen, compiler, *rest, **options)
    prepared.bound.enqueue()
    return prepared, replace(prepared.info, seconds=time.perf_counter() - start)
