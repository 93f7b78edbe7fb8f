"""One run of one kernel: where its state lives, and what handlers may ask for while they bind
instructions.

Made by ``machine`` for every run; the argument ``m`` of every handler. State is sized for the
resident blocks: ``slots`` of them, each with ``warps_per_block`` warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from numba_marlin.emulator.asynchronous.bulk import BulkCopies
from numba_marlin.emulator.asynchronous.clusters import Cluster
from numba_marlin.emulator.asynchronous.copies import AsyncCopies
from numba_marlin.emulator.asynchronous.mbarriers import MBarriers
from numba_marlin.emulator.asynchronous.proxies import AsyncProxy
from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.limits import BLOCK_BYTES, WARP_BYTES, require_state
from numba_marlin.emulator.ordering.affordable import why_not
from numba_marlin.emulator.ordering.races import HappensBefore
from numba_marlin.emulator.state.block_memory import BlockMemory
from numba_marlin.emulator.state.global_memory import GlobalMemory
from numba_marlin.emulator.state.lanes import WARP, Lanes, Placement
from numba_marlin.emulator.state.memory import LOCAL_BASE, PARAMETER_BASE, SHARED_BASE, Memory
from numba_marlin.emulator.state.register_pool import RegisterPool
from numba_marlin.emulator.state.registers import DTYPES, Binder, Constant, Negated, RegisterFile
from numba_marlin.emulator.tensor.tensor_cores import TensorCores
from numba_marlin.emulator.tensor.tensor_sums import adder_of
from numba_marlin.emulator.tensor.warpgroups import Warpgroups
from numba_marlin.emulator.tensor.wgmma_registers import WgmmaRegisters
from numba_marlin.emulator.text.program import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Register,
    Symbol,
    Variable,
)
from numba_marlin.hardware.architectures import ARCHITECTURES
from numba_marlin.hardware.limits import STATIC_SHARED_BYTES

DYNAMIC_ALIGNMENT = 16
MAX_SHARED_BYTES = max(each.shared_bytes_per_block for each in ARCHITECTURES)


class Cast:
    """A special register read as another type."""

    def __init__(self, source, dtype) -> None:
        self.source, self.dtype = source, dtype

    def __getitem__(self, sel):
        return self.source[sel].astype(self.dtype)


class Clock:
    """%clock and its kin: warp instructions executed so far on the machine."""

    def __init__(self, execution: Execution, shift: int = 0) -> None:
        self.execution, self.shift = execution, shift

    def __getitem__(self, sel):
        return np.uint64(self.execution.clock() >> self.shift)


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
        target: str = "",
        look_for_races: bool | None = False,
    ) -> None:
        threads = block[0] * block[1] * block[2]
        self.kernel, self.grid, self.block = kernel, grid, block
        self.adder = adder_of(target)
        shared, shared_size, self.shared_static = lay_out(
            "shared", SHARED_BASE, variables, kernel, shared_bytes
        )
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
        warps, blocks = slots * -(-threads // WARP), grid[0] * grid[1] * grid[2]
        registers = sum(max(1, width // 8) * count for width, count in kernel.registers.items())
        require_state(
            # shared and local memory have a state beside every byte
            warps * (WARP * (registers + 2 * local_size) + WARP_BYTES)
            + slots * 2 * shared_size
            + blocks * BLOCK_BYTES,
            f"{slots} resident blocks of {threads} threads",
            "have fewer of them at a time (resident_blocks of Machine.run, --resident of"
            " numba-marlin machine run), or a smaller grid",
        )
        self.placement = Placement(slots, -(-threads // WARP), threads)
        self.carry = np.zeros((warps, WARP), bool)  # the flag of extended-precision arithmetic
        super().__init__(RegisterFile(kernel.registers, warps))
        self.addresses = dict(global_addresses)
        for names in (shared, local):
            self.addresses.update({name: start for start, _, name in names})
        slot = np.repeat(np.arange(slots), self.placement.warps_per_block)
        by_slot = np.broadcast_to(slot[:, None], (warps, WARP))
        by_thread = np.arange(warps * WARP).reshape(warps, WARP)
        self.memory = Memory(
            global_memory,
            BlockMemory(
                "shared", SHARED_BASE, shared_size, slots, by_slot, rebase(shared, SHARED_BASE)
            ),
            BlockMemory(
                "local",
                LOCAL_BASE,
                local_size,
                warps * WARP if local_size else 0,
                by_thread,
                rebase(local, LOCAL_BASE),
            ),
        )
        self.cluster = Cluster(cluster, grid, self.placement, self.memory.shared)
        self.memory.peers = self.cluster.locate
        self.races: HappensBefore | None = None
        self.unraced = why_not(self, blocks, look_for_races)
        if not self.unraced:
            self.races = HappensBefore(self, blocks)
            self.memory.watch = self.races.watch
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
            WgmmaRegisters(warps, kernel.instructions),
            self.adder,
            self.races,
        )
        self.tensor_cores = TensorCores(
            self.memory, self.mbarriers, self.placement, kernel.instructions, self.races
        )
        self.parameters = self._pack(args)
        self.clock = lambda: 0
        self.print: Callable[[str], object] | None = None  # where vprintf's text goes
        self._special = self._special_registers(by_slot)

    def place(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Blocks ``numbers`` (x fastest) move into ``slots``: fresh registers and memory."""
        x, y = self.grid[0], self.grid[1]
        per_block = self.placement.warps_per_block
        for slot, number in zip(slots, numbers):
            where = (number % x, number // x % y, number // (x * y))
            rows = slice(slot * per_block, (slot + 1) * per_block)
            self.placement.block_of[slot] = where
            self.placement.live[rows] = self.placement.initial_mask
            for axis, value, size in zip("xyz", where, self.cluster.shape):
                self._special[f"%ctaid.{axis}"][rows] = value
                self._special[f"%clusterid.{axis}"][rows] = value // size
                self._special[f"%cluster_ctaid.{axis}"][rows] = value % size
        whole = len(slots) == self.placement.slots  # the first blocks: all at once is faster
        for section in (
            [slice(0, len(slots))] if whole else [slice(slot, slot + 1) for slot in slots]
        ):
            rows = slice(section.start * per_block, section.stop * per_block)
            self.registers.poison(rows)
            self.memory.shared.forget(section)
            self.memory.local.forget(slice(rows.start * WARP, rows.stop * WARP))
            self.mbarriers.forget(section)
            self.proxy.forget(section)
            self.bulk.forget(rows)
            self.copies.forget(rows)
            self.warpgroups.forget(rows)
            self.tensor_cores.forget(rows)
        if self.races is not None:
            self.races.place(slots, numbers)

    def block_ended(self, slot: int) -> None:
        """All threads of the block in ``slot`` have exited: raise if they left something behind."""
        self.bulk.block_ended(slot)
        self.tensor_cores.block_ended(slot)
        if self.races is not None:
            self.races.block_ended(slot)
        self.register_pool.block_ended(slot)

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

    def _special_registers(self, slot_of: np.ndarray) -> dict:
        warps, per_block = self.placement.warps, self.placement.warps_per_block
        thread = (np.arange(warps)[:, None] % per_block * WARP + np.arange(WARP)).astype(np.uint32)
        bx, by, bz = self.block
        lane = np.broadcast_to(np.arange(WARP, dtype=np.uint32), (warps, WARP))
        one = np.uint64(1)
        le = ((one << (lane.astype(np.uint64) + one)) - one).astype(np.uint32)
        eq = (one << lane.astype(np.uint64)).astype(np.uint32)
        registers = {
            "%tid.x": thread % np.uint32(bx),
            "%tid.y": thread // np.uint32(bx) % np.uint32(by),
            "%tid.z": thread // np.uint32(bx * by),
            "%laneid": lane,
            "%warpid": thread // np.uint32(WARP),
            "%smid": slot_of.astype(np.uint32),
            "%lanemask_eq": eq,
            "%lanemask_le": le,
            "%lanemask_lt": le ^ eq,
            "%lanemask_ge": ~(le ^ eq),
            "%lanemask_gt": ~le,
            "%clock": Clock(self),
            "%clock_hi": Clock(self, 32),
            "%clock64": Clock(self),
            "%globaltimer": Clock(self),
            "%globaltimer_lo": Clock(self),
            "%globaltimer_hi": Clock(self, 32),
            "%nwarpid": Constant(np.uint32(per_block)),
            "%nsmid": Constant(np.uint32(self.placement.slots)),
            "%gridid": Constant(np.uint64(1)),
            "%dynamic_smem_size": Constant(np.uint32(self.memory.shared.size - self.shared_static)),
            "%total_smem_size": Constant(np.uint32(self.memory.shared.size)),
        }
        registers["%cluster_ctarank"] = (slot_of % self.cluster.size).astype(np.uint32)
        registers["%cluster_nctarank"] = Constant(np.uint32(self.cluster.size))
        for axis, size, count, of_cluster in zip("xyz", self.block, self.grid, self.cluster.shape):
            registers[f"%ntid.{axis}"] = Constant(np.uint32(size))
            registers[f"%nctaid.{axis}"] = Constant(np.uint32(count))
            for name in ("ctaid", "clusterid", "cluster_ctaid"):
                registers[f"%{name}.{axis}"] = np.zeros((warps, WARP), np.uint32)
            registers[f"%cluster_nctaid.{axis}"] = Constant(np.uint32(of_cluster))
            registers[f"%nclusterid.{axis}"] = Constant(np.uint32(count // of_cluster))
        return registers

    def special(self, name: str, dtype):
        source = self._special[name]
        if isinstance(source, np.ndarray) and np.dtype(dtype).itemsize == 4:
            return source.view(dtype)
        return Cast(source, dtype)

    def address_of(self, symbol: Symbol) -> int:
        return self.addresses[symbol.name] + symbol.offset

    def bind(self, ins: Instruction, *kinds: str) -> list:
        """The first operand as destination and the others as sources, each of its kind."""
        if len(ins.operands) < len(kinds):
            raise PtxSyntaxError(
                f"{ins.opcode} needs {len(kinds)} operands", line=ins.line, text=ins.text
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
        source = self.source(ins, ins.guard, "pred")
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
            if base.width == 64:

                def of_register(lanes: Lanes) -> np.ndarray:
                    return source[lanes.sel].view(np.int64) + offset

            else:

                def of_register(lanes: Lanes) -> np.ndarray:
                    return source[lanes.sel].astype(np.int64) + offset

            return of_register
        start = self.address_of(base) if isinstance(base, Symbol) else int(base.value)
        where = signed64(start + offset)
        return lambda lanes: np.full(lanes.shape, where, np.int64)


def signed64(value: int) -> int:
    """As addresses wrap."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def lay_out(space: str, base: int, variables: Sequence[Variable], kernel: Kernel, dynamic: int):
    """Addresses of the variables of a space: ([(address, size, name)], bytes in all, bytes before
    the dynamic part).

    Module-scope variables count when the kernel's text names them, as ptxas does. All [] arrays
    start at the same place.
    """
    used = {op.name for ins in kernel.instructions for op in symbols(ins.operands)}
    mine = [v for v in variables if v.space == space and v.name in used]
    mine += [v for v in kernel.variables if v.space == space]
    placed, end, alignment = [], base, DYNAMIC_ALIGNMENT
    for variable in mine:
        if variable.size:
            start = -(-end // variable.align) * variable.align
            placed.append((start, variable.size, variable.name))
            end = start + variable.size
        else:
            alignment = max(alignment, variable.align)
    start = -(-end // alignment) * alignment if dynamic else end
    placed += [(start, dynamic, v.name) for v in mine if not v.size]
    return placed, start + dynamic - base, start - base


def rebase(placed: list, base: int) -> list:
    return [(start - base, size, name) for start, size, name in placed]


def symbols(operands: Sequence):
    """All Symbol operands, inside addresses too."""
    for operand in operands:
        if isinstance(operand, Symbol):
            yield operand
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
            yield operand.base
