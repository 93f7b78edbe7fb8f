"""Tensor maps: what a tensor copy (TMA) moves, described once for a real driver and for the PTX
machine.

A ``TensorMap`` describes a tensor in global memory and the box that one copy of it moves.
Everything in this module is in NumPy order, the last dimension innermost, also ``coordinates``:
(row, column). Copy instructions and their wrappers (``ptx.cp_async_bulk_tensor_2d_g2s``) take
coordinates in the other order, innermost first: x, the column, then y, the row. The hardware's own
128 bytes are opaque and come from the driver (``cuTensorMapEncodeTiled``); ``encode`` and
``decode`` are a format of our own for machines without one. A box lies in shared memory row by row
without gaps, its 16-byte chunks permuted by the swizzle, a function of the shared address
(``swizzled``). Elements outside of the tensor are zeros when loaded and are not written when
stored, except for the rest of a 16-byte chunk in whose middle a row ends (``clip``).

ValueError for a description that the driver would refuse. Rules and names: CUDA driver API, "Tensor
Map Object Management", and https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-tensormap
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from numba_marlin.hardware.limits import BOX_ELEMENTS, TENSOR_MAP_BYTES

ELEMENT_BYTES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
}
SWIZZLES = (0, 32, 64, 128)  # bytes of the span within which 16-byte chunks are permuted
L2_PROMOTIONS = (0, 64, 128, 256)
MAX_RANK = 5
CHUNK_BYTES = 16
ENCODED_BYTES = TENSOR_MAP_BYTES
SHARED_ALIGNMENT = 128  # of a box in shared memory
# the widest swizzle repeats after so many bytes; tiles begin at multiples of it
SWIZZLE_PATTERN_BYTES = 8 * max(SWIZZLES)
# The first half holds all, as it does in the hardware's: kernels that change a map copy no more.
_MAGIC = b"ntm2"
_FORMAT = struct.Struct("<4sQBBB5I20s5B")
_STRIDE_BYTES = 5


@dataclass(frozen=True)
class TensorMap:
    """dtype: a name of ELEMENT_BYTES; shape in elements and strides_bytes, the last one the size of
    an element; box in elements; swizzle in bytes, one of SWIZZLES, 0 for none; l2_promotion in
    bytes: how much L2 fetches at a time, 0 for the default.
    """

    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(ELEMENT_BYTES)}")
        for name in ("shape", "strides_bytes", "box"):
            object.__setattr__(self, name, tuple(int(value) for value in getattr(self, name)))
        rank, size = len(self.shape), self.element_bytes
        if not 1 <= rank <= MAX_RANK or len(self.strides_bytes) != rank or len(self.box) != rank:
            raise ValueError(
                f"shape={self.shape}, strides_bytes={self.strides_bytes} and box={self.box} must"
                f" have one length, 1 to {MAX_RANK}"
            )
        if not all(1 <= count <= 1 << 32 for count in self.shape):
            raise ValueError(f"shape={self.shape} must be of numbers from 1 to 2^32")
        if self.strides_bytes[-1] != size:
            raise ValueError(
                f"strides_bytes={self.strides_bytes}: the last must be {size}, an element of"
                f" {self.dtype}"
            )
        if not all(
            stride % CHUNK_BYTES == 0 and 0 <= stride < 1 << 40
            for stride in self.strides_bytes[:-1]
        ):
            raise ValueError(
                f"strides_bytes={self.strides_bytes}: all but the last must be multiples of"
                f" {CHUNK_BYTES} below 2^40"
            )
        if not all(1 <= count <= BOX_ELEMENTS for count in self.box):
            raise ValueError(f"box={self.box} must be of numbers from 1 to {BOX_ELEMENTS}")
        if self.row_bytes % CHUNK_BYTES:
            raise ValueError(
                f"box={self.box}: its innermost {self.row_bytes} bytes must be a multiple of"
                f" {CHUNK_BYTES}"
            )
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle={self.swizzle} must be one of {SWIZZLES}")
        # The driver takes shorter rows too; where it puts them was not measured, and no
        # kernel needs them.
        if self.swizzle and self.row_bytes != self.swizzle:
            raise ValueError(
                f"box={self.box}: its innermost {self.row_bytes} bytes must be the"
                f" swizzle={self.swizzle}"
            )
        if self.l2_promotion not in L2_PROMOTIONS:
            raise ValueError(f"l2_promotion={self.l2_promotion} must be one of {L2_PROMOTIONS}")

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of the box along the innermost dimension."""
        return self.box[-1] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of shared memory that a box takes, and that a load of it counts, wherever it
        lies."""
        return int(np.prod(self.box)) * self.element_bytes

    def encode(self, address: int) -> bytes:
        """The 128 bytes by which the machine knows this map of the tensor at ``address``, a
        multiple of 16."""
        if address % CHUNK_BYTES or not 0 <= address < 1 << 64:
            raise ValueError(f"address={address:#x} must be a multiple of {CHUNK_BYTES}")
        return _packed(
            address,
            list(ELEMENT_BYTES).index(self.dtype),
            self.swizzle,
            self.l2_promotion,
            self.shape,
            self.strides_bytes,
            self.box,
        )


def _packed(address, kind, swizzle, promotion, shape, strides, box) -> bytes:
    """All in NumPy's order; ValueError for numbers that no field holds."""
    for name, numbers, least, most in (
        ("shape", shape, 1, 1 << 32),
        ("strides_bytes", strides, 0, (1 << 8 * _STRIDE_BYTES) - 1),
        ("box", box, 1, BOX_ELEMENTS),
    ):
        if not all(least <= each <= most for each in numbers):
            raise ValueError(f"{name}={tuple(numbers)} must be of numbers from {least} to {most}")
    rest = [0] * (MAX_RANK - len(shape))
    packed = _FORMAT.pack(
        _MAGIC,
        address,
        len(shape),
        kind,
        SWIZZLES.index(swizzle) | L2_PROMOTIONS.index(promotion) << 4,
        *(each - 1 for each in shape),
        *rest,
        b"".join(each.to_bytes(_STRIDE_BYTES, "little") for each in strides[:-1]),
        *(each - 1 for each in box),
        *rest,
    )
    return packed.ljust(ENCODED_BYTES, b"\0")


