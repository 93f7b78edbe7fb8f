"""From accumulators to the result: one lane's sums product by product, then across warps, across
blocks, by way of locks, and out."""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.counts.transactions import SECTOR_BYTES, sectors
from numba_marlin.trace.history import History, history_of, vector
from numba_marlin.trace.pages.choice import Choice, chosen_history, element, products, ranges
from numba_marlin.trace.pages.copies import lane_grid
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import Request, requests
from numba_marlin.views import COUNTED, RECORDED, Cell, Section, Table, Text

KEY, TITLE = "sums", "Sums, reductions, write-out"
ROWS = 32  # of a table


def section(trace: Trace, choice: Choice) -> Section:
    history = chosen_history(trace, choice)
    parts = [
        each
        for each in (
            accumulation(trace, history, choice),
            loaded(trace, choice),
            onwards(trace, history, choice),
            exchanged(trace, choice),
            locks(trace),
            *written(trace, choice),
        )
        if each is not None
    ]
    return Section(
        KEY,
        TITLE,
        (
            (
                (
                    SHARED_OUT.format(CLUSTER if shares_k_in_a_cluster(trace) else "")
                    if shares_k(trace)
                    else BLOCK_SCALED
                )
                if trace.block_scaled
                else BETWEEN
            ),
        ),
        tuple(parts),
    )


def shares_k(trace: Trace) -> bool:
    """Whether warps share the k of a tile (``kernels.block_decode``)."""
    return "split" in (trace.about.get("config") or {})


def shares_k_in_a_cluster(trace: Trace) -> bool:
    return (trace.about.get("config") or {}).get("split", 1) > 1


BETWEEN = (
    "Sums stay in fp32 until they are written: in the accumulators of a lane, between the warps"
    " that share columns, and between the blocks that share a column of tiles."
)
BLOCK_SCALED = (
    "A tile of sums is one block's alone, in fp32, over all of k: nothing is exchanged. Behind the"
    " last product the epilogue multiplies by the global scales (alpha), does what else it was"
    " asked for, and writes D."
)

SHARED_OUT = (
    "A warp has the sums of its share of k. Shares are added up first to last: those of a block's"
    " warps in its shared memory{}. Then the epilogue multiplies by the global scales (alpha), does"
    " what else it was asked for, and writes D."
)
CLUSTER = ", then those of a cluster's blocks, each of which reads some columns of all the others'"


def loads_of(trace: Trace, choice: Choice) -> tuple[History, list[int]]:
    """(a warp, its loads out of tensor memory): of the chosen one if it has any, else of the
    block's first that does."""
    for warp in (choice.warp, *range(trace.warps)):
        history = history_of(trace, choice.block * trace.warps + warp)
        found = history.steps_with("tcgen05.ld").tolist()
        if found:
            return history, found
    return history, []


def loaded(trace: Trace, choice: Choice) -> Table | None:
    """Sums that came out of tensor memory, a lane's own row."""
    history, found = loads_of(trace, choice)
    rows = []
    for step in found[:ROWS]:
        operands = history.operands(step)
        column = (
            int(history.value(operands[1].strip("[]").split("+")[0], step)[choice.lane]) & 0xFFFF
        )
        column += int(operands[1].strip("[]").partition("+")[2] or 0)
        values = [history.result(name, step) for name in vector(operands[0])]
        rows.append(
            (
                str(step),
                f"{column}-{column + len(values) - 1}",
                *(f"{float(value.view(np.float32)[choice.lane]):.5g}" for value in values[:4]),
            )
        )
    warp = history.warp % trace.warps
    return (
        Table(
            ("step", "columns", *(f"first + {i}" for i in range(4))),
            tuple(rows),
            title=f"Sums out of tensor memory: warp {warp}, lane {choice.lane}",
            source=RECORDED,
            note=(
                f"Lane {choice.lane} of warp {warp} has row {32 * (warp % 4) + choice.lane} of the"
                " tile."
            )
            + (f" The first {ROWS} of {len(found)} loads." if len(found) > ROWS else ""),
        )
        if rows
        else None
    )


