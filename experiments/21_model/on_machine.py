"""Triton's glue on the PTX machine: the host functions run on CPU tensors, what they would launch
is compiled to PTX for sm_90, and the machine runs that PTX on the tensors' own memory, looking for
races. Needs Triton and torch; no GPU.

    done = machined(lambda: norm.add_norm(x, more, weight), (x, more, weight), ("weight",))
    done.returned, done.ptx

What a launch reads or writes counts as in use by the launch before it until it has waited
(griddepcontrol.wait), but for the parameters named ``complete``. Memory that a function makes is
poisoned: NaN, but for integers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "29_zoo"))

from launches import parameters_of
from triton_launches import recording

from numba_marlin.emulator import Machine, Schedule
from numba_marlin.emulator.state.global_memory import GlobalMemory

TARGET = "sm_90"


@dataclass(frozen=True)
class Done:
    """What the functions returned, whose tensors the launches wrote; the name and PTX of each
    launch, and how many warp instructions it took."""

    returned: Any
    ptx: dict[str, str]
    instructions: dict[str, int]


@dataclass
class Memory:
    """Storages of tensors as buffers of a machine. given: the addresses of those that hold
    something."""

    given: set[int]
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    held: dict[int, Any] = field(default_factory=dict)

    def poison(self, tensor: torch.Tensor) -> None:
        start = tensor.untyped_storage().data_ptr()
        if start not in self.given and tensor.is_floating_point():
            tensor.fill_(float("nan"))
        self.given.add(start)

    def address(self, tensor: torch.Tensor, earlier: bool = True) -> int:
        """earlier: whether the launch before may be using it."""
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start in self.held:  # as before, but for that
            self.memory.release(self.held[start])
            self.held[start] = self.memory.add(replace(self.held[start], earlier=earlier))
        else:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            name = f"storage{len(self.held)}"
            self.held[start] = self.memory.buffer(flat, name, earlier=earlier)
        return self.held[start].address + tensor.data_ptr() - start


def machined(call, inputs=(), complete=(), tables=(), schedule: Schedule | None = None) -> Done:
    """inputs: tensors that hold something; all others are poisoned. tables: (int64 tensor, tensors
    whose addresses it is to hold)."""
    with recording(TARGET) as recorded:
        returned = call()
    memory = Memory({each.untyped_storage().data_ptr() for each in inputs})
    for *_, args in recorded:
        for value in args:
            if isinstance(value, torch.Tensor):
                memory.poison(value)
    for table, tensors in tables:
        table.copy_(torch.tensor([memory.address(each) for each in tensors]))
    texts: dict[str, str] = {}
    instructions: dict[str, int] = {}
    for kernel, src, grid, args in recorded:
        name, ptx = kernel.metadata.name, kernel.asm["ptx"]
        if not kernel.metadata.launch_pdl:
            raise ValueError(f"{name} is launched without programmatic dependent launch")
        words = [
            memory.address(value, key not in complete) if kind.startswith("*") else value
            for key, kind, value in zip(src.fn.arg_names, src.signature.values(), args)
            if kind != "constexpr"
        ]
        words += [0] * (parameters_of(ptx, name) - len(words))  # scratch: none asked for
        machine = Machine(ptx, races=True, memory=memory.memory)
        result = machine.run(
            name,
            grid=grid,
            block=32 * kernel.metadata.num_warps,
            shared_bytes=kernel.metadata.shared,
            args=words,
            seed=schedule,
        )
        texts[name] = ptx
        instructions[name] = instructions.get(name, 0) + result.instructions
    return Done(returned, texts, instructions)
