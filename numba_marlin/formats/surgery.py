"""Packed weights cut and joined: ``cut`` takes rows and columns out of one, ``join_columns`` and
``join_rows`` put parts together. The result is, byte for byte, what packing those rows and columns
of the unpacked weight gives. ``api.surgery`` has the public calls, and checks their arguments.

Codes stay packed: 16 rows are a row of words, and columns are tiles that move as bytes
(``marlin_tiles``). What stands beside the codes is small (``Tables``), and goes through the plain
order.

**Groups.** Columns do not touch them. A cut through rows that divides a group leaves both parts its
scales. A part within one group has one scale per column. Another whose first or last group is not
whole gets smaller groups, of gcd(group size, first row, last row + 1) rows, and repeats scales: the
weight is exactly the same, and takes more bytes. Groups of -1 (all of k) remain so. Blocks of FP4
are at most 32 rows and begin at multiples of their size, so only a block of 32 can be divided, and
only the last may be shorter; then the part has blocks of 16.

**FP4.** Scales are stored relative to the largest in their column, and those of blocks of zeros are
0 (``fp4_marlin``). So a cut through rows looks for the largest again and, where it divides blocks,
for zeros in their halves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from numba_marlin.formats import fp4_marlin, marlin, marlin_tiles
from numba_marlin.formats.fp4_marlin import PackedBlocks
from numba_marlin.formats.fp4_words import turn_codes, unturn_codes
from numba_marlin.formats.marlin import BLOCK_K, BLOCK_N
from numba_marlin.formats.types import PackedWeight, check_group_size

Packed = Any  # PackedWeight or PackedBlocks, one type in a call


@dataclass(frozen=True, eq=False)
class Tables:
    """What stands beside the codes, in plain order."""

    #: Rows that share a scale.
    rows: int
    #: "scales", and "zeros" if there are any: arrays [groups, n].
    values: dict[str, np.ndarray]
    #: bool [groups, n]: whether a group has a scale; the others, of zeros, fit any.
    used: np.ndarray

    def columns(self, taken: range) -> Tables:
        these = slice(taken.start, taken.stop)
        values = {name: array[:, these] for name, array in self.values.items()}
        return replace(self, values=values, used=self.used[:, these])

    def of_rows(self, taken: range, unit: int) -> Tables:
        """Those of some rows, for groups of ``unit`` rows, which divides ``rows`` and both ends."""
        groups = np.arange(taken.start, taken.stop, unit) // self.rows
        values = {name: array[groups] for name, array in self.values.items()}
        return Tables(unit, values, self.used[groups])

    def equals(self, other: Tables) -> bool:
        return all(
            np.array_equal(_bits(array), _bits(other.values[name]))
            for name, array in self.values.items()
        )

    def regrouped(self, rows: int) -> Tables:
        """The same for groups of ``rows`` rows, a multiple. ValueError if two groups that become
        one differ."""
        each = rows // self.rows
        if each == 1:
            return self
        used = _in_groups(self.used, each)
        first = np.argmax(used, axis=1)[:, None]
        values = {}
        for name, array in self.values.items():
            grouped = _in_groups(array, each)
            values[name] = np.take_along_axis(grouped, first, axis=1)[:, 0]
            other = used & (_bits(grouped) != _bits(values[name])[:, None])
            if other.any():
                group, inside, column = np.argwhere(other)[0]
                start = (group * each + int(first[group, 0, column])) * self.rows
                raise ValueError(
                    f"group_size={rows} cannot be: {name} of column {column} differ between rows"
                    f" {start} and {(group * each + inside) * self.rows} of the whole"
                )
        return Tables(rows, values, np.asarray(used.any(axis=1)))


def _in_groups(array: np.ndarray, each: int) -> np.ndarray:
    """[groups, n] -> [groups / each, each, n], completed with zeros."""
    missing = -len(array) % each
    whole = np.concatenate([array, np.zeros((missing, array.shape[1]), array.dtype)])
    return whole.reshape(-1, each, array.shape[1])


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def _joined(tables: Sequence[Tables], axis: int) -> Tables:
    values = {
        name: np.concatenate([each.values[name] for each in tables], axis)
        for name in tables[0].values
    }
    return Tables(tables[0].rows, values, np.concatenate([each.used for each in tables], axis))


class Surgeon(Protocol):
    """What cutting and joining needs to know of a kind of packed weights."""

    #: Fields that parts must share.
    same: tuple[str, ...]

    def fill(self, packed: Packed) -> int:
        """The code of columns beyond n."""

    def tiles_of(self, words: np.ndarray, packed: Packed) -> np.ndarray:
        """Stored words as words of codes, which ``marlin_tiles`` can take apart."""

    def stored(self, words: np.ndarray, packed: Packed) -> np.ndarray:
        """The inverse."""

    def tables(self, packed: Packed) -> Tables:
        """What stands beside the codes."""

    def divided(self, tables: Tables, words: np.ndarray, packed: Packed) -> Tables:
        """``tables`` whose groups are halves of those of ``packed``, as the stored words say."""

    def rows_of_cut(self, rows: range, group: int) -> int:
        """Rows that share a scale in these rows of a weight with groups of ``group``."""

    def rows_of_whole(self, tables: Sequence[Tables], k: int) -> int | None:
        """Rows that share a scale in the whole, k rows, of which these are the parts' tables; None
        if they do not say."""

    def check_group(self, group_size: int, k: int, n: int) -> int:
        """The same, given by the caller. ValueError if it cannot be."""

    def build(self, like: Packed, words: np.ndarray, tables: Tables, k: int) -> Packed:
        """A weight of k rows with stored ``words``, without a permutation; what is not said is that
        of ``like``."""


class Integers:
    """The surgeon of PackedWeight."""

    same: tuple[str, ...] = ("layout", "bits", "scale_dtype", "zeros_kind")

    def fill(self, packed: PackedWeight) -> int:
        return 1 << (packed.bits - 1)

    def tiles_of(self, words: np.ndarray, packed: PackedWeight) -> np.ndarray:
        return words

    def stored(self, words: np.ndarray, packed: PackedWeight) -> np.ndarray:
        return words

    def tables(self, packed: PackedWeight) -> Tables:
        values = {"scales": marlin.unpack_scales(packed.scales, packed.n)}
        if packed.zeros is not None:
            values["zeros"] = marlin.unpack_zeros(packed.zeros, packed.bits, packed.n)
        used = np.ones(values["scales"].shape, bool)
        return Tables(packed.k // packed.groups, values, used)

    def divided(self, tables: Tables, words: np.ndarray, packed: PackedWeight) -> Tables:
        return tables

    def rows_of_cut(self, rows: range, group: int) -> int:
        within_one = rows.start // group == (rows.stop - 1) // group
        return len(rows) if within_one else math.gcd(group, rows.start, rows.stop)

    def rows_of_whole(self, tables: Sequence[Tables], k: int) -> int | None:
        first = tables[0]
        if all(len(each.used) == 1 and each.equals(first) for each in tables):
            return k  # a scale per column
        return _agreed(tables)

    def check_group(self, group_size: int, k: int, n: int) -> int:
        size = check_group_size(group_size, k)
        marlin.check_problem(k, n, size)
        return k if size == -1 else size

    def build(self, like: PackedWeight, words: np.ndarray, tables: Tables, k: int) -> PackedWeight:
        scales, zeros = tables.values["scales"], tables.values.get("zeros")
        return replace(
            like,
            qweight=words,
            scales=marlin.pack_scales(scales),
            zeros=None if zeros is None else marlin.pack_zeros(zeros, like.bits),
            group_size=tables.rows,
            k=k,
            n=scales.shape[1],
            permutation=None,
        )


class Blocks:
    """The surgeon of PackedBlocks."""

    same: tuple[str, ...] = (
        *("layout", "scale_grid", "dtype"),
        *("global_scale", "divides", "input_scale", "input_divides"),
    )

    def fill(self, packed: PackedBlocks) -> int:
        return 0

    def tiles_of(self, words: np.ndarray, packed: PackedBlocks) -> np.ndarray:
        return unturn_codes(words.view(np.uint32), packed.dtype).view(np.int32)

    def stored(self, words: np.ndarray, packed: PackedBlocks) -> np.ndarray:
        return turn_codes(words.view(np.uint32), packed.dtype).view(np.int32)

    def tables(self, packed: PackedBlocks) -> Tables:
        scales, used = fp4_marlin.unpack_block_scales(packed)
        return Tables(packed.group_size, {"scales": scales}, used)

    def divided(self, tables: Tables, words: np.ndarray, packed: PackedBlocks) -> Tables:
        codes = marlin_tiles.any_bit(self.tiles_of(words, packed), 4, fp4_marlin.DIGITS)
        used = codes[:, : tables.used.shape[1]]
        scales = np.where(used, tables.values["scales"], 0).astype(np.uint8)
        return Tables(tables.rows, {"scales": scales}, used)

    def rows_of_cut(self, rows: range, group: int) -> int:
        return group if rows.start % group == 0 and len(rows) >= group else BLOCK_K

    def rows_of_whole(self, tables: Sequence[Tables], k: int) -> int | None:
        return _agreed(tables)

    def check_group(self, group_size: int, k: int, n: int) -> int:
        if group_size not in fp4_marlin.GROUP_SIZES:
            raise ValueError(
                f"group_size={group_size!r} must be one of {fp4_marlin.GROUP_SIZES} for layout"
                " 'marlin-fp4'"
            )
        if group_size > k:
            raise ValueError(f"group_size={group_size} must be at most k={k}")
        return group_size

    def build(self, like: PackedBlocks, words: np.ndarray, tables: Tables, k: int) -> PackedBlocks:
        scales, factors = fp4_marlin.pack_block_scales(
            like, tables.values["scales"], tables.used, tables.rows
        )
        return replace(
            like,
            qweight=words,
            scales=scales,
            factors=factors,
            group_size=tables.rows,
            k=k,
            n=tables.used.shape[1],
        )


SURGEONS: dict[type, Surgeon] = {PackedWeight: Integers(), PackedBlocks: Blocks()}


def _agreed(tables: Sequence[Tables]) -> int | None:
    return tables[0].rows if len({each.rows for each in tables}) == 1 else None


def cut(packed: Packed, rows: range, columns: range) -> Packed:
    """These rows, both ends multiples of 16, and columns, multiples of 8, of a packed weight. Rows
    are those of the packed order; the permutation is kept if all of them are taken."""
    surgeon = SURGEONS[type(packed)]
    words = packed.qweight[rows.start // BLOCK_K : rows.stop // BLOCK_K]
    if marlin_tiles.are_blocks(columns, packed.n):
        words = marlin_tiles.take_blocks(words, packed.bits, columns)
    else:
        codes = surgeon.tiles_of(words, packed)
        codes = marlin_tiles.take_columns(codes, packed.bits, columns, surgeon.fill(packed))
        words = surgeon.stored(codes, packed)
    tables = surgeon.tables(packed).columns(columns)
    if len(rows) == packed.k:
        part = surgeon.build(packed, words, tables, packed.k)
        return _ordered(part, packed.permutation)
    group = tables.rows
    result = surgeon.rows_of_cut(rows, group)
    end = group if rows.stop == packed.k else rows.stop  # the last block may be shorter
    tables = tables.of_rows(rows, math.gcd(group, rows.start, end, result))
    if tables.rows < group:
        tables = surgeon.divided(tables, words, packed)
    tables = tables.regrouped(result)
    return surgeon.build(packed, words, tables, len(rows))


def join_columns(parts: Sequence[Packed]) -> Packed:
    """Parts with the same rows, side by side. ValueError, naming two, unless they agree."""
    _check_same(parts, "n", ("k", "group_size", "permutation"))
    first, sizes = parts[0], [each.n for each in parts]
    surgeon = SURGEONS[type(first)]
    if all(n % BLOCK_N == 0 for n in sizes[:-1]):
        words = np.concatenate([each.qweight for each in parts], axis=1)
    else:
        codes = marlin_tiles.join_columns(
            [surgeon.tiles_of(each.qweight, first) for each in parts],
            first.bits,
            sizes,
            surgeon.fill(first),
        )
        words = surgeon.stored(codes, first)
    tables = _joined([surgeon.tables(each) for each in parts], axis=1)
    return _ordered(surgeon.build(first, words, tables, first.k), first.permutation)


def join_rows(
    parts: Sequence[Packed], group_size: int | None, permutation: np.ndarray | None
) -> Packed:
    """Parts with the same columns, one below the other, in groups of ``group_size`` (None: those of
    the parts), and with this activation order. ValueError, naming two, unless they agree."""
    _check_same(parts, "k", ("n",))
    if len(parts) == 1 and permutation is None:
        permutation, parts = parts[0].permutation, [_ordered(parts[0], None)]
    for number, each in enumerate(parts):
        if each.permutation is not None:
            raise ValueError(
                f"parts[{number}] has an activation order of its own: pass its sorted_rows, and the"
                " order of the whole as permutation="
            )
    first, k = parts[0], sum(each.k for each in parts)
    surgeon = SURGEONS[type(first)]
    tables = [surgeon.tables(each) for each in parts]
    if group_size is not None:
        rows: int | None = surgeon.check_group(group_size, k, first.n)
    else:
        rows = surgeon.rows_of_whole(tables, k)
    if rows is None:
        other = next(number for number, each in enumerate(tables) if each.rows != tables[0].rows)
        raise ValueError(
            f"parts[0] has groups of {tables[0].rows} rows and parts[{other}] of"
            f" {tables[other].rows}: pass group_size=, that of the whole"
        )
    starts = [sum(each.k for each in parts[:number]) for number in range(len(parts))]
    unit = math.gcd(rows, *starts, *(each.rows for each in tables))
    pieces = []
    for part, each in zip(parts, tables):
        piece = each.of_rows(range(part.k), unit)
        pieces.append(surgeon.divided(piece, part.qweight, part) if unit < each.rows else piece)
    words = np.concatenate([each.qweight for each in parts])
    whole = surgeon.build(first, words, _joined(pieces, axis=0).regrouped(rows), k)
    return _ordered(whole, permutation)


def _ordered(packed: Packed, permutation: np.ndarray | None) -> Packed:
    return packed if packed.permutation is permutation else replace(packed, permutation=permutation)


def _check_same(parts: Sequence[Any], dim: str, fields: tuple[str, ...]) -> None:
    """ValueError, naming two parts and both values, unless all agree in what a join keeps."""
    first = parts[0]
    advice = (
        " (weights that differ are multiplied one by one, or quantised as one)"
        if dim == "n"
        else ""
    )
    for number, each in enumerate(parts[1:], 1):
        difference = _difference(first, each, fields)
        if difference:
            raise ValueError(
                f"parts[0] and parts[{number}] must agree to be joined along {dim}:"
                f" {difference}{advice}"
            )


def _difference(first: Any, each: Any, fields: tuple[str, ...]) -> str:
    """What differs, in words; "" if nothing does."""
    if type(each) is not type(first):
        return f"a {type(first).__name__} and a {type(each).__name__}"
    for name in (*SURGEONS[type(first)].same, *fields):
        one, other = getattr(first, name), getattr(each, name)
        if name != "permutation":
            if one != other:
                return f"{name}={one!r} and {other!r}"
        elif (one is None) != (other is None) or not np.array_equal(one, other):
            return "their activation orders (permutation) differ"
    return ""