def chain(trace: Trace, history: History, found: list[int], chosen: int) -> list[int]:
    """The products that add to the same sums as the chosen one, in order: each takes for C what the
    one before it wrote."""
    before = {
        step: came_from(history, vector(history.operands(step)[3])[0], step, set(found))
        for step in found
        if len(history.operands(step)) > 3
    }
    line = [chosen]
    while before.get(line[0]) is not None:
        line.insert(0, before[line[0]])
    after = {origin: step for step, origin in before.items() if origin is not None}
    while after.get(line[-1]) is not None:
        line.append(after[line[-1]])
    return line


def came_from(history: History, register: str, step: int, found: set[int]) -> int | None:
    """The product that wrote a register, through moves."""
    for _ in range(4):
        step = history.writer(register, step)
        if step is None or step in found:
            return step
        ins = history.trace.instructions[int(history.trace.step_pc[step])]
        if ins["root"] != "mov" or not ins["reads"]:
            return None
        register = ins["reads"][0]
    return None


def accumulation(trace: Trace, history: History, choice: Choice) -> Table | None:
    found = products(history)
    if not found:
        return None
    chosen = found[min(choice.step, len(found) - 1)]
    ins = trace.instructions[int(trace.step_pc[chosen])]
    if ins["root"] == "tcgen05.mma":  # its sums are in tensor memory
        return None
    if ins["root"] == "wgmma.mma_async":
        return waits(trace, history, choice, found, vector(history.operands(chosen)[0]))
    line = chain(trace, history, found, chosen)
    rows: list[tuple] = []
    for step in line[:ROWS]:
        values = [history.result(name, step) for name in vector(history.operands(step)[0])]
        cells = tuple(
            "?" if value is None else f"{float(value.view(np.float32)[choice.lane]):.5g}"
            for value in values
        )
        rows.append(
            (Cell(str(found.index(step)), tone="hot" if step == chosen else ""), str(step), *cells)
        )
    return Table(
        ("product", "step", *(f"c{i}" for i in range(len(rows[0]) - 2))),
        tuple(rows),
        title=(
            f"Accumulators of {choice.words}, lane {choice.lane}, after each product that adds to"
            " them"
        ),
        source=RECORDED,
        note=f"The first {ROWS} of {len(line)}." if len(line) > ROWS else "",
    )


def waits(
    trace: Trace, history: History, choice: Choice, found: list[int], registers: list[str]
) -> Table:
    """Accumulators of wgmma, whenever products on them had been waited for."""
    rows = []
    taken = [
        (step, history.wait_of(step))
        for step in found
        if vector(history.operands(step)[0])[0] == registers[0]
    ]
    for wait in dict.fromkeys(wait for _, wait in taken if wait is not None):
        values = [history.result(name, wait) for name in registers[:4]]
        rows.append(
            (
                f"{found.index(max(step for step, at in taken if at == wait))}",
                str(wait),
                *(f"{float(value.view(np.float32)[choice.lane]):.5g}" for value in values),
            )
        )
    return Table(
        ("up to product", "step", *(f"c{i}" for i in range(len(registers[:4])))),
        tuple(rows[:ROWS]),
        title=f"The first accumulators of {choice.words}, lane {choice.lane}, at each wait",
        source=RECORDED,
    )


