"""Recording while the machine runs: every step of all blocks, and every address and every written
register of some or all of them. Where in ``OF_ALL`` blocks read and write is recorded of every
block: it shows how they divide the product.

The listeners are the machine's own (``observer``, ``watch``, ``requests``, ``started``, ``after``);
they also count. The registers of a block of eight warps take a kilobyte per instruction, so
the number of rows is limited; beyond the limit nothing is recorded, and the header says so.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.counts.liveness import reads_and_writes
from numba_marlin.counts.observer import Observer, padded
from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.access import Access
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.trace.record import HIGH, KINDS, SPACES

ROWS = 200_000  # of registers: 32 lanes of 4 bytes each
WAIT, PRODUCT = "wgmma.wait_group", "wgmma.mma_async"
KIND = {name: number for number, name in enumerate(KINDS)}
PIECES = ("bulk-issue", "bulk-land", "bulk-read", "bulk-write")
# of tcgen05, in shared memory: their addresses are places in the array of all blocks
OPERANDS = ("tensor-a", "tensor-b", "tensor-copy")
CHUNK = 16
OF_ALL = ("b", "c", "d")  # buffers: weights or the second operand, the result
DIVIDED = ("load", "store", "copy-request", "bulk-read", "bulk-write")


class Recorder:
    def __init__(
        self, machine: Machine, entry: str | None, blocks: tuple[int, ...] | None, rows: int
    ) -> None:
        self.observer = Observer(machine, entry)
        self.blocks, self.rows, self.complete = blocks, rows, True
        self.now = -1
        self.named = Names()
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.sets: dict[tuple, int] = {}
        # id of a Lanes -> (it, number of its set, rows of the recorded block in it, as a selection)
        self.known: dict[int, tuple] = {}
        self.members: list[tuple] = []
        self.targets: dict[int, list] = {}  # pc -> [(register's number, view)]
        self.products: dict[int, dict] = {}  # warp -> number -> view, of accumulators of wgmma
        self.waited: dict[int, int] = {}  # warp that waits for them -> step
        self.step_pc: list[int] = []
        self.step_set: list[int] = []
        self.writes: list[tuple[int, int, np.ndarray, np.ndarray]] = []
        self.count = 0
        self.accesses: list[tuple] = []
        self.pieces: list[tuple] = []
        self.locks: list[tuple] = []
        self.tiles: list[tuple] = []
        self.divided = [each for each in machine.memory.buffers if each.name in OF_ALL]
        self.lock_buffer = next(
            (each for each in machine.memory.buffers if each.name == "locks"), None
        )

    def started(self, execution) -> None:
        self.execution, self.placement = execution, execution.placement
        self.launch = {
            "grid": list(execution.grid),
            "block": list(execution.block),
            "cluster": list(execution.cluster.shape),
            "shared_bytes": execution.memory.shared.size,
            "shared_base": execution.memory.shared.base,
        }

    # ---- who ----

    def block(self, row: int) -> int:
        """The number of the block of a resident warp, x fastest."""
        x, y, z = self.placement.block_of[row // self.placement.warps_per_block]
        return x + self.execution.grid[0] * (y + self.execution.grid[1] * z)

    def warp(self, row: int) -> int:
        """The number of a resident warp in the grid: block after block."""
        return (
            self.block(row) * self.placement.warps_per_block + row % self.placement.warps_per_block
        )

    def kept(self, row: int) -> bool:
        return self.blocks is None or self.block(row) in self.blocks

    def who(self, lanes) -> tuple:
        """(lanes, number of the set, rows of its warps that are recorded) of a bundle's lanes. It
        is cached, because the machine uses the same lanes again and again."""
        known = self.known.get(id(lanes))
        if known is not None and known[0] is lanes:
            return known
        masks = lanes.masks_by_warp()
        rows = sorted(masks)
        key = tuple((self.warp(row), masks[row]) for row in rows)
        number = self.sets.get(key)
        if number is None:
            number = self.sets[key] = len(self.members)
            self.members.append(key)
        mine = np.array([row for row in rows if self.kept(row)], np.intp)
        if len(self.known) > 4096:
            self.known.clear()
        self.known[id(lanes)] = known = (lanes, number, mine)
        return known

    # ---- what ----

    def step(self, ins: Instruction, lanes) -> None:
        """Before each instruction."""
        _, number, mine = self.who(lanes)
        if self.waited:
            self._landed(mine)
        self.now += 1
        self.step_pc.append(ins.pc)
        self.step_set.append(number)
        if ins.root == WAIT:
            self.waited.update((warp, self.now) for warp in mine.tolist() if warp in self.products)

    def after(self, ins: Instruction, lanes) -> None:
        """After each instruction: records what it has written."""
        _, _, mine = self.who(lanes)
        if not len(mine):
            return
        if ins.pc not in self.targets:
            self.targets[ins.pc] = self._views(ins)
        targets = self.targets[ins.pc]
        if ins.root == PRODUCT:
            for warp in mine.tolist():
                self.products.setdefault(warp, {}).update(targets)
        elif targets:
            self._keep(self.now, targets, mine)

    def _landed(self, mine: np.ndarray) -> None:
        """Records the accumulators of warps that go on after a wait: the machine writes them there,
        whatever instruction follows."""
        for warp in [warp for warp in mine.tolist() if warp in self.waited]:
            self._keep(self.waited.pop(warp), list(self.products[warp].items()), np.array([warp]))

    def _keep(self, step: int, targets: list, warps: np.ndarray) -> None:
        if self.count >= self.rows:
            self.complete = False
            return
        for number, view in targets:
            numbers = np.array([self.warp(row) for row in warps.tolist()])
            self.writes.append((step, number, numbers, view[warps]))
            self.count += len(warps)

    def _views(self, ins: Instruction) -> list:
        """(number, uint32 view [warps, 32]) of every register that ``ins`` writes."""
        found = []
        for register in reads_and_writes(ins)[1]:
            array, name = (
                self.execution.registers.arrays[register.width][register.index],
                self.named(register),
            )
            if register.width == 64:
                halves = array.view(np.uint32).reshape(*array.shape, 2)
                found += [
                    (self._numbered(name), halves[..., 0]),
                    (self._numbered(name + HIGH), halves[..., 1]),
                ]
            else:
                found.append((self._numbered(name), array))
        return found

    def _numbered(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    # ---- where ----

    def access(self, access: Access) -> None:
        """One access, or one request; see counts.observer."""
        self.observer.access(access)
        kind, lanes = access.kind, access.lanes
        if kind in PIECES:
            self._piece(access)
            return
        if kind in OPERANDS:
            if self.kept(int(lanes.warps[0])):
                self._chunks(
                    access,
                    access.address
                    - int(self.execution.memory.shared.origin[int(lanes.warps[0]), 0])
                    + self.execution.memory.shared.base,
                )
            return
        # what moves between tensor memory and registers is in the counts, and in the registers
        if kind not in KIND:
            return
        if (
            self.lock_buffer is not None
            and access.space == "global"
            and access.nbytes == 4
            and kind in ("load", "store", "atomic")
        ):
            self._lock(access)
        rows = lanes.warps if lanes.full else np.unique(lanes.warps)
        mine = [self.kept(row) for row in rows.tolist()]
        if not all(mine) and self._of_all(access):
            mine = [True for _ in mine]
        if not any(mine):
            return
        if kind == "wgmma":
            self._chunks(access, access.address)
            return
        address, active = padded(access)
        warps = [self.warp(row) for row in rows[mine].tolist()]
        self.accesses.append(
            (
                self.now,
                access.ins.pc,
                KIND[kind],
                SPACES.index(access.space),
                access.nbytes,
                warps,
                np.where(active, address, -1)[mine],
            )
        )

    def _of_all(self, access: Access) -> bool:
        """Whether an access is to a buffer whose division is recorded of all blocks."""
        return (
            access.space == "global"
            and access.kind in DIVIDED
            and any(
                ((access.address >= each.address) & (access.address < each.end)).any()
                for each in self.divided
            )
        )

    def _piece(self, access: Access) -> None:
        row, lane = (
            int(access.lanes.warps[0]),
            (int(access.lanes.columns[0]) if not access.lanes.full else 0),
        )
        if self.kept(row) or self._of_all(access):
            for address in access.address.reshape(-1).tolist():
                self.pieces.append(
                    (
                        self.now,
                        access.ins.pc,
                        KIND[access.kind],
                        self.warp(row),
                        lane,
                        address,
                        access.nbytes,
                    )
                )

    def _lock(self, access: Access) -> None:
        buffer = self.lock_buffer
        if access.kind == "atomic" and access.values is None:
            return  # its store follows
        inside = (access.address >= buffer.address) & (access.address < buffer.end)
        left: dict[int, int] = {}  # by the atomics of lanes before
        for at in np.argwhere(inside):
            address = int(access.address[tuple(at)])
            held = int(buffer.view(4, 1)[(address - buffer.address) // 4, 0])
            value = left.get(address, held)
            if access.kind == "atomic":
                left[address] = int(access.values[tuple(at)][0])
            row = self.now, access.ins.pc, self.warp(int(access.lanes.warps[at[0]])), address
            if not self.locks or self.locks[-1][:4] != row:
                self.locks.append((*row, value))

    def _chunks(self, access: Access, addresses: np.ndarray) -> None:
        shared, row = self.execution.memory.shared, int(access.lanes.warps[0])
        for address in addresses.reshape(-1).tolist():
            start = int(shared.origin[row, 0]) + address - shared.base
            self.tiles.append(
                (
                    self.now,
                    access.ins.pc,
                    self.warp(row),
                    address,
                    shared.data[start : start + CHUNK].copy(),
                )
            )

    # ---- all of it ----

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that the docstring of ``record`` lists."""
        found = {
            "step_pc": np.array(self.step_pc, np.int32),
            "step_set": np.array(self.step_set, np.int32),
        }
        found["set_start"] = np.concatenate(
            [[0], np.cumsum([len(each) for each in self.members])]
        ).astype(np.int64)
        for name, position, dtype in (("warp", 0, np.int32), ("mask", 1, np.uint32)):
            found[f"set_{name}"] = np.array(
                [pair[position] for each in self.members for pair in each], dtype
            )
        found |= columns(
            "access",
            ("step", "pc", "kind", "space", "bytes"),
            [each[:5] for each in self.accesses],
            [len(each[5]) for each in self.accesses],
        )
        found["access_warp"] = np.concatenate(
            [each[5] for each in self.accesses] or [np.zeros(0)]
        ).astype(np.int32)
        found["access_address"] = np.concatenate(
            [each[6] for each in self.accesses] or [np.zeros((0, WARP))]
        ).astype(np.int64)
        found |= columns(
            "write",
            ("step", "register"),
            [each[:2] for each in self.writes],
            [len(each[2]) for each in self.writes],
        )
        found["write_warp"] = np.concatenate(
            [each[2] for each in self.writes] or [np.zeros(0)]
        ).astype(np.int32)
        found["write_value"] = np.concatenate(
            [each[3] for each in self.writes] or [np.zeros((0, WARP))]
        ).astype(np.uint32)
        found |= columns(
            "bulk", ("step", "pc", "kind", "warp", "lane", "address", "bytes"), self.pieces
        )
        found |= columns("lock", ("step", "pc", "warp", "address", "before"), self.locks)
        found |= columns(
            "tile", ("step", "pc", "warp", "address"), [each[:4] for each in self.tiles]
        )
        values = np.array([each[4] for each in self.tiles], np.uint8)
        return {**found, "tile_value": values.reshape(-1, CHUNK)}


def columns(
    prefix: str, names: tuple[str, ...], rows: list[tuple], repeats: list[int] | None = None
) -> dict[str, np.ndarray]:
    """One array per column of the rows, each row repeated ``repeats`` times."""
    table = np.array(rows, np.int64).reshape(-1, len(names))
    if repeats is not None:
        table = np.repeat(table, repeats, axis=0)
    return {
        f"{prefix}_{name}": table[:, position].astype(np.int64 if name == "address" else np.int32)
        for position, name in enumerate(names)
    }


class Names:
    """Unique names of registers: if a scope of inline PTX declares a name again, width and index
    are appended to it."""

    def __init__(self) -> None:
        self.owner: dict[str, tuple[int, int]] = {}

    def __call__(self, register) -> str:
        place = register.width, register.index
        return (
            register.name
            if self.owner.setdefault(register.name, place) == place
            else f"{register.name}.{register.width}.{register.index}"
        )
