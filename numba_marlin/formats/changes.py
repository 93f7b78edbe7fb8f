"""Changes to a QuantizedWeight that make it fit a format, and what they lose.

Each function returns the changed weight. A function that may lose information returns (weight,
losses): losses are sentences for people, and empty if the change is exact. ValueError means that no
change can make the weight fit: it must be quantised anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numba_marlin.formats.floats import float_type, round_to
from numba_marlin.formats.types import QuantizedWeight


class LossError(ValueError):
    """A conversion would lose information. ``losses`` has one sentence per loss. With
    ``allow_loss=True`` the conversion goes ahead."""

    def __init__(self, form: str, losses: tuple[str, ...], what: str = "this weight"):
        super().__init__(
            f"format {form!r} cannot hold {what} as it is: {'; '.join(losses)} (allow_loss=True, or"
            " --allow-loss, goes on)"
        )
        self.form, self.losses = form, losses

    def about(self, what: str) -> LossError:
        """The same error with the weight's name in its message."""
        return LossError(self.form, self.losses, what)


def widen(weight: QuantizedWeight, bits: int) -> QuantizedWeight:
    """The same weight, exactly, with codes of ``bits`` bits (at least the weight's own). Symmetric
    grids are shifted so that their middles meet."""
    if bits < weight.bits:
        raise ValueError(
            f"bits={bits} must be at least the weight's {weight.bits}: fewer need quantising anew"
        )
    if bits == weight.bits:
        return weight
    shift = (1 << (bits - 1)) - (1 << (weight.bits - 1)) if weight.zeros is None else 0
    return replace(weight, codes=weight.codes + np.uint8(shift), bits=bits)


def with_bits(weight: QuantizedWeight, allowed: tuple[int, ...], form: str) -> QuantizedWeight:
    """The weight with codes of the first of ``allowed`` sizes (ascending) that holds them."""
    for bits in allowed:
        if bits >= weight.bits:
            return widen(weight, bits)
    raise ValueError(
        f"codes of {weight.bits} bits must have at most {max(allowed)} for format {form!r}:"
        " quantise anew"
    )


def with_integer_zeros(weight: QuantizedWeight) -> tuple[QuantizedWeight, tuple[str, ...]]:
    """Round float16 zero points and clamp them to the grid; moving one is a loss. Other kinds of
    zero points stay as they are."""
    if weight.zeros is None or weight.zeros_kind != "float16":
        return weight, ()
    integers = np.clip(np.rint(weight.zeros.astype(np.float32)), 0, (1 << weight.bits) - 1)
    moved = int((integers != weight.zeros).sum())
    losses = (
        (f"{moved} float16 zero points are not on the grid and would be rounded",) if moved else ()
    )
    return replace(weight, zeros=integers.astype(np.uint8)), losses


def with_scales(weight: QuantizedWeight, dtype: str) -> tuple[QuantizedWeight, tuple[str, ...]]:
    """Convert scales to ``dtype``; rounding one is a loss. ValueError if one would become
    infinite."""
    if weight.scale_dtype == dtype:
        return weight, ()
    scales = round_to(weight.scales.astype(np.float64), float_type(dtype))
    if not np.isfinite(scales.astype(np.float64)).all():
        raise ValueError(
            f"scales up to {np.abs(weight.scales.astype(np.float64)).max():g} do not fit in"
            f" {dtype}: quantise anew"
        )
    moved = int((scales.astype(np.float64) != weight.scales.astype(np.float64)).sum())
    losses = (
        (f"{moved} of {scales.size} {weight.scale_dtype} scales would be rounded to {dtype}",)
        if moved
        else ()
    )
    return replace(weight, scales=scales), losses


def explicit_zeros(weight: QuantizedWeight) -> np.ndarray:
    """uint8 [groups, n]: the zero points on the grid, also those of a symmetric weight."""
    return (
        np.full(weight.scales.shape, 1 << (weight.bits - 1), np.uint8)
        if weight.zeros is None
        else weight.zeros
    )


def implicit_zeros(zeros: np.ndarray, bits: int) -> np.ndarray | None:
    """None if all zero points are in the middle of the grid: the weight is symmetric."""
    return None if (zeros == 1 << (bits - 1)).all() else zeros


def rows_as_they_come(weight: QuantizedWeight) -> QuantizedWeight:
    """Drop a permutation that only reorders rows within groups; the weight is the same."""
    if weight.permutation is None or weight.groups > 1:
        return weight
    return replace(weight, codes=row_order(weight), permutation=None)


def with_known_order(weight: QuantizedWeight, name: str) -> tuple[QuantizedWeight, tuple[str, ...]]:
    """For formats without activation order: rows stay sorted by group, and the permutation is
    stored in an extra tensor."""
    weight = rows_as_they_come(weight)
    if weight.permutation is None:
        return weight, ()
    loss = (
        "the format has no activation order (g_idx): rows would be stored sorted by group, and"
        f" columns of activations must be permuted by the extra tensor {name}, which other programs"
        " do not read"
    )
    return weight, (loss,)


def group_index(weight: QuantizedWeight) -> np.ndarray:
    """int32 [k]: the group of every row of the weight, in the rows' own order (GPTQ's g_idx)."""
    groups = (np.arange(weight.k) // weight.rows_per_group).astype(np.int32)
    if weight.permutation is None:
        return groups
    result = np.empty_like(groups)
    result[weight.permutation] = groups
    return result


def order_of_groups(g_idx: np.ndarray, groups: int) -> np.ndarray | None:
    """The stable sort of rows by group, int32 [k], from GPTQ's g_idx; None if they are sorted.
    ValueError unless all groups have the same size.

    g_idx with nothing but zeros means no activation order, as in files of AutoGPTQ's first
    versions."""
    k = g_idx.shape[0]
    rows = k // groups
    if not g_idx.any() or np.array_equal(g_idx, np.arange(k) // rows):
        return None
    if g_idx.min() < 0 or g_idx.max() >= groups:
        raise ValueError(f"g_idx must be in 0..{groups - 1}, not {g_idx.min()}..{g_idx.max()}")
    counts = np.bincount(g_idx, minlength=groups)
    if (counts != rows).any():
        group = int(np.argmax(counts != rows))
        raise ValueError(
            f"g_idx gives {counts[group]} rows to group {group}, must give {rows} to each"
        )
    return np.argsort(g_idx, kind="stable").astype(np.int32)


def row_order(weight: QuantizedWeight) -> np.ndarray:
    """uint8 [k, n]: codes with rows in the weight's own order."""
    if weight.permutation is None:
        return weight.codes
    codes = np.empty_like(weight.codes)
    codes[weight.permutation] = weight.codes
    return codes
