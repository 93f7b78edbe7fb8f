"""The three ways to run a product: on a GPU, on the PTX machine, or as the float64 reference.

Each takes a checked problem and returns the result with a ``RunInfo`` that says what ran where.
``api.py`` checks and chooses; ``compiler`` is asked here for kernels, and kept out of everything
else. The two that run a kernel run the same PTX.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from dataclasses import asdict, dataclass, replace

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin import driver, launch
from numba_marlin.errors import CapabilityMissing
from numba_marlin.formats.floats import round_to
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Candidate, Problem, candidate, find_kernel, kernel_of, rank
from numba_marlin.interop import arrays

BACKENDS = ("auto", "cuda", "emulator", "reference")


@dataclass(frozen=True)
class RunInfo:
    """What ``matmul`` did. ``seconds`` is host wall time of the call, with compilation left out; on
    a GPU it includes no wait unless the arrays were on the host; None for a call like one before,
    which nobody timed (``calls``). ``instructions``: warp instructions the PTX machine executed."""

    backend: str
    reason: str
    problem: Problem
    device: str
    seconds: float | None
    candidate: Candidate | None = None
    compiled: object | None = None
    instructions: int | None = None

    def to_dict(self) -> dict:
        return {
            "backend": self.backend,
            "reason": self.reason,
            "problem": asdict(self.problem),
            "device": self.device,
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "instructions": self.instructions,
            "candidate": None if self.candidate is None else self.candidate.to_dict(),
            "target": getattr(self.compiled, "target", None),
            "compiler": getattr(self.compiled, "compiler", None),
        }


@dataclass(frozen=True)
class Plan:
    """Where a product will run, why there, and as which candidate (None: the reference)."""

    backend: str
    reason: str
    device: devices.Device | None
    candidate: Candidate | None

    @property
    def definition(self):
        return find_kernel(self.candidate.kernel)

    def compile(self, compiler: str):
        """The CompiledKernel of the candidate for the device; from memory or the disk cache if it
        is there."""
        return compiled_kernel(
            self.candidate.kernel, self.candidate.config, self.device.target, compiler
        )


def plan(
    problem: Problem,
    backend: str,
    kernel: str | None = None,
    config: object = None,
    ordinal: int = 0,
) -> Plan:
    """Choose backend, device and candidate. CapabilityMissing if a GPU was asked for by name and
    cannot be used."""
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if kernel is None and config is not None:
        kernel = kernel_of(config)
    reason = "asked for"
    if backend in ("auto", "cuda"):
        probe = driver.probe()
        if backend == "cuda" and not probe.usable:
            raise CapabilityMissing(f"backend='cuda': {probe.reason}")
        if backend == "auto":
            reason = (
                "a usable CUDA device" if probe.usable else f"no usable CUDA device: {probe.reason}"
            )
            backend = "cuda" if probe.usable else "emulator"
    if backend == "reference":
        if kernel is not None:
            find_kernel(kernel)  # a wrong name is wrong here too
        return Plan(backend, reason, None, None)
    device = driver.describe(ordinal) if backend == "cuda" else devices.MODEL
    chosen = (
        _default_candidate(problem, device, kernel)
        if config is None
        else candidate(problem, device, kernel, config)
    )
    return Plan(backend, reason, device, chosen)


@functools.lru_cache(maxsize=4096)
def _default_candidate(problem: Problem, device: devices.Device, kernel: str | None) -> Candidate:
    """Remembered: ranking takes longer than a small product on a GPU."""
    return rank(problem, device)[0] if kernel is None else candidate(problem, device, kernel)


@dataclass(frozen=True, eq=False)
class Workspace:
    """Scratch memory of the caller's: partials (any dtype) and locks int32, zero. On the device, or
    NumPy for the machine.

    Without one, ``matmul`` keeps its own, one for each device and stream.
    """

    partials: object
    locks: object


@functools.lru_cache(maxsize=256)
def compiled_kernel(kernel: str, config: object, target: str, compiler: str):
    """The compiled kernel, from memory, from the disk cache, or built now."""
    return compiler_room.build(find_kernel(kernel), config, target=target, compiler=compiler)


def _workspace_need(problem: Problem, chosen: Plan) -> tuple[int, int]:
    """(bytes of partials, number of locks); (0, 0) for a kernel whose blocks do not meet."""
    sizes = chosen.definition.workspace_bytes(
        chosen.candidate.config, problem.m, problem.n, problem.k, chosen.device.sms
    )
    partials_bytes, locks_bytes = sizes or (0, 0)
    return partials_bytes, locks_bytes // 4


def _workspace_views(
    workspace: Workspace, needs: tuple[int, int], ordinal: int | None
) -> tuple[arrays.ArrayView, arrays.ArrayView]:
    """The caller's two arrays, or ValueError if they are too small, not usable as they are, or not
    on device ``ordinal`` (None: the host)."""
    partials, locks = (
        arrays.view("workspace.partials", workspace.partials),
        arrays.view("workspace.locks", workspace.locks),
    )
    if locks.dtype != np.int32:
        raise TypeError(f"workspace.locks.dtype={locks.dtype} must be int32")
    for name, each in (("partials", partials), ("locks", locks)):
        if each.device != ordinal:
            where, wanted = (
                "the host" if device is None else f"cuda:{device}"
                for device in (each.device, ordinal)
            )
            raise ValueError(
                f"workspace.{name} is on {where}, must be where the kernel runs: {wanted}"
            )
        if not each.contiguous or each.address % 16 or each.readonly:
            raise ValueError(f"workspace.{name} must be writable, C-contiguous and 16-byte aligned")
    nbytes = math.prod(partials.shape) * np.dtype(partials.dtype).itemsize
    launch.check_workspace(
        nbytes, math.prod(locks.shape), needs_bytes=needs[0], needs_locks=needs[1]
    )
    if locks.on_host and locks.host.any():
        first = int(np.flatnonzero(locks.host)[0])
        raise ValueError(
            f"workspace.locks[{first}]={locks.host.ravel()[first]} must be 0: blocks would wait for"
            " ever"
        )
    return partials, locks


def operands(weight) -> dict[str, np.ndarray]:
    """The arrays of a packed weight, by the names that kernels have for them."""
    arrays_of = {"b": weight.qweight, "scales": weight.scales} | {
        name: getattr(weight, name, None) for name in ("zeros", "factors")
    }
    return {name: array for name, array in arrays_of.items() if array is not None}


def run_reference(
    x: np.ndarray, weight, problem: Problem, reason: str, bias: np.ndarray | None = None
) -> tuple[np.ndarray, RunInfo]:
    """x [m, k] -> [m, n] of its type: the float64 product, and the bias, rounded once.
    Batch-invariant: row by row, for NumPy's order hangs on m."""
    from numba_marlin import reference
    from numba_marlin.quantizers.dequantize import as_quantized

    start = time.perf_counter()
    # above the largest number the right answer is infinity
    with np.errstate(over="ignore", invalid="ignore"):
        if problem.batch_invariant:
            q = as_quantized(weight)
            exact = np.concatenate([reference.matmul(row[None], q) for row in x])
        else:
            exact = reference.matmul(x, weight)
        y = round_to(exact if bias is None else exact + bias.astype(np.float64), x.dtype)
    return y, RunInfo("reference", reason, problem, "CPU, float64", time.perf_counter() - start)


