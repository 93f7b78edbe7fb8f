"""The origin of an instruction: its phase, and its line of source.

A phase is a verb of the kernel: the innermost inlined function that the PTX's .loc directives name,
or the kernel itself for instructions outside any. In PTX with line numbers but without inlined
functions the source lines are the phases; PTX without line numbers has one phase.
"""

from __future__ import annotations

import re

from numba_marlin.emulator.text.program import Kernel, Module

ENTRY = "marlin_"  # prefix of this package's entries
LAMBDA = "_3clambda_3e"  # Numba's escape of <lambda>


def plain_name(mangled: str) -> str:
    """The last name of a mangled C++ or Numba name, without its types: "_ZN6kernel6matmulB2v1Ei" ->
    "matmul"."""
    rest = re.match(r"_ZN?K?(?=\d)", mangled)
    position, name = rest.end() if rest else 0, None
    while rest and (digits := re.match(r"\d+", mangled[position:])):
        start = position + digits.end()
        position = start + int(digits[0])
        name = mangled[start:position]
    return name or mangled


def sources(kernel: Kernel) -> list[str | None]:
    """Per pc, "file:line" or None."""
    return [
        kernel.source_of(ins) if ins.source is not None and ins.source[1] else None
        for ins in kernel.instructions
    ]


def phases(module: Module, kernel: Kernel) -> list[str]:
    """Per pc, the name of its phase."""
    own = kernel.name[len(ENTRY) :] if kernel.name.startswith(ENTRY) else plain_name(kernel.name)
    names = {
        label: plain_name(module.strings.get(label, label))
        for label in {ins.inlined[0] for ins in kernel.instructions if ins.inlined}
    }
    if not names:
        return [own if source is None else source for source in sources(kernel)]
    verbs = [names[ins.inlined[0]] if ins.inlined else own for ins in kernel.instructions]
    owner = {ins.source: verb for ins, verb in zip(kernel.instructions, verbs)}
    # a lambda has no name: it belongs to its caller if a line of that was seen, or shows its place
    return [
        owner.get(ins.inlined[1]) or f"lambda at {kernel.source_of(ins).rpartition('/')[2]}"
        if verb == LAMBDA
        else verb
        for ins, verb in zip(kernel.instructions, verbs)
    ]
