"""Who is where for ``tcgen05.mma`` with block scales: its two kinds of descriptors, tensor memory,
and where scales are kept in it.

A product is D [128, n] = (A scale_A) (B scale_B), A [128, k] and B [n, k] in shared memory with k
contiguous, 32 bytes of it: 64 elements of 4 bits or 32 of 8. Tensor memory has 128 lanes (rows) of
512 columns of 32 bits; an address is lane << 16 | column. Row r of D is in lane r, its column c in
column d + c.

Scales: a byte each, ``vectors`` of them for every row of A or B. Row r's are in the 32-bit word of
lane r % 32 and column base + r // 32, from byte ``scale_id`` on, and the same again in lanes 32, 64
and 96 further on, so that each quarter of the memory has them all. tcgen05.cp.32x128b.warpx4 brings
there a tile of ``block_scales``, 512 bytes of shared memory, 16 for every lane.

Matrix descriptors name what those of wgmma name (``wgmma.Descriptor``), in other bits. None of this
was measured: it follows
https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-matrix-descriptors,
#tcgen05-instruction-descriptor, #tcgen05-block-scaling, #tensor-memory
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.layout.tensor_map import CHUNK_BYTES
from numba_marlin.layout.wgmma import Descriptor

LANES, COLUMNS = 128, 512
LANE_SHIFT = 16
WARP_LANES = 32
ROWS, N_STEP, N_MOST = 128, 8, 256
K_BYTES = 32
LEAST_COLUMNS = 32  # of an allocation, a power of two
SCALE_COLUMNS = 4  # that a tile of scales takes

# swizzle -> the three upper bits; 1, for 32-byte atoms, is for matrices that are not contiguous
# along k
_MODES = {0: 0, 128: 2, 64: 4, 32: 6}
_CONSTANT = 1 << 46
_UNUSED = ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 46 | 7 << 49 | 7 << 61) & (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Kind:
    """A ``.kind`` with its scale vector size: bits of an element; vectors: scales of a row; names
    by the number that the instruction descriptor has for elements and for scales; scale_ids that it
    may have."""

    name: str
    bits: int
    vectors: int
    elements: dict[int, str]
    scales: dict[int, str]
    scale_ids: tuple[int, ...]

    @property
    def depth(self) -> int:
        """k of one product."""
        return K_BYTES * 8 // self.bits

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        return self.depth // self.vectors


E4M3_E8M0 = {0: "e4m3", 1: "e8m0"}
KINDS = {
    ("mxf4nvf4", "4X"): Kind("mxf4nvf4", 4, 4, {1: "e2m1"}, E4M3_E8M0, (0,)),
    ("mxf4nvf4", "2X"): Kind("mxf4nvf4", 4, 2, {1: "e2m1"}, {1: "e8m0"}, (0, 2)),
    ("mxf4", "2X"): Kind("mxf4", 4, 2, {1: "e2m1"}, {1: "e8m0"}, (0, 2)),
    ("mxf8f6f4", "1X"): Kind("mxf8f6f4", 8, 1, {0: "e4m3"}, {1: "e8m0"}, (0, 1, 2, 3)),
}
"""By (kind, scale vector size). Of the elements of mxf8f6f4 only e4m3, as MXFP8 has it."""


@dataclass(frozen=True)
class InstructionDescriptor:
    """The 32 bits of ``idesc``, for M = 128, dense matrices, k contiguous. n: columns of D; a, b,
    scale: names as in ``Kind``; sfa_id, sfb_id: byte of a word where the scales of A and B begin;
    negate_a, negate_b."""

    n: int
    a: str = "e2m1"
    b: str = "e2m1"
    scale: str = "e4m3"
    sfa_id: int = 0
    sfb_id: int = 0
    negate_a: bool = False
    negate_b: bool = False

    def encode(self, kind: Kind) -> int:
        """ValueError for what the kind does not have."""
        if self.n % N_STEP or not N_STEP <= self.n <= N_MOST:
            raise ValueError(f"n={self.n} must be a multiple of {N_STEP} from {N_STEP} to {N_MOST}")
        for name in ("sfa_id", "sfb_id"):
            if getattr(self, name) not in kind.scale_ids:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be one of {kind.scale_ids} for"
                    f" kind::{kind.name} with {kind.vectors} scales per row"
                )
        a, b, scale = (
            _number(value, names)
            for value, names in (
                (self.a, kind.elements),
                (self.b, kind.elements),
                (self.scale, kind.scales),
            )
        )
        signs = int(self.negate_a) << 13 | int(self.negate_b) << 14
        return (
            self.sfb_id << 4
            | a << 7
            | b << 10
            | signs
            | self.n >> 3 << 17
            | scale << 23
            | ROWS >> 7 << 27
            | self.sfa_id << 29
        )


def _number(name: str, names: dict[int, str]) -> int:
    for number, each in names.items():
        if each == name:
            return number
    raise ValueError(f"{name!r} must be one of {', '.join(names.values())}")


def decode_instruction(bits: int, kind: Kind) -> InstructionDescriptor:
    """The inverse of ``InstructionDescriptor.encode``. ValueError, naming the field, for a
    descriptor that means something else, or nothing."""
    for name, shift, width, value in (
        ("sparsity", 2, 1, 0),
        ("transpose A", 15, 1, 0),
        ("transpose B", 16, 1, 0),
        ("M", 27, 2, ROWS >> 7),
    ):
        if bits >> shift & (1 << width) - 1 != value:
            raise ValueError(
                f"instruction descriptor {bits:#010x}: {name} (bits from {shift} on) must be"
                f" {value} for dense products of M = {ROWS} with k contiguous"
            )
    b_bits = 3 if kind.bits == 8 else 2
    reserved = 0b11 | 1 << 3 | 1 << 6 | 7 << 24 | 1 << 31 | (1 << 12 if b_bits == 2 else 0)
    if bits & reserved:
        raise ValueError(
            f"instruction descriptor {bits:#010x}: reserved bits {bits & reserved:#x} must be 0"
        )
    names = {}
    for name, shift, width, known in (
        ("a", 7, 3, kind.elements),
        ("b", 10, b_bits, kind.elements),
        ("scale", 23, 1, kind.scales),
    ):
        number = bits >> shift & (1 << width) - 1
        if number not in known:
            raise ValueError(
                f"instruction descriptor {bits:#010x}: type {number} of {name} is none of"
                f" kind::{kind.name} with {kind.vectors} scales per row"
            )
        names[name] = known[number]
    found = InstructionDescriptor(
        (bits >> 17 & 0x3F) << 3,
        **names,
        sfa_id=bits >> 29 & 3,
        sfb_id=bits >> 4 & 3,
        negate_a=bool(bits >> 13 & 1),
        negate_b=bool(bits >> 14 & 1),
    )
    found.encode(kind)
    return found


def encode(descriptor: Descriptor) -> int:
    """The 64 bits of a matrix descriptor. ValueError as of ``wgmma.Descriptor.encode``."""
    descriptor.encode()
    return (
        descriptor.address >> 4
        | descriptor.leading_bytes >> 4 << 16
        | descriptor.stride_bytes >> 4 << 32
        | _CONSTANT
        | _MODES[descriptor.swizzle] << 61
    )


def decode(bits: int) -> Descriptor:
    """The inverse of ``encode``. ValueError for bits that mean nothing, or another way to lay out a
    matrix."""
    if bits & _UNUSED:
        raise ValueError(f"descriptor {bits:#018x} has bits set that mean nothing here")
    if bits >> 46 & 7 != 1:
        raise ValueError(
            f"descriptor {bits:#018x}: bits 46 to 48 must be 0b001, are {bits >> 46 & 7:#05b}"
            " (0b000 is a descriptor of wgmma)"
        )
    swizzle = next((size for size, mode in _MODES.items() if mode == bits >> 61), None)
    if swizzle is None:
        raise ValueError(
            f"descriptor {bits:#018x}: swizzle mode {bits >> 61} is none of"
            f" {', '.join(map(str, _MODES.values()))}"
        )
    return Descriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        swizzle,
        bits >> 49 & 7,
    )


def scale_descriptor(address: int) -> int:
    """Of a tile of scales (``block_scales``), 512 bytes at shared ``address`` (a multiple of 16),
    as tcgen05.cp.32x128b reads it."""
    return encode(
        Descriptor(address, stride_bytes=8 * CHUNK_BYTES, leading_bytes=CHUNK_BYTES, swizzle=0)
    )


def scale_cells(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(lane below 32, column from the first on) of the word of scales of each of ``rows`` rows."""
    row = np.arange(rows)
    return row % WARP_LANES, row // WARP_LANES


def address_of(lane: int, column: int) -> int:
    return lane << LANE_SHIFT | column


def fields_of(address: int) -> tuple[int, int]:
    """(lane, column)"""
    return address >> LANE_SHIFT, address & (1 << LANE_SHIFT) - 1


def columns_of_scales(rows: int) -> int:
    """Columns that the scales of so many rows take."""
    return -(-rows // WARP_LANES)
