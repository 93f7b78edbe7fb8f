"""One block-scaled product: codes, scales of blocks, and the accumulators that follow from them.

The operands of ``mma.sync`` are recorded registers, those of ``tcgen05.mma`` are recorded shared
memory. Accumulators are computed from the recorded codes and scales, block by block. PTX ISA:
#warp-level-block-scaling and #tcgen05-block-scaling.
"""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.formats.small_floats import decode
from numba_marlin.layout import fragments, tcgen05
from numba_marlin.trace.history import History, vector
from numba_marlin.trace.pages.choice import Choice
from numba_marlin.trace.record import Trace
from numba_marlin.views import MODELLED, RECORDED, Cell, Facts, Grid, Table

ROWS = 4  # of A, and of B, that a product of 128 rows shows
GROUP = np.arange(8)
MAPS = fragments.MMA_M16N8K64_A, fragments.MMA_M16N8K64_B, fragments.MMA_M16N8K16_C


def scale_grid(text: str) -> str:
    """Return the type of scales that an opcode of mma.sync names."""
    return "e4m3" if "ue4m3" in text.split()[0] else "e8m0"


def codes_of(values: np.ndarray, bits: int = 4) -> np.ndarray:
    """Split bytes, uint8 [..., n], into codes, uint8 [..., n * 8 / bits], lowest bits first."""
    return (
        values
        if bits == 8
        else np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:-1], -1)
    )


def warp_product(
    history: History, choice: Choice, step: int, ins: dict, operands: list[str], grid_of, short
) -> list:
    """Show an ``mma.sync`` with block scales. grid_of, short: the functions ``fragment_grid`` and
    ``short`` of ``fragments``, which imports this module."""
    d, a, b, c = (vector(each) for each in operands[:4])
    left, right = (
        [np.stack([codes_in(history, name, step) for name in names]).reshape(len(names) * 8, 32)]
        for names in (a, b)
    )
    codes_a, codes_b = left[0], right[0]
    before, after = (
        np.stack([history.value(name, at).view(np.float32) for name in names])
        for names, at in ((c, step), (d, step + 1))
    )
    grid, vectors = scale_grid(ins["text"]), int(re.search(r"scale_vec::(\d)X", ins["text"])[1])
    scales = {}
    for what, position in (("A", 4), ("B", 6)):
        first, thread = (int(each) for each in vector(operands[position + 1]))
        owners = (
            np.concatenate([4 * GROUP + 2 * thread + half for half in (0, 1)])
            if what == "A"
            else 4 * GROUP + thread
        )
        words = np.ascontiguousarray(history.value(operands[position].strip("{}"), step)[owners])
        scales[what] = words.view(np.uint8).reshape(-1, 4)[:, first : first + vectors], owners
    parts = [
        Table(
            ("of", "register", "elements", "codes as numbers"),
            tuple(
                (
                    name,
                    Cell(register, f"register {number}"),
                    places(fragment, choice.lane, number),
                    "  ".join(
                        f"{value:g}"
                        for value in decode(held[8 * number : 8 * number + 8, choice.lane], "e2m1")
                    ),
                )
                for name, registers, fragment, held in (
                    ("A", a, MAPS[0], codes_a),
                    ("B", b, MAPS[1], codes_b),
                )
                for number, register in enumerate(registers)
            ),
            title=f"What lane {choice.lane} holds: eight codes per register",
            source=RECORDED,
        ),
        grid_of(
            "A: codes as numbers",
            "rows of the tile by 64 of k",
            MAPS[0],
            decode(codes_a, "e2m1"),
            a,
            choice,
        ),
        scales_grid("A", *scales["A"], grid, "row", short),
        grid_of(
            "B: codes as numbers", "64 of k by columns", MAPS[1], decode(codes_b, "e2m1"), b, choice
        ),
        scales_grid("B", *scales["B"], grid, "column", short),
        grid_of("C before", "accumulators so far", MAPS[2], before, c, choice),
        grid_of("C = A B + C", "accumulators", MAPS[2], after, d, choice),
    ]
    row, column = MAPS[2].coords(choice.lane, 0)
    parts.append(
        sum_table(
            MAPS[0].scatter(codes_a.T)[row],
            MAPS[1].scatter(codes_b.T)[:, column],
            scales["A"][0][row],
            scales["B"][0][column],
            grid,
            f"Row {row}, column {column} of the accumulators, block by block",
            before[0, choice.lane],
            after[0, choice.lane],
        )
    )
    return parts


