"""The section of the launch configuration: grid and block, the weights that each block multiplies,
and the role of each warp."""

from __future__ import annotations

from collections import Counter

import numpy as np

from numba_marlin.trace.pages import host
from numba_marlin.trace.pages.choice import Choice, ranges, size
from numba_marlin.trace.pages.unpack import places_of
from numba_marlin.trace.record import KINDS, Trace
from numba_marlin.trace.roles import roles_of, roles_of_warp
from numba_marlin.trace.traffic import origin, requests
from numba_marlin.views import COUNTED, RECORDED, Cell, Facts, Grid, Section, Table

MOST_ROWS, MOST_COLUMNS, LOADS = 16, 16, 16
READS = tuple(KINDS.index(kind) for kind in ("load", "copy-request"))
TILE = 128  # rows and columns of a tile if the kernel does not declare them
BULK = KINDS.index("bulk-read")
WRITES = tuple(KINDS.index(kind) for kind in ("store", "bulk-write"))


def section(trace: Trace, choice: Choice) -> Section:
    areas = results(trace) if trace.block_scaled else tiles(trace)
    parts = (facts(trace), areas, roles(trace, choice), *host.parts(trace))
    shown = tuple(part for part in parts if part is not None)
    return Section("launch", "Launch configuration", (), shown)


def facts(trace: Trace) -> Facts:
    launch, about, result = trace.header["launch"], trace.about, trace.header["result"]
    x, y, z = launch["block"]
    grid = " x ".join(map(str, launch["grid"]))
    rows = [
        (
            "kernel",
            f"{about.get('kernel', trace.header['kernel'])}, compiled for {trace.header['target']}",
        ),
        (
            "grid",
            f"{grid}: {result['blocks']} block(s)"
            + (
                f", clusters of {np.prod(launch['cluster'])}"
                if np.prod(launch["cluster"]) > 1
                else ""
            ),
            RECORDED,
        ),
        ("block", f"{x * y * z} threads = {trace.warps} warps", RECORDED),
        ("shared memory", f"{size(launch['shared_bytes'])} per block", RECORDED),
    ]
    compiled = about.get("compiled") or {}
    if compiled.get("registers"):
        rows.append(
            (
                "registers",
                (
                    f"{compiled['registers']} per thread, by ptxas; at most"
                    f" {trace.counts['total']['tally']['registers']} live in the PTX"
                ),
                COUNTED,
            )
        )
    if about.get("problem"):
        problem = about["problem"]
        rows.insert(
            1,
            (
                "problem",
                ", ".join(
                    f"{name}={value}"
                    for name, value in problem.items()
                    if value not in (None, False)
                ),
            ),
        )
    if about.get("config"):
        rows.append(
            (
                "configuration",
                ", ".join(f"{name}={value}" for name, value in about["config"].items()),
            )
        )
    rows.append(
        (
            "ran",
            (
                f"{result['instructions']:,} warp instructions in {trace.steps:,} steps of the PTX"
                " machine"
            ),
            RECORDED,
        )
    )
    if not trace.header["complete"]:
        last = int(trace.write_step[-1]) if len(trace.write_step) else 0
        rows.append(
            (
                "recorded",
                f"registers up to step {last:,} only: their values after it are not known",
                RECORDED,
            )
        )
    rows += [
        ("why" if position == 0 else "", reason)
        for position, reason in enumerate(about.get("reasons") or [])
    ]
    if about.get("check"):
        check = about["check"]
        rows.append(
            (
                "checked",
                (
                    f"{check['outputs']:,} outputs against the float64 product: {check['failures']}"
                    " out of their error bounds"
                ),
            )
        )
    return Facts(tuple(rows), title="What was launched")


