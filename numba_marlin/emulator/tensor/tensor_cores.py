"""tcgen05 in flight: products (mma) and copies of scales (cp) that single threads issue, and the
commits that say when they are done.

A product does nothing when it is issued. It is done as late as the ISA allows, when somebody waits
for the mbarrier of a commit behind it; with a seed earlier, in any order that the ISA leaves open.
What it reads of shared memory must be readable, visible to the asynchronous proxy, and the same at
both moments; ``tensor_hazards`` says what it and others may do to tensor memory. The sum is made as
in ``block_scales``, which is an assumption.
https://docs.nvidia.com/cuda/parallel-thread-execution/#tensorcore-5th-generation-instructions
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.asynchronous.mbarriers import MBarriers
from numba_marlin.emulator.errors import BadDescriptor, PendingCopyRead
from numba_marlin.emulator.state.lanes import Lanes, Placement, error_at
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.state.operand_chunks import CHUNK, bytes_at, readable_chunks
from numba_marlin.emulator.tensor import block_scales
from numba_marlin.emulator.tensor.scale_cells import scales_of
from numba_marlin.emulator.tensor.tensor_hazards import TensorHazards, Use, in_pipeline
from numba_marlin.emulator.tensor.tensor_memory import TensorMemory
from numba_marlin.emulator.tensor.tensor_registers import TensorRegisters
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.layout import tcgen05, wgmma
from numba_marlin.layout.tcgen05 import InstructionDescriptor, Kind

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore

DRIFT_CHANCE = 0.3


@dataclass(eq=False)
class Operation(Use):
    """``lanes``: the one lane that issued it; ``chunks``: where its operands are in the shared
    array, in 16 bytes, and ``found``: their bytes then; ``run(bytes of the operands)``; ``number``:
    in the order of issue."""

    lanes: Lanes | None = None
    chunks: list[np.ndarray] = field(default_factory=list)
    found: list[np.ndarray] = field(default_factory=list)
    run: Callable[[list[np.ndarray]], None] = lambda operands: None
    number: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """The shared bytes between which it reads."""
        return (
            min(int(each.min()) for each in self.chunks) * CHUNK,
            (max(int(each.max()) for each in self.chunks) + 1) * CHUNK,
        )


@dataclass(eq=False)
class Commit:
    """Arrives at mbarrier ``word`` when operations of its thread with numbers below ``number`` are
    done; ``news``: what it then tells ``races``."""

    ins: Instruction
    lanes: Lanes
    issuer: tuple[int, int]
    word: int
    number: int
    news: np.ndarray | None = None


class TensorCores:
    def __init__(
        self,
        memory: Memory,
        barriers: MBarriers,
        placement: Placement,
        instructions: list[Instruction],
        races: HappensBefore | None = None,
    ) -> None:
        self.memory, self.barriers, self.placement = memory, barriers, placement
        self.tensor = TensorMemory(placement, instructions)
        self.hazards = TensorHazards(placement, instructions, self.tensor.used)
        self.registers = TensorRegisters(placement.warps, instructions)
        slots = range(placement.slots if self.tensor.used else 0)
        self.flying: list[list[Operation]] = [[] for _ in slots]
        self.commits: list[list[Commit]] = [[] for _ in slots]
        self.issued = 0
        self.random: random.Random | None = None
        self.early = False
        self.races = races
        if self.tensor.used:
            barriers.arrivals, memory.borrowers = self.deliver, self.require_returned

    def forget(self, warps: slice) -> None:
        """New blocks move in."""
        per_block = self.placement.warps_per_block
        self.tensor.forget(slice(warps.start // per_block, warps.stop // per_block))
        self.hazards.forget(warps)
        self.registers.forget(warps)

    def of_block(self, warp: int) -> list[Operation]:
        return self.flying[warp // self.placement.warps_per_block]

    def multiply(
        self,
        ins: Instruction,
        lane: Lanes,
        kind: Kind,
        d: int,
        a: int,
        b: int,
        idesc: int,
        sfa: int,
        sfb: int,
        adds: bool,
    ) -> None:
        """The one lane issues a product; addresses and descriptors as numbers."""
        warp, thread = int(lane.warps[0]), int(lane.columns[0])
        try:
            shape, named = (
                tcgen05.decode_instruction(idesc, kind),
                [tcgen05.decode(each) for each in (a, b)],
            )
        except ValueError as reason:
            raise lane.fault(BadDescriptor, str(reason), ins) from None
        places = [
            self._columns(ins, lane, address, count, what)
            for address, count, what in (
                (d, shape.n, "the accumulator"),
                (sfa, tcgen05.columns_of_scales(tcgen05.ROWS), "the scales of A"),
                (sfb, tcgen05.columns_of_scales(shape.n), "the scales of B"),
            )
        ]
        columns, *scales = ((start, stop) for start, stop in places)
        use = Operation(
            ins,
            "mma",
            warp,
            thread,
            (*scales, *([columns] if adds else ())),
            (columns,),
            (kind, d, shape.n),
            lanes=lane,
        )
        rows = tcgen05.ROWS, shape.n
        use.chunks = [self._chunks(ins, lane, each, count) for each, count in zip(named, rows)]
        for what, each in zip(("tensor-a", "tensor-b"), use.chunks):
            self.memory.announce(what, "shared", ins, lane, each.reshape(-1) * CHUNK, CHUNK)
        use.run = lambda operands: self._multiply(use, kind, shape, operands, columns, scales, adds)
        self._issue(use)

    def copy(self, ins: Instruction, lane: Lanes, taddr: int, descriptor: int) -> None:
        """The one lane issues a copy of 32 rows of 16 bytes to each warp's lanes."""
        columns = self._columns(ins, lane, taddr, tcgen05.SCALE_COLUMNS, "the scales")
        try:
            named = tcgen05.decode(descriptor)
        except ValueError as reason:
            raise lane.fault(BadDescriptor, str(reason), ins) from None
        use = Operation(
            ins, "cp", int(lane.warps[0]), int(lane.columns[0]), (), (columns,), lanes=lane
        )
        use.chunks = [self._chunks(ins, lane, named, tcgen05.WARP_LANES)[:, 0]]
        self.memory.announce("tensor-copy", "shared", ins, lane, use.chunks[0] * CHUNK, CHUNK)

        def run(operands) -> None:
            slot = use.warp // self.placement.warps_per_block
            self.tensor.data[slot, :, slice(*columns)] = np.tile(
                operands[0].view(np.uint32), (tcgen05.LANES // tcgen05.WARP_LANES, 1)
            )
            self.tensor.written[slot, :, slice(*columns)] = True

        use.run = run
        self._issue(use)

    def commit(self, ins: Instruction, lane: Lanes, word: int) -> None:
        self.barriers.require_fenced(ins, lane, np.array([word]))
        news = None if self.races is None else self.races.tensor_news(lane)
        done = Commit(
            ins, lane, (int(lane.warps[0]), int(lane.columns[0])), word, self.issued, news
        )
        self.commits[int(lane.warps[0]) // self.placement.warps_per_block].append(done)
        self.memory.progress += 1
        if self.early:
            self._complete(done)

    def deliver(self, words: np.ndarray) -> None:
        """Somebody waits for these mbarriers: let commits arrive until the phase completes, some of
        them if there is a seed."""
        for word in words.tolist():
            phase = self.barriers.phase[word]
            for done in [each for commits in self.commits for each in commits if each.word == word]:
                if (
                    self.barriers.phase[word] != phase
                    or self.random is not None
                    and self.random.random() < DRIFT_CHANCE
                ):
                    break
                self._complete(done)

    def drift(self) -> None:
        """Some time has passed: an operation, or a commit that has nothing left to wait for, chosen
        at random, may go on."""
        if self.random is None or not self.tensor.used or self.random.random() > DRIFT_CHANCE:
            return
        able = [each for flying in self.flying for each in flying if not self._first_of(each)]
        able += [done for commits in self.commits for done in commits if not self._awaited(done)]
        if not able:
            return
        chosen = self.random.choice(able)
        if isinstance(chosen, Commit):
            self._complete(chosen)
        else:
            self._finish(chosen)

    def signals(self, word: int) -> bool:
        """Are commits in flight that will arrive at mbarrier ``word``?"""
        return any(each.word == word for commits in self.commits for each in commits)

    def require_returned(self, ins: Instruction, lanes: Lanes, start: int, stop: int) -> None:
        """PendingCopyRead if an operation in flight may be reading bytes [start, stop) of the
        shared array, which ``ins`` is about to have overwritten."""
        for each in self.flying[start // self.memory.shared.stride]:
            low, high = each.span
            if (
                start < high
                and low < stop
                and any(
                    ((chunks >= start // CHUNK) & (chunks < -(-stop // CHUNK))).any()
                    for chunks in each.chunks
                )
            ):
                where = self.memory.shared.describe(max(start, low) % self.memory.shared.stride)
                within = each.warp % self.placement.warps_per_block
                raise lanes.fault(
                    PendingCopyRead,
                    f"overwrites {where}, which the {each.ins.root} at PTX line {each.ins.line}"
                    f" (warp {within}, lane {each.lane}) may still be reading: nobody has waited"
                    " for an mbarrier of a tcgen05.commit behind it",
                    ins,
                )

    def block_ended(self, slot: int) -> None:
        if not self.tensor.used:
            return
        for what, group in (
            ("is still at work", self.flying[slot]),
            ("has not arrived yet", self.commits[slot]),
        ):
            for each in group:
                warp, lane = each.issuer
                raise error_at(
                    PendingCopyRead,
                    f"the block ended, and this {each.ins.root}, never waited for, {what}",
                    each.ins,
                    self.placement,
                    warp,
                    (lane,),
                )
        self.tensor.block_ended(slot)

    def _issue(self, use: Operation) -> None:
        self.hazards.check(use, use.lanes, self.of_block(use.warp))
        use.found, use.number = [bytes_at(self.memory, each) for each in use.chunks], self.issued
        self.issued += 1
        self.of_block(use.warp).append(use)
        if self.races is not None:
            self.races.tensor_issued(
                use.ins,
                use.lanes,
                np.concatenate([each.reshape(-1) for each in use.chunks]) * CHUNK,
            )
        self.memory.progress += 1
        if self.early:
            self._finish(use)

    def _first_of(self, use: Operation) -> list[Operation]:
        """Those in flight that must be done before it: what it is in a pipeline with."""
        return [
            each
            for each in self.of_block(use.warp)
            if each.number < use.number and in_pipeline(each, use)
        ]

    def _awaited(self, done: Commit) -> list[Operation]:
        return [
            each
            for each in self.of_block(done.issuer[0])
            if each.issuer == done.issuer and each.number < done.number
        ]

    def _complete(self, done: Commit) -> None:
        """All that the commit waits for, and its arrival."""
        waiting = self._awaited(done)
        if self.random is not None:
            self.random.shuffle(waiting)
        for each in waiting:
            self._finish_in_order(each)
        self.commits[done.issuer[0] // self.placement.warps_per_block].remove(done)
        if done.news is not None:
            self.races.tensor_committed(done.word, done.lanes, done.news)
        self.barriers.arrive(done.ins, done.lanes, np.array([done.word]), np.ones(1, np.int64))

    def _finish_in_order(self, use: Operation) -> None:
        for each in self._first_of(use):
            self._finish_in_order(each)
        if use in self.of_block(use.warp):
            self._finish(use)

    def _finish(self, use: Operation) -> None:
        operands = [bytes_at(self.memory, each) for each in use.chunks]
        for now, before, chunks in zip(operands, use.found, use.chunks):
            if not np.array_equal(now, before):
                at = int(chunks[(now != before).any(axis=-1)][0]) * CHUNK
                where = self.memory.shared.describe(at % self.memory.shared.stride)
                raise use.lanes.fault(
                    PendingCopyRead,
                    f"{where}, an operand, changed between issue and completion",
                    use.ins,
                )
        use.run(operands)
        self.of_block(use.warp).remove(use)
        self.hazards.finished(use)
        self.memory.progress += 1

    def _multiply(
        self,
        use: Operation,
        kind: Kind,
        shape: InstructionDescriptor,
        operands: list,
        columns,
        scales,
        adds: bool,
    ) -> None:
        slot, cells = use.warp // self.placement.warps_per_block, self.tensor.data
        found = scales_of(self.tensor, use, slot, kind, shape, scales)
        a, b = (
            block_scales.codes_of(each.view(np.uint8).reshape(len(each), -1), kind.bits)
            for each in operands
        )
        if adds:
            self.tensor.require_written(
                use.ins, use.lanes, slot, slice(None), slice(*columns), "the accumulator"
            )
        before = (
            cells[slot, :, slice(*columns)].view(np.float32)
            if adds
            else np.zeros((tcgen05.ROWS, shape.n), np.float32)
        )
        signs = tuple(
            0x80 >> (8 - kind.bits) if negated else 0
            for negated in (shape.negate_a, shape.negate_b)
        )
        result = block_scales.multiply(
            a ^ np.uint8(signs[0]),
            b ^ np.uint8(signs[1]),
            *found,
            before,
            (shape.a, shape.b),
            shape.scale,
        )
        cells[slot, :, slice(*columns)] = result.view(np.uint32)
        self.tensor.written[slot, :, slice(*columns)] = True

    def _columns(
        self, ins: Instruction, lane: Lanes, address: int, count: int, what: str
    ) -> tuple[int, int]:
        """[start, stop) of columns that an address names: allocated, and from lane 0 on."""
        first, start = tcgen05.fields_of(address)
        if first:
            raise lane.fault(
                BadDescriptor,
                f"{what} must begin in lane 0, not {first} (address {address:#x})",
                ins,
            )
        self.tensor.require_allocated(
            ins, lane, int(lane.warps[0]) // self.placement.warps_per_block, start, start + count
        )
        return start, start + count

    def _chunks(
        self, ins: Instruction, lane: Lanes, named: wgmma.Descriptor, rows: int
    ) -> np.ndarray:
        if named.base_offset:
            raise lane.fault(BadDescriptor, f"{named}: a base offset is not implemented", ins)
        addresses = wgmma.chunk_addresses(named, rows)
        if ins.root == "tcgen05.cp":
            addresses = addresses[:, :1]
        return readable_chunks(self.memory, ins, lane, addresses, named)
