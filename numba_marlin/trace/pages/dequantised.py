"""Dequantisation of one word of weights by a warp: the instructions in order of execution, register
by register, and the resulting operands of the tensor cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numba_marlin.counts.instructions import tensor_bits
from numba_marlin.trace.history import History
from numba_marlin.trace.pages.choice import Choice
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.provenance import altered_results, codes_of_bits, immediate
from numba_marlin.trace.record import Trace
from numba_marlin.views import RECORDED, BitRow, Bits, Cell, Step, Table


def kind_of(codes: int) -> str:
    """Name a set of codes, bit i for code i: "code 3", "codes 0 4", "" for none."""
    numbers = [number for number in range(8) if codes >> number & 1]
    return f"code{'s' if len(numbers) > 1 else ''} {' '.join(map(str, numbers))}" if numbers else ""


def floats(trace: Trace) -> bool:
    """Whether the codes are small floats (e2m1), not integers."""
    return trace.about["problem"].get("codes", "integer") != "integer"


def halves(value: int, text: str) -> str | None:
    """Format a register that holds two 16-bit floats as numbers, the low half first; None if the
    instruction ``text`` has neither type f16x2 nor bf16x2."""
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
    """Follow a loaded word through the instructions that process it.

    others: the 32 words that differ from it in one bit of one code. bits: of a code.

    Returns (steps, sources, results): a step of the page per instruction, with its operands and its
    result bit by bit; {register: the codes that each of its bits depends on}; {register: (value,
    instruction, factor that the instruction multiplies by)}.
    """
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
        if not any(codes):  # the result no longer depends on the word
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
                        note=said_of(trace)(ins, names, values),
                    ),
                    *beside(trace, link.pc),
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


def in_bytes(trace: Trace) -> bool:
    """Whether integer codes become factors of 8 bits."""
    texts = (ins["text"] for ins in trace.instructions if ins["kind"] == "tensor")
    return trace.activations is not None and tensor_bits(texts) == 8


def said_of(trace: Trace) -> Callable[[dict, list[str], list], str]:
    """The function that says what an instruction does on the way from codes to factors."""
    if floats(trace):
        return of_floats
    if in_bytes(trace):
        return of_int8 if trace.activations == "int8" else of_e4m3
    return meaning


def meaning(ins: dict, names: list[str], values: list) -> str:
    """Return what an instruction of this kind does when the codes are integers."""
    root, text = ins["root"], ins["text"]
    if root == "lop3":
        return (
            "One instruction computes (word & mask) | exponent. A code in the mantissa of 1024.0"
            " (0x6400) makes it the number 1024 + code, or 1024 + 16 code if it is in bits 4 to 7."
        )
    if root == "shr":
        return (
            f"The other codes move to the bits that the masks select: {values[-1]} places to the"
            " right."
            if values and values[-1] is not None
            else ""
        )
    if root == "prmt":
        return "Selects bytes: a code's byte becomes the byte below the upper byte of 1024.0."
    if root == "sub" and "x2" in text:
        return "Subtracts 1024 and the zero point of symmetric codes, exactly, in both halves."
    if root == "fma" and "x2" in text:
        return (
            "Divides by 16 and subtracts the offset in one fused multiply-add, exactly, in both"
            " halves."
        )
    if root == "mul" and "x2" in text:
        return "Multiplies by the scale: the only rounding of a weight."
    return ""


def of_int8(ins: dict, names: list[str], values: list) -> str:
    """Return what an instruction of this kind does when the codes become int8."""
    return {
        "lop3": (
            "One instruction masks codes and turns one bit of each byte over. A code in the upper"
            " half of a byte becomes the integer 16 (code - 8); one in the lower half, code + 128,"
            " from which the zero point is still to be subtracted."
        ),
        "prmt": OF_A_COLUMN,
    }.get(ins["root"], meaning(ins, names, values) if ins["root"] == "shr" else "")


def of_e4m3(ins: dict, names: list[str], values: list) -> str:
    """Return what an instruction of this kind does when the codes become e4m3."""
    return {
        "lop3": (
            "One instruction combines two words by a mask. In e4m3 the bytes 0 to 15 are 0 to 15"
            " times 2**-9, and the highest bit is the sign: so a magnitude of at most 15 is its own"
            " number, and needs its sign only."
        ),
        "prmt": OF_A_COLUMN,
    }.get(ins["root"], meaning(ins, names, values) if ins["root"] == "shr" else "")


OF_A_COLUMN = (
    "Selects bytes: the four weights that the word has of a column become a register of an operand."
)


def of_floats(ins: dict, names: list[str], values: list) -> str:
    """Return what an instruction of this kind does when the codes are small floats."""
    return {
        "lop3": (
            "Combines two masks, or two words, in one instruction: sign, exponent and mantissa move"
            " to where a 16-bit float has them."
        ),
        "prmt": "Selects bytes: a code's byte becomes the upper byte of a 16-bit float.",
        "mul": (
            "Multiplies by the scale of the block. This is exact, because a code has two"
            " significant bits and a scale four."
            if "x2" in ins["text"]
            else ""
        ),
    }.get(ins["root"], meaning(ins, names, values) if ins["root"] == "shr" else "")


def finals(
    sources: dict, results: dict, places: list, value: int, bits: int, where_to: tuple[str, str]
) -> Table | None:
    """List, for every code, the register half that holds only this code after 16-bit arithmetic,
    and its number before and after it is multiplied by a scale."""
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
