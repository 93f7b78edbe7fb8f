"""The section of unpacking: one 32-bit word of weights, from its bits to the operands of the tensor
cores, with the registers of the run."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.fp4_words import turn_codes, unturn_codes
from numba_marlin.formats.marlin_order import code_order
from numba_marlin.formats.small_floats import table as numbers_of
from numba_marlin.trace.history import History, vector
from numba_marlin.trace.pages.choice import Choice, chosen_history, products, word_place
from numba_marlin.trace.pages.dequantised import finals, floats, follow, in_bytes, kind_of
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.provenance import codes_of_bits
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import loaded_from, requests_at
from numba_marlin.views import RECORDED, BitRow, Bits, Cell, Facts, Section, Step, Table

KEY, TITLE = "unpack", "Unpacking a word"


def section(trace: Trace, choice: Choice) -> Section:
    history = chosen_history(trace, choice)
    found = word_of(trace, history, choice)
    if (
        found is None
        and trace.block_scaled
        and any(ins["root"] == "tcgen05.mma" for ins in trace.instructions)
    ):
        return Section(KEY, TITLE, (AS_THEY_LIE,))
    if found is None:
        return Section(
            KEY,
            TITLE,
            (
                (
                    f"No load of a word of weights was found for {choice.words}: it may be a"
                    " producer, or its registers were not recorded."
                ),
            ),
        )
    step, register, address = found
    b, bits = trace.buffer_at(address), trace.about["problem"]["bits"]
    where_to = ("k", "n")
    expert, row, column = word_place(b, address)
    if trace.block_scaled:
        where_to = ("k", "m" if b["name"] == "a" else "n")
        places = places_of_rows((address - b["address"]) // 4, b["shape"][1], bits)
    else:
        places = places_of(row, column, bits)
    value = int(history.result(register, step)[choice.lane])
    ins = trace.instructions[int(trace.step_pc[step])]
    codes = 32 // bits
    where = Facts(
        (
            (
                ("word", f"matrix {b['name'].upper()}, row {places[0][3]}, k from {places[0][2]}")
                if trace.block_scaled
                else (
                    "word",
                    (
                        f"{row}, {column} of the packed matrix"
                        f"{f' of expert {expert}' if trace.of_experts else ''}: k from"
                        f" {places[0][2]}, n from {places[0][3]}"
                    ),
                )
            ),
            ("loaded", f"at step {step} into {register} of lane {choice.lane}: {ins['text']}"),
            ("verb", f"{ins['phase']}" + (f", {ins['source']}" if ins["source"] else "")),
        ),
        title="Which word",
        source=RECORDED,
    )
    others, plain = other_words(trace, value)
    steps = [
        Step(
            "The word as it is in memory",
            (
                bits_of("word", value, codes_of_bits(value, others, bits)),
                codes_table(trace, plain, places, bits, where_to),
                *beside(trace, int(trace.step_pc[step])),
            ),
        )
    ]
    links, sources, results = follow(trace, history, choice, step, register, others, bits)
    steps += links
    final = finals(sources, results, places, plain, bits, where_to)
    if final is not None:
        steps.append(Step("The result", (final,)))
    halves = f"code 0 and code {codes // 2} are the two halves of the first register"
    note = (
        SIDE_BY_SIDE[not any(".block_scale" in ins["text"] for ins in trace.instructions)]
        + (MADE_NOTHING if not links and not products(history) else "")
        if trace.block_scaled
        else (
            TURNED
            if floats(trace)
            else (
                f"Marlin stores {codes} codes of {bits} bits in a word, in the order in which"
                f" tensor-core kernels extract them: {FIRST_BYTES if in_bytes(trace) else halves}."
                f" Code 0 is in the lowest {bits} bits, at the right."
                " (Row-major packing of two codes per byte would need a shift and a mask per"
                " weight.)"
            )
        )
    )
    return Section(KEY, TITLE, (note,), (where,), tuple(steps))


TURNED = (
    "A word of block-scaled FP4 holds eight codes s e e m (sign, exponent, mantissa). Its bits are"
    " rotated and combined so that shifts and masks alone move them to where a 16-bit float has"
    " them, subnormal numbers included, without a subtraction or a table. Where a bit of the word"
    " combines bits of several codes, the others cancel out; formats.fp4_words has the algebra."
)


FIRST_BYTES = (
    "codes 0, 4, 1 and 5 are the four bytes of the first register, of k that are not neighbours. x"
    " is stored in the same order of k (layout.w4a8), so that no code has to move to another lane"
)
MADE_NOTHING = " This warp loaded the word and did not use it: it has no part of this tile."
SIDE_BY_SIDE = (
    (
        "Eight codes s e e m (sign, exponent, mantissa) of consecutive k, the first in the lowest"
        " bits. They are not unpacked: tensor cores with block scales read the codes and their"
        " scales."
    ),
    (
        "Eight codes s e e m (sign, exponent, mantissa) of consecutive k, the first in the lowest"
        " bits. Shifts and masks move sign, exponent and mantissa to where a 16-bit float has them."
        " The result is the code's number times 2**-14, also for subnormal numbers. It is"
        " multiplied by the scale of its block, exactly, and at the end by the global scales, in"
        " fp32. formats.small_floats lists the codes."
    ),
)
AS_THEY_LIE = (
    "Codes are not unpacked: the tensor cores read codes from shared memory and scales from tensor"
    " memory. The fragments of a product show both, as numbers."
)


def other_words(trace: Trace, value: int) -> tuple[list[int], int]:
    """Return the 32 words that differ from ``value`` in one bit of one code, in the order of the
    codes; and the word with its codes side by side, code 0 in the lowest bits."""
    if not floats(trace) or trace.block_scaled:
        return [value ^ 1 << bit for bit in range(32)], value
    dtype = trace.about["problem"].get("dtype", "float16")
    plain = unturn_codes(np.array([value], np.uint32), dtype)
    return [int(turn_codes(plain ^ np.uint32(1 << bit), dtype)[0]) for bit in range(32)], int(
        plain[0]
    )


def word_of(trace: Trace, history: History, choice: Choice) -> tuple[int, str, int] | None:
    """Return (step of the load, register, global address) of the word that the chosen tensor-core
    instruction multiplies, or of the chosen load of weights if the warp has no such instructions.
    None if there is no such word."""
    b = trace.buffer("b")
    if b is None or not trace.about.get("problem"):
        return None

    operands = [trace.buffer(name) for name in ("a", "b")] if trace.block_scaled else [b]

    def weights(step: int, register: str) -> int | None:
        address = loaded_from(trace, history, step, register, choice.lane)
        return (
            address
            if address is not None
            and any(
                each["address"] <= address < each["address"] + each["nbytes"] for each in operands
            )
            else None
        )

    found = products(history)
    if found:
        at = found[min(choice.step, len(found) - 1)]
        for operand in history.operands(at)[1:3]:
            source = history.source(vector(operand)[0], at) if operand.startswith("{") else None
            address = weights(*source) if source else None
            if address is not None:
                return *source, address
        return None
    loads, spaces = [], ("global", "shared") if trace.block_scaled else ("global",)
    for step in history.steps.tolist():
        ins = trace.instructions[int(trace.step_pc[step])]
        if (
            ins["root"] == "ld"
            and ins["kind"] in spaces
            and requests_at(trace, step, history.warp)
            and weights(step, ins["writes"][0]) is not None
        ):
            loads.append(step)
            if len(loads) > choice.step:
                break
    if not loads:
        return None
    register = trace.instructions[int(trace.step_pc[loads[-1]])]["writes"][0]
    return loads[-1], register, weights(loads[-1], register)


def places_of(row: int, column: int, bits: int) -> list[tuple[int, int, int, int]]:
    """Return (index of the code, its lowest bit, k, n) for each code of a word of the packed matrix
    [k/16, words] in Marlin's order."""
    order = code_order(bits)
    block, inside = divmod(column, order.block_words)
    return [
        (
            code,
            bits * code,
            16 * row + int(order.row[inside, code]),
            64 * block + int(order.column[inside, code]),
        )
        for code in range(32 // bits)
    ]


def places_of_rows(word: int, width: int, bits: int) -> list[tuple[int, int, int, int]]:
    """Return (index of the code, its lowest bit, k, row) for each code of a word of a matrix [rows,
    width] of bytes whose codes are side by side."""
    row, byte = divmod(4 * word, width)
    return [(code, bits * code, byte * 8 // bits + code, row) for code in range(32 // bits)]


def bits_of(label: str, value: int, sources: list[int]) -> Bits:
    return Bits(
        (BitRow(label, value, 32, tuple(kind_of(sources[bit]) for bit in range(31, -1, -1))),),
        source=RECORDED,
        title="Bit 31 to bit 0",
    )


def codes_table(
    trace: Trace, plain: int, places: list, bits: int, where_to: tuple[str, str]
) -> Table:
    """List the codes of a word. plain: the word with its codes side by side; places: as
    ``places_of`` returns them; where_to: the names of the two coordinates."""
    rows = []
    for code, first, k, n in places:
        number = plain >> first & (1 << bits) - 1
        meaning = (
            f"{float(numbers_of(trace.about['problem']['codes'])[number]):g}"
            if floats(trace)
            else f"{number - (1 << bits - 1):+d}"
        )
        rows.append(
            (
                Cell(f"{code}", f"code {code}"),
                *(() if floats(trace) else (f"{first + bits - 1}:{first}",)),
                f"{number:0{bits}b}",
                str(number),
                meaning,
                str(k),
                str(n),
            )
        )
    heads = (
        ("code", "binary", "code's value", f"as {trace.about['problem']['codes']}", *where_to)
        if floats(trace)
        else ("code", "bits", "binary", "code's value", f"minus {1 << bits - 1}", "k", "n")
    )
    return Table(
        heads,
        tuple(rows),
        title="Which numbers these are" if trace.block_scaled else "Which weights these are",
        source=RECORDED,
        note=(
            ""
            if trace.block_scaled
            else (
                "k and n follow from the fragment map of the instruction that consumes them:"
                " layout.fragments, formats.marlin_order."
            )
        ),
    )