def _unpacked(encoded: bytes) -> tuple[int, int, int, int, list[int], list[int], list[int]]:
    """What ``_packed`` was given; ValueError for other bytes."""
    if len(encoded) != ENCODED_BYTES or encoded[: len(_MAGIC)] != _MAGIC:
        raise ValueError(
            f"{len(encoded)} bytes that begin with {encoded[:8]!r} are no tensor map of"
            " numba_marlin"
        )
    _, address, rank, kind, ways, *rest = _FORMAT.unpack_from(encoded)
    if not (
        1 <= rank <= MAX_RANK
        and kind < len(ELEMENT_BYTES)
        and ways & 15 < len(SWIZZLES)
        and ways >> 4 < len(L2_PROMOTIONS)
    ):
        raise ValueError(
            "bytes of a tensor map of numba_marlin that something else has overwritten"
        )
    outer = [
        int.from_bytes(rest[MAX_RANK][at : at + _STRIDE_BYTES], "little")
        for at in range(0, _STRIDE_BYTES * (rank - 1), _STRIDE_BYTES)
    ]
    return (
        address,
        kind,
        SWIZZLES[ways & 15],
        L2_PROMOTIONS[ways >> 4],
        [each + 1 for each in rest[:rank]],
        [*outer, list(ELEMENT_BYTES.values())[kind]],
        [each + 1 for each in rest[MAX_RANK + 1 :][:rank]],
    )


# The numbers by which tensormap.replace names element types, as far as ELEMENT_BYTES has them:
# https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-tensormap-replace
_PTX_TYPES = {
    0: "uint8",
    1: "uint16",
    2: "uint32",
    3: "int32",
    4: "uint64",
    5: "int64",
    6: "float16",
    7: "float32",
    9: "float64",
    10: "bfloat16",
}
# What zeros mean, as to tensormap.replace: rank 1, sizes of 1.
_EMPTY = _packed(0, 0, 0, 0, [1], [1], [1])
_ABSENT = {"global_dim": 1, "global_stride": 0}  # of a dimension that a map does not have
_ONLY = {"element_stride": 1, "interleave_layout": 0, "swizzle_atomicity": 0, "fill_mode": 0}


