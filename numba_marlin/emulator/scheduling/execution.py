"""One run of one kernel: where its state lives, and what handlers may ask for while they bind
instructions.

Made by ``machine`` for every run; the argument ``m`` of every handler. State is sized for the
resident blocks: ``slots`` of them, each with ``warps_per_block`` warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.asynchronous.bulk import BulkCopies
from numba_marlin.emulator.asynchronous.clusters import Cluster
from numba_marlin.emulator.asynchronous.copies import AsyncCopies
from numba_marlin.emulator.asynchronous.copy_arrivals import CopyArrivals
from numba_marlin.emulator.asynchronous.mbarriers import MBarriers
from numba_marlin.emulator.asynchronous.proxies import AsyncProxy
from numba_marlin.emulator.checks import Checks
from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.limits import (
    BLOCK_BYTES,
    STACK_BYTES,
    WARP_BYTES,
    require_state,
)
from numba_marlin.emulator.ordering.affordable import why_not
from numba_marlin.emulator.ordering.global_proxies import GlobalProxies
from numba_marlin.emulator.ordering.races import HappensBefore
from numba_marlin.emulator.scheduling.placing import (
    align,
    lay_out,
    lay_out_frames,
    rebase,
    reserved_bytes,
)
from numba_marlin.emulator.scheduling.provenance import Provenance
from numba_marlin.emulator.scheduling.special_registers import Cast, Clock, SpecialRegisters
from numba_marlin.emulator.state.block_memory import BlockMemory
from numba_marlin.emulator.state.global_memory import Buffer, GlobalMemory
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement
from numba_marlin.emulator.state.memory import (
    ALLOCA_BYTES,
    LOCAL_BASE,
    PARAMETER_BASE,
    SHARED_BASE,
    Memory,
)
from numba_marlin.emulator.state.register_pool import RegisterPool
from numba_marlin.emulator.state.registers import DTYPES, Binder, Negated, RegisterFile
from numba_marlin.emulator.tensor.tensor_cores import TensorCores
from numba_marlin.emulator.tensor.tensor_sums import ADDERS, MEASURED_ADDER, Adder
from numba_marlin.emulator.tensor.warpgroups import Warpgroups
from numba_marlin.emulator.tensor.wgmma_registers import WgmmaRegisters
from numba_marlin.emulator.text.program import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Operand,
    Register,
    Symbol,
    Variable,
)
from numba_marlin.hardware.architectures import ARCHITECTURES
from numba_marlin.hardware.limits import STATIC_SHARED_BYTES

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.weak_memory import WeakMemory
    from numba_marlin.emulator.scheduling.undefined import Undefined

STACK_ALIGNMENT = 128
MAX_SHARED_BYTES = max(each.shared_bytes_per_block for each in ARCHITECTURES)


class FrameAddress:
    """The address of a variable in each lane's frame."""

    def __init__(self, address: int, frames: np.ndarray, dtype) -> None:
        self.address, self.frames, self.dtype = address, frames, dtype

    def __getitem__(self, sel):
        return (self.frames[sel] + self.address).astype(self.dtype)