def onwards(trace: Trace, history: History, choice: Choice) -> Table | None:
    """What becomes of the first accumulator behind the last product, or of the first sum out of
    tensor memory."""
    found = products(history)
    start, register, what = None, "", f"c0 of lane {choice.lane} behind the last product"
    if not found or trace.instructions[int(trace.step_pc[found[0]])]["root"] == "tcgen05.mma":
        history, loads = loads_of(trace, choice)
        if not loads:
            return None
        start, register, what = (
            loads[0],
            vector(history.operands(loads[0])[0])[0],
            f"the first of these sums, of lane {choice.lane}",
        )
    else:
        line = chain(trace, history, found, found[min(choice.step, len(found) - 1)])
        start, register = line[-1], vector(history.operands(line[-1])[0])[0]
    if trace.instructions[int(trace.step_pc[start])]["root"] == "wgmma.mma_async":
        start = max(
            (wait for step in found if (wait := history.wait_of(step)) is not None), default=start
        )
    links, ends = history.followed(start, register, choice.lane, through_sums=True)
    rows = []
    for link in links:
        ins, value = trace.instructions[link.pc], history.result(link.register, link.step)
        if value is not None and ins["kind"] in ("fp32", "convert", "fp16"):
            rows.append(
                (
                    link.step,
                    str(link.step),
                    Cell(ins["phase"], ins["phase"]),
                    ins["text"].split()[0],
                    number(value, choice.lane, ins["text"]),
                )
            )
    for step in ends:
        ins = trace.instructions[int(trace.step_pc[step])]
        rows.append(
            (step, str(step), Cell(ins["phase"], ins["phase"]), ins["text"].split()[0], "stored")
        )
    if not rows:
        return None
    shown = tuple(row[1:] for row in sorted(rows, key=lambda row: row[0])[:ROWS])
    return Table(
        ("step", "verb", "instruction", "value"),
        shown,
        title=f"What becomes of {what}",
        source=RECORDED,
    )


def number(value: np.ndarray, lane: int, text: str) -> str:
    if re.search(r"\.(e2m1|e4m3|e5m2)x2\.f", text.split()[0]):  # codes of small floats
        return f"codes {int(value[lane]) & 0xFFFF:#06x}"
    if re.match(r"cvt(\.(rn|rz|rni|rzi|sat|satfinite))*\.[usb](8|16|32)\.", text.split()[0]):
        return f"{int(value[lane])}"
    if "x2" in text.split()[0]:
        low, high = (
            value.view(np.float16).reshape(32, 2)[lane]
            if "bf16" not in text
            else (value.view(np.uint16).reshape(32, 2)[lane].astype(np.uint32) << 16).view(
                np.float32
            )
        )
        return f"({low:g}, {high:g})"
    if ".f16" in text.split()[0] and ".f32.f16" not in text:
        return f"{np.uint16(value[lane] & 0xFFFF).view(np.float16):g}"
    return f"{float(value.view(np.float32)[lane]):.6g}"


def exchanged(trace: Trace, choice: Choice) -> Table | None:
    """What the block moved behind its last product: per verb, instruction and space."""
    last = [
        products(history_of(trace, choice.block * trace.warps + warp))
        for warp in range(trace.warps)
    ]
    behind = min((steps[-1] for steps in last if steps), default=None)
    if behind is None:
        return None
    found: dict[tuple, list[Request]] = {}
    for each in requests(trace, choice.block, ("load", "store", "stmatrix", "ldmatrix")):
        if each.step > behind:
            name = (
                element(trace, int(each.address[each.active][0]))[0]
                if each.space == "global"
                else "shared"
            )
            found.setdefault(
                (
                    trace.instructions[each.pc]["phase"],
                    trace.instructions[each.pc]["text"].split()[0],
                    name,
                ),
                [],
            ).append(each)
    rows = tuple(
        (
            Cell(phase, phase),
            opcode,
            place,
            ranges(sorted({each.warp % trace.warps for each in group})),
            f"{sum(int(each.active.sum()) * each.nbytes for each in group):,}",
            f"{min(each.step for each in group)}-{max(each.step for each in group)}",
        )
        for (phase, opcode, place), group in found.items()
    )
    return (
        Table(
            ("verb", "instruction", "where", "warps", "bytes", "steps"),
            rows[:ROWS],
            title=f"Sums on their way, block {choice.block}",
            source=RECORDED,
        )
        if rows
        else None
    )


