"""GPTQ: rounds the weight row by row so that the error of the layer's outputs stays small (Frantar
et al. 2022, arXiv 2210.17323).

In:  w [k, n] and options as in ``rtn``; calibration: inputs x [m, k] of the layer, batches of them,
     or their ``Hessian`` H [k, k].
Out: QuantizedWeight whose output error ``mean (x @ (Q - W))^2 = D^T H D``, D = Q - W, is kept small
    instead of D itself.

How. Let ``H + damping * mean(diag H) * I = R R^T`` with R upper triangular (a Cholesky factor, from
the last row up). A column's loss is then a sum of squares, ``|R^T d|^2``, whose i-th term has rows
0..i of d and no others:

    (R^T d)_i = R_ii (q_i - t_i),       t_i = w_i - sum over j < i of R_ji / R_ii * (q_j - w_j)

So rounding t_i instead of w_i minimises each term, given the rows before it: t_i feeds back the
errors made so far. The papers' form, which updates the rows not yet rounded through the inverse
Hessian's Cholesky factor, computes the same t_i (Chee et al. 2023, arXiv 2307.13304, theorem 6);
here no inverse is formed. Rows are taken in blocks of 128: what earlier blocks feed back is one
matrix product. Columns are independent, so they are processed in tiles.

Grids. When the first row of a group is reached, the rows before it are fixed and the feedback has
changed the group's own rows (w' = w plus the correction that would undo all of the error so far,
were it not rounded): the grid spans those. With ``clip``, grids that span 1, 0.96, ... 0.48 times
as much are tried too, by rounding the group on each, and the one with the
smallest terms of the loss is taken per column, so clipping never makes a group's terms larger. The
Marlin paper's tool (IST-DASLab/marlin, gptq/) clips by the same loss of the group but rounds to
nearest for the comparison, without feedback: cheaper, and the final loss is 6 to 7% higher on the
synthetic layers of experiments/07_quantisers.

act_order: rows are taken in order of falling diag H, the most important first, while later rows can
still compensate their errors. Groups are then made of rows in that order, and the result has a
``permutation``. static_groups: groups of neighbouring rows whatever the order, their grids chosen
beforehand from the unchanged weights (and with ``clip`` by the group's own part of H): no
permutation then.

Rows whose inputs were always zero have the weight that damping gives them: they are rounded to
nearest and do not affect other rows. A Hessian of less than full rank is made definite by the
damping. Errors: as in ``rtn`` and ``hessian``; a ValueError if no Cholesky factor exists (damping
too small).

Arithmetic: the factor in float64 by SciPy, the rest in float32 (float64 if w is). Memory: 16 k^2
bytes while the factor is made, then 4 k^2 (8 k^2) and 40 KB x k; a Hessian that the caller keeps is
another 8 k^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.types import check_group_size
from numba_marlin.quantizers.grid import GridRule, check_weights, compute_type, refuse_nonfinite
from numba_marlin.quantizers.hessian import as_hessian

BLOCK = 128
"""Rows per block, whose feedback on later rows is one matrix product."""
CLIPS = tuple(1 - step / 25 for step in range(14))
"""Factors of a group's range in the grid search: 1 down to 0.48."""
# of a tile: what a block's rows feed back to each other (1 MB of float32) stays in cache
_COLUMNS = 2048


@dataclass(frozen=True, eq=False)
class Feedback:
    """R of the module's docstring, for a range of rows. unit [rows, rows]: R_ji / R_ii, ones on the
    diagonal and zeros below it. squares [rows]: R_ii^2."""

    unit: np.ndarray
    squares: np.ndarray

    def of(self, start: int, stop: int) -> Feedback:
        """The feedback among rows ``start:stop``."""
        return Feedback(self.unit[start:stop, start:stop], self.squares[start:stop])


@dataclass(frozen=True, eq=False)
class Grid:
    """Scales in their stored type and zero points as float64 (or one number for all), [columns]."""

    scales: np.ndarray
    zeros: np.ndarray | int


@dataclass(frozen=True, eq=False)
class Rounded:
    """codes uint8 and error = stored - wanted, [rows, columns]; loss: the rows' terms of each
    column's loss, float64."""

    codes: np.ndarray
    error: np.ndarray
    loss: np.ndarray


