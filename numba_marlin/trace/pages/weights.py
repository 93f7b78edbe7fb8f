"""The section of weights: from floats to a scale, to codes, to bytes at their addresses.

about["floats"] of a trace: {"values": weights w[k, n] of one column, "k": their rows, "n": the
column, "scale", "codes", "group_size", "bits", "given": whether the reader gave them}.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.marlin_order import code_order
from numba_marlin.trace.pages.choice import Choice
from numba_marlin.trace.record import Trace
from numba_marlin.views import RECORDED, Cell, Grid, Section, Table
from numba_marlin.views.page import Part

KEY, TITLE = "weights", "From floats to bytes"
BASE = 0x1000  # of the bytes that are drawn two codes a byte: they lie nowhere in this run


def section(trace: Trace, choice: Choice) -> Section:
    found = trace.about.get("floats")
    if not found:
        return Section(
            KEY,
            TITLE,
            (
                "This run's weights came as codes, or as block-scaled floats: there are no floats"
                " to begin with. trace --floats 0.5 -0.3 0.8 -0.1 0.6 -0.4 0.2 0 shows yours.",
            ),
        )
    half = 1 << found["bits"] - 1
    whose = "Yours" if found["given"] else "The first of a group"
    notes = (
        f"{whose}: w[{found['k'][0]}..{found['k'][-1]}, {found['n']}]. The group's"
        f" {found['group_size']} weights of this column share a scale: 2 max|w| / {2 * half - 1},"
        f" in 16 bits. So the grid reaches from -{half} to +{half - 1} steps, and no weight is"
        f" further than half a step from its code. (max|w| / {half - 1} would be a coarser grid.)",
    )
    placed = in_marlin(trace, found)
    parts: list[Part] = [codes(found)]
    if found["bits"] == 4:
        parts.append(bytes_in_order(found))
    if placed is not None:
        parts.append(placed)
    return Section(KEY, TITLE, notes, tuple(parts))


def codes(found: dict) -> Table:
    half, scale = 1 << found["bits"] - 1, found["scale"]
    rows = tuple(
        (
            Cell(f"w{number}", f"w {number}"),
            f"{value:g}",
            f"{value / scale:.3f}",
            f"{code - half:+d}",
            f"{code}",
            f"{code:0{found['bits']}b}",
            f"{(code - half) * scale:.4g}",
            f"{(code - half) * scale - value:+.3g}",
        )
        for number, (value, code) in enumerate(zip(found["values"], found["codes"]))
    )
    return Table(
        ("", "weight", "/ scale", "rounded", f"code, + {half}", "bits", "becomes", "error"),
        rows,
        title=f"Scale {scale:g}: floats to codes",
        source=RECORDED,
    )


def two_a_byte(numbers: list[int], low_first: bool) -> list[int]:
    pairs = list(zip(numbers[::2], numbers[1::2]))
    return [(b << 4 | a) if low_first else (a << 4 | b) for a, b in pairs]


def bytes_in_order(found: dict) -> Grid:
    """What the eight codes are if they are packed two a byte, one after the other, by the
    conventions that there are."""
    unsigned = found["codes"]
    signed = [code - 8 & 15 for code in unsigned]
    rows = [
        (f"{name}, {order} first", two_a_byte(numbers, order == "low"))
        for name, numbers in (("code", unsigned), ("two's complement", signed))
        for order in ("low", "high")
    ]
    return Grid(
        tuple(
            tuple(
                Cell(f"0x{value:02X}", tip=f"nibbles {value >> 4:X} and {value & 15:X}")
                for value in values
            )
            for _, values in rows
        ),
        tuple(name for name, _ in rows),
        tuple(f"0x{BASE + each:04X}" for each in range(len(rows[0][1]))),
        "address",
        title="Two a byte, one after the other: four conventions",
        source=RECORDED,
        note=(
            "A byte says nothing without its convention. +4 and -3 are 0x5C as codes (12 and 5, low"
            " nibble first) and 0xD4 in two's complement. 0x3C, which an often copied picture has"
            " for +4 and -3, is neither: its nibbles are 3 and C, so -4 and +3 in two's complement,"
            " and +4 and -5 as codes. Marlin uses none of these orders:"
        ),
    )


def in_marlin(trace: Trace, found: dict) -> Table | None:
    """Where each of the codes is in the packed matrix that the kernel reads, from its bytes."""
    b, contents = trace.buffer("b"), trace.arrays.get("words_b")
    if b is None or contents is None or len(b["shape"]) != 2:
        return None
    bits, half = found["bits"], 1 << found["bits"] - 1
    words = contents.reshape(-1)[: b["nbytes"]].view(np.uint32)
    rows = []
    for number, (k, code) in enumerate(zip(found["k"], found["codes"])):
        word, position = place_of(k, found["n"], b["shape"][1], bits)
        low = bits * position
        stored = int(words[word]) >> low & (1 << bits) - 1
        address = b["address"] + 4 * word + low // 8
        rows.append(
            (
                Cell(f"w{number}", f"w {number}"),
                f"{k}",
                f"{word // b['shape'][1]}, {word % b['shape'][1]}",
                f"0x{int(words[word]):08X}",
                f"{low + bits - 1}:{low}",
                f"0x{address:X}",
                f"0x{int(contents.reshape(-1)[address - b['address']]):02X}",
                Cell(f"{stored}", tone="good" if stored == code else "bad"),
                f"{stored - half:+d}",
            )
        )
    return Table(
        ("", "k", "word", "its value", "bits", "address", "byte", "code", f"minus {half}"),
        tuple(rows),
        title="Where they are in Marlin's matrix",
        source=RECORDED,
        note=(
            "k and k + 1 are the halves of one register, so they share a word; the next two are in"
            " the word of another lane, which multiplies them. The other codes of a word are of"
            " other rows and columns: the section of unpacking shows a whole one. Addresses are"
            " those of the PTX machine."
        ),
    )


def place_of(k: int, n: int, width: int, bits: int) -> tuple[int, int]:
    """(word, position in it) of a code of the packed matrix [k/16, width]."""
    order = code_order(bits)
    inside, position = np.argwhere((order.row == k % 16) & (order.column == n % 64))[0].tolist()
    return k // 16 * width + n // 64 * order.block_words + inside, position
