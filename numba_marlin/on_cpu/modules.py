"""What numba-cuda holds of compiled code: a module, its kernels and what is known of them. Each
takes the place of a class of cuda.core, or is derived from numba-cuda's."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import NamedTuple

from numba_marlin.emulator import Machine
from numba_marlin.emulator.text.program import Kernel
from numba_marlin.on_cpu.memory import DeviceMemory

# what the ISA leaves undefined while chips go on is a warning (docs/checks.md)
CHECKS = "hardware"


class Device:
    """In place of cuda.core.Device."""

    def __init__(self, host, number: int = 0) -> None:
        if number:
            raise ValueError(f"device {number}: there is one device, 0")
        self._host = host
        self.device_id, self.name = 0, "PTX machine"
        self.uuid = "00000000-0000-0000-0000-000000000000"
        major, minor = host.capability
        self.compute_capability = Capability(major, minor)
        self.context = SimpleNamespace(handle=host.context, _handle=host.context)

    def set_current(self) -> None:
        if not int(self._host.cuCtxGetCurrent()):
            self._host.cuCtxPushCurrent(self._host.context)


class Capability(NamedTuple):
    major: int
    minor: int


class Stream:
    """In place of cuda.core.Stream: a handle, since all work is done when it is asked for."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle

    @classmethod
    def from_handle(cls, handle) -> Stream:
        return cls(int(handle))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def sync(self) -> None:
        pass


@dataclass(frozen=True)
class LaunchConfig:
    """In place of cuda.core.LaunchConfig; with the keywords of all its versions."""

    grid: tuple = (1, 1, 1)
    block: tuple = (1, 1, 1)
    shmem_size: int = 0
    is_cooperative: bool = False
    cooperative_launch: bool = False
    cluster: tuple | None = None


class ObjectCode:
    """A loaded module; in place of cuda.core.ObjectCode. The machine reads its text when a kernel
    or a variable of it is first wanted."""

    def __init__(self, ptx: str, handle: int, memory: DeviceMemory, races: bool | None) -> None:
        self.code, self.handle, self.races, self._memory = ptx, handle, races, memory
        self._lock = threading.Lock()
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        with self._lock:
            if self._machine is None:
                self._machine = Machine(self.code, memory=self._memory.globals, checks=CHECKS)
            return self._machine

    def variable(self, name: str):
        """The buffer of a global variable; None if there is none of this name."""
        return self.machine.globals.get(name)

    def get_kernel(self, name: str) -> CompiledKernel:
        return CompiledKernel(self, name.decode() if isinstance(name, bytes) else name)


class CompiledKernel:
    """In place of cuda.core.Kernel."""

    def __init__(self, module: ObjectCode, name: str) -> None:
        self.module, self.name, self.handle = module, name, self
        self.attributes = Attributes(self)

    @property
    def kernel(self) -> Kernel:
        return self.module.machine.kernel(self.name)


class Attributes:
    """Of a kernel, as its PTX says them. Registers and local memory are the assembler's affair:
    ``num_regs`` counts the 32-bit registers that the text declares, at most the 255 that a thread
    can have."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel = kernel

    @cached_property
    def num_regs(self) -> int:
        widths = self._kernel.kernel.registers.items()
        return min(255, sum(max(1, width // 32) * count for width, count in widths if width > 1))

    @cached_property
    def max_threads_per_block(self) -> int:
        return self._kernel.kernel.max_threads or 1024

    def _bytes_in(self, space: str) -> int:
        return sum(each.size for each in self._variables if each.space == space)

    @property
    def _variables(self) -> list:
        return [*self._kernel.kernel.variables, *self._kernel.module.machine.module.variables]

    @cached_property
    def shared_size_bytes(self) -> int:
        return self._bytes_in("shared")

    @cached_property
    def local_size_bytes(self) -> int:
        return self._bytes_in("local")

    @cached_property
    def const_size_bytes(self) -> int:
        return self._bytes_in("const")
