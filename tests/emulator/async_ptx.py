"""Pieces of PTX and arrays for tests of asynchronous copies and barriers."""

import numpy as np

from numba_marlin.emulator import (
    Machine,
)
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator.ptx_cases import frame, snippet

SEEDS = [None, 0, 1, 2, 3]


def start(*counts: int) -> str:
    """Barrier i, for counts[i] arrivals, at %r(40 + i); lane 0 of warp 0 initialises them all."""
    names = "".join(
        f"mov.u32 %r{40 + i}, bars; add.u32 %r{40 + i}, %r{40 + i}, {8 * i};\n"
        for i in range(len(counts))
    )
    inits = "".join(
        snippet("mbarrier_init", f"%r{40 + i}", str(count)) for i, count in enumerate(counts)
    )
    return f""".shared .align 8 .b8 bars[{8 * len(counts)}];
    {names} setp.ne.u32 %q0, %t, 0; @%q0 bra READY;
    {inits} {snippet("fence_mbarrier_init")}
    READY: bar.sync 0; shr.u32 %r9, %t, 5; and.b32 %r8, %t, 31;
    """


def spin(label: str, barrier: str, parity: str) -> str:
    return (
        f"{label}: {snippet('mbarrier_try_wait_parity', '%r30', barrier, parity)} setp.eq.u32 %q7,"
        f" %r30, 0; @%q7 bra {label};\n"
    )


FENCE = snippet("fence_proxy_async_shared")
COMMIT = snippet("cp_async_bulk_commit_group")
READ_ALL = snippet("cp_async_bulk_wait_group_read", n=0)
WAIT_ALL = snippet("cp_async_bulk_wait_group", n=0)


def buffers(tensor_map: TensorMap, tensor: np.ndarray, **others):
    """A machine's arrays with the map in memory first; the map needs the tensor's address, which
    the machine gives in this order."""
    machine = Machine(frame("", 0))
    address = [
        machine.memory.buffer(np.zeros_like(array)).address
        for array in (np.zeros(16, np.uint64), *others.values(), tensor)
    ][-1]
    return {
        "map": np.frombuffer(tensor_map.encode(address), np.uint64).copy(),
        **others,
        "tensor": tensor,
    }
