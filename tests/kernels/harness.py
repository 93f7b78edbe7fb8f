"""Run one kernel on one problem, with every trap set: NaN in the output and the partial sums, guard bands around every buffer, locks
zero before and after. The same call runs on the PTX machine and on a GPU; the problem is host arrays either way.
"""
from dataclasses import dataclass

import numpy as np

from numba_marlin import compiler, devices, driver
from numba_marlin.formats import PackedWeight, marlin
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.naive import KERNEL as NAIVE
from numba_marlin.kernels.naive import NaiveConfig
from numba_marlin.kernels.tiled import KERNEL as TILED
from numba_marlin.kernels.tiled import TiledConfig

KERNELS = {kernel.name: kernel for kernel in (NAIVE, TILED, AMPERE)}
TILES = ((8, 8), (16, 4))


def config_for(name, m, n, k, group_size, tile=None, stages=4):
    """The configuration of kernel ``name`` for a problem; ``tile``: (thread_n_blocks, thread_k_blocks) of the faithful kernel."""
    if name == "naive":
        return NaiveConfig(group_size)
    if name == "tiled":
        return TiledConfig(group_size)
    n_blocks, k_blocks = tile or (TILES[0] if m <= 16 else TILES[1])
    ragged = bool(k % (16 * k_blocks) or n % (16 * n_blocks))
    return AmpereConfig(min(4, -(-m // 16)), n_blocks, k_blocks, -1 if group_size == -1 else group_size // 16, stages, ragged)


@dataclass(frozen=True)
class Run:
    """c: fp16 [m, n] as the kernel left it; machine: the machine's RunResult, None on a GPU."""
    c: np.ndarray
    machine: object = None


def buffers_for(kernel, config, x, packed, sms):
    m, n, k = x.shape[0], packed.n, packed.k
    buffers = {
        "a": np.ascontiguousarray(x), "b": packed.qweight, "c": np.full((m, n), np.nan, np.float16), "scales": packed.scales,
    }
    names = [name for name, _ in kernel.parameters]
    if "partials" in names:
        partial_bytes, lock_bytes = kernel.workspace_bytes(config, m, n, k, sms)
        buffers["partials"] = np.full(max(4, partial_bytes // 4), np.nan, np.float32)
        buffers["locks"] = np.zeros(max(1, lock_bytes // 4), np.int32)
    return buffers


def run_kernel(name, x, weight, *, run_on="machine", config=None, sms=3, tile=None, stages=4, compiled_by="numba-cuda", target=None, seed=None,
               edit_ptx=None):
    """-> Run. ``weight``: a QuantizedWeight, or a PackedWeight where the slow packing of the specification matters. ``sms``: blocks of the
    faithful kernel's grid at most. ``target``: None for sm_90a, on a GPU for its own. ``edit_ptx``: break the compiled kernel before the machine
    runs it."""
    assert edit_ptx is None or run_on == "machine", "broken kernels belong on the machine, not on a GPU"
    compiled, grid, buffers, sizes = prepare(name, x, weight, run_on=run_on, config=config, sms=sms, tile=tile, stages=stages, compiled_by=compiled_by, target=target)
    if run_on == "machine":
        result = _on_machine(compiled, grid, buffers, sizes, seed, edit_ptx)
        if "locks" in buffers:
            assert not buffers["locks"].any(), f"locks {buffers['locks']} are not zero after the launch"
        return Run(buffers["c"], result)
    return Run(on_gpu(compiled, grid, buffers, sizes).launched().collect()["c"])


def prepare(name, x, weight, *, run_on="machine", config=None, sms=3, tile=None, stages=4, compiled_by="numba-cuda", target=None):
    """-> (CompiledKernel, grid, {parameter: host array}, (m, n, k)), with every trap set; the parameters are those of ``run_kernel``."""
    kernel = KERNELS[name]
    packed = weight if isinstance(weight, PackedWeight) else marlin.pack(weight)
    m, n, k = x.shape[0], packed.n, packed.k
    config = config or config_for(name, m, n, k, packed.group_size, tile, stages)
    compiled = compiler.build(kernel, config, target=target or target_of(run_on), compiler=compiled_by)
    return compiled, kernel.grid(config, m, n, k, sms), buffers_for(kernel, config, x, packed, sms), (m, n, k)


def on_gpu(compiled, grid, buffers, sizes, stream=0):
    """-> tests.kernels.on_gpu.DeviceProblem, not launched yet. The CUDA bindings are imported by its first call."""
    from tests.kernels.on_gpu import DeviceProblem
    return DeviceProblem(compiled, grid, buffers, sizes, stream)


def target_of(run_on):
    return "sm_90a" if run_on == "machine" else driver.describe(0).target


def sms_of(run_on):
    """Multiprocessors of the device; the machine cuts its stripes for an H200."""
    return devices.device("H200").sms if run_on == "machine" else driver.describe(0).sms


def _on_machine(compiled, grid, buffers, sizes, seed, edit_ptx):
    from numba_marlin.emulator import Machine
    machine = Machine(edit_ptx(compiled.ptx) if edit_ptx else compiled.ptx)
    arguments = [machine.memory.buffer(array, name=name, readonly=name in ("a", "b", "scales")).address for name, array in buffers.items()]
    return machine.run(compiled.entry, grid=grid, block=(compiled.threads, 1, 1), shared_bytes=compiled.shared_bytes,
                       args=[*arguments, *sizes], seed=seed)
