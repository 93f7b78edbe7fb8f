"""The section of the idea, with numbers of the run: one product, one packed word, one stripe, and
why."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.activations import KINDS
from numba_marlin.formats.small_floats import decode
from numba_marlin.layout.w4a8 import STEP, restored
from numba_marlin.trace.pages import launch, memory
from numba_marlin.trace.pages.choice import Choice, chosen_history, word_place
from numba_marlin.trace.pages.dequantised import floats, kind_of
from numba_marlin.trace.pages.unpack import places_of, word_of
from numba_marlin.trace.record import Trace
from numba_marlin.views import RECORDED, Bars, BitRow, Bits, Facts, Section, Text

KEY, TITLE = "idea", "The idea: one product, one word, one stripe"
STRIPES = 8  # blocks whose share is listed


def section(trace: Trace, choice: Choice) -> Section:
    problem = trace.about.get("problem")
    if not problem:
        return Section(
            KEY, TITLE, ("The problem of this run is not known: only what it did is shown.",)
        )
    if trace.block_scaled:
        return Section(KEY, TITLE, of_both(problem), bytes_of(trace, choice))
    bits = problem.get("bits", 4)
    times = "a scale that a block of weights shares" if floats(trace) else "its group's scale"
    codes = "an FP4 number" if floats(trace) else f"a code of {bits} bits minus {1 << bits - 1}"
    notes = (
        f"y = x w: every result is a sum over k of an activation, in"
        f" {16 if trace.activations is None else 8} bits, times a weight. The"
        f" weight is not stored as 16 bits but as {codes}, times {times}.",
        "For few rows of x, a GPU spends its time reading weights, each of them once: a quarter of"
        " the bytes is nearly a quarter of the time. So codes stay packed until they are in the"
        " registers of the lane that multiplies them.",
    )
    parts = [*one_word(trace, choice, bits), *stripes(trace, bits), *bytes_of(trace, choice)]
    return Section(KEY, TITLE, notes, tuple(parts))


def of_both(problem: dict) -> tuple[str, ...]:
    return (
        f"D = A B: both operands are {problem['format']}, codes of {problem['bits']} bits whose"
        f" scale {problem['group_size']} neighbours along k share. Every result is a sum over k of"
        " (code of A times its scale) times (code of B times its scale).",
        "A quarter of the bytes of 16-bit operands moves. GPUs whose tensor cores take codes and"
        " scales multiply them as they are; on others, warps turn them into 16-bit numbers first.",
    )


def bytes_of(trace: Trace, choice: Choice) -> tuple[Bars, ...]:
    """The bars of the section of bytes: this is why."""
    parts = memory.intensity(trace, choice).parts
    return tuple(part for part in parts if isinstance(part, Bars))


def one_word(trace: Trace, choice: Choice, bits: int) -> list:
    """A word that the chosen lane multiplies, and the product that its first code takes part in."""
    history = chosen_history(trace, choice)
    found = word_of(trace, history, choice)
    if found is None:
        return []
    step, register, address = found
    b = trace.buffer_at(address)
    value = int(history.result(register, step)[choice.lane])
    expert, row, column = word_place(b, address)
    places, count = places_of(row, column, bits), 32 // bits
    word = Bits(
        (
            BitRow(
                "word",
                value,
                32,
                tuple(kind_of(1 << bit // bits) for bit in range(31, -1, -1)),
            ),
        ),
        title=f"One packed word{f' of expert {expert}' if trace.of_experts else ''}, which lane"
        f" {choice.lane} loads and multiplies",
        source=RECORDED,
        note=(
            f"{count} weights in 4 bytes, where 16 bits each take {2 * count}. They are not"
            " neighbours of the matrix: they are those that this lane needs for its share of a"
            " tensor-core product, in the order in which they are unpacked. So no lane hands a"
            " weight to another."
        ),
    )
    if floats(trace):
        return [word]
    _, first, k, n = places[0]
    x = None if trace.of_experts else activation(trace, k)  # row 0 may be another expert's
    code = value >> first & (1 << bits) - 1
    if x is None:
        return [word]
    said, scales = f"{x:g}", "scale"
    if trace.activations is not None:
        said, scales = f"{x:g} * the row's scale", "both scales"
    stored = trace.activations or "16 bits"
    rows = (
        ("x", f"x[0, {k}] = {said}, {stored}", RECORDED),
        (
            "w",
            f"w[{k}, {n}] = (code {code} - {1 << bits - 1}) * scale ="
            f" {code - (1 << bits - 1):+d} * scale",
            RECORDED,
        ),
        ("y", f"y[0, {n}] += {x:g} * {code - (1 << bits - 1):+d} * {scales}"),
    )
    return [Facts(rows, title="One product, of code 0 of the word below"), word]


def activation(trace: Trace, k: int) -> float | None:
    """x[0, k], if x is in float16; in 8 bits what its code stands for, before it is scaled."""
    a, contents = trace.buffer("a"), trace.arrays.get("words_a")
    if a is None or contents is None:
        return None
    if trace.activations is not None:
        first = k // STEP * STEP
        codes = contents.reshape(-1)[first : first + STEP].view(KINDS[trace.activations])
        code = restored(codes)[k % STEP]
        return float(decode(code, "e4m3") if trace.activations == "fp8" else code)
    if trace.about["problem"].get("dtype") != "float16":
        return None
    return float(contents.reshape(-1)[2 * k : 2 * k + 2].view(np.float16)[0])


def stripes(trace: Trace, bits: int) -> list:
    """Which share of the weights the first blocks read."""
    read, b = launch.weights_read(trace), trace.buffer("b")
    if read is None or b is None or len(b["shape"]) != 2 or not len(read[0]):
        return []
    blocks, addresses = read
    chunks = (addresses - b["address"]) // 16
    rows = []
    for block in np.unique(blocks).tolist()[:STRIPES]:
        mine = np.unique(chunks[blocks == block])
        k16 = np.unique(mine // (b["shape"][1] // 4)).tolist()
        n64 = np.unique(mine % (b["shape"][1] // 4) // (8 * bits)).tolist()
        share = len(mine) * 16 / b["nbytes"]
        rows.append(
            (
                f"block {block}",
                f"{share:.1%} of the weights: k {16 * k16[0]} to {16 * k16[-1] + 15}, n"
                f" {64 * n64[0]} to {64 * n64[-1] + 63}",
            )
        )
    requested = len(np.unique(chunks + blocks * (chunks.max() + 1))) * 16 / b["nbytes"]
    if trace.blocks > STRIPES:
        rows.append(("...", f"{trace.blocks} blocks in all"))
    return [
        Text(
            "Every block reads its share of the weights, its stripe; together the blocks read"
            f" the weights {'once' if requested < 1.005 else f'{requested:.2g} times'}."
            f" {trace.about.get('division') or ''}".rstrip()
        ),
        Facts(tuple(rows), title="One stripe each", source=RECORDED),
    ]
