"""The section of tensor-core fragments: which lane holds which element of A, B and C of one
instruction, with the values that were in the registers.

Layouts: ``layout.fragments`` for ``mma.sync``, ``layout.wgmma``, ``layout.tcgen05``, which cite the
sections of the PTX ISA.
"""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.layout import fragments, wgmma
from numba_marlin.trace.history import History, vector
from numba_marlin.trace.pages import block_fragments
from numba_marlin.trace.pages.choice import Choice, chosen_history, element, products
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.record import Trace
from numba_marlin.trace.roles import multipliers
from numba_marlin.trace.traffic import loaded_from
from numba_marlin.views import RECORDED, Cell, Grid, Section, Step, Table, Text

KEY, TITLE = "fragments", "Fragments of a product"
AROUND = 8  # products that the page shows, beginning with the chosen one


def section(trace: Trace, choice: Choice) -> Section:
    history = chosen_history(trace, choice)
    found = products(history)
    if not found:
        said = f"{choice.words.capitalize()} ran no tensor-core instruction" + (
            ": this kernel has none."
            if not trace.counts["total"]["tally"]["flops"]
            else others(trace, choice)
        )
        return Section(KEY, TITLE, (said,))
    first = min(choice.step, len(found) - 1)
    steps = [
        each
        for number in range(first, min(first + AROUND, len(found)))
        if (each := product(trace, history, choice, found[number], number, len(found))) is not None
    ]
    notes = (
        (
            f"{choice.words.capitalize()} ran {len(found)} tensor-core instructions; these are"
            f" numbers {first} to {first + len(steps) - 1}. The colour of an element stands for its"
            f" register, and lane {choice.lane} is marked. Point at an element to see everything"
            " that its lane holds."
        ),
        WHO_HOLDS[trace.instructions[int(trace.step_pc[found[first]])]["root"] == "tcgen05.mma"],
    )
    return Section(KEY, TITLE, notes, (), tuple(steps))


WHO_HOLDS = (
    (
        "In a product of 16 rows by 8 columns, lane 4 g + t holds parts of rows g and g + 8 of A,"
        " of column g of B, and of rows g and g + 8 of C."
    ),
    (
        "One lane issues a product of 128 rows. The operands are in shared memory; scales and"
        " accumulators are in tensor memory, whose lane r holds row r of the accumulators. --lane"
        " chooses the row."
    ),
)


def others(trace: Trace, choice: Choice) -> str:
    """Return a hint that names a warp with tensor-core instructions, or "" if there is none."""
    found = multipliers(trace, choice.block)
    return (
        f": choose one that did, --warp {found[0]}"
        + (f" to {found[-1]}." if len(found) > 1 else ".")
        if found
        else "."
    )


def product(
    trace: Trace, history: History, choice: Choice, step: int, number: int, count: int
) -> Step | None:
    ins = trace.instructions[int(trace.step_pc[step])]
    operands = history.operands(step)
    maker = {
        "mma": warp_product,
        "wgmma.mma_async": warpgroup_product,
        "tcgen05.mma": tensor_memory_product,
    }.get(ins["root"])
    grids = maker(trace, history, choice, step, ins, operands) if maker else None
    if grids is None:
        return Step(
            f"product {number} of {count}: {ins['root']}",
            (
                Text(ins["text"], "code"),
                Text("The fragments of this shape are not drawn."),
                *beside(trace, int(trace.step_pc[step])),
            ),
        )
    said = Table(
        ("step", "PTX line", "verb"),
        ((str(step), str(ins["line"]), ins["phase"]),),
        title=ins["text"].split()[0],
        source=RECORDED,
    )
    source = beside(trace, int(trace.step_pc[step]))
    return Step(f"product {number} of {count} of this warp", (said, *source, *grids))


def tensor_memory_product(
    trace: Trace, history: History, choice: Choice, step: int, ins: dict, operands: list[str]
) -> list | None:
    return block_fragments.tensor_memory_product(trace, history, choice, step, ins, operands, short)


