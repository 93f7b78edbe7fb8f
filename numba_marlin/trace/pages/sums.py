"""The section of sums: one lane's accumulators after each product, the reduction across warps and,
with locks, across blocks, and the store of the result."""

from __future__ import annotations

import re

import numpy as np

from numba_marlin.trace.history import History, history_of, vector
from numba_marlin.trace.pages.choice import Choice, chosen_history, products
from numba_marlin.trace.pages.results import exchanged, locks, shares_k_in_a_cluster, written
from numba_marlin.trace.record import Trace
from numba_marlin.views import RECORDED, Cell, Section, Table

KEY, TITLE = "sums", "Sums, reductions, write-out"
ROWS = 32  # rows of a table


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
                else kept_in(trace) + BETWEEN
            ),
        ),
        tuple(parts),
    )


def kept_in(trace: Trace) -> str:
    if trace.activations != "int8":
        return "Sums stay in fp32"
    return IN_INT32 if trace.about["problem"]["group_size"] != -1 else EXACT


def shares_k(trace: Trace) -> bool:
    """Whether several warps of a block, or several blocks, each multiply a part of a tile's k."""
    return max(trace.about.get("k_shares") or (1, 1)) > 1


IN_INT32 = (
    "Tensor cores add up a scale group, or a part of it, in int32, which is exact. These sums,"
    " times their scales, become fp32 and stay so"
)
EXACT = (
    "Tensor cores add up in int32. With one scale per column sums are scaled at the end, and they"
    " stay exact"
)
BETWEEN = (
    " until the epilogue: in the accumulators of a lane, in the reduction between the warps that"
    " share columns, and in that between the blocks that share a column of tiles."
)
BLOCK_SCALED = (
    "One block accumulates a tile in fp32 over all of k, without a reduction. After the last"
    " product the epilogue multiplies by the global scales (alpha), applies what else was"
    " requested, and writes D."
)

SHARED_OUT = (
    "A warp accumulates its part of k. The parts are added from first to last: those of a block's"
    " warps in its shared memory{}. Then the epilogue multiplies by the global scales (alpha),"
    " applies what else was requested, and writes D."
)
CLUSTER = (
    ", then those of the blocks of a cluster, each of which reads its columns from all the others"
)


def loads_of(trace: Trace, choice: Choice) -> tuple[History, list[int]]:
    """Return (history of a warp, steps of its loads from tensor memory): of the chosen warp if it
    has such loads, else of the block's first warp that does."""
    for warp in (choice.warp, *range(trace.warps)):
        history = history_of(trace, choice.block * trace.warps + warp)
        found = history.steps_with("tcgen05.ld").tolist()
        if found:
            return history, found
    return history, []


def loaded(trace: Trace, choice: Choice) -> Table | None:
    """List the accumulators that the chosen lane loaded from tensor memory: those of its row."""
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
            title=f"Accumulators from tensor memory: warp {warp}, lane {choice.lane}",
            source=RECORDED,
            note=(
                f"Lane {choice.lane} of warp {warp} holds row {32 * (warp % 4) + choice.lane} of"
                " the tile."
            )
            + (f" The first {ROWS} of {len(found)} loads." if len(found) > ROWS else ""),
        )
        if rows
        else None
    )


def chain(trace: Trace, history: History, found: list[int], chosen: int) -> list[int]:
    """Return the products that add to the same accumulators as the chosen one, in order: C of each
    is D of the one before it."""
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
    """Return the product that wrote a register, followed back through at most three moves; None if
    no product did."""
    for _ in range(4):
        step = history.writer(register, step)
        if step is None or step in found:
            return step
        ins = history.trace.instructions[int(history.trace.step_pc[step])]
        if ins["root"] != "mov" or not ins["reads"]:
            return None
        register = ins["reads"][0]
    return None


def accumulator(ins: dict, value: np.ndarray, lane: int) -> str:
    """An accumulator of a product: an integer or a float32."""
    if ".s32." in ins["text"]:
        return str(int(value.view(np.int32)[lane]))
    return f"{float(value.view(np.float32)[lane]):.5g}"


def accumulation(trace: Trace, history: History, choice: Choice) -> Table | None:
    found = products(history)
    if not found:
        return None
    chosen = found[min(choice.step, len(found) - 1)]
    ins = trace.instructions[int(trace.step_pc[chosen])]
    if ins["root"] == "tcgen05.mma":  # its accumulators are in tensor memory
        return None
    if ins["root"] == "wgmma.mma_async":
        return waits(trace, history, choice, found, vector(history.operands(chosen)[0]))
    line = chain(trace, history, found, chosen)
    rows: list[tuple] = []
    for step in line[:ROWS]:
        values = [history.result(name, step) for name in vector(history.operands(step)[0])]
        cells = tuple(
            "?" if value is None else accumulator(ins, value, choice.lane) for value in values
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
    """List the accumulators of wgmma after each wait for products that add to them."""
    ins = trace.instructions[int(trace.step_pc[found[0]])]
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
                *(accumulator(ins, value, choice.lane) for value in values),
            )
        )
    return Table(
        ("up to product", "step", *(f"c{i}" for i in range(len(registers[:4])))),
        tuple(rows[:ROWS]),
        title=f"The first accumulators of {choice.words}, lane {choice.lane}, at each wait",
        source=RECORDED,
    )


def onwards(trace: Trace, history: History, choice: Choice) -> Table | None:
    """Follow the first accumulator after the last product, or the first one that is loaded from
    tensor memory, to the store of the result."""
    found = products(history)
    start, register, what = None, "", f"c0 of lane {choice.lane} after the last product"
    if not found or trace.instructions[int(trace.step_pc[found[0]])]["root"] == "tcgen05.mma":
        history, loads = loads_of(trace, choice)
        if not loads:
            return None
        start, register, what = (
            loads[0],
            vector(history.operands(loads[0])[0])[0],
            f"the first of these accumulators, of lane {choice.lane}",
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
        title=f"Where it goes: {what}",
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
