"""PTX as a compiler prints it -> PTX as this package hands it out. Pure functions on strings.

The compilers differ in symbols, and one of them in every run: tidied, a kernel has the same text each time it is compiled.
"""
from __future__ import annotations

import re

_ENTRY = re.compile(r"\.entry\s+([$%\w]+)\s*\(")
_FUNCTION = re.compile(r"^\.visible \.func\s+(?:\([^)]*\)\s*)?([$%\w]+)\s*\(", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
_COMMON = re.compile(r"^\.common \.global [^;\n]*?([$\w]+);\n", re.MULTILINE)


def drop_unused_functions(ptx: str) -> str:
    """PTX without the functions that nothing names but themselves (what remains of inlined ones)."""
    while True:
        for match in _FUNCTION.finditer(ptx):
            end = _end_of_block(ptx, ptx.index("{", match.end()))
            if match[1] not in ptx[:match.start()] and match[1] not in ptx[end:]:
                ptx = ptx[:match.start()] + ptx[end:].lstrip("\n")
                break
        else:
            return ptx


def _end_of_block(ptx, start):
    """The position after the brace that closes the one at start. Comments hold no braces in the compilers' output."""
    depth = 0
    for brace in _BRACE.finditer(ptx, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError(f"the block that begins at character {start} of the PTX is not closed")


def tidy(ptx: str, entry: str) -> str:
    """Name the only kernel ``entry`` and drop the compilers' own globals that nothing uses. ValueError unless there is exactly one kernel."""
    names = _ENTRY.findall(ptx)
    if len(names) != 1:
        raise ValueError(f"PTX with {len(names)} entries, expected one")
    ptx = drop_unused_functions(re.sub(r"\t// \.globl\t[^\n]*\n", "", ptx))
    for match in list(_COMMON.finditer(ptx)):
        if ptx.count(match[1]) == 1:
            ptx = ptx.replace(match[0], "")
    ptx = re.sub(rf"(?<![$%\w]){re.escape(names[0])}(?=_param_|\b)", entry, ptx)
    return ptx.rstrip("\0\n") + "\n"
