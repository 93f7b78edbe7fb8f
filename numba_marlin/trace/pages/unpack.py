"""One 32-bit word of weights, unpacked: from its bits to the values that multiply, every register
as it was in the run."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.fp4_words import turn_codes, unturn_codes
from numba_marlin.formats.marlin_order import code_order
from numba_marlin.formats.small_floats import table as numbers_of
from numba_marlin.trace.history import History, vector
from numba_marlin.trace.pages.choice import Choice, chosen_history, products
from numba_marlin.trace.provenance import altered_results, codes_of_bits, immediate
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
                    " producer, or its registers were not recorded so far."
                ),
            ),
        )
    step, register, address = found
    b, bits = trace.buffer_at(address), trace.about["problem"]["bits"]
    word, where_to = (address - b["address"]) // 4, ("k", "n")
    places = places_of(word, b["shape"][1], bits)
    if trace.block_scaled:
        where_to = ("k", "m" if b["name"] == "a" else "n")
        places = places_of_rows(word, b["shape"][1], bits)
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
                        f"{word // b['shape'][1]}, {word % b['shape'][1]} of the packed matrix: k"
                        f" from {places[0][2]}, n from {places[0][3]}"
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
            "The word as it lies in memory",
            (
                bits_of("word", value, codes_of_bits(value, others, bits)),
                codes_table(trace, plain, places, bits, where_to),
            ),
        )
    ]
    links, sources, results = follow(trace, history, choice, step, register, others, bits)
    steps += links
    final = finals(sources, results, places, plain, bits, where_to)
    if final is not None:
        steps.append(Step("What it has become", (final,)))
    note = (
        SIDE_BY_SIDE[not any(".block_scale" in ins["text"] for ins in trace.instructions)]
        + (MADE_NOTHING if not links and not products(history) else "")
        if trace.block_scaled
        else (
            TURNED
            if floats(trace)
            else (
                f"Marlin stores {codes} codes of {bits} bits in a word, in the order in which"
                f" tensor-core kernels take them out: code 0 and code {codes // 2} are the two"
                f" halves of the first register. Low bits first: code 0 is the lowest {bits} bits,"
                " at the right. (Plain row-major packing, two to a byte in reading order, would"
                " need a shift and a mask for every weight.)"
            )
        )
    )
    return Section(KEY, TITLE, (note,), (where,), tuple(steps))


TURNED = (
    "A word of block-scaled FP4: eight codes s e e m, whose bits are turned and mixed so that"
    " shifts and masks alone put them into the places of a 16-bit float, subnormal numbers"
    " included: no subtraction, no table. Bits of several codes in one place cancel out on the way;"
    " formats.fp4_words has the algebra."
)


MADE_NOTHING = " This warp has loaded the word and made nothing of it: it has no part of this tile."
SIDE_BY_SIDE = (
    (
        "Eight codes s e e m of consecutive k, the first in the lowest bits. Nothing unpacks them:"
        " tensor cores with block scales take codes as they are, and the scales beside them."
    ),
    (
        "Eight codes s e e m of consecutive k, the first in the lowest bits. Shifts and masks put"
        " sign, exponent and mantissa into the places of a 16-bit float, which is then the code's"
        " number times 2**-14, subnormal ones included; the scale of its block multiplies it,"
        " exactly. (formats.small_floats has the codes, the global scales come last, in fp32.)"
    ),
)
AS_THEY_LIE = (
    "Nothing is unpacked: the tensor cores read codes out of shared memory and scales out of tensor"
    " memory as they lie. The fragments of a product show both, as numbers."
)


def floats(trace: Trace) -> bool:
    """Whether the codes are small floats, e2m1 in Marlin's order, not integers."""
    return trace.about["problem"].get("codes", "integer") != "integer"


def other_words(trace: Trace, value: int) -> tuple[list[int], int]:
    """(the 32 words that differ from ``value`` in one bit of one code, in the order of the codes;
    the word with its codes side by side, code 0 lowest)"""
    if not floats(trace) or trace.block_scaled:
        return [value ^ 1 << bit for bit in range(32)], value
    dtype = trace.about["problem"].get("dtype", "float16")
    plain = unturn_codes(np.array([value], np.uint32), dtype)
    return [int(turn_codes(plain ^ np.uint32(1 << bit), dtype)[0]) for bit in range(32)], int(
        plain[0]
    )


