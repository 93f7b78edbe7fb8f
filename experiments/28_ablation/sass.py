"""The main loop in machine code, by the unit that executes each instruction.

``main_loop(listing)`` -> its instructions, in order; ``figures(loop)`` what is counted of them.
Units are those of NVIDIA's profiling guide, several small ones put together: copies (LDGSTS and
their waits; LDG), shared (LDSM, LDS, STS), integer (logic, shifts, addresses, predicates), fp16
(HADD2, HFMA2, HMUL2), convert (conversions and fp32), tensor (HMMA), control (barriers, branches).
"""

import re
from dataclasses import dataclass

from ablations import EVERY

from numba_marlin import compiler
from numba_marlin.compiler.assemble import disassemble
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.dequantize import verbs

TARGET = "sm_90a"
BASES = (AmpereConfig(1, 8, 8, group_blocks=8), AmpereConfig(4, 8, 8, group_blocks=8))
PRODUCTS = 16  # mma of a warp for 16 rows of A and a tile: 8 n8 blocks, two k16 rows

UNITS = {
    "tensor": ("HMMA",),
    "fp16": ("HADD2", "HFMA2", "HMUL2"),
    "convert": ("I2F", "I2FP", "F2F", "F2FP", "FADD", "FFMA", "FMUL", "F2I", "I2I"),
    "shared": ("LDSM", "LDS", "STS"),
    "copies": ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDG", "ARRIVES"),
    "control": ("BAR", "BRA", "WARPSYNC", "BSSY", "BSYNC", "BREAK", "EXIT", "NOP"),
}
OTHER = "integer"
_UNIT = {opcode: unit for unit, opcodes in UNITS.items() for opcode in opcodes}
_LINE = re.compile(
    r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<op>[A-Z][\w.]*)(?P<rest>.*);"
)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
DEQUANTISATION = ("LOP3", "HADD2", "HFMA2", "HMUL2", "PRMT", "SHF", "I2F", "I2FP", "F2FP", "FADD")


@dataclass(frozen=True)
class Instruction:
    """opcode: without modifiers; text: with them and the operands."""

    opcode: str
    text: str

    @property
    def unit(self) -> str:
        return _UNIT.get(self.opcode, OTHER)


def main_loop(listing: str) -> list[Instruction]:
    """Of an nvdisasm listing: what stands between the target of a branch backwards and the branch,
    of all such branches the one with most HMMA, the shortest of these."""
    instructions, labels, spans = [], {}, []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.match(line):
            opcode = found["op"].split(".")[0]
            instructions.append(Instruction(opcode, found["op"] + found["rest"].rstrip()))
            target = _TARGET.search(found["rest"])
            if opcode == "BRA" and target and target[1] in labels:
                spans.append((labels[target[1]], len(instructions)))

    def rank(span):
        inside = instructions[slice(*span)]
        return sum(each.opcode == "HMMA" for each in inside), -len(inside)

    best = max(spans, key=rank)
    return [each for each in instructions[slice(*best)] if each.opcode != "NOP"]


def figures(loop: list[Instruction], m_blocks: int) -> dict:
    """Of one step (a tile): instructions by unit; lop3, fp16: those of dequantisation with the
    immediates of the kernel's constants. gaps: from one HMMA to the next in the loop; filled: those
    with dequantisation inside; together: the longest run of HMMA side by side; apart: most
    instructions without one. offsets: accesses to shared memory with an address in one register and
    an immediate, of ``accesses``."""
    places = [at for at, each in enumerate(loop) if each.opcode == "HMMA"]
    steps = len(places) / (PRODUCTS * m_blocks)
    units = dict.fromkeys([*UNITS, OTHER], 0.0)
    for each in loop:
        units[each.unit] += 1 / steps
    between = [loop[a + 1 : b] for a, b in zip(places, places[1:])]
    run = longest = 1
    for gap in between:
        run = 1 if gap else run + 1
        longest = max(longest, run)
    accesses = [each for each in loop if each.opcode in ("LDGSTS", "LDSM", "LDS", "STS")]
    return {
        "steps": steps,
        "instructions": len(loop) / steps,
        "units": units,
        "lop3": sum(map(picks_nibbles, loop)) / steps,
        "fp16": sum(map(takes_offset, loop)) / steps,
        "gaps": len(between),
        "filled": sum(any(each.opcode in DEQUANTISATION for each in gap) for gap in between),
        "together": longest,
        "apart": max(map(len, between)),
        "accesses": len(accesses),
        "offsets": sum("+0x" in each.text for each in accesses),
    }


def picks_nibbles(ins: Instruction) -> bool:
    """Whether it is the one LOP3 that makes two numbers of two nibbles: mask and table are
    immediates, the exponent may be in a register."""
    masks = (f"0x{verbs.LOW_NIBBLES:x}", f"0x{verbs.HIGH_NIBBLES:x}")
    return (
        ins.opcode == "LOP3"
        and any(f", {mask}," in ins.text for mask in masks)
        and f", 0x{verbs.AND_OR:x}," in ins.text
    )


def takes_offset(ins: Instruction) -> bool:
    """Whether it is the subtraction of 1032, or the multiply-add that ends in - 72."""
    return (ins.opcode == "HADD2" and ", -1032, -1032" in ins.text) or (
        ins.opcode == "HFMA2" and ", -72, -72" in ins.text
    )


def loop_of(ablation, base) -> tuple[list[Instruction], object]:
    """(the main loop, the compiled kernel). RuntimeError without an nvdisasm."""
    config = ablation.configured(base)
    compiled = compiler.build(ablation.kernel, config, target=TARGET)
    listing = disassemble(compiled.cubin) if compiled.cubin else None
    if listing is None:
        raise RuntimeError("machine code needs ptxas and nvdisasm: the extra cu13 has both")
    return main_loop(listing), compiled


def rows():
    """One object of sass.jsonl for each ablation and number of rows; ``order``: the units of the
    first step's instructions, as they stand in the loop."""
    for base in BASES:
        for ablation in EVERY.values():
            loop, compiled = loop_of(ablation, base)
            found = figures(loop, base.thread_m_blocks)
            step = loop[: round(found["instructions"])]
            yield {
                "name": ablation.name,
                "rows": base.tile_m,
                **found,
                "order": [each.unit for each in step],
                "registers": compiled.resources.registers,
                "spills": bool(compiled.resources.spills),
                "assembler": compiled.resources.assembler,
                "target": TARGET,
            }
