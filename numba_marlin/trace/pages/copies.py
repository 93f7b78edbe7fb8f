"""The section of copies from global to shared memory: bytes, sectors and banks per lane.

Its steps are the first copy instructions of a block, or the first loads of a warp if the kernel has
no copies.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.counts.transactions import SECTOR_BYTES, sectors
from numba_marlin.trace.pages.choice import Choice, element, size
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import Copy, Request, copies, requests
from numba_marlin.views import COUNTED, RECORDED, Cell, Grid, Section, Step, Table

STEPS = 8  # instructions that are shown
BANK_GROUPS = 8  # groups of 4 banks, each 16 bytes wide
ROWS = 24  # rows of a table of bulk copies


def section(trace: Trace, choice: Choice) -> Section:
    found = copies(trace, choice.block)
    notes, steps = [], []
    lanes = [copy for copy in found if not copy.bulk]
    if lanes:
        notes.append(
            f"Block {choice.block} issued {len(lanes):,} copies of {lanes[0].nbytes} bytes, one"
            " per lane, by cp.async: they bypass the registers and are complete after the next"
            f" wait. {sum(copy.source < 0 for copy in lanes):,} of them fill with zeros, where a"
            " tile exceeds the matrix or the block's share of k ends."
        )
        steps += lane_steps(trace, choice, lanes)
    if any(copy.bulk for copy in found):
        bulk = [copy for copy in found if copy.bulk]
        notes.append(
            f"One lane of block {choice.block} issued bulk copies: {len(bulk):,} contiguous pieces,"
            f" {sum(copy.nbytes for copy in bulk):,} bytes, whose arrival mbarriers count."
        )
        steps += bulk_steps(trace, bulk)
    if not found:
        notes.append(
            "This kernel has no asynchronous copies: lanes load into registers, and a warp waits"
            " for each load where it uses the register."
        )
        steps += load_steps(trace, choice)
    parts = [buffers(trace)]
    placed = swizzle(trace, lanes)
    return Section(
        "copies",
        "Global to shared",
        tuple(notes),
        tuple(parts + ([placed] if placed else [])),
        tuple(steps),
    )


def buffers(trace: Trace) -> Table:
    """List the requests of all blocks to each buffer in global memory."""
    rows = []
    for each in trace.counts["buffers"]:
        for way, verb in (("reads", "read"), ("writes", "written")):
            tally = each[way]
            if tally["requests"]:
                rows.append(
                    (
                        each["name"],
                        verb,
                        size(each["nbytes"]),
                        f"{tally['requests']:,}",
                        f"{tally['bytes']:,}",
                        f"{tally['sectors']:,}",
                        f"{tally['coalescing']:.0f}%",
                    )
                )
    return Table(
        ("buffer", "way", "size", "requests", "bytes", "sectors", "coalesced"),
        tuple(rows),
        title="Requests to global memory, all blocks",
        source=COUNTED,
        note=(
            f"A sector is {SECTOR_BYTES} bytes; coalesced: sectors that the bytes would fill, in"
            " percent of the sectors touched."
        ),
    )


def lane_steps(trace: Trace, choice: Choice, found: list[Copy]) -> list[Step]:
    """Return a step for each of the first cp.async instructions. It shows the chosen warp, or the
    first warp that executed the instruction if the chosen one did not."""
    steps = []
    for step in sorted({copy.step for copy in found})[:STEPS]:
        here = [copy for copy in found if copy.step == step]
        warps = sorted({copy.warp for copy in here})
        warp = choice.grid_warp(trace) if choice.grid_warp(trace) in warps else warps[0]
        mine = [copy for copy in here if copy.warp == warp]
        sources = [element(trace, copy.source) for copy in mine if copy.source >= 0]
        name = sources[0][0] if sources else "zeros"
        ins = trace.instructions[mine[0].pc]
        title = (
            f"{name}: {len(here)} lanes of {len(warps)} warp(s), {len(here) * mine[0].nbytes:,}"
            f" bytes, in {ins['phase']}"
        )
        by_lane = {copy.lane: copy for copy in mine}
        global_cells = [place_cell(trace, by_lane.get(lane)) for lane in range(32)]
        shared_cells = [bank_cell(trace, by_lane.get(lane)) for lane in range(32)]
        landed = mine[0].landed
        steps.append(
            Step(
                title,
                (
                    lane_grid(
                        global_cells,
                        f"Warp {warp % trace.warps}: first element of {name} that each lane copies,"
                        " as row,column",
                        coalescing(mine),
                    ),
                    lane_grid(
                        shared_cells,
                        "Where each lane writes them: byte of shared memory, coloured by group of 4"
                        " banks",
                        "Shared memory serves a quarter of the warp, which is a row here, at once:"
                        " eight different colours mean no bank conflict.",
                    ),
                    instruction(
                        ins,
                        step,
                        f"issued at step {step}, "
                        + (
                            f"landed at step {landed}, when a warp had waited for it"
                            if landed >= 0
                            else "no warp waited for it"
                        ),
                    ),
                    *beside(trace, mine[0].pc),
                ),
            )
        )
    return steps


def lane_grid(cells: list[Cell], title: str, note: str = "") -> Grid:
    """Draw 32 lanes, eight per row."""
    rows = tuple(tuple(cells[first : first + 8]) for first in range(0, 32, 8))
    return Grid(
        rows,
        tuple(f"lanes {first}-{first + 7}" for first in range(0, 32, 8)),
        tuple(f"+{i}" for i in range(8)),
        title=title,
        source=RECORDED,
        note=note,
    )


def place_cell(trace: Trace, copy: Copy | None) -> Cell:
    if copy is None:
        return Cell("-", tone="dim", tip="copies nothing")
    if copy.source < 0:
        return Cell("zeros", tone="dim", key=f"lane {copy.lane}")
    name, row, column = element(trace, copy.source)
    return Cell(
        f"{row},{column}",
        f"row {row}",
        tip=f"lane {copy.lane}: {copy.nbytes} bytes of {name} from row {row}, column {column}",
        key=f"lane {copy.lane}",
    )


def bank_cell(trace: Trace, copy: Copy | None) -> Cell:
    if copy is None:
        return Cell("-", tone="dim")
    offset = copy.target - trace.header["launch"]["shared_base"]
    return Cell(
        str(offset),
        "banks"
        f" {4 * (copy.target // 16 % BANK_GROUPS)}-{4 * (copy.target // 16 % BANK_GROUPS) + 3}",
        tip=f"lane {copy.lane}: shared address {copy.target:#x}",
        key=f"lane {copy.lane}",
    )


def coalescing(mine: list[Copy]) -> str:
    """Return a sentence about the sectors of one warp's copies, by ``counts.transactions``."""
    active = np.zeros((1, 32), bool)
    address = np.zeros((1, 32), np.int64)
    for copy in mine:
        if copy.source >= 0:
            active[0, copy.lane], address[0, copy.lane] = True, copy.source
    if not active.any():
        return "Zeros only: global memory is not read."
    asked, needed, used = (int(each[0]) for each in sectors(address, active, mine[0].nbytes))
    return (
        f"{used:,} bytes in {asked} sectors of {SECTOR_BYTES} bytes, {needed} would suffice:"
        f" {100 * needed / asked:.0f}% coalesced ({COUNTED})."
    )


