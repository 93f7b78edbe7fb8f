"""A launch on a GPU: binds the kernel to addresses and enqueues it. Nothing here waits.

``loaded`` loads a binding's kernel on a device, ``arguments`` lists what a launch passes, and
``prepare`` returns a ``Prepared`` launch, which can be enqueued again with other addresses
(``repeat``). ``kept_on_device`` and ``numbers_on_device`` keep device copies of what launches read
but calls do not pass on the device: a weight's arrays, and float32 numbers.
"""

from __future__ import annotations

import functools
import math
import weakref
from dataclasses import dataclass

import numpy as np

from numba_marlin.errors import CapabilityMissing
from numba_marlin.execution import driver, launch, map_encoding, scratch
from numba_marlin.execution.binding import Binding
from numba_marlin.execution.scratch import Workspace, workspace_views


@dataclass(frozen=True, eq=False)
class Prepared:
    """A launch with everything fixed except the addresses of arrays.

    places: {parameter: words of ``bound`` that hold its address}; None if an address changes more
    than a word. scratch: whether it uses memory that belongs to the stream or to its capture.
    keeps: objects that must outlive the launches. info: the RunInfo of a repetition.
    """

    bound: launch.BoundLaunch
    info: object
    places: dict[str, tuple[int, ...]] | None
    scratch: bool
    keeps: tuple
    binding: Binding | None = None


def loaded(binding: Binding, ordinal: int, overlap: bool = True) -> launch.Launcher:
    """Load the binding's kernel on a device. overlap: False disables programmatic dependent launch.
    CapabilityMissing if its blocks wait for each other and do not all fit on the device at once."""
    definition, compiled = binding.definition, binding.compiled
    options = definition.launch_options(binding.config)
    options["dependent"] = options["dependent"] and overlap
    launcher = launch.launcher(compiled, ordinal, **options)
    blocks = math.prod(binding.grid)
    if definition.waits and any(binding.workspace) and blocks > launcher.resident_blocks:
        raise CapabilityMissing(
            f"kernel {definition.name!r}: its {blocks} blocks wait for each other,"
            f" {driver.describe(ordinal).name} holds {launcher.resident_blocks} of them at once"
            f" ({compiled.resources.registers} registers per thread, {compiled.shared_bytes} bytes"
            " of shared memory per block): it would deadlock"
        )
    return launcher


def arguments(binding: Binding, addresses: dict[str, int], ordinal: int) -> tuple:
    """The arguments of a launch, in the kernel's order."""
    return binding.arguments(
        addresses, functools.partial(map_encoding.encode_tensor_map, ordinal=ordinal)
    )


def scratch_addresses(
    binding: Binding, ordinal: int, stream: int, workspace: Workspace | None = None
) -> dict[str, int]:
    """Addresses of partial sums and locks, and of results that lie there: the caller's workspace,
    or that of the stream. Empty for a kernel without a workspace."""
    needs = binding.workspace
    if workspace is not None:
        views = workspace_views(workspace, needs, ordinal)
        partials, locks = (each.address for each in views)
    elif any(needs):
        partials, locks = scratch.workspace(ordinal, stream, *needs)
    else:
        return {}
    results = {name: partials + offset for name, offset in binding.in_workspace.items()}
    return {"partials": partials, "locks": locks, **results}


def prepare(
    binding: Binding,
    addresses: dict[str, int],
    ordinal: int,
    stream: int,
    info: object = None,
    workspace: Workspace | None = None,
    keeps: tuple = (),
    in_capture: bool = False,
) -> Prepared:
    """Prepare the launch on ``stream``. addresses: of operands and results, 16-byte aligned.
    in_capture: some of that memory belongs to the stream's graph capture, if it is captured."""
    launcher = loaded(binding, ordinal)
    scratch_memory = scratch_addresses(binding, ordinal, stream, workspace)
    bound = launcher.bind(
        binding.grid, arguments(binding, addresses | scratch_memory, ordinal), stream
    )
    maps = binding.definition.tensor_maps(binding.config, *binding.sizes)
    return Prepared(
        bound,
        info,
        _address_places(bound.place, maps, ordinal),
        bool(scratch_memory) or in_capture,
        keeps,
        binding,
    )


def _address_places(
    place: dict[str, int], tensor_maps: dict, ordinal: int
) -> dict[str, tuple[int, ...]] | None:
    places = {name: (word,) for name, word in place.items() if name not in tensor_maps}
    for name, (source, tensor_map) in tensor_maps.items():
        template = map_encoding.tensor_map_template(tensor_map, ordinal)
        if template is None:
            return None
        places[source] = (*places.get(source, ()), place[name] + template[1] // launch.WORD)
    return places


_kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def kept_copies(owner: object) -> dict[int, dict[str, driver.DeviceArray]]:
    """{ordinal: {parameter: device copy}} of what ``kept_on_device`` keeps of ``owner``."""
    return _kept.setdefault(owner, {})


def kept_on_device(
    owner: object, arrays: dict[str, np.ndarray], ordinal: int
) -> dict[str, driver.DeviceArray]:
    """Device copies of ``owner``'s arrays, made once and kept as long as it lives; the arrays must
    not change."""
    copies = kept_copies(owner)
    found = copies.get(ordinal)
    # threads that copy at the same time all use the first copy: a captured graph may already
    # point to it
    if found is None:
        found = copies.setdefault(
            ordinal,
            {name: driver.DeviceArray.from_host(each, ordinal) for name, each in arrays.items()},
        )
    return found


@functools.lru_cache(maxsize=256)
def _numbers(values: bytes, ordinal: int) -> driver.DeviceArray:
    """Cached for a while, because freeing memory waits for launches that have not begun."""
    return driver.DeviceArray.from_host(np.frombuffer(values, np.float32), ordinal)


_captured_numbers: list = []  # never freed: graphs that captured a launch point to them
scratch.before_release(_captured_numbers.clear)


def numbers_on_device(values: np.ndarray, ordinal: int, stream: int) -> driver.DeviceArray:
    """float32 numbers for a launch on ``stream``."""
    found = _numbers(values.tobytes(), ordinal)
    with driver.on_device(ordinal):
        if driver.capture_id(stream) is not None:
            _captured_numbers.append(found)
    return found


def clear(address: int, nbytes: int, ordinal: int, stream: int) -> None:
    """Zero memory, in stream order."""
    with driver.on_device(ordinal):
        driver.call("cuMemsetD8Async", address, 0, nbytes, driver.bindings().CUstream(stream))
