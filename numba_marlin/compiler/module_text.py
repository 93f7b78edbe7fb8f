"""Rewrites the PTX that a compiler prints into the PTX that this package returns. All functions are
pure functions of strings.

The two compilers use different symbols, and one of them uses other symbols in every run. After
``tidy`` (and ``number_functions``, where there are line numbers), a kernel has the same text each
time it is compiled, whatever the process has compiled before.
"""

from __future__ import annotations

import itertools
import re

_ENTRY = re.compile(r"\.entry\s+([$%\w]+)\s*\(")
_FUNCTION = re.compile(r"^\.visible \.func\s+(?:\([^)]*\)\s*)?([$%\w]+)\s*\(", re.MULTILINE)
_BRACE = re.compile(r"[{}]")
_STRING = re.compile(r"^([$\w]+:\n)((?:\.b8 [\d,]+\n)+)", re.MULTILINE)
_TAGS = re.compile(r"B\d+v\d+(?:B(\d+)(?=c))?")
_BYTES_PER_LINE = 40
_SHARED_ARRAY = re.compile(r"\b_cudapy_smem_\d+\b")
_COMMON = re.compile(r"^\.common \.global [^;\n]*?([$\w]+);\n", re.MULTILINE)


def drop_unused_functions(ptx: str) -> str:
    """Remove functions that only refer to themselves: those that were inlined everywhere."""
    while True:
        for match in _FUNCTION.finditer(ptx):
            end = _end_of_block(ptx, ptx.index("{", match.end()))
            if match[1] not in ptx[: match.start()] and match[1] not in ptx[end:]:
                ptx = ptx[: match.start()] + ptx[end:].lstrip("\n")
                break
        else:
            return ptx


def pass_by_value(ptx: str, entry: str, indices) -> str:
    """Change the parameters at ``indices`` from a u64 to 128 bytes, aligned to 64 bytes, which is a
    tensor map. Where the body read the number, it then takes the generic address of these bytes.
    They are in the constant bank of the launch, so that global memory needs no copy.

    Raises ValueError if the PTX does not declare or read such a parameter as a u64.
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
                f"PTX reads parameter {index} of {entry} as something other than a number of 64"
                " bits"
            )
    return ptx


def files_of_package(ptx: str) -> str:
    """Make the paths of this package's files in .file directives relative to the directory that
    contains the package."""
    return re.sub(
        r'^(\s*\.file\s+\d+ ")[^"\n]*[/\\](numba_marlin[/\\][^"\n]*")',
        r"\1\2",
        ptx,
        flags=re.MULTILINE,
    )


def number_functions(ptx: str) -> str:
    """Count the inlined functions in the order of their names in .debug_str, and leave out of these
    what they were first compiled for. numba-cuda gives every function that a process compiles the
    next number, and has it in the mangled name as the first ABI tag (``B4v123`` is v123, a tag of
    four characters); the second tag encodes the compiler's options."""
    start = ptx.find(".section\t.debug_str")
    if start < 0:
        return ptx
    numbers = itertools.count(1)

    def renamed(string):
        codes = re.findall(r"\d+(?=[,\n])", string[2])
        name = bytes(map(int, codes)).decode("latin-1")
        tags = _TAGS.search(name)
        if tags:
            number = f"v{next(numbers)}"
            options = int(tags[1] or 0)
            name = f"{name[: tags.start()]}B{len(number)}{number}{name[tags.end() + options :]}"
        codes = list(map(str, name.encode("latin-1")))
        lines = [codes[at : at + _BYTES_PER_LINE] for at in range(0, len(codes), _BYTES_PER_LINE)]
        return string[1] + "".join(f".b8 {','.join(line)}\n" for line in lines)

    return ptx[:start] + _STRING.sub(renamed, ptx[start:])


def cluster_of(ptx: str, blocks: int) -> str:
    """Declare that the kernel is launched in clusters of ``blocks`` blocks along x."""
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
    """Return the position after the brace that closes the one at ``start``. Comments in the
    compilers' output contain no braces."""
    depth = 0
    for brace in _BRACE.finditer(ptx, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError(f"the block that begins at character {start} of the PTX is not closed")


def tidy(ptx: str, entry: str) -> str:
    """Rename the only kernel to ``entry``, count its ``cuda.shared.array``s from 1, and remove
    functions and globals of the compiler that nothing uses. Raises ValueError unless there is
    exactly one kernel."""
    names = _ENTRY.findall(ptx)
    if len(names) != 1:
        raise ValueError(f"PTX has {len(names)} entries, expected one")
    ptx = drop_unused_functions(re.sub(r"\t// \.globl\t[^\n]*\n", "", ptx))
    for match in list(_COMMON.finditer(ptx)):
        if ptx.count(match[1]) == 1:
            ptx = ptx.replace(match[0], "")
    ptx = re.sub(rf"(?<![$%\w]){re.escape(names[0])}(?=_param_|\b)", entry, ptx)
    arrays = {name: index for index, name in enumerate(dict.fromkeys(_SHARED_ARRAY.findall(ptx)))}
    ptx = _SHARED_ARRAY.sub(lambda array: f"_cudapy_smem_{arrays[array[0]] + 1}", ptx)
    return ptx.rstrip("\0\n") + "\n"
