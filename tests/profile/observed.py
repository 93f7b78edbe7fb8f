"""Kernels recorded on the PTX machine, for tests: those that other tests compile with line numbers
too."""

import functools
import math

import numpy as np

from numba_marlin import compiler, testing
from numba_marlin.emulator import Machine
from numba_marlin.execution.machine import set_up
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.profile.instrument import recorder, records, totals
from numba_marlin.testing.trials import SMALLS
from tests.kernels import configurations
from tests.kernels.configurations import FAITHFUL
from tests.kernels.harness import config_for, prepare

DECODE_SHAPE = (8, 512, 1024, configurations.group_size_of(configurations.DECODE))
CASES = {  # kernel, configuration, (m, n, k, group_size), multiprocessors
    "general": ("general", None, (3, 64, 128, 64), 1),
    "naive": ("naive", None, (3, 64, 128, 64), 1),
    "tiled": ("tiled", None, (20, 128, 128, 64), 1),
    "buffered": ("buffered", None, (20, 128, 256, 64), 1),
    "ampere": ("ampere", None, FAITHFUL[1:], 3),
    "decode": (DECODE, configurations.DECODE, DECODE_SHAPE, 3),
    "wgmma": (WGMMA, SMALLS["wgmma"].config, SMALLS["wgmma"].shape, 3),
}


class Run:
    """c, expected: of the recorded kernel; launch: what the records say; blocks of the grid."""

    def __init__(self, name: str, build, raw, align) -> None:
        kernel, config, shape, sms = CASES[name]
        problem = testing.exact_problem(*shape, seed=1)
        prepared = prepare(
            kernel, problem.x, problem.weight, config=config or config_for(kernel, *shape), sms=sms
        )
        self.compiled = compiler.build(prepared.kernel, prepared.config, line_info=True)
        self.build = build(self.compiled)
        self.blocks = math.prod(prepared.grid)
        machine = Machine(self.build.compiled.ptx)
        memory = np.zeros(self.build.nbytes(self.blocks) + self.build.slot_bytes, np.uint8)
        start = machine.memory.buffer(memory, recorder.PARAMETER).address
        pad = -start % self.build.slot_bytes
        set_up(
            prepared.binding,
            machine=machine,
            compiled=self.build.compiled,
            given=prepared.buffers,
            more=(start + pad,),
        ).run()
        self.c, self.expected = prepared.buffers["c"], problem.expected
        self.launch = align([raw(memory[pad:], self.build, self.blocks)])[0]


@functools.cache
def events(name: str, capacity: int = recorder.CAPACITY) -> Run:
    return Run(
        name,
        lambda compiled: recorder.instrument(compiled, capacity, machine_code=False),
        records.raw,
        records.align,
    )


@functools.cache
def added_up(name: str) -> Run:
    return Run(
        name,
        lambda compiled: totals.instrument(compiled, machine_code=False),
        totals.raw,
        totals.align,
    )


@functools.cache
def untold(name: str, without: frozenset) -> Run:
    """A light build that does not tell these waits from work."""
    return Run(
        name,
        lambda compiled: totals.instrument(compiled, machine_code=False, without=without),
        totals.raw,
        totals.align,
    )