def weights_read(trace: Trace) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (blocks, addresses) of the recorded requests for weights, one entry per lane's request
    of at most 16 bytes and per 16 bytes of a bulk copy; None if the trace has no buffer ``b``."""
    b = trace.buffer("b")
    if b is None:
        return None
    rows = np.flatnonzero(np.isin(trace.access_kind, READS) & (trace.access_space == 0))
    address = trace.access_address[rows]
    blocks = np.broadcast_to((trace.access_warp[rows] // trace.warps)[:, None], address.shape)
    inside = (address >= b["address"]) & (address < b["address"] + b["nbytes"])
    found_blocks, found = [blocks[inside]], [address[inside]]
    bulk = np.flatnonzero(
        (trace.bulk_kind == BULK)
        & (trace.bulk_address >= b["address"])
        & (trace.bulk_address < b["address"] + b["nbytes"])
    )
    for row in bulk.tolist():
        pieces = np.arange(0, trace.bulk_bytes[row], 16)
        found.append(trace.bulk_address[row] + pieces)
        found_blocks.append(np.full(len(pieces), trace.bulk_warp[row] // trace.warps))
    return np.concatenate(found_blocks), np.concatenate(found)


def tiles(trace: Trace) -> Grid | None:
    """Draw which block read which weights: k increases downwards, n to the right."""
    read, b, problem = weights_read(trace), trace.buffer("b"), trace.about.get("problem")
    if read is None or problem is None or len(b["shape"]) != 2 or not len(read[0]):
        return None
    blocks, addresses = read
    words = b["shape"][1]
    index = (addresses - b["address"]) // 4
    row, column = index // words, index % words // (32 * problem["bits"])  # of 16 k, of 64 columns
    k16, n64 = b["shape"][0], -(-words // (32 * problem["bits"]))
    tall, wide = -(-k16 // MOST_ROWS), -(-n64 // MOST_COLUMNS)
    cells = []
    for top in range(0, k16, tall):
        line = []
        for left in range(0, n64, wide):
            here = (row // tall == top // tall) & (column // wide == left // wide)
            owners = np.unique(blocks[here]).tolist()
            text = ranges(owners) if owners else "-"
            line.append(
                Cell(
                    text,
                    f"block {text}" if owners else "",
                    tip=(
                        f"k {16 * top} to {16 * min(top + tall, k16) - 1}, n {64 * left} to"
                        f" {64 * min(left + wide, n64) - 1}"
                    ),
                )
            )
        cells.append(tuple(line))
    return Grid(
        tuple(cells),
        tuple(f"k {16 * top}" for top in range(0, k16, tall)),
        tuple(f"n {64 * left}" for left in range(0, n64, wide)),
        title="Which blocks read which weights",
        source=RECORDED,
        note=" ".join(
            filter(
                None,
                (
                    f"Each cell is {16 * tall} of k by {64 * wide} columns.",
                    trace.about.get("division"),
                    missing(trace, blocks),
                ),
            )
        ),
    )


def results(trace: Trace) -> Grid | None:
    """Draw which block wrote which part of D. Each store and each 16 bytes of a bulk copy count
    where they begin."""
    d, problem = trace.buffer("d"), trace.about["problem"]
    stores = np.flatnonzero((trace.access_kind == WRITES[0]) & (trace.access_space == 0))
    pieces = np.flatnonzero(trace.bulk_kind == WRITES[1])
    # addresses that lanes store to, then those that bulk copies write
    addresses = [trace.access_address[stores].reshape(-1)]
    warps = [np.repeat(trace.access_warp[stores], 32)]
    columns = (trace.bulk_address, trace.bulk_bytes, trace.bulk_warp)
    for start, nbytes, warp in zip(*(each[pieces].tolist() for each in columns)):
        addresses.append(start + np.arange(0, nbytes, 16))
        warps.append(np.full(len(addresses[-1]), warp))
    address, blocks = np.concatenate(addresses), np.concatenate(warps) // trace.warps
    inside = (address >= d["address"]) & (address < d["address"] + d["nbytes"])
    if not inside.any():
        return None
    width = d["nbytes"] // problem["m"]
    row, column = np.divmod(address[inside] - d["address"], width)
    columns = problem["n"] // (2 if problem.get("activation") == "gated_silu" else 1)
    column, blocks = column * columns // width, blocks[inside]
    tall, wide = trace.about.get("tile") or (TILE, TILE)
    wide //= problem["n"] // columns
    tall, wide = (
        tile * max(1, -(-size // tile // most))
        for tile, size, most in ((tall, problem["m"], MOST_ROWS), (wide, columns, MOST_COLUMNS))
    )
    cells = []
    for top in range(0, problem["m"], tall):
        line = []
        for left in range(0, columns, wide):
            owners = np.unique(
                blocks[(row // tall == top // tall) & (column // wide == left // wide)]
            ).tolist()
            text = ranges(owners) if owners else "-"
            line.append(
                Cell(
                    text,
                    f"block {text}" if owners else "",
                    tip=(
                        f"rows {top} to {min(top + tall, problem['m']) - 1}, columns {left} to"
                        f" {min(left + wide, columns) - 1}"
                    ),
                )
            )
        cells.append(tuple(line))
    return Grid(
        tuple(cells),
        tuple(f"m {top}" for top in range(0, problem["m"], tall)),
        tuple(f"n {left}" for left in range(0, columns, wide)),
        title="Which blocks wrote which part of D",
        source=RECORDED,
        note=f"Each cell is {tall} rows by {wide} columns. {missing(trace, blocks)}".rstrip(),
    )


def missing(trace: Trace, found: np.ndarray) -> str:
    """Return what a reader must know of a grid if files of earlier versions lack the accesses of
    blocks whose registers were not recorded. found: the blocks that the grid shows."""
    recorded = trace.header["blocks"]
    if len(recorded) == trace.blocks or not np.isin(found, recorded).all():
        return ""
    return f"Only block {ranges(recorded)} of {trace.blocks} was recorded: - is not known."


def roles(trace: Trace, choice: Choice) -> Table:
    """List each warp of the block: its role or its weights, and the verbs with most of its
    instructions."""
    phases = [ins["phase"] for ins in trace.instructions]
    rows = []
    for warp in range(trace.warps):
        counts = Counter(
            phases[pc]
            for pc in trace.step_pc[trace.steps_of(choice.block * trace.warps + warp)].tolist()
        )
        total = sum(counts.values())
        most = ", ".join(f"{name} {count / total:.0%}" for name, count in counts.most_common(2))
        mine = (
            ", ".join(roles_of_warp(trace, choice.block * trace.warps + warp)) or "none"
            if roles_of(trace)
            else weights_of(trace, choice.block * trace.warps + warp)
        )
        rows.append(
            (Cell(str(warp), tone="hot" if warp == choice.warp else ""), f"{total:,}", mine, most)
        )
    what, note = (
        "weights that it multiplies",
        f"Weights: those of the first {LOADS} loads by each warp, traced back to global memory.",
    )
    if roles_of(trace):
        what, note = (
            "role",
            (
                "Roles follow from the verbs that a warp executed; none: it executed only what all"
                " warps execute."
            ),
        )
    return Table(
        ("warp", "instr.", what, "most of its instructions"),
        tuple(rows),
        title=f"The warps of block {choice.block}",
        source=RECORDED,
        note=note,
    )


def weights_of(trace: Trace, warp: int) -> str:
    """Return, as text, the n and the k16 rows of the weights that a warp loads into registers to
    multiply, from its first ``LOADS`` loads."""
    b, problem = trace.buffer("b"), trace.about.get("problem")
    if b is None or problem is None or len(b["shape"]) != 2:
        return ""
    rows, blocks = set(), set()  # blocks: of 16 columns, whose eight of a lane are in one word
    loads = [
        each
        for each in requests(trace, warp // trace.warps, ("load",))
        if each.warp == warp and each.nbytes >= 4 and not copied_on(trace, each)
    ]
    for each in loads[:LOADS]:
        addresses = each.address[each.active].tolist()
        if each.space == "shared":  # where every lane loads the same of its own words
            source = origin(trace, warp // trace.warps, addresses[0], each.step)
            addresses = [] if source is None else [source]
        for source in addresses:
            if b["address"] <= source < b["address"] + b["nbytes"]:
                row, column = divmod((source - b["address"]) // 4, b["shape"][1])
                rows.add(row)
                for word in range(column, column + each.nbytes // 4):
                    blocks |= {n // 16 for *_, n in places_of(row, word, problem["bits"])}
    if not rows:
        return ""
    return f"n {wide_ranges(sorted(blocks), 16)}; k16 rows {ranges(sorted(rows))}"


def wide_ranges(numbers: list[int], width: int) -> str:
    """Format ascending numbers of pieces of this width as ranges of what they hold: [0, 1, 3] of
    16 -> "0-31, 48-63"."""
    return ranges([width * number + i for number in numbers for i in range(width)])


def copied_on(trace: Trace, request) -> bool:
    """Whether a load from global memory only passes data on to shared memory. In a kernel with
    shared memory every such load does."""
    return request.space == "global" and bool(trace.header["launch"]["shared_bytes"])
