"""Parses a file of ``ptx/``: a header that declares the operands, and a body with placeholders.

The docstring of ``numba_marlin.isa`` describes the file format.
"""

from __future__ import annotations

import re

from numba_marlin.isa.instruction import (
    EFFECTS,
    PLACEHOLDER,
    TYPES,
    Instruction,
    InstructionError,
    Operand,
)

KEYS = ("name", "outputs", "inout", "inputs", "immediates", "effects", "arch", "isa")
REQUIRED_KEYS = ("name", "effects", "arch", "isa")

_ELEMENT = re.compile(r"([a-z_]+)(\d*|\.\.\.|\*)$")
_KEY_LINE = re.compile(r"//\s*([a-z]+):\s*(.*?)\s*$")
_OPERAND = re.compile(r"([a-z_]+)\s*:\s*([a-z]\w*)(?:\s+x(\d+|\s+[a-z_]+(?:/\d+)?))?$")


def parse_instruction(text: str, path: str, stem: str | None = None) -> Instruction:
    """Parse the text of a file. path: for messages; stem: what ``name`` must equal, if given.

    Raises InstructionError, whose message begins with ``path:line:``, for anything that the format
    does not allow.
    """
    header, prose, body_lines = _split(text, path)
    for key in REQUIRED_KEYS:
        if key not in header:
            raise InstructionError(f"{path}:1: the header has no `// {key}:` line")
    if not prose:
        raise InstructionError(
            f"{path}:1: the header has no line of prose that says what the instruction does"
        )
    line, name = header["name"]
    if stem is not None and name != stem:
        raise InstructionError(
            f"{path}:{line}: name {name!r} differs from the file's name {stem!r}"
        )
    if not name.isidentifier():
        raise InstructionError(f"{path}:{line}: name {name!r} is not a Python identifier")
    immediates = _immediates(header, path)
    outputs, inout, inputs = (
        _operands(header, key, immediates, path) for key in ("outputs", "inout", "inputs")
    )
    if outputs and inout:
        raise InstructionError(
            f"{path}:{header['inout'][0]}: outputs besides inout: an instruction returns one scalar"
            " or one vector"
        )
    names = [o.name for o in outputs + inout + inputs] + list(immediates)
    for key in ("outputs", "inout", "inputs", "immediates"):
        for twice in (n for n in set(names) if names.count(n) > 1):
            if key in header and re.search(rf"\b{twice}\b", header[key][1]):
                raise InstructionError(
                    f"{path}:{header[key][0]}: operand {twice!r} is declared more than once"
                )
    line, url = header["isa"]
    if not url.startswith("https://"):
        raise InstructionError(
            f"{path}:{line}: isa must be the https:// address of a PTX ISA section, not {url!r}"
        )
    line, arch = header["arch"]
    if not re.fullmatch(r"sm_\d+a?", arch):
        raise InstructionError(f"{path}:{line}: arch {arch!r} is not of the form sm_80 or sm_90a")
    _check_body(
        body_lines, {"outputs": outputs, "inout": inout, "inputs": inputs}, immediates, header, path
    )
    body = "\n".join(code for _, code in body_lines)
    return Instruction(
        name,
        outputs + inout,
        inout + inputs,
        immediates,
        _effects(header, path),
        arch,
        url,
        " ".join(prose),
        body,
        path,
    )


def _split(text, path):
    """Split a file into its header {key: (line number, value)}, its lines of prose, and its body
    [(line number, code)]."""
    header: dict[str, tuple[int, str]] = {}
    prose: list[str] = []
    body: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if stripped.startswith("//") and not body:
            match = _KEY_LINE.match(stripped)
            if not match:
                prose.append(stripped.lstrip("/").strip())
            elif match[1] not in KEYS:
                raise InstructionError(
                    f"{path}:{number}: unknown header key {match[1]!r}; known: {', '.join(KEYS)}"
                )
            elif match[1] in header:
                raise InstructionError(f"{path}:{number}: header key {match[1]!r} occurs twice")
            elif not match[2]:
                raise InstructionError(
                    f"{path}:{number}: header key {match[1]!r} has no value; omit the line"
                )
            else:
                header[match[1]] = (number, match[2])
        else:
            code = raw.split("//")[0].rstrip()
            if code:
                body.append((number, code))
    return header, [line for line in prose if line], body