def locks(trace: Trace) -> Table | Text:
    """Every access to the locks, of all blocks; asking again and again is one row."""
    if not len(trace.lock_step):
        return Text(
            (
                "Blocks of a cluster meet at its barrier; there are no locks."
                if shares_k_in_a_cluster(trace)
                else "Blocks share no tile, and meet at no lock."
            )
            if trace.block_scaled
            else (
                "No block met another at a lock: no column of tiles was shared, or this kernel has"
                " no locks."
            )
        )
    rows: list[list] = []
    base, latest = trace.buffer("locks")["address"], dict[int, list]()
    for position in range(len(trace.lock_step)):
        ins = trace.instructions[int(trace.lock_pc[position])]
        block, lock = (
            int(trace.lock_warp[position]) // trace.warps,
            (int(trace.lock_address[position]) - base) // 4,
        )
        key, before = (
            (
                block,
                lock,
                int(trace.lock_pc[position]),
                int(trace.lock_before[position]),
            ),
            int(trace.lock_step[position]),
        )
        if block in latest and latest[block][0] == key:
            latest[block][2] += 1
        else:
            latest[block] = [key, before, 1, ins]
            rows.append(latest[block])
    shown = tuple(
        (
            str(step),
            Cell(str(key[0]), f"block {key[0]}"),
            str(key[1]),
            ins["phase"],
            ins["text"].split()[0],
            str(key[3]),
            str(times),
        )
        for key, step, times, ins in rows[:ROWS]
    )
    title, note = (
        "Locks, all blocks",
        (
            "was: the lock's value when the access came. A block waits until it is its turn, from"
            " the bottom of the column of tiles to the top; the top block sets the lock back to 0."
        ),
    )
    if trace.block_scaled:
        title, note = (
            "The counter of tiles, all blocks",
            (
                "was: the counter's value when a block's scheduler asked. Its first tile is its own"
                " number, the next one the counter's value and the number of blocks, if there are"
                " so many; who asks last sets it back to 0."
            ),
        )
    return Table(
        ("step", "block", "lock", "verb", "instruction", "was", "times"),
        shown,
        title=title,
        source=RECORDED,
        note=note + (f" The first {ROWS} of {len(rows)}." if len(rows) > ROWS else ""),
    )


def written(trace: Trace, choice: Choice) -> list:
    """The stores of the result: which lane writes which elements."""
    c, name = trace.buffer(trace.result_name), trace.result_name.upper()
    stores = [
        each
        for each in requests(trace, choice.block, ("store",), ("global",))
        if c and c["address"] <= int(each.address[each.active][0]) < c["address"] + c["nbytes"]
    ]
    total = next(
        (each["writes"] for each in trace.counts["buffers"] if each["name"] == trace.result_name),
        None,
    )
    said = (
        ""
        if total is None or not total["requests"]
        else (
            f"All blocks: {total['bytes']:,} bytes of {name} written in {total['sectors']:,}"
            f" sectors of {SECTOR_BYTES} bytes, {total['coalescing']:.0f}% coalesced ({COUNTED})."
        )
    )
    if not stores:
        rows = np.flatnonzero(
            (trace.bulk_warp // trace.warps == choice.block) & (trace.bulk_kind == 15)
        )
        way = (
            f"Block {choice.block} wrote {name} by bulk copies out of shared memory, {len(rows)}"
            " pieces of rows. "
            if len(rows)
            else (
                f"Block {choice.block} wrote nothing of {name}: another block that shares its"
                " columns did. "
            )
        )
        return [Text(way + said)]
    mine = [each for each in stores if each.warp == choice.grid_warp(trace)] or [
        each for each in stores if each.warp == stores[0].warp
    ]
    first = mine[0]
    asked, needed, used = (
        int(value[0]) for value in sectors(first.address[None], first.active[None], first.nbytes)
    )
    cells = []
    for lane in range(32):
        place = element(trace, int(first.address[lane])) if first.active[lane] else None
        cells.append(
            Cell(
                f"{place[1]},{place[2]}",
                f"row {place[1]}",
                "hot" if lane == choice.lane else "",
                key=f"lane {lane}",
            )
            if place
            else Cell("-", tone="dim")
        )
    note = (
        f"{first.nbytes} bytes a lane at step {first.step}: {used:,} bytes in {asked} sectors,"
        f" {needed} would do. {said}"
    )
    return [
        lane_grid(
            cells,
            f"The first store of warp {first.warp % trace.warps}: first element of {name} that each"
            " lane writes, as row,column",
            note,
        )
    ]
