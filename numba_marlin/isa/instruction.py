"""One PTX instruction with its declared operands, and the text that LLVM's inline assembly wants.

``parsing`` makes them of the files of ``ptx/``. Constraint letters: NVPTX inline assembly in the
LLVM language reference,
https://llvm.org/docs/LangRef.html#supported-constraint-code-list (h 16 bit, r 32 bit, l 64 bit, f
float).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

TYPES = {"u16": "h", "u32": "r", "i32": "r", "u64": "l", "f32": "f"}


"""Operand type -> constraint letter."""


EFFECTS = {
    "shared.read": "reads shared memory",
    "shared.write": "writes shared memory",
    "global.read": "reads global memory",
    "global.write": "writes global memory",
    "async": "commits or awaits asynchronous copies",
    "barrier": "waits for other threads",
    "fence": "orders memory accesses",
    "pinned": "touches no memory, but must be executed at every occurrence",
    "convergent": (
        "all lanes of a warp execute it together, so it must not move under another condition"
    ),
}


"""What an instruction may do besides computing its outputs."""


PLACEHOLDER = re.compile(r"<\s*([^<>\s]+?)\s*>")


class InstructionError(ValueError):
    """A file of ``ptx/`` that breaks the format; the message begins with ``path:line:``."""


@dataclass(frozen=True)
class Operand:
    """name; type, one of TYPES; width: 1 for a scalar, else the number of elements of a tuple, or,
    until the immediates are known, "n" or "n/2" where n is an immediate."""

    name: str
    type: str
    width: int | str = 1

    @property
    def elements(self) -> tuple[str, ...]:
        """What the placeholders of its elements are called."""
        if self.width == 1:
            return (self.name,)
        return tuple(f"{self.name}{i}" for i in range(int(self.width)))

    def resolved(self, immediates: dict[str, int]) -> Operand:
        """The operand with its width as a number. ValueError if that is no number of two or
        more."""
        if isinstance(self.width, int):
            return self
        name, _, divisor = self.width.partition("/")
        width, rest = divmod(immediates[name], int(divisor or 1))
        if rest or width < 2:
            raise ValueError(
                f"{name}={immediates[name]}: operand {self.name!r} has {self.width} elements, which"
                " must be an int of two or more"
            )
        return Operand(self.name, self.type, width)


@dataclass(frozen=True)
class Instruction:
    """outputs and inputs: tuples of Operand, an operand that is read and written in place being in
    both, first; immediates: names; effects: words of EFFECTS; arch such as "sm_80"; url of the PTX
    ISA section; summary in prose; body with placeholders; path of the file.
    """

    name: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    immediates: tuple[str, ...]
    effects: tuple[str, ...]
    arch: str
    url: str
    summary: str
    body: str
    path: str

    @property
    def pure(self) -> bool:
        """True if it computes its outputs from its inputs and does nothing else."""
        return not set(self.effects) - {"convergent"}

    @property
    def convergent(self) -> bool:
        return "convergent" in self.effects or "barrier" in self.effects

    @property
    def tied(self) -> tuple[str, ...]:
        """Names of the operands that are read and written in place."""
        return tuple(operand.name for operand in self.outputs if operand in self.inputs)

    def resolved(self, **immediates: int) -> Instruction:
        """The instruction with widths as numbers; immediates as ``assembly`` takes them."""
        self._check_immediates(immediates)
        try:
            outputs, inputs = (
                tuple(operand.resolved(immediates) for operand in operands)
                for operands in (self.outputs, self.inputs)
            )
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        return replace(self, outputs=outputs, inputs=inputs)

    def assembly(self, **immediates: int) -> tuple[str, str]:
        """-> (LLVM inline-asm template with $0, $1, ..., constraint string); outputs first, vectors
        flattened.

        Immediates are ints, all of them and no others (TypeError). Anything impure clobbers memory.
        A tied operand is an output, and an input whose constraint is the number of that output.
        """
        resolved = self.resolved(**immediates)
        outputs = [(o, element) for o in resolved.outputs for element in o.elements]
        inputs = [(o, element) for o in resolved.inputs for element in o.elements]
        values = {name: str(value) for name, value in immediates.items()}
        for number, (_, element) in enumerate(outputs + inputs):
            values.setdefault(element, f"${number}")
        elements = {o.name: o.elements for o, _ in outputs + inputs}
        template = PLACEHOLDER.sub(
            lambda match: values[match[1]],
            "\n".join(_spread(line, elements) for line in self.body.replace("$", "$$").split("\n")),
        )
        constraints = ["=" + TYPES[o.type] for o, _ in outputs]
        constraints += [
            values[element][1:] if o.name in self.tied else TYPES[o.type] for o, element in inputs
        ]
        if not self.pure:
            constraints.append("~{memory}")
        return template, ",".join(constraints)

    def _check_immediates(self, immediates):
        if set(immediates) != set(self.immediates):
            raise TypeError(
                f"{self.name} takes the immediates {list(self.immediates)}, got"
                f" {sorted(immediates)}"
            )
        for name, value in immediates.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{self.name}: immediate {name}={value!r} must be an int")


def _spread(line, elements):
    """``<d...>`` -> ``<d0>, <d1>, ...``; a line with ``<d*>`` -> that line for every element."""
    starred = {
        name: elements[name]
        for name in (match[:-1] for match in PLACEHOLDER.findall(line) if match.endswith("*"))
    }
    line = PLACEHOLDER.sub(
        lambda match: (
            ", ".join(f"<{e}>" for e in elements[match[1][:-3]])
            if match[1].endswith("...")
            else match[0]
        ),
        line,
    )
    if not starred:
        return line
    lines = []
    for row in zip(*starred.values()):
        here = dict(zip((f"{name}*" for name in starred), row))

        def element(match, here=here):
            return f"<{here.get(match[1], match[1])}>"

        lines.append(PLACEHOLDER.sub(element, line))
    return "\n".join(lines)
