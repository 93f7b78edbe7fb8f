"""PTX text -> Module: directives, variables, kernels with decoded instructions.

Reads what NVVM emits (PTX ISA 8.x and 9.x) and inline asm; ``body`` reads the statements. Of debug
directives the line numbers are kept; an opcode that the registry does not know raises
UnknownInstruction here, anything else unreadable PtxSyntaxError, both with their line.

https://docs.nvidia.com/cuda/parallel-thread-execution/#directives
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from numba_marlin.emulator.errors import UNREADABLE, PtxSyntaxError
from numba_marlin.emulator.text.body import Body
from numba_marlin.emulator.text.calls import Function, find_functions
from numba_marlin.emulator.text.cfg import find_blocks
from numba_marlin.emulator.text.lexer import SPACES, Token, literal, negated, tokenize
from numba_marlin.emulator.text.program import TYPE_BITS, Kernel, Module, Parameter, Variable
from numba_marlin.hardware.limits import PARAMETER_BYTES

LINE_DIRECTIVES = {".version", ".target", ".address_size"}
LINKAGE = {".visible", ".extern", ".weak", ".common"}
INITIALISER_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}
FLOAT_BITS = {"f32": (32,), "f64": (64,), "decimal": (32, 64)}  # that literals initialise


def parse(text: str, root_of: Callable[[str], str | None]) -> Module:
    """Parse PTX ``text``. ``root_of(opcode)`` gives the registry key of an opcode, or None if there
    is none. PtxSyntaxError, UnknownInstruction, LimitExceeded: with the line."""
    parser = Parser(text, root_of)
    try:
        return parser.module()
    except UNREADABLE as error:
        parser.fail(
            f"a statement that cannot be read ends here ({type(error).__name__}: {error})",
            parser.tokens[parser.at - 1] if parser.at else None,
        )


class Parser:
    def __init__(self, text: str, root_of: Callable[[str], str | None]) -> None:
        self.text, self.root_of = text, root_of
        # ``read``: tokens so far, those of a function once for each call
        self.tokens, self.at, self.read = tokenize(text), 0, 0
        self.result = Module()
        self.functions: dict[str, Function] = {}
        self.names: set[str] = set()  # of the module's variables

    def fail(self, detail: str, token: Token | None = None, kind: type = PtxSyntaxError) -> None:
        token = token or (
            self.tokens[min(self.at, len(self.tokens) - 1)]
            if self.tokens
            else Token("", "", 1, 0, 0)
        )
        lines = self.text.splitlines() or [""]
        raise kind(detail, line=token.line, text=lines[min(token.line, len(lines)) - 1].strip())

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def next(self) -> Token:
        if self.at >= len(self.tokens):
            self.fail("the text ends in the middle of a statement")
        self.at += 1
        self.read += 1
        return self.tokens[self.at - 1]

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            self.fail(f"expected {text!r}, found {token.text!r}", token)
        return token

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        token = self.next()
        value = literal(token.text) if token.kind == "number" else None
        if value is None or value.kind != "int":
            self.fail(f"expected a whole number, found {token.text!r}", token)
        return sign * value.value

    def at_least(self, least: int) -> int:
        """An integer that must not be smaller."""
        value = self.integer()
        if value < least:
            self.fail(f"{value} must be at least {least}", self.tokens[self.at - 1])
        return value

    def alignment(self) -> int:
        """Behind .align."""
        value = self.at_least(1)
        if value & value - 1:
            self.fail(f".align {value} must be a power of two", self.tokens[self.at - 1])
        return value

    def count(self) -> int:
        """[n][m]...: how many in all; 1 without brackets, 0 with empty ones."""
        count = 1
        while self.take("["):
            count *= 0 if self.peek() == "]" else self.at_least(0)
            self.expect("]")
        return count

    def bytes_of(self, kind: str | None, what: str) -> int:
        """Of a type in memory."""
        if kind is None or TYPE_BITS[kind] < 8:
            self.fail(f"a {what} must have a type of whole bytes")
        return TYPE_BITS[kind] // 8

    def skip_line(self) -> list[str]:
        line, words = self.tokens[self.at].line, []
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            words.append(self.next().text)
        return words

    def skip_until(self, *stops: str) -> str:
        while self.peek() not in stops:
            self.next()
        return self.next().text

    def skip_braces(self) -> None:
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)

    def module(self) -> Module:
        self.functions = find_functions(self)
        while self.at < len(self.tokens):
            word = self.peek()
            if word == ".file":
                self.file()
            elif word in LINE_DIRECTIVES:
                words = self.skip_line()
                if word == ".address_size" and words[1] != "64":
                    self.fail(".address_size must be 64", self.tokens[self.at - 1])
                if word in (".version", ".target"):
                    setattr(self.result, word[1:], words[1])
            elif word == ".pragma":
                self.skip_until(";")
            elif word == ".section":
                self.section()
            elif word in LINKAGE:
                self.next()
            elif word == ".entry":
                self.next()
                kernel = self.kernel()
                self.result.kernels[kernel.name] = kernel
            elif word == ".func":  # read where it is called
                if self.skip_until("{", ";") == "{":
                    self.skip_braces()
            elif word in SPACES:
                found = self.variables()
                self.result.variables += found
                self.names |= {variable.name for variable in found}
            else:
                self.fail(f"unknown directive {word!r}")
        return self.result

    def file(self) -> None:
        """.file number "name", ..."""
        words = self.skip_line()
        self.result.files[words[1]] = words[2].strip('"')

    def location(self) -> tuple:
        """.loc file line column{, function_name label{+offset}, inlined_at file line column}:
        (source, inlined) of an Instruction."""
        words = self.skip_line()
        if "function_name" not in words or "inlined_at" not in words:
            return (words[1], int(words[2])), None
        at = words.index("inlined_at") + 1
        return (words[1], int(words[2])), (
            words[words.index("function_name") + 1],
            (words[at], int(words[at + 1])),
        )

    def section(self) -> None:
        """.section name { ... }: kept are the labelled strings of .debug_str, to which
        ``function_name`` refers."""
        self.next()
        name, label, strings = self.next().text, None, {}
        self.skip_until("{")
        while not self.take("}"):
            token = self.next()
            if self.take(":"):
                label = token.text
                strings[label] = bytearray()
            elif label is not None and name == ".debug_str" and token.kind == "number":
                strings[label].append(int(literal(token.text).value))
        if name == ".debug_str":
            self.result.strings |= {
                label: bytes(text).rstrip(b"\0").decode("utf-8", "replace")
                for label, text in strings.items()
            }

    def variables(self) -> list[Variable]:
        """.space [.align n] .type name[sizes] [= initialiser], ... ;"""
        line, space = self.tokens[self.at].line, self.next().text[1:]
        align, kind = None, None
        while self.peek().startswith("."):
            word = self.next().text
            if word == ".align":
                align = self.alignment()
            elif word[1:] in TYPE_BITS:
                kind = word[1:]
            elif word not in (".attribute", ".managed"):
                self.fail(f"unknown variable attribute {word!r}")
        element = self.bytes_of(kind, "variable")
        found = []
        while True:
            token, count = self.next(), self.count()
            name = token.text
            self.relocations = []
            data = self.initialiser(8 * element) if self.take("=") else b""
            if not count and data:  # [] = {...}: as many as there are
                count = len(data) // element
            if len(data) > count * element:
                self.fail(f"{name} has {count * element} bytes, its initialiser {len(data)}", token)
            # numba-cuda-mlir's dynamic shared memory arrives "demoted": one byte without brackets,
            # standing for [].
            if (
                space == "shared"
                and count == 1
                and element == 1
                and name.startswith("__dynamic_shmem__")
            ):
                count = 0
            found.append(
                Variable(
                    name,
                    space,
                    align or element,
                    count * element,
                    data,
                    line,
                    tuple(self.relocations),
                )
            )
            if not self.take(","):
                break
        self.expect(";")
        return found

    def initialiser(self, bits: int, at: int = 0) -> bytes:
        """The bytes from ``at`` on; addresses among them are zeros, and in ``self.relocations``."""
        token = self.peek()
        if token.startswith('"'):
            return self.next().text[1:-1].encode() + b"\0"
        if self.take("{"):
            data = b""
            while not self.take("}"):
                data += self.initialiser(bits, at + len(data))
                self.take(",")
            return data
        minus = self.take("-")
        token = self.next()
        if token.kind == "name":
            return self.address(token, bits, at)
        if token.kind != "number":
            self.fail(f"initialiser {token.text!r} must be a number or a name", token)
        value = negated(literal(token.text)) if minus else literal(token.text)
        fits = (
            -(1 << bits - 1) <= value.value < 1 << bits
            if value.kind == "int"
            else bits in FLOAT_BITS[value.kind]
        )
        if value.kind == "decimal" and fits:
            return struct.pack("<d" if bits == 64 else "<f", value.value)
        if not fits:
            self.fail(f"initialiser {token.text} does not fit {bits} bits", token)
        return struct.pack("<" + INITIALISER_FORMATS[bits], value.value & (1 << bits) - 1)

    def address(self, token: Token, bits: int, at: int) -> bytes:
        """name, generic(name), either + offset"""
        name = token.text
        if name == "generic":  # the same number, for what has an initialiser
            self.expect("(")
            name = self.next().text
            self.expect(")")
        offset = self.integer() if self.take("+") else 0
        if name in self.functions:
            return struct.pack(
                "<" + INITIALISER_FORMATS[bits], self.functions[name].address + offset
            )
        if bits != 64:
            self.fail(f"the address of {name} needs 64 bits, not {bits}", token)
        self.relocations.append((at, name, offset))
        return bytes(8)

    def kernel(self) -> Kernel:
        token = self.next()
        kernel = Kernel(token.text, line=token.line, files=self.result.files)
        offset = 0
        if self.take("("):
            while not self.take(")"):
                offset = self.parameter(kernel, offset)
                self.take(",")
        while self.peek() != "{":
            word = self.next().text
            if word in (".maxntid", ".reqntid"):
                kernel.max_threads = math.prod(self.dimensions())
            elif word == ".maxnreg":
                kernel.max_registers = self.at_least(1)
            elif word == ".reqnctapercluster":
                sizes = self.dimensions()
                kernel.cluster = tuple(sizes + [1] * (3 - len(sizes)))
            elif word == ".minnctapersm":
                kernel.min_blocks = self.at_least(1)
            elif word == ".pragma":
                self.skip_until(";")
            elif word.startswith("."):
                while self.peek() not in ("{", ";") and not self.peek().startswith("."):
                    self.next()
            else:
                self.fail(f"unexpected {word!r} before the body of {kernel.name}")
        self.expect("{")
        Body(self, kernel).parse()
        kernel.blocks = find_blocks(kernel.instructions)
        return kernel

    def dimensions(self) -> list[int]:
        """x{, y{, z}}"""
        sizes = [self.at_least(1)]
        while self.take(","):
            sizes.append(self.at_least(1))
        if len(sizes) > 3:
            self.fail(f"{len(sizes)} dimensions must be three at most")
        return sizes

    def parameter(self, kernel: Kernel, offset: int) -> int:
        self.expect(".param")
        align, kind = None, None
        while self.peek().startswith("."):
            word = self.next().text
            if word == ".ptr":  # what comes is about what it points to
                while self.peek() in (".global", ".shared", ".local", ".const", ".align"):
                    if self.next().text == ".align":
                        self.alignment()
            elif word == ".align":
                align = self.alignment()
            elif word[1:] in TYPE_BITS:
                kind = word[1:]
        size, name, count = self.bytes_of(kind, "parameter"), self.next().text, self.count()
        offset = -(-offset // (align or size)) * (align or size)
        kernel.parameters.append(Parameter(name, kind, offset, size * count))
        if offset + size * count > PARAMETER_BYTES:
            self.fail(f"the parameters of {kernel.name} take more than {PARAMETER_BYTES} bytes")
        return offset + size * count