class Execution(Binder):
    def __init__(
        self,
        kernel: Kernel,
        variables: Sequence[Variable],
        global_memory: GlobalMemory,
        global_addresses: dict,
        grid: tuple,
        block: tuple,
        shared_bytes: int,
        args: Sequence,
        slots: int,
        cluster: tuple = (1, 1, 1),
        adder: Adder = ADDERS[MEASURED_ADDER],
        look_for_races: bool | None = False,
        stack_bytes: int = STACK_BYTES,
        checks: Checks | None = None,
    ) -> None:
        threads = block[0] * block[1] * block[2]
        self.kernel, self.grid, self.block = kernel, grid, block
        self.adder, self.checks = adder, checks or Checks()
        shared, shared_size, self.shared_static = lay_out(
            "shared", SHARED_BASE, variables, kernel, shared_bytes
        )
        self.reserved = reserved_bytes(kernel)
        if self.shared_static > STATIC_SHARED_BYTES:
            raise PtxSyntaxError(
                f"{kernel.name} has {self.shared_static} bytes of static shared memory, must have"
                f" {STATIC_SHARED_BYTES} at most: more is dynamic (.extern .shared, [])",
                line=kernel.line,
                text=f".entry {kernel.name}",
            )
        if shared_size > MAX_SHARED_BYTES:
            raise ValueError(
                f"shared_bytes={shared_bytes} and {self.shared_static} bytes that {kernel.name}"
                f" declares must be {MAX_SHARED_BYTES} together at most"
            )
        local, local_size, _ = lay_out("local", LOCAL_BASE, variables, kernel, 0)
        self.stack_bytes = stack_bytes
        self.framed, self.frame_bytes = lay_out_frames(kernel, local_size)
        if kernel.saved:
            local_size = align(local_size) + stack_bytes
        if any(ins.root == "alloca" for ins in kernel.instructions):
            local_size = align(local_size, STACK_ALIGNMENT) + ALLOCA_BYTES
        # the last of its bytes are alloca's, from the top down
        self.stack_end = LOCAL_BASE + local_size - ALLOCA_BYTES
        warps, blocks = slots * -(-threads // WARP), grid[0] * grid[1] * grid[2]
        registers = sum(max(1, width // 8) * count for width, count in kernel.registers.items())
        require_state(
            # shared and local memory have a state beside every byte
            warps * (WARP * (registers + 2 * local_size) + WARP_BYTES)
            + slots * 2 * (shared_size + self.reserved)
            + blocks * BLOCK_BYTES,
            f"{slots} resident blocks of {threads} threads",
            "have fewer of them at a time (resident_blocks of Machine.run, --resident of"
            " numba-marlin machine run), or a smaller grid",
            kernel.line,
            f".entry {kernel.name}",
        )
        self.placement = Placement(slots, -(-threads // WARP), threads)
        self.carry = np.zeros((warps, WARP), bool)  # the flag of extended-precision arithmetic
        self.stack = np.full((warps, WARP), LOCAL_BASE + local_size, np.int64)
        super().__init__(RegisterFile(kernel.registers, warps))
        self.addresses = dict(global_addresses)
        for names in (shared, local):
            self.addresses.update({name: start for start, _, name in names})
        self.addresses.update(self.framed)
        self.frames = np.zeros((warps, WARP), np.int64)  # where the variables of calls begin
        placed = {"shared": shared, "local": local}
        self.provenance = Provenance(kernel.instructions, placed, self.checks)
        slot = np.repeat(np.arange(slots), self.placement.warps_per_block)
        by_slot = np.broadcast_to(slot[:, None], (warps, WARP))
        by_thread = np.arange(warps * WARP).reshape(warps, WARP)
        base, size = SHARED_BASE - self.reserved, shared_size + self.reserved
        self.memory = Memory(
            global_memory,
            BlockMemory("shared", base, size, slots, by_slot, rebase(shared, base), self.reserved),
            BlockMemory(
                "local",
                LOCAL_BASE,
                local_size,
                warps * WARP if local_size else 0,
                by_thread,
                rebase(local, LOCAL_BASE),
            ),
            self.checks,
        )
        self.cluster = Cluster(cluster, grid, self.placement, self.memory.shared)
        self.memory.peers = self.cluster.locate
        self.races: HappensBefore | None = None
        self.unraced = why_not(self, blocks, look_for_races)
        if not self.unraced:
            self.races = HappensBefore(self, blocks)
            self.memory.watch = self.races.watch
        self.global_proxies = GlobalProxies(self, blocks)
        self.proxy = self.memory.proxy = AsyncProxy(
            self.memory.shared, self.placement, kernel.instructions
        )
        self.copies = AsyncCopies(self.memory, warps, kernel.instructions)
        self.mbarriers = MBarriers(self.memory, self.placement, kernel.instructions, self.races)
        self.register_pool = RegisterPool(self.placement, kernel)
        self.bulk = BulkCopies(self.memory, self.mbarriers, self.proxy, self.placement, self.races)
        self.warpgroups = Warpgroups(
            self.memory,
            self.registers,
            self.placement,
            WgmmaRegisters(warps, kernel.instructions, checks),
            self.adder,
            self.races,
        )
        self.tensor_cores = TensorCores(
            self.memory, self.mbarriers, self.placement, kernel.instructions, self.races
        )
        self.copy_arrivals = CopyArrivals(self.copies, self.mbarriers)
        self.printed: list[str] = []  # by vprintf
        self.print: Callable[[str], object] | None = None  # who is told of it at once
        self.heap: dict[int, Buffer] = {}  # what malloc gave, by address; Machine.run lends its own
        self.scratch: list[Buffer] = []  # of this run alone
        self.parameters, self._generic_parameters = self._pack(args), None
        self.clock: Callable[[int], int] = lambda pc: 0
        self.weak: WeakMemory | None = None  # set by Machine.run, if its schedule asks for it
        self.undefined: Undefined | None = None  # set when the instructions are bound
        self._special = SpecialRegisters(self, by_slot)

    def place(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Blocks ``numbers`` (x fastest) move into ``slots``: fresh registers and memory."""
        x, y = self.grid[0], self.grid[1]
        per_block = self.placement.warps_per_block
        for slot, number in zip(slots, numbers):
            self.placement.block_of[slot] = number % x, number // x % y, number // (x * y)
            rows = slice(slot * per_block, (slot + 1) * per_block)
            self.placement.live[rows] = self.placement.initial_mask
        where = np.array([self.placement.block_of[slot] for slot in slots], np.uint32)
        self._special.place(slots, where.reshape(-1, 3).T)
        whole = len(slots) == self.placement.slots  # the first blocks: all at once is faster
        for section in (
            [slice(0, len(slots))] if whole else [slice(slot, slot + 1) for slot in slots]
        ):
            rows = slice(section.start * per_block, section.stop * per_block)
            self.registers.poison(rows)
            self.stack[rows] = self.stack_end + ALLOCA_BYTES
            if self.undefined is not None:
                self.undefined.forget(rows)
            self.memory.shared.forget(section)
            self.memory.local.forget(slice(rows.start * WARP, rows.stop * WARP))
            self.mbarriers.forget(section)
            self.proxy.forget(section)
            self.bulk.forget(rows)
            self.copies.forget(rows)
            self.copy_arrivals.forget(rows)
            self.warpgroups.forget(rows)
            self.tensor_cores.forget(rows)
        if self.races is not None:
            self.races.place(slots, numbers)
        if self.weak is not None:
            self.weak.place(slots)
        self.global_proxies.place(slots, numbers)

    def block_ended(self, slot: int) -> None:
        """All threads of the block in ``slot`` have exited: raise if they left something behind."""
        self.bulk.block_ended(slot)
        self.tensor_cores.block_ended(slot)
        if self.races is not None:
            self.races.block_ended(slot)
        self.register_pool.block_ended(slot)

    @property
    def generic_parameters(self) -> Buffer:
        """The parameters as read-only memory, where their generic addresses are; mapped by the
        first who asks, until ``release``."""
        if self._generic_parameters is None:
            self._generic_parameters = self.memory.globals.buffer(
                self.parameters[PARAMETER_BASE:], "parameters", readonly=True
            )
        return self._generic_parameters

    def release(self) -> None:
        """Unmap what was mapped for this run."""
        if self._generic_parameters is not None:
            self.memory.globals.release(self._generic_parameters)
        for buffer in self.scratch:
            self.memory.globals.release(buffer)

    def _pack(self, args: Sequence) -> np.ndarray:
        """Arguments as the bytes of the parameter space."""
        parameters = self.kernel.parameters
        if len(args) != len(parameters):
            raise ValueError(
                f"{self.kernel.name} takes {len(parameters)} arguments, got {len(args)}"
            )
        end = max((p.offset + p.size for p in parameters), default=0)
        data = np.zeros(end, np.uint8)
        for parameter, value in zip(parameters, args):
            if isinstance(value, (bytes, bytearray, np.ndarray)):
                raw = bytes(value)
            elif parameter.type in ("f32", "f64"):
                raw = DTYPES[parameter.type](value).tobytes()
            else:
                bits = 8 * parameter.size
                if not -(1 << bits - 1) <= int(value) < 1 << bits:
                    raise ValueError(
                        f"argument {value} does not fit the {bits} bits of {parameter.name}"
                    )
                raw = (int(value) & (1 << bits) - 1).to_bytes(parameter.size, "little")
            if len(raw) != parameter.size:
                raise ValueError(
                    f"argument of {len(raw)} bytes does not fit {parameter.name} of"
                    f" {parameter.size} bytes"
                )
            data[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(
                raw, np.uint8
            )
            self.addresses[parameter.name] = PARAMETER_BASE + parameter.offset
        return np.concatenate([np.zeros(PARAMETER_BASE, np.uint8), data])

    def special(self, name: str, dtype, ins: Instruction):
        source = self._special[name]
        if isinstance(source, Clock):
            source = source.at(ins.pc)
        if isinstance(source, np.ndarray) and np.dtype(dtype).itemsize == 4:
            return source.view(dtype)
        return Cast(source, dtype)

    def source(self, ins: Instruction, operand: Operand, kind: str):
        if isinstance(operand, Symbol):
            if TYPE_BITS[kind] < 64 and self.address_of(operand) >> TYPE_BITS[kind]:
                raise PtxSyntaxError(
                    f"the address of {operand.name} needs 64 bits, not {TYPE_BITS[kind]}",
                    line=ins.line,
                    text=ins.text,
                )
            if operand.name in self.framed and TYPE_BITS[kind] >= 32:
                return FrameAddress(self.address_of(operand), self.frames, DTYPES[kind])
        return super().source(ins, operand, kind)

    def address_of(self, symbol: Symbol) -> int:
        return self.addresses[symbol.name] + symbol.offset

    def bind(self, ins: Instruction, *kinds: str) -> list:
        """The first operand as destination and the others as sources, each of its kind; there must
        be as many as kinds."""
        if len(ins.operands) != len(kinds):
            raise PtxSyntaxError(
                f"{ins.opcode} takes {len(kinds)} operands, not {len(ins.operands)}",
                line=ins.line,
                text=ins.text,
            )
        bound = [self.destination(ins, ins.operands[0], kinds[0])]
        return bound + [
            self.source(ins, operand, kind) for operand, kind in zip(ins.operands[1:], kinds[1:])
        ]

    def immediate(self, ins: Instruction, position: int) -> int:
        """The integer literal that must stand at ``position``."""
        operand = ins.operands[position] if position < len(ins.operands) else None
        if not isinstance(operand, Immediate) or operand.kind != "int":
            raise PtxSyntaxError(
                f"operand {position} must be an integer literal", line=ins.line, text=ins.text
            )
        return int(operand.value)

    def guard(self, ins: Instruction):
        """The guard predicate as something readable, negated for @!p; None without one."""
        if ins.guard is None:
            return None
        source = self._view(ins, ins.guard, "pred")
        return Negated(source) if ins.guard_negated else source

    def dtype(self, kind: str):
        return DTYPES[kind]

    def address(self, ins: Instruction, operand: Address):
        """Function: lanes -> fresh int64 array of addresses, one for each lane."""
        if not isinstance(operand, Address):
            raise PtxSyntaxError("an address in brackets is needed", line=ins.line, text=ins.text)
        base, offset = operand.base, signed64(operand.offset)
        if isinstance(base, Register):
            source = self.source(ins, base, f"u{base.width}")
            self.uses[ins.pc].addresses.append(base)
            if base.width == 64:

                def of_register(lanes: Lanes) -> np.ndarray:
                    return source[lanes.sel].view(np.int64) + offset

            else:

                def of_register(lanes: Lanes) -> np.ndarray:
                    return source[lanes.sel].astype(np.int64) + offset

            return self.provenance.checked(ins, operand, of_register)
        start = self.address_of(base) if isinstance(base, Symbol) else int(base.value)
        where = signed64(start + offset)
        if isinstance(base, Symbol) and base.name in self.framed:
            return lambda lanes: self.frames[lanes.sel] + where
        return self.provenance.checked(
            ins, operand, lambda lanes: np.full(lanes.shape, where, np.int64)
        )


def signed64(value: int) -> int:
    """As addresses wrap."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
