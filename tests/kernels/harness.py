"""Run one kernel on one problem, with every trap set: NaN in the output and the partial sums, guard bands around every buffer, locks
zero before and after. The same call runs on the PTX machine and on a GPU; the problem is host arrays either way.
"""
from dataclasses import dataclass

import numpy as np

from numba_marlin import compiler
from numba_marlin.formats import marlin
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.naive import KERNEL as NAIVE
from numba_marlin.kernels.naive import NaiveConfig
from numba_marlin.kernels.tiled import KERNEL as TILED
from numba_marlin.kernels.tiled import TiledConfig

KERNELS = {kernel.name: kernel for kernel in (NAIVE, TILED, AMPERE)}
TILES = ((8, 8), (16, 4))
GUARD_BYTES = 4096
GUARD = 0xA5


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
        partial_bytes, locks = kernel.workspace_bytes(config, m, n, k, sms)
        buffers["partials"] = np.full(max(4, partial_bytes // 4), np.nan, np.float32)
        buffers["locks"] = np.zeros(max(1, locks), np.int32)
    return buffers


def run_kernel(name, x, weight, *, run_on="machine", config=None, sms=3, tile=None, stages=4, compiled_by="numba-cuda", target="sm_90a", seed=None,
               edit_ptx=None):
    """-> Run. ``sms``: blocks of the faithful kernel's grid at most. ``edit_ptx``: break the compiled kernel before the machine runs it."""
    kernel = KERNELS[name]
    packed = marlin.pack(weight)
    m, (n, k) = x.shape[0], (weight.n, weight.k)
    config = config or config_for(name, m, n, k, weight.group_size, tile, stages)
    compiled = compiler.build(kernel, config, target=target, compiler=compiled_by)
    buffers = buffers_for(kernel, config, x, packed, sms)
    grid = kernel.grid(config, m, n, k, sms)
    result = (_on_machine if run_on == "machine" else _on_gpu)(compiled, buffers, grid, (m, n, k), seed, edit_ptx)
    if "locks" in buffers:
        assert not buffers["locks"].any(), f"locks {buffers['locks']} are not zero after the launch"
    return Run(buffers["c"], result)


def _on_machine(compiled, buffers, grid, sizes, seed, edit_ptx):
    from numba_marlin.emulator import Machine
    machine = Machine(edit_ptx(compiled.ptx) if edit_ptx else compiled.ptx)
    arguments = [machine.memory.buffer(array, name=name, readonly=name in ("a", "b", "scales")).address for name, array in buffers.items()]
    return machine.run(compiled.entry, grid=grid, block=(compiled.threads, 1, 1), shared_bytes=compiled.shared_bytes,
                       args=[*arguments, *sizes], seed=seed)


def _on_gpu(compiled, buffers, grid, sizes, seed, edit_ptx):
    import cupy
    from numba_marlin.launch import Launcher
    assert edit_ptx is None, "broken kernels belong on the machine, not on a GPU"
    guarded = {}
    for name, array in buffers.items():
        memory = cupy.full(array.nbytes + 2 * GUARD_BYTES, GUARD, cupy.uint8)
        memory[GUARD_BYTES:GUARD_BYTES + array.nbytes] = cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        guarded[name] = memory
    cupy.cuda.runtime.deviceSynchronize()
    Launcher(compiled)(grid, (*(memory.data.ptr + GUARD_BYTES for memory in guarded.values()), *sizes), stream=0)
    cupy.cuda.runtime.deviceSynchronize()
    for name, memory in guarded.items():
        host = memory.get()
        inside = host[GUARD_BYTES:-GUARD_BYTES]
        assert (host[:GUARD_BYTES] == GUARD).all() and (host[-GUARD_BYTES:] == GUARD).all(), f"guard band of {name} was written"
        if name in ("c", "locks"):
            buffers[name].reshape(-1).view(np.uint8)[:] = inside
        elif name != "partials":
            assert (inside == np.ascontiguousarray(buffers[name]).reshape(-1).view(np.uint8)).all(), f"{name} is read-only and was written"
    return None
