"""The resources of a compiled kernel: parsed from assembler logs, SASS listings and PTX text. Pure
functions on strings.

``parse_log`` reads what ``ptxas -v`` and nvJitLink's verbose linking print; ``count_sass`` an
``nvdisasm`` listing; ``count_ptx`` PTX.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """Resources that a kernel needs, as the assembler reports; None if unknown. (``compiler.gates``
    counts instructions.)
    """

    #: Registers per thread.
    registers: int | None = None
    #: Bytes per thread.
    spill_stores: int | None = None
    #: Bytes per thread.
    spill_loads: int | None = None
    #: Bytes per thread.
    stack: int | None = None
    #: Bytes per block.
    static_shared: int | None = None
    #: The assembler that made the cubin, None without one.
    assembler: str | None = None
    #: Its remarks on serialised wgmma instructions, None if there are none.
    serialized: str | None = None

    @property
    def spills(self) -> bool:
        """True if registers are known to be spilled."""
        return bool(self.spill_stores or self.spill_loads)


# Patterns, not compiled here: ``Resources`` is needed for every kernel, these only for one that is
# assembled.
_REGISTERS = r"\b[Uu]sed (\d+) registers"
_SMEM = r"(\d+) bytes smem"
_STACK = r"(\d+) bytes stack frame|(?<=, )(\d+) stack\b"
_SPILL_STORES = r"(\d+) bytes spill stores"
_SPILL_LOADS = r"(\d+) bytes spill loads"
# such as "wgmma.mma_async instructions are serialized", or (12.9 and 13.0) "warpgroup.wait is
# injected in around line 48 by compiler to allow use of registers defined by GMMA"
_SERIALIZED = r"\(C75\d\d\)[^\n]*(?:wgmma|GMMA)[^\n]*"
_LMEM = r"(\d+) bytes lmem"


def parse_log(log: str) -> dict[str, int | str | None]:
    """The figures of a log about one kernel, under the names of ``Resources``' fields.

    ptxas leaves a figure that is zero out: once the registers are known, absent shared memory
    counts as 0. An older nvJitLink prints no spills but local memory, which holds spills and stack
    alike: without local memory nothing can be spilled. (Its figure of barriers is not read: release
    13.5 prints 5 for a kernel that has none.)
    """

    def last(pattern):
        found = re.findall(pattern, log)
        if not found:
            return None
        groups = found[-1] if isinstance(found[-1], tuple) else (found[-1],)
        return int(next(group for group in groups if group))

    figures: dict[str, int | str | None] = {
        "registers": last(_REGISTERS),
        "spill_stores": last(_SPILL_STORES),
        "spill_loads": last(_SPILL_LOADS),
        "stack": last(_STACK),
        "static_shared": last(_SMEM),
    }
    figures["serialized"] = "; ".join(dict.fromkeys(re.findall(_SERIALIZED, log))) or None
    if figures["registers"] is not None:
        figures["static_shared"] = figures["static_shared"] or 0
    if last(_LMEM) == 0:
        for name in ("spill_stores", "spill_loads", "stack"):
            figures[name] = figures[name] or 0
    return figures


_SASS_LINE = r"(?m)^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)"


def count_sass(listing: str) -> dict[str, int]:
    """Opcode (with its modifiers) -> number of instructions in an ``nvdisasm`` listing; NOPs are
    padding and left out."""
    return dict(
        sorted(
            Counter(opcode for opcode in re.findall(_SASS_LINE, listing) if opcode != "NOP").items()
        )
    )


_PTX_LABEL = r"^\s*[$%\w]+:(?!:)"
_PTX_OPCODE = r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)"


def ptx_statements(ptx: str) -> list[str]:
    """The instructions of all kernel bodies, one a string, without directives, labels, braces and
    comments."""
    text = re.sub(r"/\*.*?\*/", " ", re.sub(r"//[^\n]*", "", ptx), flags=re.DOTALL)
    start = text.find("\n{")
    statements = []
    for raw in text[max(start, 0) :].split(";"):
        statement = " ".join(raw.split())
        while True:
            shorter = (
                re.sub(_PTX_LABEL, "", statement)
                .lstrip()
                .removeprefix("{")
                .removeprefix("}")
                .lstrip()
            )
            if shorter == statement:
                break
            statement = shorter
        if statement and not statement.startswith("."):
            statements.append(statement)
    return statements


def count_ptx(ptx: str) -> dict[str, int]:
    """Opcode (with its modifiers) -> number of instructions in PTX text; inline-assembly blocks
    included."""
    counts = Counter()
    for statement in ptx_statements(ptx):
        match = re.match(_PTX_OPCODE, statement)
        if match:
            counts[match[1]] += 1
    return dict(sorted(counts.items()))