def feedback(hessian: np.ndarray, damping: float, dtype: type) -> Feedback:
    """From a float64 H [rows, rows] that is damped already (``damping`` is for the error only).
    ValueError if it is not positive definite."""
    try:
        reverse = scipy.linalg.cholesky(hessian[::-1, ::-1], lower=True, check_finite=False)
    except scipy.linalg.LinAlgError as error:
        raise ValueError(
            f"the Hessian is not positive definite with damping={damping:g}: use more, 0.01 is"
            " usual"
        ) from error
    root = reverse[::-1, ::-1]
    diagonal = np.diagonal(root).copy()
    return Feedback(
        np.divide(root, diagonal, order="C").astype(dtype, copy=False), np.square(diagonal)
    )


def round_rows(wanted: np.ndarray, back: Feedback, rule: GridRule, grid_of_row) -> Rounded:
    """Round rows [rows, columns] one after the other, each with the feedback of those before it.
    grid_of_row(i) -> Grid, in ``wanted``'s type."""
    codes, error = np.empty(wanted.shape, dtype=np.uint8), np.empty_like(wanted)
    loss = np.zeros(wanted.shape[1])
    for start in range(0, len(wanted), BLOCK):
        stop = min(start + BLOCK, len(wanted))
        targets = wanted[start:stop].copy()
        if start:
            targets -= back.unit[:start, start:stop].T @ error[:start]
        for row in range(start, stop):
            target, grid = targets[row - start], grid_of_row(row)
            if row > start:
                target -= back.unit[start:row, row] @ error[start:row]
            code = rule.codes(target, grid.scales, grid.zeros)
            codes[row] = code
            code -= grid.zeros
            code *= grid.scales
            np.subtract(code, wanted[row], out=error[row])
            code -= target
            loss += back.squares[row] * np.square(code, dtype=np.float64)
    return Rounded(codes, error, loss)


def round_group(
    wanted: np.ndarray,
    back: Feedback,
    rule: GridRule,
    clips: tuple[float, ...],
    group: int,
    column: int,
) -> tuple[Rounded, Grid]:
    """Round the rows of one group. Per column, the grid is the one with the least loss among those
    that span ``clips`` times the range of the weights."""
    low, high = (end[None].astype(np.float64) for end in (wanted.min(axis=0), wanted.max(axis=0)))
    best: Rounded | None = None
    for clip in clips:
        scales, zeros = rule.grid(clip * low, clip * high, group, column)
        grid = Grid(scales[0], zeros[0] if isinstance(zeros, np.ndarray) else zeros)
        computed = _computed(grid, wanted.dtype)
        tried = round_rows(wanted, back, rule, lambda row, computed=computed: computed)
        if best is None:
            best, best_grid = tried, grid
            continue
        better = tried.loss < best.loss
        for new, kept in (
            (tried.codes, best.codes),
            (tried.error, best.error),
            (tried.loss, best.loss),
            (grid.scales, best_grid.scales),
        ):
            np.copyto(kept, new, where=better)
        if isinstance(best_grid.zeros, np.ndarray):
            np.copyto(best_grid.zeros, grid.zeros, where=better)
    if best is None:
        raise ValueError("clips must not be empty")
    return best, best_grid


def _computed(grid: Grid, dtype: np.dtype) -> Grid:
    return Grid(
        grid.scales.astype(dtype),
        grid.zeros.astype(dtype) if isinstance(grid.zeros, np.ndarray) else grid.zeros,
    )


def _group_by_group(
    tile: np.ndarray,
    back: Feedback,
    rule: GridRule,
    clips: tuple[float, ...],
    rows: int,
    column: int,
) -> tuple[np.ndarray, list[Grid]]:
    """Codes of a tile [k, columns]; each group's grid is chosen when its first row is reached."""
    codes, error, grids = np.empty(tile.shape, dtype=np.uint8), np.empty_like(tile), []
    for start in range(0, len(tile), rows):
        stop = start + rows
        wanted = tile[start:stop]
        if start:
            undone = back.unit[:start, start:stop].T @ error[:start]
            # The values of these rows at which their terms of the loss, and all later ones, would
            # vanish.
            wanted = wanted - scipy.linalg.solve_triangular(
                back.unit[start:stop, start:stop],
                undone,
                trans="T",
                unit_diagonal=True,
                check_finite=False,
            )
        rounded, grid = round_group(
            wanted, back.of(start, stop), rule, clips, start // rows, column
        )
        codes[start:stop] = rounded.codes
        error[start:stop] = rounded.error + (wanted - tile[start:stop])
        grids.append(grid)
    return codes, grids


