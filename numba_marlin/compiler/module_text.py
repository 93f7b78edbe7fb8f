"""PTX as a compiler prints it -> PTX as this package hands it out. Pure functions on strings.

The compilers differ in symbols, and one of them in every run: tidied, a kernel has the same text each time it is compiled.
"""
from __future__ import annotations

import re

_ENTRY = re.compile(r"\.entry\s+([$%\w]+)\s*\(")
_COMMON = re.compile(r"^\.common \.global [^;\n]*?([$\w]+);\n", re.MULTILINE)


def tidy(ptx: str, entry: str) -> str:
    """Name the only kernel ``entry`` and drop the compilers' own globals that nothing uses. ValueError unless there is exactly one kernel."""
    names = _ENTRY.findall(ptx)
    if len(names) != 1:
        raise ValueError(f"PTX with {len(names)} entries, expected one")
    for match in list(_COMMON.finditer(ptx)):
        if ptx.count(match[1]) == 1:
            ptx = ptx.replace(match[0], "")
    ptx = re.sub(rf"(?<![$%\w]){re.escape(names[0])}(?=_param_|\b)", entry, ptx)
    return ptx.rstrip("\0\n") + "\n"