def warp_product(
    trace: Trace, history: History, choice: Choice, step: int, ins: dict, operands: list[str]
) -> list[Table | Grid] | None:
    if ".m16n8k64." in ins["text"] and ".block_scale." in ins["text"]:
        return block_fragments.warp_product(
            history, choice, step, ins, operands, fragment_grid, short
        )
    if ".m16n8k16." not in ins["text"] or ".f32." not in ins["text"]:
        return None
    kind = "bf16" if ".bf16." in ins["text"] else "f16"
    d, a, b, c = (vector(each) for each in operands[:4])
    maps = fragments.MMA_M16N8K16_A, fragments.MMA_M16N8K16_B, fragments.MMA_M16N8K16_C
    rows = [
        *lane_rows("A", maps[0], halves_of(history, a, step, kind), a, choice.lane),
        *lane_rows("B", maps[1], halves_of(history, b, step, kind), b, choice.lane),
        *lane_rows("C", maps[2], floats_of(history, c, step), c, choice.lane),
        *lane_rows("C after", maps[2], floats_of(history, d, step + 1), d, choice.lane),
    ]
    return [
        Table(
            ("of", "register", "elements, as row,column", "values"),
            tuple(rows),
            title=f"What lane {choice.lane} holds",
            source=RECORDED,
        ),
        fragment_grid(
            "A",
            role(trace, history, a, step, choice),
            maps[0],
            halves_of(history, a, step, kind),
            a,
            choice,
        ),
        fragment_grid(
            "B",
            role(trace, history, b, step, choice),
            maps[1],
            halves_of(history, b, step, kind),
            b,
            choice,
        ),
        fragment_grid(
            "C before", "accumulators so far", maps[2], floats_of(history, c, step), c, choice
        ),
        fragment_grid(
            "C = A B + C", "accumulators", maps[2], floats_of(history, d, step + 1), d, choice
        ),
    ]


def warpgroup_product(
    trace: Trace, history: History, choice: Choice, step: int, ins: dict, operands: list[str]
) -> list[Grid] | None:
    """Show one warp's part of a wgmma: 16 of its 64 rows. B is the tile of shared memory that the
    descriptor names."""
    transposed = "1" in operands[6:]
    if not re.search(r"k16\.f32\.", ins["text"]) or transposed:
        return None
    kind = "bf16" if ".bf16." in ins["text"] else "f16"
    columns = int(re.search(r"\.m64n(\d+)k16", ins["text"])[1])
    found = []
    a = vector(operands[1])
    if operands[1].startswith("{"):
        found.append(
            fragment_grid(
                "A",
                role(trace, history, a, step, choice) + ", 16 of 64 rows",
                fragments.MMA_M16N8K16_A,
                halves_of(history, a, step, kind),
                a,
                choice,
            )
        )
    b = tile(trace, history, step, columns)
    if b is not None:
        values = decoded(b, kind)
        cells = tuple(tuple(Cell(short(values[n, k])) for n in range(columns)) for k in range(16))
        found.append(
            Grid(
                cells,
                tuple(f"k {k}" for k in range(16)),
                tuple(map(str, range(columns))),
                title="B, from shared memory by descriptor",
                source=RECORDED,
            )
        )
    d = vector(operands[0])
    wait = history.wait_of(step)
    if wait is not None and history.value(d[0], wait + 1) is not None:
        values, held, own = (
            floats_of(history, d, wait + 1),
            wgmma.accumulator(columns),
            choice.warp % wgmma.WARPS,
        )
        rows = [[Cell("") for _ in range(columns)] for _ in range(16)]
        for lane in range(32):
            for register in range(len(d)):
                row, column = held.coords(32 * own + lane, register)
                rows[row - 16 * own][column] = Cell(
                    short(values[register, lane]),
                    f"register {register % 4}",
                    "hot" if lane == choice.lane else "",
                    f"lane {lane}, {d[register]}",
                    f"lane {lane}",
                )
        found.append(
            Grid(
                tuple(map(tuple, rows)),
                tuple(f"row {row}" for row in range(16)),
                tuple(map(str, range(columns))),
                title="Accumulators, after the wait for them",
                source=RECORDED,
                note=(
                    "They contain all products up to the wait: before it, the PTX machine makes"
                    " none of these visible."
                ),
            )
        )
    return found