def replaced(encoded: bytes, field: str, value: int, dimension: int = 0) -> bytes:
    """``encoded``, a map of this format, with one field as tensormap.replace has it: its numbers
    and its order of dimensions, innermost first; global_stride in bytes, 0 being that of dimension
    1. Behind the last dimension only what is there anyway may be written, as CUTLASS does: a size
    of 1, a stride of 0. Bytes that are all zero become a map: kernels that make one begin with
    these, and set every field. Whether the map makes sense is ``decode``'s to say, when it is used.
    ValueError for other bytes, and for a value that TensorMap does not have."""
    if encoded == bytes(ENCODED_BYTES):
        encoded = _EMPTY
    address, kind, swizzle, promotion, shape, strides, box = _unpacked(encoded)
    rank = len(shape)
    if field == "global_address":
        address = value
    elif field == "rank":
        # what is left of the outer dimensions stays outermost, new ones come there
        rank = value + 1
        if not 1 <= rank <= MAX_RANK:
            raise ValueError(f"rank={rank} must be 1 to {MAX_RANK}")
        for numbers in (shape, strides, box):
            inner = numbers[-rank:]
            numbers[:] = [1] * (rank - len(inner)) + inner
    elif field == "elemtype" and value in _PTX_TYPES:
        kind = list(ELEMENT_BYTES).index(_PTX_TYPES[value])
    elif field == "swizzle_mode" and value < len(SWIZZLES):
        swizzle = SWIZZLES[value]
    elif field in ("box_dim", "global_dim", "global_stride"):
        at = rank - 1 - dimension - (field == "global_stride")
        if at < 0 and _ABSENT.get(field) != value:
            raise ValueError(f"{field} {dimension} is none of {rank} dimensions")
        if at >= 0:
            {"box_dim": box, "global_dim": shape, "global_stride": strides}[field][at] = value
    elif _ONLY.get(field) != value:
        raise ValueError(f"{field}={value} is nothing that TensorMap has")
    return _packed(address, kind, swizzle, promotion, shape, strides, box)


@lru_cache(maxsize=256)
def decode(encoded: bytes) -> tuple[TensorMap, int]:
    """(tensor map, address) of what ``TensorMap.encode`` returned; ValueError for other bytes."""
    address, kind, swizzle, promotion, shape, strides, box = _unpacked(encoded)
    described = TensorMap(
        list(ELEMENT_BYTES)[kind], tuple(shape), tuple(strides), tuple(box), swizzle, promotion
    )
    return described, address


