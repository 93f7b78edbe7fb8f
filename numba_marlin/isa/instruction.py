"""One PTX instruction with its declared operands, and its template for LLVM's inline assembly.

``parsing`` creates instructions from the files of ``ptx/``. The constraint letters (h for 16 bits,
r for 32 bits, l for 64 bits, f for float) are those of NVPTX in the LLVM language reference,
https://llvm.org/docs/LangRef.html#supported-constraint-code-list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# operand type -> constraint letter
TYPES = {"u16": "h", "u32": "r", "i32": "r", "u64": "l", "f32": "f"}

# what an instruction may do besides computing its outputs
EFFECTS = {
    "shared.read": "reads shared memory",
    "shared.write": "writes shared memory",
    "global.read": "reads global memory",
    "global.write": "writes global memory",
    "async": "commits asynchronous copies or waits for them",
    "barrier": "waits for other threads",
    "fence": "orders memory accesses",
    "pinned": "accesses no memory, but must be executed at every occurrence",
    "convergent": (
        "all lanes of a warp execute it together, so it must not move under another condition"
    ),
}

PLACEHOLDER = re.compile(r"<\s*([^<>\s]+?)\s*>")


class InstructionError(ValueError):
    """A file of ``ptx/`` breaks the format. The message begins with ``path:line:``."""


@dataclass(frozen=True)
class Operand:
    """An input or an output of an instruction.

    type: one of TYPES.
    width: 1 for a scalar, else the number of elements of a tuple. As long as the value of an
        immediate n is not known, the width may be "n" or "n/2".
    """

    name: str
    type: str
    width: int | str = 1

    @property
    def elements(self) -> tuple[str, ...]:
        """The names of the placeholders of its elements."""
        if self.width == 1:
            return (self.name,)
        return tuple(f"{self.name}{i}" for i in range(int(self.width)))

    def resolved(self, immediates: dict[str, int]) -> Operand:
        """Return the operand with its width as a number. Raises ValueError if the width is not an
        integer of at least 2."""
        if isinstance(self.width, int):
            return self
        name, _, divisor = self.width.partition("/")
        width, rest = divmod(immediates[name], int(divisor or 1))
        if rest or width < 2:
            raise ValueError(
                f"{name}={immediates[name]}: operand {self.name!r} has {self.width} elements, which"
                " must be an integer of at least 2"
            )
        return Operand(self.name, self.type, width)


@dataclass(frozen=True)
class Instruction:
    """One instruction, as its file declares it.

    outputs, inputs: the operands. An operand that is read and written in place is the first of
        both.
    immediates: the names of the compile-time integers.
    effects: words of EFFECTS; empty for "none".
    arch: the lowest architecture that supports it, such as "sm_80".
    url: the section of the PTX ISA.
    summary: the prose of the header.
    body: PTX with placeholders.
    path: the file that declares it.
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
        """Whether the instruction only computes its outputs from its inputs."""
        return not set(self.effects) - {"convergent"}

    @property
    def convergent(self) -> bool:
        return "convergent" in self.effects or "barrier" in self.effects

    @property
    def tied(self) -> tuple[str, ...]:
        """The names of the operands that are read and written in place."""
        return tuple(operand.name for operand in self.outputs if operand in self.inputs)

    def resolved(self, **immediates: int) -> Instruction:
        """Return the instruction with widths as numbers. Takes the same immediates and raises the
        same errors as ``assembly``."""
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
        """Return (template of LLVM inline assembly with $0, $1, ..., constraint string).

        The operands are numbered with the outputs first and vectors flattened. A tied operand is an
        output, and an input whose constraint is the number of that output. An instruction that is
        not pure has the constraint ``~{memory}``.

        immediates: an int for each of the instruction's immediates.

        Raises TypeError if an immediate is missing, unknown or not an int, and ValueError if an
        operand's width does not follow from the immediates.
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
    """Replace ``<d...>`` by ``<d0>, <d1>, ...``, and a line that contains ``<d*>`` by one line for
    every element."""
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
