"""Where an instruction comes from: the phase it belongs to, and its line of source.

A phase is a verb of the kernel: the innermost inlined function that the PTX's .loc directives name, the kernel's own name for what belongs to
none. PTX with line numbers but without inlined functions has its source lines for phases; PTX without any has one phase.
"""

from __future__ import annotations

import re

from numba_marlin.emulator.program import Kernel, Location, Module

_ENTRY = "marlin_"  # what entries of this package begin with
LAMBDA = "_3clambda_3e"  # Numba's escape of <lambda>


def plain_name(mangled: str) -> str:
    """The last name of a mangled C++ or Numba name, without its types: "_ZN6kernel6matmulB2v1Ei" -> "matmul"."""
    rest = re.match(r"_ZN?K?(?=\d)", mangled)
    position, name = rest.end() if rest else 0, None
    while rest and (digits := re.match(r"\d+", mangled[position:])):
        start = position + digits.end()
        position = start + int(digits[0])
        name = mangled[start:position]
    return name or mangled


def sources(module: Module, kernel: Kernel) -> list[str | None]:
    """For every pc "file:line", or None."""
    return [
        None if ins.location is None or not ins.location.line else f"{module.files.get(ins.location.file, ins.location.file)}:{ins.location.line}"
        for ins in kernel.instructions
    ]


def phases(module: Module, kernel: Kernel) -> list[str]:
    """For every pc the name of its phase."""
    own = kernel.name[len(_ENTRY) :] if kernel.name.startswith(_ENTRY) else plain_name(kernel.name)
    located = [ins.location for ins in kernel.instructions]
    if not any(location is not None and location.function for location in located):
        return [own if source is None else source for source in sources(module, kernel)]
    named = {label: plain_name(module.strings.get(label, label)) for label in {location.function for location in located if location is not None} - {None}}
    owner = {(each.file, each.line): named.get(each.function, own) for each in located if each is not None}
    return [own if each is None else _verb(each, named, owner, own) for each in located]


def _verb(location: Location, named: dict, owner: dict, own: str) -> str:
    """The function's name; of a lambda, which has none, the caller's, if a line of it was seen."""
    name = named.get(location.function, own)
    return owner.get(location.inlined_at, "<lambda>") if name == LAMBDA else name
