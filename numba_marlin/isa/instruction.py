"""One PTX instruction with its declared operands: parsing a ``ptx/`` file, and the text that LLVM's inline assembly wants.

``parse_instruction(text, path) -> Instruction`` raises InstructionError("path:line: ...") for anything it does not understand.
The file format is described in the room's docstring. Constraint letters: NVPTX inline assembly in the LLVM language reference,
https://llvm.org/docs/LangRef.html#supported-constraint-code-list (h 16 bit, r 32 bit, l 64 bit, f float).
"""
from __future__ import annotations

import re
from dataclasses import dataclass

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
    "pinned": "touches no memory, but is to be executed again wherever it stands",
    "convergent": "all lanes of a warp execute it together, so it must not move under another condition",
}
"""What an instruction may do besides computing its outputs."""

KEYS = ("name", "outputs", "inputs", "immediates", "effects", "arch", "isa")
REQUIRED_KEYS = ("name", "effects", "arch", "isa")

_KEY_LINE = re.compile(r"//\s*([a-z]+):\s*(.*?)\s*$")
_OPERAND = re.compile(r"([a-z_]+)\s*:\s*([a-z]\w*)(?:\s+x(\d+))?$")
_PLACEHOLDER = re.compile(r"<\s*([^<>\s]+?)\s*>")
_ELEMENT = re.compile(r"([a-z_]+)(\d*)$")


class InstructionError(ValueError):
    """A file of ``ptx/`` that breaks the format; the message begins with ``path:line:``."""


@dataclass(frozen=True)
class Operand:
    """name; type, one of TYPES; width: 1 for a scalar, else the number of elements of a tuple."""
    name: str
    type: str
    width: int = 1

    @property
    def elements(self) -> tuple[str, ...]:
        """What the placeholders of its elements are called."""
        return (self.name,) if self.width == 1 else tuple(f"{self.name}{i}" for i in range(self.width))


@dataclass(frozen=True)
class Instruction:
    """outputs and inputs: tuples of Operand; immediates: names; effects: words of EFFECTS; arch such as "sm_80"; url of the PTX ISA
    section; summary in prose; body with placeholders; path of the file."""
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

    def assembly(self, **immediates: int) -> tuple[str, str]:
        """-> (LLVM inline-asm template with $0, $1, ..., constraint string); outputs first, vectors flattened.

        Immediates are ints, all of them and no others (TypeError). Anything impure clobbers memory.
        """
        if set(immediates) != set(self.immediates):
            raise TypeError(f"{self.name} takes the immediates {list(self.immediates)}, got {sorted(immediates)}")
        values = {}
        for name, value in immediates.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{self.name}: immediate {name}={value!r} must be an int")
            values[name] = str(value)
        elements = [element for operand in self.outputs + self.inputs for element in operand.elements]
        values.update((element, f"${i}") for i, element in enumerate(elements))
        template = _PLACEHOLDER.sub(lambda match: values[match[1]], self.body.replace("$", "$$"))
        constraints = ["=" + TYPES[o.type] for o in self.outputs for _ in o.elements]
        constraints += [TYPES[o.type] for o in self.inputs for _ in o.elements]
        if not self.pure:
            constraints.append("~{memory}")
        return template, ",".join(constraints)


def parse_instruction(text: str, path: str, stem: str | None = None) -> Instruction:
    """The instruction in a file's text. path is used in messages; stem, if given, is what ``name`` must equal."""
    header, prose, body_lines = _split(text, path)
    for key in REQUIRED_KEYS:
        if key not in header:
            raise InstructionError(f"{path}:1: the header has no `// {key}:` line")
    if not prose:
        raise InstructionError(f"{path}:1: the header says in no line of prose what the instruction does")
    line, name = header["name"]
    if stem is not None and name != stem:
        raise InstructionError(f"{path}:{line}: name {name!r} differs from the file's name {stem!r}")
    if not name.isidentifier():
        raise InstructionError(f"{path}:{line}: name {name!r} is not a Python identifier")
    outputs, inputs = _operands(header, "outputs", path), _operands(header, "inputs", path)
    immediates = _immediates(header, path)
    names = [o.name for o in outputs + inputs] + list(immediates)
    for key in ("outputs", "inputs", "immediates"):
        for twice in (n for n in set(names) if names.count(n) > 1):
            if key in header and re.search(rf"\b{twice}\b", header[key][1]):
                raise InstructionError(f"{path}:{header[key][0]}: operand {twice!r} is declared more than once")
    line, url = header["isa"]
    if not url.startswith("https://"):
        raise InstructionError(f"{path}:{line}: isa must be the https:// address of a PTX ISA section, not {url!r}")
    line, arch = header["arch"]
    if not re.fullmatch(r"sm_\d+a?", arch):
        raise InstructionError(f"{path}:{line}: arch {arch!r} is not of the form sm_80 or sm_90a")
    _check_body(body_lines, outputs, inputs, immediates, header, path)
    body = "\n".join(code for _, code in body_lines)
    return Instruction(name, outputs, inputs, immediates, _effects(header, path), arch, url, " ".join(prose), body, path)