def _on_fixed_grids(
    tile: np.ndarray,
    back: Feedback,
    rule: GridRule,
    own: list[Feedback],
    order: np.ndarray,
    clips: tuple[float, ...],
    column: int,
):
    """Codes of a tile [k, columns] whose rows are rounded in ``order``, and grids of groups of
    neighbours, chosen first. own: feedback within each group."""
    rows = len(tile) // len(own)
    grids = [
        round_group(tile[group * rows : (group + 1) * rows], within, rule, clips, group, column)[1]
        for group, within in enumerate(own)
    ]
    computed = [_computed(grid, tile.dtype) for grid in grids]
    codes = np.empty(tile.shape, dtype=np.uint8)
    codes[order] = round_rows(
        tile[order], back, rule, lambda row: computed[order[row] // rows]
    ).codes
    return codes, grids


def quantize(
    w: np.ndarray,
    bits: int = 4,
    group_size: int = 128,
    symmetric: bool = True,
    scale_dtype: str = "float16",
    *,
    calibration=None,
    damping: float = 0.01,
    clip: bool = True,
    act_order: bool = False,
    static_groups: bool = False,
) -> QuantizedWeight:
    """Quantise w [k, n] by GPTQ -> QuantizedWeight.

    calibration: inputs x [..., k] of the layer, an iterable of such arrays, or a Hessian.
    damping: added to H's diagonal, in units of its mean.
    clip, act_order, static_groups: see the module's docstring. The first parameters are those of
    ``rtn.quantize``. Raises TypeError or ValueError as the module's docstring says.
    """
    rule = GridRule(bits, symmetric, scale_dtype)
    if not 0 <= damping < float("inf"):
        raise ValueError(f"damping={damping} must be a finite number, 0 or more")
    w = check_weights(w)
    refuse_nonfinite(w)
    k, n = w.shape
    group_size = check_group_size(group_size, k)
    rows, compute, clips = (
        k if group_size == -1 else group_size,
        compute_type(w),
        CLIPS if clip else CLIPS[:1],
    )
    hessian = as_hessian(calibration, k).mean()
    hessian[np.diag_indices(k)] += damping * np.mean(np.diagonal(hessian))
    order = np.argsort(-np.diagonal(hessian), kind="stable") if act_order else np.arange(k)
    static_groups = static_groups and rows < k
    own = [
        feedback(hessian[start : start + rows, start : start + rows], damping, compute)
        for start in (range(0, k, rows) if static_groups else ())
    ]
    back = feedback(hessian[np.ix_(order, order)] if act_order else hessian, damping, compute)
    del hessian

    # else every group has neighbouring rows, and all stay where they were
    permuted = act_order and not static_groups and rows < k
    codes = np.empty((k, n), dtype=np.uint8)
    scales = np.empty((k // rows, n), dtype=float_type(scale_dtype))
    zeros = None if symmetric else np.empty((k // rows, n), dtype=np.uint8)
    for column in range(0, n, _COLUMNS):
        here = slice(column, min(column + _COLUMNS, n))
        tile: np.ndarray = w[:, here].astype(compute)
        if static_groups:
            codes[:, here], grids = _on_fixed_grids(tile, back, rule, own, order, clips, column)
        else:
            sorted_codes, grids = _group_by_group(tile[order], back, rule, clips, rows, column)
            codes[slice(None) if permuted else order, here] = sorted_codes
        for group, grid in enumerate(grids):
            scales[group, here] = grid.scales
            if zeros is not None:
                zeros[group, here] = grid.zeros
    permutation = order.astype(np.int32) if permuted else None
    return QuantizedWeight(
        codes=codes,
        scales=scales,
        zeros=zeros,
        bits=bits,
        group_size=group_size,
        permutation=permutation,
    )
