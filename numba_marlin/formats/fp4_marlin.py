"""Layout "marlin-fp4": block-scaled FP4 weights (NVFP4, MXFP4) as the Hopper kernels read them to
multiply 16-bit activations.

In:  BlockWeight: codes e2m1, blocks of 16 or 32 rows of one column, scales e4m3 or e8m0; k % 16 ==
     0, n % 8 == 0.
Out: PackedBlocks. Columns are padded with zeros to n_packed, the next multiple of 64.

    qweight int32 [k/16, 2 n_packed]
        Marlin's words, the bits of each permuted for activations of ``dtype`` (``fp4_words``).
    scales  int32 [n_packed/64, ceil(k/32) * 8 s]
        8 s words per 64 columns and 32 rows, s = 4 for blocks of 16 and 2 for blocks of 32. Word
        s g + i belongs to lanes 4 g to 4 g + 3. Blocks of 16: it holds the scales of columns
        16 i + g and 16 i + g + 8, for the first 16 rows and then for the other 16. Blocks of 32: of
        columns 32 i + g and 32 i + g + 8, then of the pair 16 columns on. What a warp needs for one
        stage is contiguous, so that one copy brings it.
    factors float32 [n_packed]
        Multiplies the fp32 accumulators of a column: the global scale times a power of two that
        undoes the scaling below. Number 2 g + h of every 16 belongs to column g + 8 h.

In 16 bits a weight is exactly code * 2**-14 * scale. The stored scale is the block's scale times
2**7 (e4m3: every code then is a normal float16), or the block's scale in units of 2**-15 of the
largest scale of its column (e8m0). The factor is the global scale times 2**7 (e4m3) or 2**(e - 128)
(e8m0, e being the code of that largest scale). This is exact for both types of activations if no
block has a scale below 2**-24 of the largest in its column; otherwise ``pack`` raises ValueError.

Stored scales have no sign, and a scale is 0 only if all codes of its block are zeros. So ``pack``
stores the weight's ``canonical`` form, which has the same numbers (signs of zeros included), and
``unpack`` returns that form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from numba_marlin.formats import marlin, residence
from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.floats import HALF_TYPES
from numba_marlin.formats.fp4_words import (
    CODE_UNIT,
    scale_words,
    turn_codes,
    unscale_words,
    unturn_codes,
)
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N, packed_columns
from numba_marlin.formats.registry import find_format, register
from numba_marlin.formats.small_floats import table
from numba_marlin.formats.types import where
from numba_marlin.wording import byte_count

GROUP_SIZES = (16, 32)
SCALE_ROWS = 32  # rows of the weight per row of scales
SIGN, DIGITS = 8, 7  # of a code
_E4M3_UNIT = 7  # a stored scale is the block's, times 2**7
# exponent field of the largest scale of a column, and how far below it the others may be
_LARGEST, _SPAN = 30, 24


def scale_row_bytes(group_size: int) -> int:
    """Bytes of the scales of 32 rows and 64 columns."""
    return SCALE_ROWS // group_size * BLOCK_N


@dataclass(frozen=True, eq=False)
class PackedBlocks(residence.Residence):
    """A BlockWeight in the order that kernels read; the module's docstring has the arrays' shapes.
    Fields are checked on construction (TypeError, ValueError)."""

    #: "marlin-fp4".
    layout: str
    qweight: np.ndarray
    scales: np.ndarray
    factors: np.ndarray
    #: Rows that share a scale, 16 or 32.
    group_size: int
    #: Rows of the weight.
    k: int
    #: Columns of the weight, without padding.
    n: int
    #: "e4m3" or "e8m0".
    scale_grid: str
    # these four as in BlockWeight
    global_scale: float | None = None
    divides: bool = False
    input_scale: float | None = None
    input_divides: bool = False
    #: Type of the activations that the bits of the codes are permuted for.
    dtype: str = "float16"

    # of all of them
    bits, grid, zeros_kind, scale_dtype, permutation = 4, "e2m1", None, "e5m3", None

    def __post_init__(self) -> None:
        find_format(self.layout).check(self)

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)"""
        return self.k, self.n

    def __repr__(self) -> str:
        of_all = "" if self.global_scale is None else ", a global scale"
        return (
            f"<PackedBlocks [k={self.k}, n={self.n}], layout {self.layout} for {self.dtype}, codes"
            f" {self.grid}, scales {self.scale_grid} of {self.group_size} rows{of_all};"
            f" {byte_count(self.nbytes)} on {where(self)}>"
        )

    @property
    def n_packed(self) -> int:
        return self.factors.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes that a kernel reads to read the whole weight once."""
        read = (self.qweight, self.scales, self.factors)
        return sum(residence.byte_size(each) for each in read)


def canonical(weight: BlockWeight) -> BlockWeight:
    """The same numbers in canonical form: scales without sign, zero codes (0 or -0) where a scale
    is 0, and scale 0 where all codes of a block are zeros."""
    codes, scales, rows = weight.codes, weight.scales, weight.block[0]
    if weight.scale_grid == "e4m3":
        bits = np.where(scales & 0x7F == 0, SIGN, SIGN | DIGITS).astype(np.uint8)
        signs = (scales >> 7) * np.uint8(SIGN)
        codes = (codes ^ _each_row(signs, rows, weight.k)) & _each_row(bits, rows, weight.k)
        scales = scales & np.uint8(0x7F)
    weight = replace(weight, codes=codes)
    return replace(weight, scales=np.where(_used(weight), scales, 0).astype(np.uint8))


def _each_row(values: np.ndarray, rows: int, k: int) -> np.ndarray:
    return np.repeat(values, rows, axis=0)[:k]


def _used(weight: BlockWeight) -> np.ndarray:
    """bool [blocks, n]: whether any code of a block is not 0 or -0."""
    return np.logical_or.reduceat(
        weight.codes & np.uint8(DIGITS) != 0, np.arange(0, weight.k, weight.block[0]), axis=0
    )


def check_packable(weight: BlockWeight) -> None:
    """TypeError or ValueError unless ``pack`` takes weights of this kind."""
    if not isinstance(weight, BlockWeight):
        raise TypeError(
            f"weight is a {type(weight).__name__}, must be a BlockWeight for layout 'marlin-fp4'"
        )
    if (
        weight.grid != "e2m1"
        or weight.scale_grid is None
        or weight.block not in {(rows, 1) for rows in GROUP_SIZES}
    ):
        blocks = (
            f"{weight.grid} with scales {weight.scale_grid or weight.scales.dtype.name} for blocks"
            f" of {weight.block[0]} x {weight.block[1]}"
        )
        raise ValueError(
            f"weight is {blocks}, must be e2m1 with scales e4m3 or e8m0 for"
            f" {' or '.join(map(str, GROUP_SIZES))} x 1 for layout 'marlin-fp4': quantise"
            " nm.dequantize(weight) anew"
        )
    _check_sizes(weight.k, weight.n)


def _check_sizes(k: int, n: int) -> None:
    for name, size, step in (("k", k, BLOCK_K), ("n", n, marlin.COLUMN_STEP)):
        if (
            isinstance(size, bool)
            or not isinstance(size, (int, np.integer))
            or size <= 0
            or size % step
        ):
            raise ValueError(
                f"{name}={size!r} must be a positive multiple of {step} for layout 'marlin-fp4'"
            )


def _stored_e4m3(scales: np.ndarray) -> np.ndarray:
    values = table("e4m3")[scales] * np.float32(2.0**_E4M3_UNIT)
    return (values.astype(np.float16).view(np.uint16) >> 7).astype(np.uint8)


def _stored_e8m0(scales: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """used: bool [groups, n], whether a block has codes that are not zero. -> (bytes, 0 for blocks
    that are not used; the largest code of each column, 127 where there is none)"""
    largest = np.where(used.any(axis=0), np.where(used, scales, 0).max(axis=0), 127).astype(
        np.int64
    )
    below = largest - scales
    bad = used & (below > _SPAN)
    if bad.any():
        block, column = np.argwhere(bad)[0]
        raise ValueError(
            f"scales[{block}, {column}]=2**{int(scales[block, column]) - 127} must be 2**-{_SPAN}"
            f" at least of the column's largest, 2**{largest[column] - 127}, for layout"
            " 'marlin-fp4' to be exact: quantise nm.dequantize(weight) anew"
        )
    return np.where(used, (_LARGEST - below) << 3, 0).astype(np.uint8), largest


def _factor_of(weight: BlockWeight | PackedBlocks) -> float:
    """The global scale, as a float64 that multiplies."""
    scale = 1.0 if weight.global_scale is None else float(weight.global_scale)
    return 1.0 / scale if weight.divides else scale


def _factors(weight: BlockWeight | PackedBlocks, powers: np.ndarray) -> np.ndarray:
    """The global scale times these powers of two [n], float32 [n_packed], in their order."""
    exact, n = np.ldexp(_factor_of(weight), powers), powers.size
    factors = np.zeros(packed_columns(n), np.float32)
    with np.errstate(over="ignore", under="ignore"):
        factors[:n] = exact
    good = np.abs(factors[:n] - exact) <= 2.0**-24 * np.abs(exact)
    if not good.all():
        raise ValueError(
            f"global_scale={weight.global_scale!r}{' (divides)' if weight.divides else ''} times"
            f" 2**{powers[~good][0]} must be in the range of float32: quantise"
            " nm.dequantize(weight) anew"
        )
    return np.ascontiguousarray(factors.reshape(-1, 2, 8).swapaxes(1, 2)).reshape(-1)


def _factors_of_columns(packed: PackedBlocks) -> np.ndarray:
    return (
        packed.factors.reshape(-1, 8, 2).swapaxes(1, 2).reshape(-1)[: packed.n].astype(np.float64)
    )


def pack_scales(stored: np.ndarray, group_size: int) -> np.ndarray:
    """uint8 [groups, n], scales as they are stored -> uint32 words [n_packed/64, ceil(k/32) * 8 s]:
    see the module's docstring."""
    groups, n = stored.shape
    each = SCALE_ROWS // group_size
    padded = np.zeros((-(-groups // each) * each, packed_columns(n)), np.uint8)
    padded[:groups, :n] = stored
    # 32 rows, group, 64 columns, 16 columns, +8, g -> 64 columns, 32 rows, g, 16 columns, group, +8
    places = padded.reshape(-1, each, padded.shape[1] // BLOCK_N, 4, 2, 8).transpose(
        2, 0, 5, 3, 1, 4
    )
    pairs = places.reshape(*places.shape[:3], -1, 2, 2)  # two neighbours make a word
    return scale_words(pairs[..., 0, :], pairs[..., 1, :]).reshape(padded.shape[1] // BLOCK_N, -1)


def unpack_scales(words: np.ndarray, group_size: int, groups: int, n: int) -> np.ndarray:
    """The inverse of ``pack_scales``."""
    each = SCALE_ROWS // group_size
    pairs = np.stack(unscale_words(words), axis=-2)
    places = pairs.reshape(words.shape[0], -1, 8, 4, each, 2).transpose(1, 4, 0, 3, 5, 2)
    return np.ascontiguousarray(places.reshape(-1, words.shape[0] * BLOCK_N)[:groups, :n])


def pack_block_scales(
    weight: BlockWeight | PackedBlocks, scales: np.ndarray, used: np.ndarray, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Canonical scales, uint8 [groups, n] in the grid of ``weight``, and whether a group of
    ``rows`` has codes that are not zero, bool [groups, n] -> ``scales`` and ``factors`` of a
    PackedBlocks with the global scale of ``weight``."""
    if weight.scale_grid == "e4m3":
        stored, powers = _stored_e4m3(scales), np.full(scales.shape[1], CODE_UNIT - _E4M3_UNIT)
    else:
        stored, largest = _stored_e8m0(scales, used)
        powers = largest - 127 + CODE_UNIT - (_LARGEST - 15)
    return pack_scales(stored, rows).view(np.int32), _factors(weight, powers)


def unpack_block_scales(packed: PackedBlocks) -> tuple[np.ndarray, np.ndarray]:
    """The inverse: (scales, used), uint8 and bool [groups, n]."""
    stored = unpack_scales(
        packed.scales.view(np.uint32),
        packed.group_size,
        -(-packed.k // packed.group_size),
        packed.n,
    )
    if packed.scale_grid == "e4m3":
        known = np.zeros(256, np.uint8)
        known[_stored_e4m3(np.arange(0x7F, dtype=np.uint8))] = np.arange(0x7F)
        return known[stored], stored > 0
    powers = np.rint(np.log2(_factors_of_columns(packed) / _factor_of(packed))).astype(np.int64)
    largest = powers + 127 - CODE_UNIT + (_LARGEST - 15)
    scales = np.where(stored > 0, largest - _LARGEST + (stored >> 3), 0).astype(np.uint8)
    return scales, stored > 0


class Fp4MarlinFormat:
    """This layout as a ``registry.Format``."""

    name, weights = "marlin-fp4", BlockWeight

    def pack(
        self, weight: BlockWeight, dtype: str = "float16", pack_codes=marlin.pack_codes
    ) -> PackedBlocks:
        """Pack a weight. dtype: type of the activations; pack_codes: ``marlin.pack_codes`` or its
        compiled form."""
        check_packable(weight)
        weight = canonical(weight)
        k, n, rows = weight.k, weight.n, weight.block[0]
        codes = np.zeros((k, packed_columns(n)), np.uint8)
        codes[:, :n] = weight.codes
        scales, factors = pack_block_scales(weight, weight.scales, _used(weight), rows)
        words = pack_codes(codes).view(np.uint32)
        assert weight.scale_grid is not None  # check_packable
        return PackedBlocks(
            self.name,
            turn_codes(words, dtype).view(np.int32),
            scales,
            factors,
            rows,
            k,
            n,
            weight.scale_grid,
            weight.global_scale,
            weight.divides,
            weight.input_scale,
            weight.input_divides,
            dtype,
        )

    def unpack(self, packed: PackedBlocks, unpack_codes=marlin.unpack_codes) -> BlockWeight:
        """The weight in its canonical form."""
        codes = unpack_codes(
            unturn_codes(packed.qweight.view(np.uint32), packed.dtype).view(np.int32), 4, packed.n
        )
        return BlockWeight(
            codes,
            "e2m1",
            unpack_block_scales(packed)[0],
            packed.scale_grid,
            (packed.group_size, 1),
            packed.global_scale,
            packed.divides,
            packed.input_scale,
            packed.input_divides,
        )

    def check(self, packed: PackedBlocks) -> None:
        _check_sizes(packed.k, packed.n)
        for name, value, allowed in (
            ("group_size", packed.group_size, GROUP_SIZES),
            ("scale_grid", packed.scale_grid, ("e4m3", "e8m0")),
            ("dtype", packed.dtype, HALF_TYPES),
        ):
            if value not in allowed:
                raise ValueError(
                    f"{name}={value!r} must be one of {allowed} for layout 'marlin-fp4'"
                )
        columns, scale_words_of = packed_columns(packed.n), scale_row_bytes(packed.group_size) // 4
        for name, dtype, rule, expected in (
            ("qweight", "int32", "(k/16, 2 n_packed)", (packed.k // BLOCK_K, 2 * columns)),
            (
                "scales",
                "int32",
                f"(n_packed/64, ceil(k/32) * {scale_words_of})",
                (columns // BLOCK_N, -(-packed.k // SCALE_ROWS) * scale_words_of),
            ),
            ("factors", "float32", "(n_packed,)", (columns,)),
        ):
            array = getattr(packed, name)
            if (
                not residence.is_array(array)
                or residence.type_name(array) != dtype
                or not residence.contiguous(array)
            ):
                raise TypeError(
                    f"{name} is {getattr(array, 'dtype', type(array).__name__)}, must be a"
                    f" C-contiguous numpy.ndarray of {dtype}"
                )
            shape = tuple(array.shape)
            if shape != expected:
                raise ValueError(
                    f"{name}.shape={shape} must be {rule}={expected} for layout 'marlin-fp4'"
                )
        residence.place_of_weight(packed)
        # those of other libraries are not looked at, which could wait for a device
        if isinstance(packed.factors, np.ndarray) and not np.isfinite(packed.factors).all():
            raise ValueError(
                f"factors[{int(np.argmin(np.isfinite(packed.factors)))}] must be finite"
            )

    def describe(self, packed: PackedBlocks) -> dict[str, object]:
        return {
            "layout": self.name,
            "k": packed.k,
            "n": packed.n,
            "n_packed": packed.n_packed,
            "bits": packed.bits,
            "grid": packed.grid,
            "group_size": packed.group_size,
            "scale_grid": packed.scale_grid,
            "dtype": packed.dtype,
            "qweight_shape": list(packed.qweight.shape),
            "bytes": packed.nbytes,
            "bits_per_weight": 8 * packed.nbytes / (packed.k * packed.n),
        }


MARLIN_FP4 = register(Fp4MarlinFormat())
