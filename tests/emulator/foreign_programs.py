"""Running CUDA C programs of ``foreign/`` on the PTX machine, for tests."""

import numpy as np

from numba_marlin.emulator import Machine
from tests.emulator.nvrtc import ptx_of


def run(source, entry, arguments, grid=1, block=32, shared_bytes=0, arch="sm_80", **options):
    """Arrays among the arguments become buffers, read-only ones read-only."""
    machine = Machine(ptx_of(source, arch))
    values = [
        (
            machine.memory.buffer(each, f"argument {i}").address
            if isinstance(each, np.ndarray)
            else each
        )
        for i, each in enumerate(arguments)
    ]
    machine.run(entry, grid=grid, block=block, shared_bytes=shared_bytes, args=values, **options)
    return machine


def fixed(array):
    array.flags.writeable = False
    return array


RANDOM = np.random.default_rng(1)