def codes_in(history: History, register: str, step: int) -> np.ndarray:
    """Return the eight codes of a register before a step, uint8 [8, 32 lanes]."""
    held = history.value(register, step)
    return codes_of(np.ascontiguousarray(held).view(np.uint8).reshape(32, 4)).T


def places(fragment, lane: int, register: int) -> str:
    """Name the row and the columns of the eight codes in a lane's register."""
    (row, column), (last_row, last_column) = (
        fragment.coords(lane, 8 * register + element) for element in (0, 7)
    )
    return (
        f"row {row}, k {column}-{last_column}"
        if row == last_row
        else f"k {row}-{last_row}, column {column}"
    )


def scales_grid(
    what: str,
    found: np.ndarray,
    owners: np.ndarray | None,
    grid: str,
    of: str,
    short,
    first: int = 0,
) -> Grid:
    """Draw scales, uint8 [rows, blocks of k] of type ``grid``. owners: the lane that holds each
    row; of: "row" or "column"; first: the number of the first row."""
    cells = tuple(
        tuple(
            Cell(
                short(float(value)),
                f"scale {vector_}",
                "",
                "" if owners is None else f"lane {owners[row]}",
            )
            for vector_, value in enumerate(line)
        )
        for row, line in enumerate(decode(found, grid))
    )
    return Grid(
        cells,
        tuple(f"{of} {first + row}" for row in range(len(cells))),
        tuple(f"block {vector_}" for vector_ in range(found.shape[1])),
        title=f"Scales of {what} ({grid}), each for a block of k",
        source=RECORDED,
    )


def sum_table(
    codes_a: np.ndarray,
    codes_b: np.ndarray,
    sfa: np.ndarray,
    sfb: np.ndarray,
    grid: str,
    title: str,
    before: float | None = None,
    after: float | None = None,
    element: str = "e2m1",
) -> Table:
    """Compute one element of the product, block by block. codes_a, codes_b: uint8 [k], of type
    ``element``; sfa, sfb: uint8 [blocks of k], of type ``grid``; before, after: the recorded
    accumulator."""
    block = len(codes_a) // len(sfa)
    rows, total = [], 0.0
    for number, (left, right) in enumerate(zip(decode(sfa, grid), decode(sfb, grid))):
        part = slice(number * block, (number + 1) * block)
        inner = float(
            decode(codes_a[part], element).astype(np.float64)
            @ decode(codes_b[part], element).astype(np.float64)
        )
        total += inner * float(left) * float(right)
        rows.append(
            (
                f"k {part.start}-{part.stop - 1}",
                f"{inner:g}",
                f"{float(left):g}",
                f"{float(right):g}",
                f"{inner * float(left) * float(right):.6g}",
            )
        )
    rows.append(("together", "", "", "", f"{total:.6g}"))
    if before is not None:
        rows += [
            ("C before", "", "", "", f"{float(before):.6g}"),
            ("C after (recorded)", "", "", "", f"{float(after):.6g}"),
        ]
    return Table(
        ("block", "codes times codes", "x scale of A", "x scale of B", "adds"),
        tuple(rows),
        title=title,
        source=MODELLED,
        note=(
            "Computed from the recorded codes and scales. The products of codes are exact; each"
            " block is rounded once, when it is added to the fp32 accumulator."
        ),
    )


def described(history: History, step: int, ins: dict, operands: list[str]):
    """Return (kind, instruction descriptor, column of D, column of A's scales, column of B's
    scales) of a ``tcgen05.mma``. The columns are those of tensor memory."""
    text = ins["text"]
    named, vectors = re.search(r"\.kind::(\w+)", text), re.search(r"scale_vec::(\w+)", text)
    kind = tcgen05.KINDS[named[1], vectors[1]]
    lane = issuer(history, step)
    value = [
        int(history.value(operands[position].strip("[]"), step)[lane]) for position in (0, 3, 4, 5)
    ]
    return (
        kind,
        tcgen05.decode_instruction(value[1], kind),
        *(tcgen05.fields_of(each)[1] for each in (value[0], value[2], value[3])),
    )


def issuer(history: History, step: int) -> int:
    """Return the lane that executed a step; the lowest if there are several."""
    mask = int(history.lanes[np.searchsorted(history.steps, step)])
    return (mask & -mask).bit_length() - 1


def chunks_at(trace: Trace, step: int, warp: int) -> np.ndarray:
    """Return the 16-byte chunks of shared memory that a step's instruction reads, uint8 [chunks,
    16]."""
    return trace.tile_value[(trace.tile_step == step) & (trace.tile_warp == warp)]