def _split(text, path):
    """-> (key -> (line, value), prose lines, [(line, code)])"""
    header, prose, body = {}, [], []
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if stripped.startswith("//") and not body:
            match = _KEY_LINE.match(stripped)
            if not match:
                prose.append(stripped.lstrip("/").strip())
            elif match[1] not in KEYS:
                raise InstructionError(f"{path}:{number}: unknown header key {match[1]!r}; known: {', '.join(KEYS)}")
            elif match[1] in header:
                raise InstructionError(f"{path}:{number}: header key {match[1]!r} occurs twice")
            elif not match[2]:
                raise InstructionError(f"{path}:{number}: header key {match[1]!r} has no value; leave the line out")
            else:
                header[match[1]] = (number, match[2])
        else:
            code = raw.split("//")[0].rstrip()
            if code:
                body.append((number, code))
    return header, [line for line in prose if line], body


def _operands(header, key, path):
    if key not in header:
        return ()
    line, value = header[key]
    operands = []
    for item in value.split(","):
        match = _OPERAND.match(item.strip())
        if not match:
            raise InstructionError(f"{path}:{line}: {item.strip()!r} in {key} is not of the form `name: type` or `name: type xN` "
                                   "(names are lower-case letters and underscores)")
        name, kind, width = match[1], match[2], match[3]
        if kind not in TYPES:
            raise InstructionError(f"{path}:{line}: operand {name!r} has the unknown type {kind!r}; known: {', '.join(TYPES)}")
        if width is not None and int(width) < 2:
            raise InstructionError(f"{path}:{line}: operand {name!r} has width x{width}; a vector has two elements or more")
        operands.append(Operand(name, kind, int(width or 1)))
    if key == "outputs" and len(operands) > 1:
        raise InstructionError(f"{path}:{line}: {len(operands)} outputs; one scalar or one vector can be returned")
    return tuple(operands)


def _immediates(header, path):
    if "immediates" not in header:
        return ()
    line, value = header["immediates"]
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if not re.fullmatch("[a-z_]+", name):
            raise InstructionError(f"{path}:{line}: immediate {name!r} must be lower-case letters and underscores")
    return names


def _effects(header, path):
    line, value = header["effects"]
    if value == "none":
        return ()
    words = tuple(word.strip() for word in value.split(","))
    for word in words:
        if word not in EFFECTS:
            raise InstructionError(f"{path}:{line}: unknown effect {word!r}; known: none, {', '.join(EFFECTS)}")
    return words


def _check_body(body_lines, outputs, inputs, immediates, header, path):
    """Every placeholder declared, every declared operand used: else the arity of header and body differ."""
    widths = {o.name: o.width for o in outputs + inputs}
    allowed = {element for o in outputs + inputs for element in o.elements} | set(immediates)
    used = set()
    for line, code in body_lines:
        for placeholder in _PLACEHOLDER.findall(code):
            if placeholder not in allowed:
                match = _ELEMENT.match(placeholder)
                if match and match[1] in widths:
                    width = widths[match[1]]
                    rule = f"is declared x{width}" if width > 1 else "is a scalar"
                    raise InstructionError(f"{path}:{line}: arity: <{placeholder}> does not exist, operand {match[1]!r} {rule}")
                raise InstructionError(f"{path}:{line}: unknown placeholder <{placeholder}>; declared: {', '.join(sorted(allowed)) or 'nothing'}")
            used.add(placeholder)
    if not body_lines:
        raise InstructionError(f"{path}:{max(line for line, _ in header.values())}: the header is followed by no body")
    for key, operands in (("outputs", outputs), ("inputs", inputs)):
        for operand in operands:
            missing = [e for e in operand.elements if e not in used]
            if len(missing) == operand.width:
                raise InstructionError(f"{path}:{header[key][0]}: operand {operand.name!r} is never used in the body")
            if missing:
                raise InstructionError(f"{path}:{header[key][0]}: arity: operand {operand.name!r} is declared x{operand.width}, "
                                       f"but the body never uses <{'>, <'.join(missing)}>")
    for name in immediates:
        if name not in used:
            raise InstructionError(f"{path}:{header['immediates'][0]}: immediate {name!r} is never used in the body")
