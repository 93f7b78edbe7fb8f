"""Traffic of a block: the origin in global memory of bytes in shared memory, and the time of their
copy, from recorded addresses only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.layout.tensor_map import swizzled
from numba_marlin.trace.history import History, history_of, vector
from numba_marlin.trace.record import KINDS, SPACES, Trace, remembered

KIND = {name: number for number, name in enumerate(KINDS)}
SHARED, GLOBAL = SPACES.index("shared"), SPACES.index("global")


@dataclass(frozen=True)
class Request:
    """One instruction of one warp: ``address`` int64 [32], -1 for lanes without an access."""

    step: int
    pc: int
    warp: int
    kind: str
    space: str
    nbytes: int
    address: np.ndarray

    @property
    def active(self) -> np.ndarray:
        return self.address >= 0


@dataclass(frozen=True)
class Copy:
    """An asynchronous copy of one lane, or a row of a bulk copy: ``nbytes`` from global ``source``
    (-1: zeros) to shared ``target``, issued at ``step`` by ``warp`` and ``lane``. It landed at step
    ``landed`` (-1: never), its 16-byte chunks permuted by a ``swizzle`` of this many bytes.
    """

    step: int
    pc: int
    warp: int
    lane: int
    source: int
    target: int
    nbytes: int
    landed: int
    bulk: bool
    swizzle: int = 0


def requests(
    trace: Trace, block: int, kinds: tuple[str, ...], spaces: tuple[str, ...] = ("shared", "global")
) -> list[Request]:
    """Accesses of a block, in order."""
    rows = np.flatnonzero(
        (trace.access_warp // trace.warps == block)
        & np.isin(trace.access_kind, [KIND[kind] for kind in kinds])
        & np.isin(trace.access_space, [SPACES.index(space) for space in spaces])
    )
    return [
        Request(
            int(trace.access_step[row]),
            int(trace.access_pc[row]),
            int(trace.access_warp[row]),
            KINDS[trace.access_kind[row]],
            SPACES[trace.access_space[row]],
            int(trace.access_bytes[row]),
            trace.access_address[row],
        )
        for row in rows.tolist()
    ]


@remembered
def copies(trace: Trace, block: int) -> tuple[Copy, ...]:
    """All copies into the shared memory of a block, in the order of their issue."""
    return tuple(
        sorted(
            _lane_copies(trace, block) + _bulk_copies(trace, block),
            key=lambda copy: (copy.step, copy.warp, copy.lane, copy.target),
        )
    )


def _lane_copies(trace: Trace, block: int) -> list[Copy]:
    asked = {
        (each.step, each.warp): each.address for each in requests(trace, block, ("copy-request",))
    }
    landings: dict[tuple[int, int, int], list[int]] = {}
    for each in requests(trace, block, ("copy-land",)):
        for lane in np.flatnonzero(each.active).tolist():
            landings.setdefault((each.warp, lane, int(each.address[lane])), []).append(each.step)
    found = []
    for each in requests(trace, block, ("copy-issue",)):
        source = asked.get((each.step, each.warp))
        for lane in np.flatnonzero(each.active).tolist():
            target = int(each.address[lane])
            landed = next(
                (step for step in landings.get((each.warp, lane, target), ()) if step > each.step),
                -1,
            )
            found.append(
                Copy(
                    each.step,
                    each.pc,
                    each.warp,
                    lane,
                    -1 if source is None else int(source[lane]),
                    target,
                    each.nbytes,
                    landed,
                    False,
                )
            )
    return found


def _bulk_copies(trace: Trace, block: int) -> list[Copy]:
    mine, boxes = (
        np.flatnonzero(trace.bulk_warp // trace.warps == block),
        trace.about.get("boxes") or {},
    )
    by_step: dict[int, dict[str, list[int]]] = {}
    for row in mine.tolist():
        by_step.setdefault(int(trace.bulk_step[row]), {}).setdefault(
            KINDS[trace.bulk_kind[row]], []
        ).append(row)
    landings: dict[int, list[int]] = {}
    for row in mine[trace.bulk_kind[mine] == KIND["bulk-land"]].tolist():
        landings.setdefault(int(trace.bulk_address[row]), []).append(int(trace.bulk_step[row]))
    found = []
    for step, rows in by_step.items():
        if "bulk-read" not in rows or "bulk-issue" not in rows:
            continue
        issues, reads = rows["bulk-issue"], rows["bulk-read"]
        per_issue = len(reads) // len(issues)
        for position, issue in enumerate(issues):
            start, landed = (
                int(trace.bulk_address[issue]),
                next(
                    (at for at in landings.get(int(trace.bulk_address[issue]), ()) if at > step), -1
                ),
            )
            box = boxes.get(name_at(trace, int(trace.bulk_address[reads[0]]))) or (0, 0)
            mine_of_issue = reads[position * per_issue : (position + 1) * per_issue]
            pitch = box[0] or int(trace.bulk_bytes[issue]) // max(len(mine_of_issue), 1)
            for number, read in enumerate(mine_of_issue):
                found.append(
                    Copy(
                        step,
                        int(trace.bulk_pc[issue]),
                        int(trace.bulk_warp[issue]),
                        int(trace.bulk_lane[issue]),
                        int(trace.bulk_address[read]),
                        start + number * pitch,
                        int(trace.bulk_bytes[read]),
                        landed,
                        True,
                        box[1],
                    )
                )
    return found


def name_at(trace: Trace, address: int) -> str:
    buffer = trace.buffer_at(address)
    return buffer["name"] if buffer else ""


@remembered
def _places(trace: Trace, block: int) -> np.ndarray:
    """Copies that landed, as columns: target, nbytes, landed, issued, source, swizzle."""
    return (
        np.array(
            [
                (copy.target, copy.nbytes, copy.landed, copy.step, copy.source, copy.swizzle)
                for copy in copies(trace, block)
                if copy.landed >= 0
            ],
            np.int64,
        )
        .reshape(-1, 6)
        .T
    )


def origin(trace: Trace, block: int, address: int, step: int) -> int | None:
    """The global address from which the byte at a shared address had come when ``step`` began; None
    if no recorded copy or store brought it."""
    target, nbytes, landed, issued, source, swizzle = _places(trace, block)
    plain = address * np.ones_like(target)  # where the byte would lie if nothing were swizzled
    for span in np.unique(swizzle[swizzle > 0]).tolist():
        plain[swizzle == span] = swizzled(address, span)
    found = np.flatnonzero((target <= plain) & (plain < target + nbytes) & (landed <= step))
    if len(found):
        latest = found[np.argmax(issued[found])]
        return None if source[latest] < 0 else int(source[latest] + plain[latest] - target[latest])
    return _stored(trace, block, address, step)


@remembered
def _stores(trace: Trace, block: int) -> tuple[Request, ...]:
    return tuple(requests(trace, block, ("store",), ("shared",)))


def _stored(trace: Trace, block: int, address: int, step: int) -> int | None:
    """The same for bytes that a thread loaded into a register and stored from there."""
    for each in reversed([each for each in _stores(trace, block) if each.step < step]):
        hit = np.flatnonzero(
            each.active & (each.address <= address) & (address < each.address + each.nbytes)
        )
        if len(hit):
            history, lane = history_of(trace, each.warp), int(hit[0])
            word = (address - int(each.address[lane])) // 4
            stored = vector(history.operands(each.step)[1])
            came = history.source(stored[min(word, len(stored) - 1)], each.step)
            if came is None:
                return None
            return loaded_from(
                trace, history, came[0], came[1], lane, (address - int(each.address[lane])) % 4
            )
    return None


def loaded_from(
    trace: Trace, history: History, step: int, register: str, lane: int, byte: int = 0
) -> int | None:
    """The global address of a byte of a register that a load wrote, traced through shared memory if
    it came from there."""
    ins = trace.instructions[int(trace.step_pc[step])]
    request = next(
        (
            each
            for each in requests_at(trace, step, history.warp)
            if each.kind in ("load", "ldmatrix")
        ),
        None,
    )
    if request is None or register not in ins["writes"]:
        return None
    position = ins["writes"].index(register)
    if request.kind == "ldmatrix":  # register i of lane 4 g + t: bytes 4 t .. of row g of matrix i
        row = 8 * position + lane // 4
        address = int(request.address[row]) + 4 * (lane % 4) + byte
    else:
        address = (
            int(request.address[lane]) + request.nbytes // len(ins["writes"]) * position + byte
        )
    if address < 0:
        return None
    return (
        address
        if request.space == "global"
        else origin(trace, history.warp // trace.warps, address, step)
    )


def requests_at(trace: Trace, step: int, warp: int) -> list[Request]:
    low, high = np.searchsorted(trace.access_step, [step, step + 1])
    rows = [row for row in range(low, high) if trace.access_warp[row] == warp]
    return [
        Request(
            step,
            int(trace.access_pc[row]),
            warp,
            KINDS[trace.access_kind[row]],
            SPACES[trace.access_space[row]],
            int(trace.access_bytes[row]),
            trace.access_address[row],
        )
        for row in rows
    ]
