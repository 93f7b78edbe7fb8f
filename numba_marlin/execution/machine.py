"""A launch on the PTX machine: the compiled kernel's PTX, executed on the CPU.

``set_up(binding)`` -> ``OnMachine``, prepared so that errors show: results and partial sums are
poisoned, locks are zero, operands are read-only, and memory around them is not mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_marlin.execution import arrays
from numba_marlin.execution.binding import LOCKS, RESULT, Binding, Buffer
from numba_marlin.formats.floats import float_type

if TYPE_CHECKING:
    from numba_marlin.emulator import Machine

POISON_BYTE = 0xAA
# A launch that executes more than so many times what is expected has lost its way.
BUDGET = 10


@dataclass(frozen=True, eq=False)
class OnMachine:
    """A launch that ``run`` executes. arrays: {parameter: NumPy array}, including the results after
    the run; launch: the arguments of ``Machine.run``."""

    binding: Binding
    machine: Machine
    arrays: dict[str, np.ndarray]
    launch: dict[str, Any]

    def run(self, **options):
        """Execute the launch and return the machine's RunResult. options: further options of
        ``Machine.run``. RuntimeError if the kernel leaves a lock set."""
        result = self.machine.run(**self.launch, **options)
        self.check_locks()
        return result

    def check_locks(self) -> None:
        for name in self.binding.with_role(LOCKS):
            left = np.flatnonzero(self.arrays[name])
            if left.size:
                raise RuntimeError(
                    f"kernel {self.binding.definition.name!r} left locks[{left[0]}] set: the next"
                    " launch would hang"
                )

    @property
    def results(self) -> dict[str, np.ndarray]:
        return {name: self.arrays[name] for name in self.binding.with_role(RESULT)}


def host_arrays(binding: Binding, given: dict[str, np.ndarray] | None = None) -> dict:
    """{parameter: NumPy array} for a launch: the operands, the arrays ``given``, and new ones for
    the rest, poisoned unless they must be zero."""
    given = given or {}
    return {
        name: given[name] if name in given else _array(each)
        for name, each in binding.buffers.items()
    }


def set_up(
    binding: Binding,
    *,
    machine: Machine | None = None,
    ptx: Callable[[str], str] | None = None,
    compiled=None,
    given: dict[str, np.ndarray] | None = None,
    more: tuple = (),
) -> OnMachine:
    """Prepare a launch on the PTX machine. machine: one that has loaded the kernel already,
    default: a new one; ptx: a function applied to the kernel's PTX before a new machine loads it;
    compiled: another build than the binding's; given: arrays to use instead of new ones
    (``host_arrays``);
    more: arguments after the kernel's own."""
    compiled = compiled or binding.compiled
    if machine is None:
        from numba_marlin.emulator import Machine

        machine = Machine(ptx(compiled.ptx) if ptx else compiled.ptx)
    held = host_arrays(binding, given)
    written, late = binding.written, binding.used_by_the_launch_before
    addresses = {
        name: machine.memory.buffer(
            array, name=name, readonly=name not in written, earlier=name in late
        ).address
        for name, array in held.items()
    }
    arguments = binding.arguments(addresses, lambda tensor_map, address: tensor_map.encode(address))
    launch = {
        "entry": compiled.entry,
        "grid": binding.grid,
        "block": (compiled.threads,),
        "shared_bytes": compiled.shared_bytes,
        "args": (*arguments, *more),
        "max_instructions": _budget(binding),
    }
    cluster = binding.definition.cluster(binding.config)
    if cluster > 1:
        launch["cluster"] = cluster
    return OnMachine(binding, machine, held, launch)


def _budget(binding: Binding) -> int:
    """Warp instructions after which a launch is given up: the machine's own limit, or more where
    more are expected."""
    from numba_marlin.emulator.limits import MOST_WARP_INSTRUCTIONS

    about, (m, n, k, _) = binding.definition.about, binding.sizes
    wanted = about.instructions(binding.config, m, n, k)
    return max(MOST_WARP_INSTRUCTIONS, int(BUDGET * wanted))


def _array(buffer: Buffer) -> np.ndarray:
    if buffer.array is not None:
        found = buffer.array
        return np.ascontiguousarray(found.host if isinstance(found, arrays.ArrayView) else found)
    made = arrays.aligned_empty(buffer.shape, float_type(buffer.dtype))
    if buffer.zero:
        made[...] = 0
    elif made.dtype.kind in "iu":
        made.view(np.uint8)[...] = POISON_BYTE
    else:
        made[...] = np.nan
    return made
