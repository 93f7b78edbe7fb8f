"""Run one kernel on one problem with every trap set (``numba_marlin.testing.launches``), on the PTX
machine or on a GPU; the problem is host arrays either way.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.registry import kernels
from numba_marlin.problems import WEIGHTS
from numba_marlin.testing import launches
from numba_marlin.testing.launches import TARGET, check_locks, on_machine

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
    """The configuration of kernel ``name``, one of KERNELS, for a problem. ``tile``:
    (thread_n_blocks, thread_k_blocks) of the faithful kernel."""
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
        check_locks(prepared.buffers)
        return Run(prepared.buffers["c"], result)
    return Run(on_gpu(prepared).launched().collect()["c"])


def prepare(
    name,
    x,
    weight,
    *,
    run_on="machine",
    config=None,
    tile=None,
    stages=4,
    target=None,
    **options,
):
    """-> Prepared. ``name``: of one of KERNELS, or a KernelDefinition (then with ``config``).
    ``tile``, ``stages``: as in ``config_for``. ``target``: default sm_90a, on a GPU its own. weight
    and options: see ``launches.prepare``."""
    kernel = KERNELS[name] if isinstance(name, str) else name
    config = config or config_for(
        kernel.name, x.shape[0], weight.n, weight.k, weight.group_size, tile, stages
    )
    return launches.prepare(
        config, x, weight, kernel=kernel, target=target or target_of(run_on), **options
    )


def on_gpu(prepared, stream=0):
    """-> tests.kernels.on_gpu.DeviceProblem, not launched yet. The CUDA bindings are imported by
    its first call."""
    from tests.kernels.on_gpu import DeviceProblem

    return DeviceProblem(prepared, stream)


def target_of(run_on):
    return TARGET if run_on == "machine" else driver.describe(0).target


def sms_of(run_on):
    """Multiprocessors of the device; the machine cuts its stripes for an H200."""
    return devices.device("H200").sms if run_on == "machine" else driver.describe(0).sms


def cases(every, usual):
    """Parameter sets ``every``, those for which ``usual(*set)`` is false marked thorough."""
    return [
        pytest.param(*each, marks=() if usual(*each) else pytest.mark.thorough) for each in every
    ]
