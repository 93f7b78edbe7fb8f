"""Parts of the section of sums: the reduction of accumulators across warps and, with locks, across
blocks (split-K, stream-K), and the epilogue's store of the result."""

from __future__ import annotations

import numpy as np

from numba_marlin.counts.transactions import SECTOR_BYTES, sectors
from numba_marlin.trace.history import history_of
from numba_marlin.trace.pages.choice import Choice, element, products, ranges
from numba_marlin.trace.pages.copies import lane_grid
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import Request, requests
from numba_marlin.views import COUNTED, RECORDED, Cell, Table, Text

ROWS = 32  # rows of a table


def shares_k_in_a_cluster(trace: Trace) -> bool:
    return (trace.about.get("k_shares") or (1, 1))[1] > 1


def exchanged(trace: Trace, choice: Choice) -> Table | None:
    """List what the block moved after its last product: bytes per verb, instruction and memory
    space. None if it moved nothing."""
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
            title=f"Accumulators moved after the last product, block {choice.block}",
            source=RECORDED,
        )
        if rows
        else None
    )


def locks(trace: Trace) -> Table | Text:
    """List every access to the locks by all blocks. Repeated accesses of a block that spins are one
    row."""
    if not len(trace.lock_step):
        return Text(
            (
                "Blocks of a cluster meet at its barrier; there are no locks."
                if shares_k_in_a_cluster(trace)
                else "Blocks share no tile, so there are no locks."
            )
            if trace.block_scaled
            else (
                "No block used a lock: no column of tiles was shared, or this kernel has no locks."
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
            "was: the lock's value before the access. Blocks take turns from the bottom of the"
            " column of tiles to the top, and each waits for its turn; the top block resets the"
            " lock to 0."
        ),
    )
    if any(ins["root"] == "atom" for *_, ins in rows):
        note = (
            "was: the counter's value before the access. Each of the blocks that share a tile adds"
            " 1 behind its part; the one that finds the others' there adds them up and puts the"
            " counter back to 0. Nobody waits."
        )
    if trace.of_experts:
        note += " The later numbers count a token's experts, for an owner warp's columns each."
    if trace.block_scaled:
        title, note = (
            "The counter of tiles, all blocks",
            (
                "was: the counter's value before a block's scheduler incremented it. The first tile"
                " of a block is its own index; the index of every later one is the counter's value"
                " plus the number of blocks, as long as there is such a tile. The last block resets"
                " the counter to 0."
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
    """Show the first store of the result: which lane writes which elements."""
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
            f"Block {choice.block} wrote {name} by bulk copies from shared memory: {len(rows)}"
            " pieces of rows. "
            if len(rows)
            else (
                f"Block {choice.block} wrote no part of {name}: another block that shares its"
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
        f"{first.nbytes} bytes per lane at step {first.step}: {used:,} bytes in {asked} sectors,"
        f" {needed} would suffice. {said}"
    )
    return [
        lane_grid(
            cells,
            f"The first store of warp {first.warp % trace.warps}: first element of {name} that each"
            " lane writes, as row,column",
            note,
        )
    ]