def instruction(ins: dict, step: int, said: str) -> Table:
    return Table(
        ("step", "PTX line", "instruction"),
        ((str(step), str(ins["line"]), ins["text"]),),
        title="The instruction",
        source=RECORDED,
        note=said + (f"; {ins['source']}" if ins["source"] else ""),
    )


def swizzle(trace: Trace, found: list[Copy]) -> Grid | None:
    """Draw the place of each 16-byte chunk of a row in shared memory, for the first tile of
    activations that cp.async copied. None if no chunk is moved."""
    a = trace.buffer("a")
    tile = [
        copy
        for copy in found
        if a is not None
        and copy.source >= 0
        and a["address"] <= copy.source < a["address"] + a["nbytes"]
    ]
    if not tile:
        return None
    fill, seen = [], set()
    for copy in tile:
        if copy.target in seen:  # the stage is filled again
            break
        seen.add(copy.target)
        fill.append(copy)
    placed = {copy.target: element(trace, copy.source) for copy in fill}
    first_tile = min(column for _, _, column in placed.values())
    chunk = fill[0].nbytes // 2
    columns = sorted({column for _, _, column in placed.values()})
    width = len([column for column in columns if column - first_tile < chunk * len(columns)])
    base = min(placed)
    per_row = next(
        (
            n
            for n in (8, 16, 32)
            if len({row for _, row, _ in list(placed.values())[:n]}) == 1 and n >= min(width, 16)
        ),
        None,
    )
    if per_row is None:
        return None
    rows: dict[int, dict[int, tuple]] = {}
    for target, (_, row, column) in placed.items():
        line, position = divmod((target - base) // 16, per_row)
        rows.setdefault(line, {})[position] = (row, (column - first_tile) // chunk % per_row)
    cells, labels = [], []
    for line in sorted(rows)[:16]:
        found_rows = {row for row, _ in rows[line].values()}
        labels.append(f"row {min(found_rows)}")
        cells.append(
            tuple(
                (
                    Cell(f"{rows[line][i][1]}", f"chunk {rows[line][i][1] % 8}")
                    if i in rows[line]
                    else Cell("-", tone="dim")
                )
                for i in range(per_row)
            )
        )
    if all(cell.text in ("-", str(i)) for line in cells for i, cell in enumerate(line)):
        return None
    return Grid(
        tuple(cells),
        tuple(labels),
        tuple(map(str, range(per_row))),
        title="The XOR swizzle: which 16-byte chunk of a row of activations lies at which place",
        source=RECORDED,
        note=(
            "ldmatrix reads the same chunk of eight rows: without the swizzle these chunks would be"
            " in the same banks. With it, chunk c of eight rows is at eight different places."
        ),
    )


def bulk_steps(trace: Trace, found: list[Copy]) -> list[Step]:
    """Return a step for each buffer that fills the ring for the first time: its bulk copies, up to
    the first copy to an address that was already written."""
    fills: list[list[Copy]] = [[]]
    for copy in found:
        if any(copy.target == other.target for fill in fills for other in fill):
            break
        fills[-1].append(copy)
    by_buffer: dict[str, list[Copy]] = {}
    for copy in fills[0]:
        by_buffer.setdefault(element(trace, copy.source)[0], []).append(copy)
    steps = []
    for name, pieces in by_buffer.items():
        rows = []
        for copy in pieces[:ROWS]:
            _, row, column = element(trace, copy.source)
            rows.append(
                (
                    str(copy.step),
                    f"{name}[{row}, {column}]",
                    f"{copy.nbytes:,}",
                    str(copy.target - trace.header["launch"]["shared_base"]),
                    str(copy.landed) if copy.landed >= 0 else "-",
                )
            )
        ins = trace.instructions[pieces[0].pc]
        steps.append(
            Step(
                f"{name}: {len(pieces)} pieces, {sum(copy.nbytes for copy in pieces):,} bytes, by"
                f" warp {pieces[0].warp % trace.warps}, lane {pieces[0].lane}",
                (
                    Table(
                        ("step", "from", "bytes", "to byte", "landed"),
                        tuple(rows),
                        title="Pieces of the first fill of the ring",
                        source=RECORDED,
                        note=(
                            f"The first {len(rows)} of {len(pieces)}. landed: the step at which a"
                            " consumer had waited for the piece."
                            if len(pieces) > len(rows)
                            else "landed: the step at which a consumer had waited for the piece."
                        ),
                    ),
                    instruction(
                        ins,
                        pieces[0].step,
                        f"one lane issues it, the copy engine moves {pieces[0].nbytes:,} contiguous"
                        " bytes per piece",
                    ),
                    *beside(trace, pieces[0].pc),
                ),
            )
        )
    return steps


def load_steps(trace: Trace, choice: Choice) -> list[Step]:
    """Return a step for each load instruction of the chosen warp that reads global memory: its
    first execution."""
    seen = set()
    steps: list[Step] = []
    for each in requests(trace, choice.block, ("load",), ("global",)):
        if each.warp != choice.grid_warp(trace) or each.pc in seen or len(steps) == STEPS:
            continue
        seen.add(each.pc)
        steps.append(load_step(trace, each))
    return steps


def load_step(trace: Trace, each: Request) -> Step:
    ins = trace.instructions[each.pc]
    asked, needed, used = (
        int(value[0]) for value in sectors(each.address[None], each.active[None], each.nbytes)
    )
    cells = []
    for lane in range(32):
        place = element(trace, int(each.address[lane])) if each.active[lane] else None
        cells.append(
            Cell(f"{place[1]},{place[2]}", f"row {place[1]}", key=f"lane {lane}")
            if place
            else Cell("-", tone="dim")
        )
    name = element(trace, int(each.address[each.active][0]))[0]
    note = (
        f"{used:,} bytes in {asked} sectors of {SECTOR_BYTES} bytes, {needed} would suffice:"
        f" {100 * needed / asked:.0f}% coalesced ({COUNTED})."
    )
    return Step(
        f"{name}: {each.nbytes} bytes per lane, in {ins['phase']}",
        (
            lane_grid(
                cells,
                f"Warp {each.warp % trace.warps}: first element of {name} that each lane loads, as"
                " row,column",
                note,
            ),
            instruction(ins, each.step, "into a register"),
            *beside(trace, each.pc),
        ),
    )