def swizzled(address, swizzle: int):
    """Where the byte goes that would lie at shared ``address`` (ints or int arrays) without a
    swizzle of so many bytes.

    The chunk's number within its span is XORed with that of the 128-byte line within eight:
    CUTLASS's Swizzle<1|2|3, 4, 3>. Its own inverse.
    """
    if swizzle not in SWIZZLES:
        raise ValueError(f"swizzle={swizzle} must be one of {SWIZZLES}")
    chunks = max(swizzle // CHUNK_BYTES, 1)
    return address ^ (address >> 7 & chunks - 1) << 4


def chunk_order(tensor_map: TensorMap, address: int) -> np.ndarray:
    """For each 16-byte chunk of a box in row-major order, which chunk of the box at shared
    ``address`` holds it: int [chunks]."""
    linear = address + CHUNK_BYTES * np.arange(tensor_map.box_bytes // CHUNK_BYTES, dtype=np.int64)
    return (swizzled(linear, tensor_map.swizzle) - address) // CHUNK_BYTES


@dataclass(frozen=True)
class Clip:
    """The part of a box that lies inside the tensor: ``inside`` its slices within the box (the last
    in bytes); in global memory ``counts`` rows along every outer dimension and bytes along the
    last, from byte ``start`` of the tensor on, in steps of ``strides``.
    """

    inside: tuple[slice, ...]
    counts: tuple[int, ...]
    start: int
    strides: tuple[int, ...]

    @property
    def empty(self) -> bool:
        return 0 in self.counts

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return (
            self.start
            + sum((count - 1) * stride for count, stride in zip(self.counts, self.strides))
            + 1
        )


def rows_of(part: Clip) -> np.ndarray:
    """Where in the tensor, in bytes, each row of ``part.counts[-1]`` contiguous bytes begins: int64
    [rows]."""
    starts = np.full(1, part.start, np.int64)
    for count, stride in zip(part.counts[:-1], part.strides[:-1]):
        starts = (starts[:, None] + stride * np.arange(count)).reshape(-1)
    return starts


def clip(tensor_map: TensorMap, coordinates: tuple[int, ...], stored: bool = False) -> Clip:
    """What of the box whose first element has these ``coordinates`` (they may be negative) lies
    inside the tensor; of one that is ``stored``, what is written: whole chunks of 16 bytes, also
    those that a row of the tensor ends in the middle of (the ISA does not say so;
    experiments/05_hardware).
    """
    if len(coordinates) != len(tensor_map.shape):
        raise ValueError(
            f"coordinates={coordinates} must be {len(tensor_map.shape)}, one for each dimension of"
            f" {tensor_map.shape}"
        )
    first = [max(0, -at) for at in coordinates]
    counts = [
        max(0, min(box, size - at) - skip)
        for at, skip, box, size in zip(coordinates, first, tensor_map.box, tensor_map.shape)
    ]
    start = sum(
        (at + skip) * stride
        for at, skip, stride in zip(coordinates, first, tensor_map.strides_bytes)
    )
    unit = tensor_map.element_bytes
    first[-1], counts[-1] = first[-1] * unit, counts[-1] * unit
    if stored:
        counts[-1] += -(first[-1] + counts[-1]) % CHUNK_BYTES if counts[-1] else 0
    inside = tuple(slice(skip, skip + count) for skip, count in zip(first, counts))
    return Clip(inside, tuple(counts), start, (*tensor_map.strides_bytes[:-1], 1))


def load_box(
    tensor_map: TensorMap, tensor: np.ndarray, coordinates: tuple[int, ...], shared_address: int
) -> np.ndarray:
    """The bytes that lie at ``shared_address`` after a box of ``tensor`` (uint8, its bytes from the
    map's address on) was loaded."""
    part = clip(tensor_map, coordinates)
    box = np.zeros((*tensor_map.box[:-1], tensor_map.row_bytes), np.uint8)
    if not part.empty:
        box[part.inside] = _window(tensor, part)
    if not tensor_map.swizzle:
        return box.reshape(-1)
    out = np.empty((tensor_map.box_bytes // CHUNK_BYTES, CHUNK_BYTES), np.uint8)
    out[chunk_order(tensor_map, shared_address)] = box.reshape(-1, CHUNK_BYTES)
    return out.reshape(-1)


def store_box(
    tensor_map: TensorMap,
    tensor: np.ndarray,
    coordinates: tuple[int, ...],
    shared_address: int,
    data: np.ndarray,
) -> None:
    """Write the box whose bytes ``data`` lie at ``shared_address`` to ``tensor``, in place: see
    ``clip``."""
    part = clip(tensor_map, coordinates, stored=True)
    if part.empty:
        return
    chunks = data.reshape(-1, CHUNK_BYTES)
    if tensor_map.swizzle:
        chunks = chunks[chunk_order(tensor_map, shared_address)]
    _window(tensor, part)[...] = chunks.reshape(*tensor_map.box[:-1], tensor_map.row_bytes)[
        part.inside
    ]


def _window(tensor: np.ndarray, part: Clip) -> np.ndarray:
    if part.stop > tensor.size:
        raise ValueError(f"the box ends at byte {part.stop} of a tensor of {tensor.size} bytes")
    return np.lib.stride_tricks.as_strided(tensor[part.start :], part.counts, part.strides)
