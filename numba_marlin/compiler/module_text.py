"""PTX as a compiler prints it -> PTX as this package hands it out. Pure functions on strings.

The compilers differ in symbols, and one of them in every run: tidied, a kernel has the same text
each time it is compiled.
"""

from __future__ import annotations

import re

_ENTRY = re.compile(r"\.entry\s+([$%\w]+)\s*\(")
_FUNCTION = re.compile(r"^\.visible \.func\s+(?:\([^)]*\)\s*)?([$%\w]+)\s*\(", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
_COMMON = re.compile(r"^\.common \.global [^;\n]*?([$\w]+);\n", re.MULTILINE)


def drop_unused_functions(ptx: str) -> str:
    """PTX without the functions that nothing names but themselves (what remains of inlined
    ones)."""
    while True:
        for match in _FUNCTION.finditer(ptx):
            end = _end_of_block(ptx, ptx.index("{", match.end()))
            if match[1] not in ptx[: match.start()] and match[1] not in ptx[end:]:
                ptx = ptx[: match.start()] + ptx[end:].lstrip("\n")
                break
        else:
            return ptx


def pass_by_value(ptx: str, entry: str, indices) -> str:
    """PTX whose parameters of these indices, u64 so far, are 128 bytes each, aligned to 64: where
    the body read the number it takes the generic address of those bytes (in the constant bank of
    the launch, so that no copy needs to live in global memory).
    """
    for index in indices:
        name = re.escape(f"{entry}_param_{index}")
        ptx, declared = re.subn(
            rf"\.param \.[ub]64 ({name})\b", r".param .align 64 .b8 \1[128]", ptx
        )
        if declared != 1:
            raise ValueError(
                f"PTX declares parameter {index} of {entry} {declared} times as a number of 64"
                " bits, expected once"
            )
        ptx = re.sub(
            rf"ld\.param\.[ub]64(\s+)([%\w]+), \[({name})\];",
            r"mov.b64\1\2, \3;\n\tcvta.param.u64\1\2, \2;",
            ptx,
        )
        if re.search(rf"ld\.param[^;]*{name}\b", ptx):
            raise ValueError(
                f"PTX reads parameter {index} of {entry} as something else than a number of 64 bits"
            )
    return ptx


def files_of_package(ptx: str) -> str:
    """PTX whose .file directives name files of this package from the package on, wherever it is
    installed."""
    return re.sub(
        r'^(\s*\.file\s+\d+ ")[^"\n]*[/\\](numba_marlin[/\\][^"\n]*")',
        r"\1\2",
        ptx,
        flags=re.MULTILINE,
    )


def cluster_of(ptx: str, blocks: int) -> str:
    """PTX whose kernel is launched in clusters of ``blocks`` blocks along x."""
    return (
        re.sub(
            r"^(\.maxntid [^\n]*)$",
            rf"\1\n.reqnctapercluster {blocks}, 1, 1",
            ptx,
            count=1,
            flags=re.MULTILINE,
        )
        if blocks > 1
        else ptx
    )


def _end_of_block(ptx, start):
    """The position after the brace that closes the one at start. Comments hold no braces in the
    compilers' output."""
    depth = 0
    for brace in _BRACE.finditer(ptx, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError(f"the block that begins at character {start} of the PTX is not closed")


def tidy(ptx: str, entry: str) -> str:
    """Name the only kernel ``entry`` and drop the compilers' own globals that nothing uses.
    ValueError unless there is exactly one kernel."""
    names = _ENTRY.findall(ptx)
    if len(names) != 1:
        raise ValueError(f"PTX with {len(names)} entries, expected one")
    ptx = drop_unused_functions(re.sub(r"\t// \.globl\t[^\n]*\n", "", ptx))
    for match in list(_COMMON.finditer(ptx)):
        if ptx.count(match[1]) == 1:
            ptx = ptx.replace(match[0], "")
    ptx = re.sub(rf"(?<![$%\w]){re.escape(names[0])}(?=_param_|\b)", entry, ptx)
    return ptx.rstrip("\0\n") + "\n"
