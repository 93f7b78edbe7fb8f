"""PTX in decoded form: operands, instructions, basic blocks, kernels. Plain data, made by
``parser`` and read by the rest.

PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/#instruction-operands
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Widths of register classes in bits; predicates are a class of their own.
PREDICATE = 1
TYPE_BITS = {
    "pred": PREDICATE,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "u16x2": 32,
    "s16x2": 32,
    "f32": 32,
    "f64": 64,
    "f32x2": 64,
}


@dataclass(frozen=True)
class Register:
    """A declared register: ``width`` bits, the ``index``-th of its width in the kernel's register
    file."""

    name: str
    width: int
    index: int


@dataclass(frozen=True)
class Immediate:
    """A literal. ``kind``: int, f32 (0f... bits), f64 (0d... bits) or decimal (a Python float)."""

    value: int | float
    kind: str = "int"


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or a kernel parameter, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}"""

    items: tuple


@dataclass(frozen=True)
class Address:
    """[base + offset]: base is a Register, Symbol or Immediate. ``index``: the coordinates of [map,
    {x, y}]."""

    base: object
    offset: int = 0
    index: object = None


@dataclass(frozen=True)
class Pair:
    """d|p: a result and the predicate that comes with it."""

    first: object
    second: object


@dataclass(frozen=True)
class Not:
    """!p"""

    register: Register


@dataclass(frozen=True)
class Sink:
    """_: a result that is not wanted."""


Operand = Register | Immediate | Symbol | Special | Vector | Address | Pair | Not | Sink


@dataclass(frozen=True)
class Argument:
    """What a call gives or takes: a caller's operand for the callee's. Of ``size`` bytes in
    variables of local memory (Symbol), or a register of the callee's and the caller's value or
    register."""

    caller: Operand
    callee: Symbol | Register
    size: int


@dataclass(frozen=True)
class CallSite:
    """A call of a recursive function, which has its own place in the kernel's instructions, behind
    ``target``. ``caller``: the recursive function that the call stands in; "" for the kernel."""

    function: str
    caller: str
    parameters: tuple[Argument, ...]
    results: tuple[Argument, ...]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction. ``root`` is the registry key it matched ("cp.async", "lop3"), ``modifiers``
    the dotted rest.

    ``target`` is the pc a branch goes to, ``guard`` the predicate register (``guard_negated`` for
    @!p). ``source``: (number of a file, line) of the last .loc before it; ``inlined``: (label in
    Module.strings, (number of a file, line)) if that .loc says which inlined function the line is
    of, and where it was inlined. ``call``: of a recursive function, whose first pc is ``target``.
    """

    pc: int
    line: int
    text: str
    opcode: str
    root: str
    modifiers: tuple[str, ...]
    operands: tuple
    guard: Register | None = None
    guard_negated: bool = False
    target: int | None = None
    source: tuple[str, int] | None = None
    inlined: tuple[str, tuple[str, int]] | None = None
    call: CallSite | None = None

    @property
    def type(self) -> str:
        """The last modifier that is a type, e.g. "u32" of mul.wide.u32."""
        for modifier in reversed(self.modifiers):
            if modifier in TYPE_BITS:
                return modifier
        raise KeyError(f"{self.opcode} names no type")

    @property
    def types(self) -> list[str]:
        return [modifier for modifier in self.modifiers if modifier in TYPE_BITS]


@dataclass(frozen=True)
class Relocation:
    """Bytes [at, at + size) of a variable are those of the address of variable ``name`` plus
    ``offset``, from bit ``shift`` on."""

    at: int
    name: str
    offset: int = 0
    size: int = 8
    shift: int = 0


@dataclass(frozen=True)
class Variable:
    """A variable in a state space. ``size``: bytes (0: dynamic shared memory, [] in the text);
    ``data``: initial bytes, but for the addresses of ``relocations``; ``element``: bytes that an
    index counts. ``frame``: the recursive function of which every call has its own; "" for a
    variable that there is once."""

    name: str
    space: str
    align: int
    size: int
    data: bytes = b""
    line: int = 0
    relocations: tuple[Relocation, ...] = ()
    element: int = 1
    frame: str = ""


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class BasicBlock:
    """Instructions [start, stop); the last one may be a terminator. ``join`` is the pc where its
    branch reconverges."""

    start: int
    stop: int
    join: int


@dataclass(eq=False)
class Kernel:
    """One .entry. ``registers`` maps width -> how many; ``saved`` has the registers of each
    recursive function, which its calls put away."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    registers: dict[int, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    blocks: dict[int, BasicBlock] = field(default_factory=dict)
    max_threads: int | None = None
    max_registers: int | None = None
    cluster: tuple[int, int, int] | None = None  # blocks of a cluster, if the text says so
    min_blocks: int = 1
    line: int = 0
    files: dict[str, str] = field(default_factory=dict)  # of the module, by number
    saved: dict[str, tuple[Register, ...]] = field(default_factory=dict)

    def source_of(self, ins: Instruction) -> str:
        """ "file:line" that ``ins`` was compiled from, if the text says so."""
        return (
            f"{self.files.get(ins.source[0], 'file ' + ins.source[0])}:{ins.source[1]}"
            if ins.source
            else ""
        )


@dataclass(eq=False)
class Module:
    """``kernels`` are read when they are asked for: errors in their text come then."""

    version: str = ""
    target: str = ""
    variables: list[Variable] = field(default_factory=list)
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    # labels of .debug_str: mangled names of inlined functions
    strings: dict[str, str] = field(default_factory=dict)
