"""The resources of a compiled kernel, parsed from assembler logs, SASS listings and PTX text. All
functions are pure functions of strings.

``parse_log`` reads the output of ``ptxas -v`` and of nvJitLink's verbose linking, ``count_sass`` an
``nvdisasm`` listing, and ``count_ptx`` PTX.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel, as the assembler reports them; None if unknown.
    (``compiler.gates`` counts instructions.)
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
        """Whether registers are known to be spilled."""
        return bool(self.spill_stores or self.spill_loads)


# Patterns. They are not compiled here, because every kernel needs ``Resources``, but only a kernel
# that is assembled needs the patterns.
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
    """Return the figures of a log about one kernel, {field of ``Resources``: value}.

    ptxas omits figures that are zero: if the log has registers but no shared memory, shared memory
    is 0. An older nvJitLink prints no spills but prints local memory, which contains both spills
    and the stack: without local memory nothing is spilled. (Its number of barriers is not read,
    because release 13.5 prints 5 for a kernel without barriers.)
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
    """Return {opcode with modifiers: number of instructions} of an ``nvdisasm`` listing, without
    NOPs, which are padding."""
    return dict(
        sorted(
            Counter(opcode for opcode in re.findall(_SASS_LINE, listing) if opcode != "NOP").items()
        )
    )


_PTX_LABEL = r"^\s*[$%\w]+:(?!:)"
_PTX_OPCODE = r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)"


def ptx_statements(ptx: str) -> list[str]:
    """Return the instructions of all kernel bodies, one per string, without directives, labels,
    braces and comments."""
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
    """Return {opcode with modifiers: number of instructions} of PTX text, including inline
    assembly."""
    counts = Counter()
    for statement in ptx_statements(ptx):
        match = re.match(_PTX_OPCODE, statement)
        if match:
            counts[match[1]] += 1
    return dict(sorted(counts.items()))
