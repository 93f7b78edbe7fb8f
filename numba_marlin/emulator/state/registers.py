"""The register file, and how handlers reach it.

All registers of one width are one array [registers, warps, 32]; a register is a row of it. An
operand of an instruction is bound once, before the run, to something that is indexed with
``lanes.sel``: a view of a register with the type the instruction wants, or a constant. So a handler
reads ``a[sel]`` and writes ``d[sel] = ...`` whatever the operand is.

Bits are what registers hold: f32 is a float32 view of uint32 and so on. Half types stay bit
patterns (uint16); packed halves, and pairs of float32, are views with a last axis of 2, low half
first.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from numba_marlin.emulator.errors import PtxSyntaxError
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.text.program import (
    PREDICATE,
    TYPE_BITS,
    Immediate,
    Instruction,
    Not,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
DTYPES = {
    "pred": np.bool_,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f16x2": np.uint16,
    "bf16x2": np.uint16,
    "u16x2": np.uint16,
    "s16x2": np.int16,
    "f32": np.float32,
    "f32x2": np.float32,
    "f64": np.float64,
    **{f"{kind}{bits}": UNSIGNED[bits] for kind in "bu" for bits in UNSIGNED},
    **{f"s{bits}": SIGNED[bits] for bits in SIGNED},
}
POISON = 0xA5  # every byte of a register that nothing has written


class Constant:
    """An operand that is the same for all lanes."""

    __slots__ = ("value",)

    def __init__(self, value) -> None:
        self.value = value

    def __getitem__(self, sel):
        return self.value


class Negated:
    """!p"""

    __slots__ = ("source",)

    def __init__(self, source) -> None:
        self.source = source

    def __getitem__(self, sel):
        return ~self.source[sel]


class Discard:
    """_ as a destination."""

    def __setitem__(self, sel, value) -> None:
        pass


class RegisterFile:
    """Storage for ``counts`` (width -> registers) of ``warps`` warps; widths 1 (predicates), 16, 32
    and 64.

    Contents are arbitrary until ``poison``.
    """

    def __init__(self, counts: dict[int, int], warps: int) -> None:
        self.arrays = {
            width: np.empty(
                (count, warps, WARP), np.bool_ if width == PREDICATE else UNSIGNED[width]
            )
            for width, count in counts.items()
        }

    def poison(self, warps: slice) -> None:
        """Forget what the registers of ``warps`` held (a new block moves in)."""
        for width, array in self.arrays.items():
            array[:, warps] = (
                0 if width == PREDICATE else int.from_bytes([POISON] * (width // 8), "little")
            )

    def view(self, register: Register, kind: str) -> np.ndarray:
        """The register as ``kind`` [warps, 32]; packed halves [warps, 32, 2]; a narrower kind is
        its low part."""
        array = self.arrays[register.width][register.index]
        bits, dtype = TYPE_BITS[kind], DTYPES[kind]
        if register.width == PREDICATE or bits == PREDICATE:
            if register.width != bits:
                raise ValueError(
                    f"{register.name} ({register.width} bits) cannot be used as .{kind}"
                )
            return array
        if kind.endswith("x2"):
            if bits != register.width:
                raise ValueError(f"{register.name} has {register.width} bits, .{kind} {bits}")
            return array.view(dtype).reshape(array.shape + (2,))
        if bits > register.width:
            raise ValueError(f"{register.name} has {register.width} bits, .{kind} needs {bits}")
        view = array.view(dtype)
        return view[:, :: register.width // bits] if bits < register.width else view


@dataclass
class Uses:
    """Registers of an instruction, by what its handler does with them: ``addresses`` are among the
    ``reads``, a guard is not."""

    reads: list[Register] = field(default_factory=list)
    writes: list[Register] = field(default_factory=list)
    addresses: list[Register] = field(default_factory=list)


class Binder:
    """Turns operands of one instruction into things to index. ``uses``: pc -> what has been bound.

    A subclass offers ``address_of(symbol)`` and ``special(name, dtype, ins)``.
    """

    def __init__(self, registers: RegisterFile) -> None:
        self.registers = registers
        self.uses: defaultdict[int, Uses] = defaultdict(Uses)

    def source(self, ins: Instruction, operand: Operand, kind: str):
        """Readable: ``[sel]`` gives values of ``kind``."""
        if isinstance(operand, Register):
            self.uses[ins.pc].reads.append(operand)
            return self._view(ins, operand, kind)
        if isinstance(operand, Not):
            self.uses[ins.pc].reads.append(operand.register)
            return Negated(self._view(ins, operand.register, kind))
        if isinstance(operand, Immediate):
            return Constant(constant(operand, kind))
        paired = kind.endswith("x2")
        if isinstance(operand, Symbol) and not paired:
            address = self.address_of(operand)
            if address >> TYPE_BITS[kind]:
                raise PtxSyntaxError(
                    f"the address of {operand.name}, {address:#x}, does not fit .{kind}: addresses"
                    " have 64 bits here",
                    line=ins.line,
                    text=ins.text,
                )
            return Constant(DTYPES[kind](address))
        if isinstance(operand, Special) and not paired:
            return self.special(operand.name, DTYPES[kind], ins)
        raise PtxSyntaxError(
            f"operand {operand} is not a .{kind} value", line=ins.line, text=ins.text
        )

    def destination(self, ins: Instruction, operand: Operand, kind: str):
        """Writable: ``[sel] = values``. A register wider than ``kind`` keeps its upper bits: see
        ``extended``."""
        if isinstance(operand, Sink):
            return Discard()
        if isinstance(operand, Register):
            self.uses[ins.pc].writes.append(operand)
            return self._view(ins, operand, kind)
        raise PtxSyntaxError(
            f"destination {operand} is not a register", line=ins.line, text=ins.text
        )

    def extended(self, ins: Instruction, operand: Operand, kind: str):
        """Writable, for ld and cvt: assigning zero- or sign-extends the values to a register wider
        than ``kind``."""
        if isinstance(operand, Register) and operand.width > max(TYPE_BITS[kind], PREDICATE):
            kind = ("s" if kind[0] == "s" else "u") + str(operand.width)
        return self.destination(ins, operand, kind)

    def _view(self, ins: Instruction, register: Register, kind: str) -> np.ndarray:
        try:
            return self.registers.view(register, kind)
        except ValueError as reason:
            raise PtxSyntaxError(str(reason), line=ins.line, text=ins.text) from None


def constant(immediate: Immediate, kind: str):
    """A literal as a NumPy scalar of ``kind`` (packed halves: uint16 [2]). Integers wrap to the
    width."""
    bits, dtype = TYPE_BITS[kind], DTYPES[kind]
    value = immediate.value
    if kind == "pred":
        return np.bool_(value != 0)
    if immediate.kind == kind:  # f32 or f64: the literal's own bits, NaN payloads included
        return UNSIGNED[bits](value).view(dtype)
    if kind in ("f32", "f64"):
        return dtype(as_float(immediate))
    if immediate.kind in ("f32", "f64", "decimal") and kind in ("b32", "u32", "b64", "u64"):
        packed = struct.pack("<f" if bits == 32 else "<d", as_float(immediate))
        value = int.from_bytes(packed, "little")
    word = int(value) & (1 << bits) - 1
    if kind.endswith("x2"):
        half = UNSIGNED[bits // 2]
        return np.array([word & (1 << bits // 2) - 1, word >> bits // 2], half).view(dtype)
    return UNSIGNED[bits](word).view(dtype)


def as_float(immediate: Immediate) -> float:
    """The real number an immediate stands for. A NaN keeps no payload beyond what Python keeps."""
    if immediate.kind == "f32":
        return struct.unpack("<f", struct.pack("<I", immediate.value))[0]
    if immediate.kind == "f64":
        return struct.unpack("<d", struct.pack("<Q", immediate.value))[0]
    return float(immediate.value)