def tile(trace: Trace, history: History, step: int, columns: int) -> np.ndarray | None:
    """Return B of a wgmma as uint16 [columns, 16], or None if it was not recorded. The PTX machine
    records it once for all warps of a warpgroup."""
    block = history.warp // trace.warps
    rows = np.flatnonzero((trace.tile_step == step) & (trace.tile_warp // trace.warps == block))
    if len(rows) < 2 * columns:
        return None
    first = trace.tile_warp[rows[0]]
    chunks = trace.tile_value[rows[trace.tile_warp[rows] == first][: 2 * columns]]
    return np.ascontiguousarray(chunks).view(np.uint16).reshape(columns, 16)


def decoded(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return values.view(np.float16).astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def halves_of(history: History, registers: list[str], before: int, kind: str) -> np.ndarray:
    """Return the 16-bit floats in ``registers`` before a step as float64 [2 * len(registers), 32
    lanes], in the order of a fragment's elements; NaN where nothing was recorded."""
    found = np.full((2 * len(registers), 32), np.nan)
    for position, name in enumerate(registers):
        value = history.value(name, before)
        if value is not None:
            pairs = np.ascontiguousarray(value).view(np.uint16).reshape(32, 2)
            found[2 * position], found[2 * position + 1] = (
                decoded(np.ascontiguousarray(pairs[:, 0]), kind),
                decoded(np.ascontiguousarray(pairs[:, 1]), kind),
            )
    return found


def floats_of(history: History, registers: list[str], before: int) -> np.ndarray:
    found = np.full((len(registers), 32), np.nan)
    for position, name in enumerate(registers):
        value = history.value(name, before)
        if value is not None:
            found[position] = np.ascontiguousarray(value).view(np.float32)
    return found


def role(trace: Trace, history: History, registers: list[str], step: int, choice: Choice) -> str:
    """Return, as text, which operand a fragment's first register was loaded from, and which row and
    column of it."""
    source = history.source(registers[0], step)
    address = loaded_from(trace, history, *source, choice.lane) if source else None
    place = element(trace, address) if address is not None else None
    if place is None:
        return "zeros" if source is None else "of unknown origin"
    name, row, column = place
    words = {"a": "activations", "b": "weights", "scales": "scales"}.get(name, name)
    if trace.block_scaled:
        return (
            f"matrix {name.upper()}, lane {choice.lane} from row {row}, k"
            f" {column * 8 // trace.about['problem']['bits']}"
            if name in ("a", "b")
            else words
        )
    if name == "b" and trace.about.get("problem"):
        expert, row = divmod(row, trace.buffer("b")["shape"][-2])
        return (
            f"{words}{f' of expert {expert}' if trace.of_experts else ''} of k from {16 * row},"
            f" n from"
            f" {64 * (column // (32 * trace.about['problem']['bits']))}"
        )
    return f"{words}, lane {choice.lane} from row {row}, column {column}"


def fragment_grid(
    name: str, said: str, fragment, values: np.ndarray, registers: list[str], choice: Choice
) -> Grid:
    """Draw a fragment as a matrix. values: [elements of a lane, 32 lanes]."""
    cells = [[Cell("") for _ in range(fragment.cols)] for _ in range(fragment.rows)]
    per_register = fragment.elements // len(registers)
    for lane in range(32):
        for position in range(fragment.elements):
            row, column = fragment.coords(lane, position)
            register = position // per_register
            half = {1: "", 2: (" low half", " high half")[position % 2]}.get(
                per_register, f" code {position % per_register}"
            )
            cells[row][column] = Cell(
                short(values[position, lane]),
                f"register {register}",
                "hot" if lane == choice.lane else "",
                f"lane {lane}, {registers[register]}{half}",
                f"lane {lane}",
            )
    return Grid(
        tuple(map(tuple, cells)),
        tuple(f"{row}" for row in range(fragment.rows)),
        tuple(map(str, range(fragment.cols))),
        title=f"{name}: {said}",
        source=RECORDED,
    )


def lane_rows(
    name: str, fragment, values: np.ndarray, registers: list[str], lane: int
) -> list[tuple]:
    """Return a table row for each register of a lane's fragment. values: [elements of a lane, 32
    lanes]."""
    each = fragment.elements // len(registers)
    rows = []
    for position, register in enumerate(registers):
        mine = range(each * position, each * (position + 1))
        places = "  ".join("{},{}".format(*fragment.coords(lane, element)) for element in mine)
        rows.append(
            (
                name,
                Cell(register, f"register {position}"),
                places,
                "  ".join(f"{values[element, lane]:.5g}" for element in mine),
            )
        )
    return rows


def short(value: float) -> str:
    """Format a number in at most seven characters."""
    if np.isnan(value):
        return "?"
    text = f"{value:.3g}".replace("e+0", "e")
    if len(text) > 7:
        text = f"{value:.4f}"
    return text if len(text) <= 7 and (float(text) or not value) else f"{value:.0e}"