def scales_before(
    trace: Trace, history: History, step: int, column: int, rows: int
) -> np.ndarray | None:
    """Return the scales that the last copies before ``step`` put into tensor memory from ``column``
    on, uint8 [rows, 4]; None if there was no such copy."""
    words = []
    for first in range(column, column + tcgen05.columns_of_scales(rows), tcgen05.SCALE_COLUMNS):
        copies = [
            at
            for at in history.steps_with("tcgen05.cp").tolist()
            if at < step
            and int(history.value(history.operands(at)[0].strip("[]"), at)[issuer(history, at)])
            & 0xFFFF
            == first
        ]
        if not copies:
            return None
        words.append(
            chunks_at(trace, copies[-1], history.warp)
            .reshape(32, 4, 4)
            .transpose(1, 0, 2)
            .reshape(128, 4)
        )
    return np.concatenate(words)[:rows]


def tensor_memory_product(
    trace: Trace, history: History, choice: Choice, step: int, ins: dict, operands: list[str], short
) -> list | None:
    """Show a ``tcgen05.mma`` with block scales. short: the function of ``fragments``."""
    kind, said, d, sfa_at, sfb_at = described(history, step, ins, operands)
    chunks = chunks_at(trace, step, history.warp).reshape(-1, 2, 16)
    facts = Facts(
        (
            (
                "shape",
                (
                    f"{tcgen05.ROWS} x {said.n} x {kind.depth}: D in columns {d}-{d + said.n - 1}"
                    " of tensor memory, one row per lane"
                ),
            ),
            (
                "A, B",
                (
                    f"{said.a} and {said.b}, {len(chunks) * 32:,} bytes by descriptor:"
                    f" {tcgen05.ROWS} rows of A and {said.n} of B, 32 bytes of k each"
                ),
            ),
            (
                "scales",
                (
                    f"{said.scale}, {kind.vectors} per row, one for {kind.block} of k: A's begin at"
                    f" column {sfa_at}, B's at column {sfb_at}, both at byte {said.sfa_id} of a"
                    " word"
                ),
            ),
            (
                "issued",
                f"by lane {issuer(history, step)} alone; its registers hold neither operands nor"
                " accumulators",
            ),
        ),
        title="What the descriptors name",
        source=RECORDED,
    )
    parts: list = [facts]
    if len(chunks) != tcgen05.ROWS + said.n:
        return parts
    codes_a, codes_b = (
        codes_of(each.reshape(len(each), 32), kind.bits)
        for each in (chunks[: tcgen05.ROWS], chunks[tcgen05.ROWS :])
    )
    scales = [
        scales_before(trace, history, step, at, rows)
        for at, rows in ((sfa_at, tcgen05.ROWS), (sfb_at, said.n))
    ]
    first = min(choice.lane, tcgen05.ROWS - ROWS) // ROWS * ROWS
    for what, codes, start, found, byte in (
        ("A", codes_a, first, scales[0], said.sfa_id),
        ("B", codes_b, 0, scales[1], said.sfb_id),
    ):
        values = decode(codes[start : start + ROWS], said.a)
        cells = tuple(
            tuple(
                Cell(
                    short(float(value)),
                    f"block {k // kind.block}",
                    "hot" if what == "A" and start + row == choice.lane else "",
                )
                for k, value in enumerate(line)
            )
            for row, line in enumerate(values)
        )
        parts.append(
            Grid(
                cells,
                tuple(f"row {start + row}" for row in range(ROWS)),
                tuple(map(str, range(kind.depth))),
                title=f"{what}: codes as numbers, {ROWS} rows of {len(codes)} by {kind.depth} of k",
                source=RECORDED,
            )
        )
        if found is not None:
            parts.append(
                scales_grid(
                    what,
                    found[start : start + ROWS, byte : byte + kind.vectors],
                    None,
                    said.scale,
                    "row",
                    short,
                    start,
                )
            )
    if all(found is not None for found in scales):
        parts.append(
            sum_table(
                codes_a[choice.lane],
                codes_b[0],
                scales[0][choice.lane, said.sfa_id : said.sfa_id + kind.vectors],
                scales[1][0, said.sfb_id : said.sfb_id + kind.vectors],
                said.scale,
                f"What the product adds to row {choice.lane}, column 0 of the accumulators",
                element=said.a,
            )
        )
    return parts
