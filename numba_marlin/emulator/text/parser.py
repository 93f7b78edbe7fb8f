"""PTX text -> Module: directives, variables, and kernels with decoded instructions, which are read
when they are asked for.

Reads what NVVM emits (PTX ISA 8.x and 9.x) and inline asm; ``body`` reads the statements. Of debug
directives the line numbers are kept; an opcode that the registry does not know raises
UnknownInstruction, anything else unreadable PtxSyntaxError, both with their line: what stands in a
kernel when that is read, all else at once.

https://docs.nvidia.com/cuda/parallel-thread-execution/#directives
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from numba_marlin.emulator.errors import (
    UNREADABLE,
    MachineError,
    UnknownInstruction,
    in_kernel,
)
from numba_marlin.emulator.text.body import Body
from numba_marlin.emulator.text.cfg import find_blocks
from numba_marlin.emulator.text.constants import STRENGTH, Constants
from numba_marlin.emulator.text.functions import Function, find_function, recursive
from numba_marlin.emulator.text.lexer import SPACES, Cursor
from numba_marlin.emulator.text.program import TYPE_BITS, Kernel, Module, Parameter, Variable
from numba_marlin.emulator.text.variables import Declaration
from numba_marlin.hardware.limits import PARAMETER_BYTES

LINE_DIRECTIVES = {".version", ".target", ".address_size"}
STRONG = 3
LINKAGE = {".extern": 0, ".common": 1, ".weak": 2, ".visible": STRONG}
WIDE = {"b128": 16, "u128": 16, "s128": 16}  # types of memory only, in bytes
WIDE |= dict.fromkeys(("texref", "samplerref", "surfref"), 8)  # whose instructions are refused
THREADS, CLUSTER = {".maxntid", ".reqntid"}, {".reqnctapercluster"}
BEGINNINGS = {".entry", ".func", ".file", ".section", ".alias", *LINKAGE, *SPACES}
SILENT = {  # say nothing that matters here: how many numbers follow
    ".noreturn": 0,
    ".explicitcluster": 0,
    ".blocksareclusters": 0,
    ".maxclusterrank": 1,
    ".maxnctapersm": 1,
    ".abi_preserve": 1,
    ".abi_preserve_control": 1,
    ".language": 1,
}
STRING_LABEL = re.compile(r"(?<![\w$%.])([A-Za-z_$%.][\w$%.]*)\s*:", re.ASCII)
PRODUCT = STRENGTH["*"]
LONGEST_OPCODE = 400  # the ISA's have 150 characters
BYTE = re.compile(r"[01]?\d?\d|2[0-4]\d|25[0-5]", re.ASCII)
T = TypeVar("T")


def parse(text: str, root_of: Callable[[str], str | None]) -> Module:
    """Parse PTX ``text``. ``root_of(opcode)`` gives the registry key of an opcode, or None if there
    is none. NUL bytes at its end are dropped, as by a driver: NVRTC gives a C string.
    PtxSyntaxError, UnknownInstruction, LimitExceeded: with the line."""
    parser = Parser(text.rstrip("\0"), root_of)
    return parser.guarded(parser.module)


class Kernels(Mapping[str, Kernel]):
    """By name; each is read when it is first asked for. Errors then name it."""

    def __init__(self, parser: Parser) -> None:
        self.p = parser
        self.places: dict[str, tuple[int, int]] = {}
        """Of the name behind .entry, and of the end of the body."""
        self.read: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        if name not in self.read:
            p = self.p
            p.at, p.stop = self.places[name]
            with in_kernel(name), no_collection():
                self.read[name] = p.guarded(p.kernel)
        return self.read[name]

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


@contextmanager
def no_collection() -> Iterator[None]:
    """Python looks for garbage again and again while many objects are made; here, none is. Half of
    the time of a module of sixty kernels was that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Parser(Cursor):
    """``functions``: of the text, by name; ``names``: the module's variables."""

    def __init__(self, text: str, root_of: Callable[[str], str | None]) -> None:
        super().__init__(text)
        self.root_of = root_of
        self.constants = Constants(self)
        self.kernels = Kernels(self)
        self.result = Module(kernels=self.kernels)
        self.functions: dict[str, Function] = {}
        self.names: dict[str, Variable] = {}
        self.strengths: dict[str, int] = {}
        self._decoded: dict[str, tuple[str, tuple[str, ...]] | None] = {}

    def guarded(self, read: Callable[[], T]) -> T:
        """``read()``; what Python raises where a word is missing or of another kind becomes a
        PtxSyntaxError."""
        try:
            return read()
        except UNREADABLE as error:
            if isinstance(error, MachineError):
                raise
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, RecursionError):
                reason = "it is nested too deeply"
            elif isinstance(error, ValueError):
                reason = str(error)
            self.fail(f"a statement that cannot be read ends here ({reason})", self.last)

    @cached_property
    def recursive(self) -> set[str]:
        """Names of the functions that can come to call themselves."""
        return recursive(self.functions)

    @cached_property
    def by_shape(self) -> dict[tuple, list[Function]]:
        """Functions that have a body, by what they take and give."""
        found: dict[tuple, list[Function]] = {}
        for each in dict.fromkeys(self.functions.values()):
            if each.body is not None:
                found.setdefault(each.shape, []).append(each)
        return found

    def decode(self, opcode: str) -> tuple[str, tuple[str, ...]] | None:
        """(root, modifiers) of an opcode that is known."""
        if opcode not in self._decoded:
            spelt = opcode if len(opcode) < LONGEST_OPCODE else ""
            root = self.root_of(spelt)
            if ".sync." in spelt and "sync" not in (root or ""):
                # CUB's vote.ballot.sync.b32: to ptxas, the same
                other = spelt.replace(".sync", "").replace(".", ".sync.", 1)
                if "sync" in (self.root_of(other) or ""):
                    spelt, root = other, self.root_of(other)
            self._decoded[opcode] = (
                None
                if root is None
                else (root, tuple(each for each in spelt[len(root) :].split(".") if each))
            )
        return self._decoded[opcode]

    def at_least(self, least: int) -> int:
        return self.constants.at_least(least)

    def alignment(self) -> int:
        """Behind .align."""
        value = self.at_least(1)
        if value & value - 1:
            self.fail(f".align {value} must be a power of two", self.last)
        return value

    def count(self) -> int:
        """[n][m]...: how many in all; 1 without brackets, 0 with empty ones."""
        count = 1
        while self.take("["):
            count *= 0 if self.peek() == "]" else self.at_least(0)
            self.expect("]")
        return count

    def offset(self) -> int:
        """+ n, - n, as often as they come."""
        total = 0
        while self.peek() in ("+", "-"):
            sign = 1 if self.next().text == "+" else -1
            total += sign * self.product()
        return total

    def product(self) -> int:
        """A constant that binds as a factor of a sum: 4, -4, 4*3, (1<<2)."""
        token = self.token()
        value = self.constants.expression(PRODUCT)
        if value.kind != "int":
            self.fail(f"expected a whole number, found {token.text!r}", token)
        return int(value.value)

    def is_type(self, kind: str) -> bool:
        return kind in TYPE_BITS or kind in WIDE

    def bytes_of(self, kind: str | None, what: str) -> int:
        """Of a type in memory."""
        if kind in WIDE:
            return WIDE[kind]
        if kind is None or TYPE_BITS[kind] < 8:
            self.fail(f"a {what} must have a type of whole bytes", self.last)
        return TYPE_BITS[kind] // 8

    def module(self) -> Module:
        while self.token().kind != "end":
            word = self.peek()
            if word == ".file":
                self.file()
            elif word in LINE_DIRECTIVES:
                self.line_directive(word)
            elif word == ".pragma":
                self.skip_until(";")
            elif word == ".section":
                self.section()
            elif word in LINKAGE:
                self.next()
                if self.peek() in SPACES:
                    self.variables(LINKAGE[word])
            elif word == ".entry":
                self.next()
                self.entry()
            elif word == ".func":  # read where it is called
                self.next()
                find_function(self, self.functions)
            elif word == ".alias":
                self.alias()
            elif word in SPACES:
                self.variables()
            elif word in ("@", ".loc"):  # @@DWARF, of old
                self.next()
                self.rest_of_line()
            elif word in SILENT or word == ";":
                self.next()
                if SILENT.get(word):
                    self.next()
            else:
                self.fail(f"unknown directive {word!r}")
        self.result.variables += self.names.values()
        return self.result

    def line_directive(self, word: str) -> None:
        token = self.next()
        words = self.rest_of_line().replace(",", " ").split()
        if not words or words[0].startswith("."):
            self.fail(f"{word} needs a value, as in .version 8.0, .target sm_90a", token)
        if word == ".address_size" and words[0] != "64":
            self.fail(
                f"addresses of {words[0][:20]} bits are not implemented: compile for 64"
                " (.address_size 64; nvcc -m64)",
                token,
                UnknownInstruction,
            )
        if word == ".version":
            self.result.version = words[0]
        elif word == ".target":
            self.result.target = words[0]

    def entry(self) -> None:
        start, name = self.at, self.next()
        if name.kind != "name":
            self.fail(f"a kernel needs a name, found {name.text!r}", name)
        if self.to_body():  # without one, it is only declared
            self.skip_braces()
            if name.text in self.kernels:
                self.fail(f"kernel {name.text} is defined twice", name)
            self.kernels.places[name.text] = start, self.at

    def to_body(self) -> bool:
        """Behind the name of a kernel or function: go behind the brace of its body; or, False,
        behind the semicolon that stands instead, or before the next directive of the module: old
        compilers end a prototype so."""
        if self.peek() == "(":
            self.skip_until(")")
        while self.peek() not in BEGINNINGS:
            word = self.next().text
            if word == ".pragma":
                self.skip_until(";")
            elif word in ("{", ";"):
                return word == "{"
        return False

    def alias(self) -> None:
        """.alias name, function;"""
        self.next()
        name = self.next().text
        self.expect(",")
        token = self.next()
        self.expect(";")
        if token.text not in self.functions:
            self.fail(f"{token.text} is no function that was declared before", token)
        self.functions[name] = self.functions[token.text]

    def variables(self, strength: int = STRONG) -> None:
        """Of the module. Of several with one name, the strongest (``LINKAGE``) counts."""
        token = self.token()
        for variable in Declaration(self).read():
            known = self.strengths.get(variable.name, -1)
            if known == strength == STRONG:
                self.fail(f"{variable.name} is defined twice", token)
            if strength > known:
                self.names[variable.name], self.strengths[variable.name] = variable, strength

    def file(self) -> None:
        """.file number "name", ..."""
        self.next()
        number = self.next().text
        self.result.files[number] = self.next().text.strip('"')
        self.rest_of_line()

    def section(self) -> None:
        """.section name { ... }: kept are the labelled strings of .debug_str, to which
        ``function_name`` refers."""
        self.next()
        name = self.next().text
        self.expect("{")
        start, stop = self.at, self.skip_braces()
        if name != ".debug_str":
            return
        labels = list(STRING_LABEL.finditer(self.text, start, stop))
        ends = [*(match.start() for match in labels[1:]), stop]
        for match, end in zip(labels, ends):
            words = self.text[match.end() : end].replace(",", " ").split()
            found = bytes(int(word) for word in words if BYTE.fullmatch(word))
            self.result.strings[match[1]] = found.rstrip(b"\0").decode("utf-8", "replace")

    def kernel(self) -> Kernel:
        token = self.next()
        kernel = Kernel(token.text, line=token.line, files=self.result.files)
        if self.take("("):
            offset = 0
            while not self.take(")"):
                offset = self.parameter(kernel, offset)
                if not self.take(",") and self.peek() != ")":
                    self.expect(")")
        while self.peek() != "{":
            word = self.next().text
            if word in THREADS:
                kernel.max_threads = math.prod(self.dimensions())
            elif word == ".maxnreg":
                kernel.max_registers = self.at_least(1)
            elif word in CLUSTER:
                sizes = self.dimensions()
                x, y, z = sizes + [1] * (3 - len(sizes))
                kernel.cluster = x, y, z
            elif word == ".minnctapersm":
                kernel.min_blocks = self.at_least(1)
            elif word == ".pragma":
                self.skip_until(";")
            elif word in SILENT:
                if SILENT[word]:
                    self.next()
            else:
                self.fail(f"unexpected {word!r} before the body of {kernel.name}", self.last)
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

    def pointer(self) -> None:
        """Behind .ptr: what a parameter points to."""
        while self.peek() in (".global", ".shared", ".local", ".const", ".align"):
            if self.next().text == ".align":
                self.alignment()

    def parameter(self, kernel: Kernel, offset: int) -> int:
        self.expect(".param")
        align, kind = None, None
        while self.peek().startswith("."):
            word = self.next().text
            if word == ".ptr":
                self.pointer()
            elif word == ".align":
                align = self.alignment()
            elif self.is_type(word[1:]):
                kind = word[1:]
        size, name, count = self.bytes_of(kind, "parameter"), self.next().text, self.count()
        offset = -(-offset // (align or size)) * (align or size)
        kernel.parameters.append(Parameter(name, kind or "", offset, size * count))
        if offset + size * count > PARAMETER_BYTES:
            self.fail(f"the parameters of {kernel.name} take more than {PARAMETER_BYTES} bytes")
        return offset + size * count