def _operands(header, key, immediates, path):
    if key not in header:
        return ()
    line, value = header[key]
    operands = []
    for item in value.split(","):
        match = _OPERAND.match(item.strip())
        if not match:
            raise InstructionError(
                f"{path}:{line}: {item.strip()!r} in {key} is not of the form `name: type`, `name:"
                " type xN`, `name: type x immediate` or `name: type x immediate/N` (names are"
                " lower-case letters and underscores)"
            )
        name, kind, width = match[1], match[2], (match[3] or "1").strip()
        if kind not in TYPES:
            raise InstructionError(
                f"{path}:{line}: operand {name!r} has the unknown type {kind!r}; known:"
                f" {', '.join(TYPES)}"
            )
        if match[3] and width.isdigit() and int(width) < 2:
            raise InstructionError(
                f"{path}:{line}: operand {name!r} has width x{width}; a vector has at least two"
                " elements"
            )
        if not width.isdigit() and width.split("/")[0] not in immediates:
            raise InstructionError(
                f"{path}:{line}: operand {name!r} has the width {width!r}, but"
                f" {width.split('/')[0]!r} is not an immediate"
            )
        operands.append(Operand(name, kind, int(width) if width.isdigit() else width))
    if key != "inputs" and len(operands) > 1:
        raise InstructionError(
            f"{path}:{line}: {len(operands)} outputs: an instruction returns one scalar or one"
            " vector"
        )
    return tuple(operands)


def _immediates(header, path):
    if "immediates" not in header:
        return ()
    line, value = header["immediates"]
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if not re.fullmatch("[a-z_]+", name):
            raise InstructionError(
                f"{path}:{line}: immediate {name!r} must consist of lower-case letters and"
                " underscores"
            )
    return names


def _effects(header, path):
    line, value = header["effects"]
    if value == "none":
        return ()
    words = tuple(word.strip() for word in value.split(","))
    for word in words:
        if word not in EFFECTS:
            raise InstructionError(
                f"{path}:{line}: unknown effect {word!r}; known: none, {', '.join(EFFECTS)}"
            )
    return words


def _check_body(body_lines, operands, immediates, header, path):
    """Check that the header declares every placeholder of the body, and that the body uses every
    operand and immediate of the header. operands: {header key: Operands}."""
    widths = {o.name: o.width for declared in operands.values() for o in declared}
    used = set()
    for line, code in body_lines:
        starred = set()
        for placeholder in PLACEHOLDER.findall(code):
            for element in _elements_meant(placeholder, widths, immediates, f"{path}:{line}"):
                used.add(element)
            if placeholder.endswith("*"):
                starred.add(widths[placeholder[:-1]])
        if len(starred) > 1:
            raise InstructionError(
                f"{path}:{line}: arity: a line is repeated for vectors of different widths"
                f" {sorted(map(str, starred))}"
            )
    if not body_lines:
        raise InstructionError(
            f"{path}:{max(line for line, _ in header.values())}: no body follows the header"
        )
    for key, declared in operands.items():
        for operand in declared:
            elements = _elements_of(operand.name, operand.width)
            missing = [e for e in elements if e not in used]
            if len(missing) == len(elements):
                raise InstructionError(
                    f"{path}:{header[key][0]}: operand {operand.name!r} is never used in the body"
                )
            if missing:
                raise InstructionError(
                    f"{path}:{header[key][0]}: arity: operand {operand.name!r} is declared"
                    f" x{operand.width}, but the body never uses <{'>, <'.join(missing)}>"
                )
    for name in immediates:
        if name not in used and not any(
            name == str(width).split("/")[0] for width in widths.values()
        ):
            raise InstructionError(
                f"{path}:{header['immediates'][0]}: immediate {name!r} is never used in the body"
            )


def _elements_of(name, width):
    """Return the names of an operand's elements. A vector whose width depends on an immediate has
    one name that represents all of them."""
    return Operand(name, "u32", width).elements if isinstance(width, int) else (f"{name}...",)


def _elements_meant(placeholder, widths, immediates, place):
    """Return the names of the elements, or of the immediate, that a placeholder of the body
    represents. Raises InstructionError with ``place`` ("path:line") if it represents nothing."""
    match = _ELEMENT.match(placeholder)
    if placeholder in immediates:
        return (placeholder,)
    if not match or match[1] not in widths:
        known = sorted(
            {e for name, width in widths.items() for e in _elements_of(name, width)}
            | set(immediates)
        )
        raise InstructionError(
            f"{place}: unknown placeholder <{placeholder}>; declared:"
            f" {', '.join(known) or 'nothing'}"
        )
    elements = _elements_of(match[1], widths[match[1]])
    if match[2] in ("...", "*") and widths[match[1]] != 1:
        return elements
    if placeholder not in elements:
        rule = "is a scalar" if widths[match[1]] == 1 else f"is declared x{widths[match[1]]}"
        raise InstructionError(
            f"{place}: arity: <{placeholder}> does not exist, operand {match[1]!r} {rule}"
        )
    return (placeholder,)