@dataclass(frozen=True, eq=False)
class EmulatorLaunch:
    """A product set up on the PTX machine, which ``machine.run(**launch)`` executes once: ``y`` is
    then the result, and ``locks`` must be zero again."""

    machine: object
    launch: dict
    y: np.ndarray
    locks: np.ndarray


def prepare_emulator(
    x: np.ndarray,
    weight,
    problem: Problem,
    chosen: Plan,
    compiled,
    workspace: Workspace | None = None,
    bias: np.ndarray | None = None,
) -> EmulatorLaunch:
    """x [m, k] times ``weight`` by ``compiled``, a kernel of the plan's. C and partials start as
    NaN."""
    from numba_marlin.emulator import Machine

    definition, config = chosen.definition, chosen.candidate.config
    y = arrays.aligned_empty((problem.m, problem.n), x.dtype)
    y.fill(np.nan)
    partials_bytes, lock_count = needs = _workspace_need(problem, chosen)
    if workspace is None:
        partials = np.full(max(1, -(-partials_bytes // 4)), np.nan, dtype=np.float32)
        locks = np.zeros(max(1, lock_count), dtype=np.int32)
    else:
        partials, locks = (each.host for each in _workspace_views(workspace, needs, None))
    machine = Machine(compiled.ptx)
    readable = {"a": x, **operands(weight)} | ({} if bias is None else {"bias": bias})
    written = {"c": y} | ({"partials": partials, "locks": locks} if any(needs) else {})
    addresses = {
        name: machine.memory.buffer(array, name=name, readonly=True).address
        for name, array in readable.items()
    }
    addresses |= {
        name: machine.memory.buffer(array, name=name, readonly=False).address
        for name, array in written.items()
    }
    arguments = definition.arguments(
        config,
        addresses,
        problem.m,
        problem.n,
        problem.k,
        problem.k,
        lambda tensor_map, address: tensor_map.encode(address),
    )
    cluster = definition.cluster(config)
    launch = dict(
        entry=compiled.entry,
        grid=chosen.candidate.grid,
        block=(compiled.threads,),
        shared_bytes=compiled.shared_bytes,
        args=arguments,
    )
    return EmulatorLaunch(machine, launch | ({"cluster": cluster} if cluster > 1 else {}), y, locks)


def run_emulator(
    x: np.ndarray,
    weight,
    problem: Problem,
    chosen: Plan,
    compiler: str,
    workspace: Workspace | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, RunInfo]:
    """x [m, k] -> [m, n] of its type, by executing the compiled kernel's PTX."""
    compiled, device = chosen.compile(compiler), chosen.device
    start = time.perf_counter()
    prepared = prepare_emulator(x, weight, problem, chosen, compiled, workspace, bias)
    result = prepared.machine.run(**prepared.launch)
    if prepared.locks.any():
        raise RuntimeError(
            f"kernel {compiled.kernel!r} left locks[{int(np.flatnonzero(prepared.locks)[0])}] set:"
            " the next launch would hang"
        )
    info = RunInfo(
        "emulator",
        chosen.reason,
        problem,
        f"{device.name} ({device.sms} SMs, {device.arch})",
        time.perf_counter() - start,
        chosen.candidate,
        compiled,
        result.instructions,
    )
    return prepared.y, info


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
    needs = _workspace_need(problem, chosen)
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
            each.address for each in _workspace_views(workspace, needs, ordinal)
        )
    elif any(needs):
        addresses["partials"], addresses["locks"] = launch.workspace(ordinal, stream, *needs)
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