def word_of(trace: Trace, history: History, choice: Choice) -> tuple[int, str, int] | None:
    """(step of the load, register, global address) of the word behind the chosen tensor-core
    instruction; without those, of the chosen load of weights."""
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


def places_of(word: int, width: int, bits: int) -> list[tuple[int, int, int, int]]:
    """For every code of a word of the packed matrix [k/16, width]: (code's number, bits from, k,
    n)."""
    order = code_order(bits)
    row, column = divmod(word, width)
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
    """The same of a matrix [rows, width] of bytes whose codes lie side by side: (code's number,
    bits from, k, row)."""
    row, byte = divmod(4 * word, width)
    return [(code, bits * code, byte * 8 // bits + code, row) for code in range(32 // bits)]


def kind_of(codes: int) -> str:
    """A set of codes in words: "code 3", "codes 0 4", "" for none."""
    numbers = [number for number in range(8) if codes >> number & 1]
    return f"code{'s' if len(numbers) > 1 else ''} {' '.join(map(str, numbers))}" if numbers else ""


def bits_of(label: str, value: int, sources: list[int]) -> Bits:
    return Bits(
        (BitRow(label, value, 32, tuple(kind_of(sources[bit]) for bit in range(31, -1, -1))),),
        source=RECORDED,
        title="Bit 31 to bit 0",
    )


def codes_table(
    trace: Trace, plain: int, places: list, bits: int, where_to: tuple[str, str]
) -> Table:
    """plain: codes side by side; where_to: what k and n are called."""
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


def halves(value: int, text: str) -> str | None:
    """A register of two 16-bit floats as numbers, low one first."""
    opcode = text.split()[1 if text.startswith("@") else 0]
    if "bf16x2" in opcode:
        low, high = (
            float(np.array([part << 16], np.uint32).view(np.float32)[0])
            for part in (value & 0xFFFF, value >> 16)
        )
    elif "f16x2" in opcode:
        low, high = (float(each) for each in np.array([value], np.uint32).view(np.float16))
    else:
        return None
    return f"({low:g}, {high:g})"


def follow(
    trace: Trace,
    history: History,
    choice: Choice,
    step: int,
    register: str,
    others: list[int],
    bits: int,
) -> tuple[list[Step], dict, dict]:
    """A step for each instruction that handles the word: its operands and its result, bit by
    bit."""
    altered = {register: others}
    sources = {
        register: codes_of_bits(int(history.result(register, step)[choice.lane]), others, bits)
    }
    results: dict[str, tuple[int, str, int | None]] = {}
    links, _ = history.followed(step, register, choice.lane)
    steps = []
    for link in links:
        ins, operands = trace.instructions[link.pc], history.operands(link.step)
        if link.position or ins["writes"][0] != link.register:
            continue
        names = operands[1:]
        values = [number_of(history, name, link.step, choice.lane) for name in names]
        result = history.result(link.register, link.step)
        if result is None:
            continue
        found = int(result[choice.lane])
        if any(value is None for name, value in zip(names, values) if name in altered) or not any(
            name in altered for name in names
        ):
            continue
        of_others = altered_results(ins, values, [altered.get(name) for name in names], found)
        codes = codes_of_bits(found, of_others, bits)
        if not any(codes):  # nothing of the word is left in it: the other one was selected
            continue
        altered[link.register], sources[link.register] = of_others, codes
        factor = (
            next((value for name, value in zip(names, values) if name not in sources), None)
            if ins["root"] == "mul"
            else None
        )
        results[link.register] = found, ins["text"], factor
        rows = []
        for name, value in zip(names, values):
            if (
                value is None
                or name.startswith("%p")
                or (
                    name not in sources
                    and immediate(name) is not None
                    and value < 256
                    and ins["root"] in ("lop3", "shr", "shl")
                )
            ):
                continue
            rows.append(
                BitRow(
                    name,
                    value,
                    32,
                    (
                        tuple(kind_of(sources[name][bit]) for bit in range(31, -1, -1))
                        if name in sources
                        else ()
                    ),
                    halves(value, ins["text"]) or "",
                )
            )
        rows.append(
            BitRow(
                f"= {link.register}",
                found,
                32,
                tuple(kind_of(sources[link.register][bit]) for bit in range(31, -1, -1)),
                halves(found, ins["text"]) or "",
            )
        )
        steps.append(
            Step(
                f"{ins['text'].split()[0]} in {ins['phase']}",
                (
                    Bits(
                        tuple(rows),
                        source=RECORDED,
                        title=ins["text"],
                        note=(of_floats if floats(trace) else meaning)(ins, names, values),
                    ),
                ),
            )
        )
    return steps, sources, results


def number_of(history: History, name: str, before: int, lane: int) -> int | None:
    value = immediate(name)
    if value is not None:
        return value
    held = history.value(name, before)
    return None if held is None else int(held[lane])


def meaning(ins: dict, names: list[str], values: list) -> str:
    """What an instruction of this kind is there for."""
    root, text = ins["root"], ins["text"]
    if root == "lop3":
        return (
            "One instruction: (word & mask) | exponent. Or-ed into the mantissa of 1024.0 (0x6400),"
            " a code is the number 1024 + code (or 1024 + 16 code, from the upper place)."
        )
    if root == "shr":
        return (
            f"The other codes move to where the masks look: {values[-1]} places to the right."
            if values and values[-1] is not None
            else ""
        )
    if root == "prmt":
        return "Bytes picked into place: a code's byte under the upper byte of 1024.0."
    if root == "sub" and "x2" in text:
        return "1024 and the zero point of symmetric codes come off, exactly: both halves at once."
    if root == "fma" and "x2" in text:
        return (
            "Divided by 16 and the offset taken off in one fused step, exactly: both halves at"
            " once."
        )
    if root == "mul" and "x2" in text:
        return "The scale: the only rounding that a weight sees."
    return ""


def of_floats(ins: dict, names: list[str], values: list) -> str:
    """The same where codes are small floats."""
    return {
        "lop3": (
            "Two masks, or two words, in one instruction: bits of sign, exponent and mantissa where"
            " a 16-bit float has them."
        ),
        "prmt": "Bytes picked into place: a code's byte becomes the upper byte of a 16-bit float.",
        "mul": (
            "The scale of the block: exact, for a code has two significant bits and a scale four."
            if "x2" in ins["text"]
            else ""
        ),
    }.get(ins["root"], meaning(ins, names, values) if ins["root"] == "shr" else "")


def finals(
    sources: dict, results: dict, places: list, value: int, bits: int, where_to: tuple[str, str]
) -> Table | None:
    """For every code the halves that hold it alone after 16-bit arithmetic: the number before and
    after a scale."""
    found: dict[int, list[tuple[str, str, str, str, str]]] = {}
    for register, (held, text, factor) in results.items():
        if halves(held, text) is None:
            continue
        for half in range(2):
            codes = sources[register][16 * half]
            if codes and not codes & codes - 1:
                number, scale = (
                    halves(each, text).strip("()").split(", ")[half] if each is not None else ""
                    for each in (held, factor)
                )
                found.setdefault(codes.bit_length() - 1, []).append(
                    (register, "low" if half == 0 else "high", number, text.split(".")[0], scale)
                )
    if not found:
        return None
    rows = []
    for code, first, k, n in places:
        chain = found.get(code, [])
        exact = next((each for each in chain if each[3] in ("sub", "fma")), None)
        last = chain[-1] if chain else None
        scaled = last is not None and last is not exact
        rows.append(
            (
                Cell(str(code), f"code {code}"),
                str(k),
                str(n),
                str(value >> first & (1 << bits) - 1),
                exact[2] if exact else "",
                last[4] if scaled else "",
                last[2] if scaled else "",
                f"{last[0]} {last[1]}" if last else "-",
            )
        )
    heads = (
        "code",
        *where_to,
        "code's value",
        "dequantised",
        "times",
        "scaled",
        "in register, half",
    )
    keep = [
        i for i in range(len(heads)) if any(str(getattr(row[i], "text", row[i])) for row in rows)
    ]
    return Table(
        tuple(heads[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in rows),
        title="From codes to the numbers that multiply",
        source=RECORDED,
    )
