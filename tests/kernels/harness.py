"""Run one kernel on one problem, with every trap set: NaN in the output and the partial sums, guard
bands around every buffer, locks zero before and after. The same call runs on the PTX machine and on
a GPU; the problem is host arrays either way.
"""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.execution import driver
from numba_marlin.execution.binding import Binding, bind, weight_operands
from numba_marlin.execution.machine import host_arrays, set_up
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, find_format, marlin
from numba_marlin.hardware import devices
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.registry import kernels
from numba_marlin.problems import WEIGHTS, WeightProblem

# the rungs that every GPU runs
KERNELS = {kernel.name: kernel for kernel in kernels(WEIGHTS) if kernel.min_arch == "sm_80"}
# those of them whose configuration is a function of the group size
OF_GROUP_SIZE = {
    name: kernel.config_type
    for name, kernel in KERNELS.items()
    if isinstance(kernel.chooser, ChooseTypes)
}
# those whose parameters are arrays
PLAIN = tuple(name for name, kernel in KERNELS.items() if dict(kernel.parameters)["a"] != "u64")
TILES = ((8, 8), (16, 4))


def config_for(name, m, n, k, group_size, tile=None, stages=4):
    """The configuration of kernel ``name`` for a problem; ``tile``: (thread_n_blocks,
    thread_k_blocks) of the faithful kernel."""
    if name in OF_GROUP_SIZE:
        return OF_GROUP_SIZE[name](group_size)
    n_blocks, k_blocks = tile or (TILES[0] if m <= 16 else TILES[1])
    ragged = bool(k % (16 * k_blocks) or n % (16 * n_blocks))
    return AmpereConfig(
        min(4, -(-m // 16)),
        n_blocks,
        k_blocks,
        -1 if group_size == -1 else group_size // 16,
        stages,
        ragged,
    )


@dataclass(frozen=True)
class Run:
    """c: [m, n] in the type of x, as the kernel left it; machine: the machine's RunResult, None on
    a GPU."""

    c: np.ndarray
    machine: object = None


@dataclass(frozen=True)
class Prepared:
    """A launch with every trap set. binding: ``execution.binding``'s; buffers: {parameter: host
    array} of all that the kernel may address."""

    binding: Binding
    buffers: dict

    @classmethod
    def of(cls, binding):
        return cls(binding, host_arrays(binding))

    @property
    def kernel(self):
        return self.binding.definition

    @property
    def config(self):
        return self.binding.config

    @property
    def compiled(self):
        return self.binding.compiled

    @property
    def grid(self):
        return self.binding.grid

    @property
    def sizes(self):
        """m, n, k, a_stride"""
        return self.binding.sizes

    def arguments(self, addresses, encode):
        """In the kernel's order, of {parameter: address}; encode(TensorMap, address) for parameters
        that are tensor maps."""
        return self.binding.arguments(addresses, encode)


def rows_apart(x, a_stride):
    """x as the kernel finds it: rows ``a_stride`` elements apart, NaN between them."""
    wide = np.full((x.shape[0], a_stride), np.nan, x.dtype)
    wide[:, : x.shape[1]] = x
    return wide


def run_kernel(
    name, x, weight, *, run_on="machine", seed=None, edit_ptx=None, races=False, **options
):
    """-> Run. name, weight and options: see ``prepare``. ``edit_ptx``: break the compiled kernel
    before the machine runs it. ``seed``, ``races``: see Machine."""
    assert edit_ptx is None or run_on == "machine", (
        "broken kernels belong on the machine, not on a GPU"
    )
    prepared = prepare(name, x, weight, run_on=run_on, **options)
    if run_on == "machine":
        result = on_machine(prepared, seed, edit_ptx, races)
        if "locks" in prepared.buffers:
            assert not prepared.buffers["locks"].any(), (
                f"locks {prepared.buffers['locks']} are not zero after the launch"
            )
        return Run(prepared.buffers["c"], result)
    return Run(on_gpu(prepared).launched().collect()["c"])


def prepare(
    name,
    x,
    weight,
    *,
    run_on="machine",
    config=None,
    sms=3,
    tile=None,
    stages=4,
    compiled_by="numba-cuda",
    target=None,
    a_stride=None,
    bias=None,
):
    """-> Prepared. ``name``: of one of KERNELS, or a KernelDefinition (then with ``config``).
    ``weight``: a QuantizedWeight, or a PackedWeight where the slow packing of the specification
    matters. ``sms``: blocks of the faithful kernel's grid at most. ``target``: None for sm_90a, on
    a GPU for its own. ``a_stride``: elements from a row of x to the next, default k."""
    kernel = KERNELS[name] if isinstance(name, str) else name
    packed = weight
    if not isinstance(weight, (PackedWeight, PackedBlocks)):
        packed = (
            find_format("marlin-fp4").pack(weight, x.dtype.name)
            if isinstance(weight, BlockWeight)
            else marlin.pack(weight)
        )
    m, n, k = x.shape[0], packed.n, packed.k
    config = config or config_for(kernel.name, m, n, k, packed.group_size, tile, stages)
    compiled = compiler.build(
        kernel, config, target=target or target_of(run_on), compiler=compiled_by
    )
    operands = {"a": rows_apart(x, a_stride or k), **weight_operands(packed), "bias": bias}
    problem = WeightProblem.of(m, packed, x.dtype.name, bias is not None)
    return Prepared.of(
        bind(
            kernel,
            config,
            problem,
            operands,
            sms=sms,
            compiled=compiled,
            row_distance=a_stride or k,
        )
    )


def on_gpu(prepared, stream=0):
    """-> tests.kernels.on_gpu.DeviceProblem, not launched yet. The CUDA bindings are imported by
    its first call."""
    from tests.kernels.on_gpu import DeviceProblem

    return DeviceProblem(prepared, stream)


def target_of(run_on):
    return "sm_90a" if run_on == "machine" else driver.describe(0).target


def sms_of(run_on):
    """Multiprocessors of the device; the machine cuts its stripes for an H200."""
    return devices.device("H200").sms if run_on == "machine" else driver.describe(0).sms


@functools.lru_cache(maxsize=32)  # of a few MB each
def machine_of(ptx, races):
    """Reading a kernel takes longer than many a run of it. (The kernels have no variables in global
    memory.)"""
    from numba_marlin.emulator import Machine

    return Machine(ptx, races=races)


def on_machine(prepared, seed=None, edit_ptx=None, races=False):
    """Launch on the PTX machine -> its RunResult; what it wrote is in the buffers."""
    compiled = prepared.compiled
    machine = machine_of(edit_ptx(compiled.ptx) if edit_ptx else compiled.ptx, races)
    for buffer in machine.memory.buffers:  # of the run before
        machine.memory.release(buffer)
    return machine.run(**launch_on(machine, prepared), seed=seed)


def launch_on(machine, prepared, compiled=None):
    """What Machine.run takes, the buffers being in the machine's memory from now on. compiled:
    another build of the kernel than the prepared one."""
    return set_up(
        prepared.binding, machine=machine, compiled=compiled, given=prepared.buffers
    ).launch


def cases(every, usual):
    """Parameter sets ``every``, those for which ``usual(*set)`` is false marked thorough."""
    return [
        pytest.param(*each, marks=() if usual(*each) else pytest.mark.thorough) for each in every
    ]
