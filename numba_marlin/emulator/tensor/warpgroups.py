"""wgmma in flight: products issued by the warps of a warpgroup, closed into groups by commit, taken
by wait.

A product does nothing when it is issued. It is taken when its warpgroup waits for it, as late as
the ISA allows. What it reads of shared memory must be readable, visible to the asynchronous proxy,
and the same at both moments. The four warps of a warpgroup wait for each other at wgmma.wait_group
and must have issued the same products. (On an H200 they meet at the fence before the first product,
and each goes on from its own wait when the whole product is done: experiment 05.)

What a product is: ``wgmma_products``, ``wgmma_forms``.
https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from numba_marlin.emulator.errors import (
    BadMetadata,
    DivergentCollective,
    MachineError,
    PendingCopyRead,
)
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import FULL, WARP, Lanes, Placement, error_at, mask_lanes
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.state.operand_chunks import CHUNK, bytes_at, readable_chunks
from numba_marlin.emulator.state.paths import Path
from numba_marlin.emulator.state.registers import RegisterFile
from numba_marlin.emulator.tensor import sparsity
from numba_marlin.emulator.tensor.tensor_sums import Adder
from numba_marlin.emulator.tensor.wgmma_products import Operand, Product, Shape
from numba_marlin.emulator.tensor.wgmma_registers import WIDTH, WgmmaRegisters
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.layout import wgmma

if TYPE_CHECKING:
    from numba_marlin.emulator.ordering.races import HappensBefore


class Warpgroups:
    def __init__(
        self,
        memory: Memory,
        registers: RegisterFile,
        placement: Placement,
        checks: WgmmaRegisters,
        adder: Adder,
        races: HappensBefore | None = None,
    ) -> None:
        self.memory, self.registers, self.placement, self.checks, self.adder = (
            memory,
            registers,
            placement,
            checks,
            adder,
        )
        checks.user = self._user
        self.races = races
        self.open: defaultdict[int, list[Product]] = defaultdict(list)  # by warp
        self.groups: defaultdict[int, list[list[Product]]] = defaultdict(list)
        self.parked: dict[tuple[int, int], list[tuple[int, Path, object]]] = {}

    def forget(self, warps: slice) -> None:
        """New warps move in."""
        for warp in range(warps.start, warps.stop) if self.open or self.groups else ():
            self.open.pop(warp, None)
            self.groups.pop(warp, None)
        self.checks.forget(warps)

    def issue(
        self, shape: Shape, lanes: Lanes, a: np.ndarray | None, b: np.ndarray, adds: np.ndarray
    ) -> None:
        """Descriptors and ``adds`` [warps, 32], which must be the same for all lanes of a warp.
        lanes: whole warps."""
        ins, warps = shape.ins, lanes.warps.tolist()
        for name, values in (("a-desc", a), ("b-desc", b), ("scale-d", adds)):
            if values is not None and (values != values[:, :1]).any():
                raise lanes.fault(
                    DivergentCollective,
                    f"{name} differs between lanes of a warp",
                    ins,
                    values != values[:, :1],
                )
        chained = np.array(
            [
                all(
                    p.shape.accumulators == shape.accumulators
                    for p in self._flying(w)
                    if set(p.shape.d_rows) & set(shape.d_rows)
                )
                for w in warps
            ]
        )
        self.checks.issue(ins, lanes, shape.d_rows, shape.read_rows, chained)
        found: dict[tuple, list[np.ndarray]] = {}
        for row, warp in enumerate(warps):
            names = None if a is None else int(a[row, 0]), int(b[row, 0])
            place = warp // self.placement.warps_per_block, *names
            if place not in found:
                found[place] = [self._bytes(warp, each) for each in shape.operands(*names)]
            if self.races is not None:
                parts = [self._chunks(warp, each).reshape(-1) for each in shape.operands(*names)]
                self.races.product_issued(ins, warp, np.concatenate(parts) * CHUNK)
            self.open[warp].append(Product(shape, *names, bool(adds[row, 0]), found[place]))
        self.memory.progress += 1

    def commit(self, lanes: Lanes) -> None:
        for warp in lanes.warps.tolist():
            self.groups[warp].append(self.open[warp])
            self.open[warp] = []

    def wait(self, paths: Iterable[Path], end, pc: int) -> list[tuple[int, Path]]:
        """Warps come to a wait (``end``: its ins and ``latest``) and go on at ``pc``: those whose
        whole warpgroup is here by now."""
        released = []
        for path in paths:
            if path.mask != FULL:
                raise error_at(
                    DivergentCollective,
                    "needs all 32 lanes of the warp, these came alone",
                    end.ins,
                    self.placement,
                    path.warp,
                    mask_lanes(path.mask),
                )
            slot, within = divmod(path.warp, self.placement.warps_per_block)
            waiting = self.parked.setdefault((slot, within // wgmma.WARPS), [])
            waiting.append((pc, path, end))
            if len(waiting) == wgmma.WARPS:
                del self.parked[slot, within // wgmma.WARPS]
                first = min(path.warp for _, path, _ in waiting)
                for _, other, at in waiting:
                    if at is not end:
                        raise self._fault(
                            "warps of a warpgroup wait at different places, here and at line"
                            f" {at.ins.line}",
                            end.ins,
                            other.warp,
                        )
                self._land(first, end)
                released += [(pc, path) for pc, path, _ in waiting]
        return released

    def waiting(self) -> list[tuple[str, Path, Instruction]]:
        """(what for, path, instruction) of every warp that waits for the others of its
        warpgroup."""
        found = []
        for (_slot, group), waiting in self.parked.items():
            here = {path.warp % self.placement.warps_per_block for _, path, _ in waiting}
            missing = sorted(set(range(wgmma.WARPS * group, wgmma.WARPS * (group + 1))) - here)
            what = (
                f"of warpgroup {group}, which lacks warp{'s' * (len(missing) > 1)}"
                f" {', '.join(map(str, missing))}"
            )
            found += [(what, path, end.ins) for _, path, end in waiting]
        return found

    def _flying(self, warp: int) -> Iterable[Product]:
        yield from (product for group in self.groups[warp] for product in group)
        yield from self.open[warp]

    def _land(self, first: int, end) -> None:
        """Take the products of warps first .. first + 3 that ``end`` waits for, in order."""
        warps = range(first, first + wgmma.WARPS)
        taken = []
        for warp in warps:
            count = max(0, len(self.groups[warp]) - end.latest)
            taken.append([product for group in self.groups[warp][:count] for product in group])
            del self.groups[warp][:count]
        for warp, mine in zip(warps, taken):
            if [p.shape.ins.pc for p in mine] != [p.shape.ins.pc for p in taken[0]]:
                raise self._fault(
                    "warps of a warpgroup wait for different wgmma instructions", end.ins, warp
                )
        if self.races is not None:
            self.races.products_taken(warps, len(taken[0]))
        matrix, shape = None, None
        for number, product in enumerate(taken[0]):
            ins = product.shape.ins
            for warp, mine in zip(warps, taken):
                if mine[number] != product:
                    raise self._fault(
                        "descriptors or scale-d differ between warps of a warpgroup", ins, warp
                    )
            if shape is not None and shape.accumulators != product.shape.accumulators:
                self._write(first, shape, matrix)
                matrix = None
            shape = product.shape
            if not product.adds:
                matrix = np.zeros((wgmma.ROWS, shape.columns), shape.form.accumulator)
            elif matrix is None:
                matrix = self._read(first, shape.d, shape.form.accumulator)[shape.d_places]
            before = [
                list(each)
                for each in zip(
                    *{id(mine[number].found): mine[number].found for mine in taken}.values()
                )
            ]
            matrices = [
                self._matrix(first, each, then)
                for each, then in zip(shape.operands(product.a, product.b), before)
            ]
            b = matrices[0]
            a = (
                matrices[1]
                if product.a is not None
                else self._read(first, shape.a, np.uint16)[A_PLACES].view(np.uint8)
            )
            matrix = shape.multiply(a, b, matrix, self._codes(first, shape), self.adder)
            self.checks.land(slice(first, first + wgmma.WARPS), shape.d_rows, shape.read_rows)
        if shape is not None:
            self._write(first, shape, matrix)
            self.memory.progress += 1

    def _read(self, first: int, numbers: np.ndarray, kind: type) -> np.ndarray:
        """Registers of a warpgroup as elements of a type: [element, lane], flat."""
        held = np.ascontiguousarray(
            self.registers.arrays[WIDTH][numbers, first : first + wgmma.WARPS]
        )
        elements = held.view(kind).reshape(len(numbers), wgmma.WARPS * WARP, -1)
        return np.ascontiguousarray(elements.swapaxes(1, 2)).reshape(-1)

    def _codes(self, first: int, shape: Shape) -> np.ndarray | None:
        """The metadata of a sparse product: [row, chunk]."""
        if shape.sparse is None:
            return None
        metadata, selector = shape.sparse.metadata, shape.sparse.selector
        words = self.registers.arrays[WIDTH][shape.sparse.register, first : first + wgmma.WARPS]
        codes = sparsity.codes_of(metadata, selector, words).reshape(wgmma.ROWS, -1)
        wrong = sparsity.undefined(metadata, codes, ordered=False)
        if wrong.any():
            warp = first + int(wrong.any(axis=1).argmax()) // (wgmma.ROWS // wgmma.WARPS)
            raise self._fault(sparsity.describe(codes, wrong), shape.ins, warp, BadMetadata)
        return codes

    def _write(self, first: int, shape: Shape, matrix: np.ndarray) -> None:
        held = matrix.reshape(-1)[shape.d_back].reshape(len(shape.d), -1, wgmma.WARPS * WARP)
        self.registers.arrays[WIDTH][shape.d, first : first + wgmma.WARPS] = (
            np.ascontiguousarray(held.swapaxes(1, 2)).view(np.uint32).reshape(-1, wgmma.WARPS, WARP)
        )

    def _matrix(self, warp: int, what: Operand, before: list[np.ndarray]) -> np.ndarray:
        """A matrix in shared memory, uint8 [rows, bytes of k]; what it was ``before``, too."""
        found = self._bytes(warp, what)
        for each in before:
            if not np.array_equal(found, each):
                line = int(np.argmax((found != each).any(axis=(1, 2))))
                named = wgmma.decode(what.descriptor)
                where = self.memory.shared.describe(
                    int(what.chunk_addresses(named)[line, 0]) - self.memory.shared.base
                )
                raise self._fault(
                    f"{'k' if what.transposed else 'row'} {line} of {named}, at {where}, changed"
                    " between issue and wait",
                    what.ins,
                    warp,
                    PendingCopyRead,
                )
        if what.transposed:
            elements = found.view(np.uint16).reshape(-1, what.rows)
            return np.ascontiguousarray(elements.T).view(np.uint8)
        return found.view(np.uint8).reshape(what.rows, -1)

    def _bytes(self, warp: int, what: Operand) -> np.ndarray:
        """What a descriptor names: uint64 [row or k, chunk, 2]."""
        return bytes_at(self.memory, self._chunks(warp, what))

    def _chunks(self, warp: int, what: Operand) -> np.ndarray:
        """Where its 16-byte chunks are in the shared array, in chunks: int [row or k, chunk]. They
        may be read through the asynchronous proxy."""
        ins = what.ins
        try:
            named = wgmma.decode(what.descriptor)
        except ValueError as reason:
            raise self._fault(str(reason), ins, warp) from None
        if named.base_offset:
            raise self._fault(f"{named}: a base offset is not implemented", ins, warp)
        if named.swizzle == wgmma.DEPTH_BYTES < what.depth_bytes and not what.transposed:
            raise self._fault(
                f"{named}: of B of a sparse product, {what.depth_bytes} bytes of k a row, a swizzle"
                f" of {named.swizzle} is not implemented: the ISA does not say where the second"
                f" {named.swizzle} lie",
                ins,
                warp,
            )
        addresses = what.chunk_addresses(named)
        index = readable_chunks(
            self.memory,
            ins,
            Lanes(self.placement, np.array([warp]), np.array([0])),
            addresses,
            named,
        )
        if self.memory.watch is not None:
            self._show(ins, warp, addresses)
        return index

    def _show(self, ins: Instruction, warp: int, addresses: np.ndarray) -> None:
        """Report a matrix to the watcher of memory: 16 bytes per lane, 32 lanes at a time."""
        for start in range(0, addresses.size, WARP):
            part = addresses.reshape(-1)[start : start + WARP]
            self.memory.watch(
                Access(
                    "wgmma",
                    "shared",
                    ins,
                    Lanes(self.placement, np.full(part.size, warp), np.arange(part.size)),
                    part,
                    CHUNK,
                )
            )

    def _user(self, row: int, warp: int) -> str:
        """Which product in flight has a register, and which wait is missing, for messages."""
        for behind, group in enumerate([*self.groups[warp], self.open[warp]]):
            for product in group:
                if row in product.shape.d_rows or row in product.shape.read_rows:
                    ins = product.shape.ins
                    later = len(self.groups[warp]) - behind - 1
                    missing = (
                        f"no wgmma.wait_group {later} or less since"
                        if later >= 0
                        else "its group is not committed, let alone waited for"
                    )
                    return (
                        f"the wgmma at PTX line {ins.line} ({ins.opcode}), still in flight:"
                        f" {missing}"
                    )
        raise MachineError(
            "a register in flight of no product: a defect of the machine, not of the program"
        )

    def _fault(
        self, detail: str, ins: Instruction, warp: int, kind: type = DivergentCollective
    ) -> MachineError:
        return error_at(kind, detail, ins, self.placement, warp, tuple(range(WARP)))


def places(row_of: np.ndarray, col_of: np.ndarray, width: int) -> np.ndarray:
    """For every element of a matrix of that width, where it is in [element, lane] flattened (of a
    fragment's maps [lane, element])."""
    return np.argsort((row_of * width + col_of).T.reshape(-1)).reshape(-1, width)


A_PLACES = places(wgmma.A_REGISTERS.row_of, wgmma.A_REGISTERS.col_of, wgmma.DEPTH)
