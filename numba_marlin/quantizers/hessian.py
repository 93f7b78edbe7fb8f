"""``Hessian``: the mean of ``x^T x`` over rows of calibration data, accumulated batch by batch. It
weighs errors of a layer's weights by their effect on the outputs, whatever method made them.

For ``y = x @ W`` and a changed weight ``W + D``, the mean square of the change of an output column
is ``d^T H d``, with d the column of D and ``H = mean(x^T x)``, [k, k]. (The papers have H = 2 x^T
x; a factor changes nothing.)

    hessian = Hessian(k)
    for x in batches:  # [..., k] of any float type, finite; cast to float32
        hessian.add(x)
    q = nm.quantize(w, method="gptq", calibration=hessian)
    hessian.output_error(w, q)  # |x (Q - W)| / |x W|, of a weight of any method

Memory: 8 k^2 bytes (128 MiB for k = 4096, 1.5 GiB for k = 14336), and 36 MiB and a float32 copy of
4096 rows while a batch is added. Products are computed in float32, at most 4096 rows at a time,
and accumulated in float64. Measured (experiments/07_quantisers, 65536 rows, k = 1024): the largest
error of an element is 9e-8 of its row's and column's norms; sums in float32 take as long and err
2e-7; products in float64 take two to three times the CPU time, and none of the three gave another
code. Only the upper triangle is computed, by blocks of columns. With ``spill`` the sums lie in a
file without a name, mapped, whose pages the system may write out: memory is then bounded by what
others leave free. The space is taken at once, so that a full disk is an OSError here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from numba_marlin.formats.floats import as_numpy
from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.quantizers.grid import refuse_nonfinite

_ROWS, _BLOCK = 4096, 1024
_LARGEST = 2.0**58  # squares of larger inputs, summed over _ROWS rows, leave float32


class Hessian:
    """The mean of x^T x, [k, k], over all rows that were added.

    k: rows of the weight, a positive integer (ValueError otherwise). spill: a directory in which
    the sums are kept, None for memory. Pass a Hessian to
    ``nm.quantize(w, method="gptq", calibration=hessian)``.
    """

    def __init__(self, k: int, spill: str | os.PathLike[str] | None = None):
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k <= 0:
            raise ValueError(f"k={k!r} must be a positive integer")
        self.k = int(k)
        self.rows = 0
        """Rows of calibration data so far."""
        self._spill = spill
        self._sum = _zeros(self.k, spill)

    def __repr__(self) -> str:
        return f"<Hessian [{self.k}, {self.k}] of {self.rows:,} rows>"

    def add(self, x: np.ndarray) -> Hessian:
        """Add inputs x [..., k] of the layer: float16, bfloat16, float32 or float64, finite, of
        magnitude up to 2**58. Returns self. Raises TypeError or ValueError, and then nothing has
        been added."""
        x = as_numpy("calibration: x", x)
        if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(
                f"calibration: x.dtype={x.dtype} must be float16, bfloat16, float32 or float64"
            )
        if x.ndim == 0 or x.shape[-1] != self.k:
            raise ValueError(
                f"calibration: x.shape={x.shape} must end in k={self.k}, the layer's inputs"
            )
        x = x.reshape(-1, self.k)
        for start in range(0, len(x), _ROWS):
            part = x[start : start + _ROWS]
            if not np.isfinite(part).all():
                refuse_nonfinite(x, "calibration: x")
            if max(-float(part.min()), float(part.max())) > _LARGEST:
                raise ValueError(
                    f"calibration: x holds {np.abs(part).max():g}, must be at most 2**58 for its"
                    " squares to fit in float32"
                )
        for start in range(0, len(x), _ROWS):
            part = np.ascontiguousarray(x[start : start + _ROWS], dtype=np.float32)
            for column in range(0, self.k, _BLOCK):
                stop = min(column + _BLOCK, self.k)
                self._sum[column:stop, column:] += part[:, column:stop].T @ part[:, column:]
        self.rows += len(x)
        return self

    def mean(self) -> np.ndarray:
        """The mean as a new symmetric array, float64 [k, k]. ValueError if no rows were added, or
        only zeros."""
        result = self._mean()
        if not np.diagonal(result).any():
            raise ValueError(
                f"calibration holds nothing but zeros ({self.rows} rows): there is nothing to weigh"
                " errors by; use method='mse' for this layer"
            )
        return result

    def _mean(self) -> np.ndarray:
        if not self.rows:
            raise ValueError(
                "calibration holds no rows: add batches of the layer's inputs, [m, k], first"
            )
        result: np.ndarray = np.asarray(self._sum) / self.rows
        for column in range(0, self.k, _BLOCK):
            stop = min(column + _BLOCK, self.k)
            result[stop:, column:stop] = result[column:stop, stop:].T
            result[column:stop, column:stop] = (
                np.triu(result[column:stop, column:stop])
                + np.triu(result[column:stop, column:stop], 1).T
            )
        return result

    def output_error(self, w: np.ndarray, quantized: Any) -> float:
        """|x (Q - W)| / |x W| in the Frobenius norm, x all rows that were added: the root of
        ``tr(D^T H D) / tr(W^T H W)``, D = Q - W. 0.0 where both are 0.

        w: float [k, n]. quantized: Q, a weight as ``dequantize`` takes it, or an array [k, n].
        Computed in float64. ValueError for other shapes, or if no rows were added."""
        w = as_numpy("w", w)
        changed = (
            as_numpy("quantized", quantized)
            if hasattr(quantized, "__array__")
            else dequantize(quantized, np.float32)
        )
        for name, each in (("w", w), ("quantized", changed)):
            if each.ndim != 2 or each.shape[0] != self.k or each.shape != w.shape:
                n = w.shape[1] if w.ndim == 2 else "n"
                raise ValueError(
                    f"{name}.shape={each.shape} must be ({self.k}, {n}): the Hessian is of"
                    f" k={self.k}"
                )
        mean, lost, whole = self._mean(), 0.0, 0.0
        for column in range(0, w.shape[1], _BLOCK):
            here = slice(column, column + _BLOCK)
            wanted = w[:, here].astype(np.float64)
            error = changed[:, here].astype(np.float64) - wanted
            lost += float(np.vdot(error, mean @ error))
            whole += float(np.vdot(wanted, mean @ wanted))
        if whole <= 0:  # outputs of nothing but zeros
            return 0.0 if lost <= 0 else float("inf")
        return float(np.sqrt(max(lost, 0.0) / whole))

    def copy(self) -> Hessian:
        """Another Hessian of the same rows, to which others may be added."""
        result = Hessian(self.k, self._spill)
        result._sum[...] = self._sum
        result.rows = self.rows
        return result

    def triangle(self) -> np.ndarray:
        """The sums of x^T x, float64 [k (k + 1) / 2]: the upper triangle, row after row."""
        result, begin = np.empty(self.k * (self.k + 1) // 2), 0
        for row in range(self.k):
            result[begin : begin + self.k - row] = self._sum[row, row:]
            begin += self.k - row
        return result

    @staticmethod
    def of_triangle(k: int, values: np.ndarray, rows: int) -> Hessian:
        """The Hessian whose ``triangle`` and ``rows`` these are, bit for bit. ValueError for sums
        that no inputs have."""
        result, begin = Hessian(k), 0
        result.rows = rows
        for row in range(k):
            result._sum[row, row:] = values[begin : begin + k - row]
            begin += k - row
        diagonal = np.diagonal(result._sum)
        wrong = ~((diagonal >= 0) & (diagonal <= rows * _LARGEST**2))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"the sum of squares [{row}, {row}]={diagonal[row]:g} must be 0 to"
                f" {rows * _LARGEST**2:g} for {rows} rows"
            )
        root = np.sqrt(diagonal)
        for row in range(k):
            # Cauchy and Schwarz, and what products in float32 may add
            wrong = ~(np.abs(result._sum[row, row:]) <= root[row] * root[row:] * (1 + 1e-4))
            if wrong.any():
                column = row + int(np.argmax(wrong))
                raise ValueError(
                    f"the sum of products [{row}, {column}]={result._sum[row, column]:g} must be at"
                    f" most {root[row] * root[column]:g}, by the sums of squares"
                )
        return result


def _zeros(k: int, spill: str | os.PathLike[str] | None) -> np.ndarray:
    if spill is None:
        return np.zeros((k, k))
    with tempfile.TemporaryFile(dir=os.fspath(spill)) as file:
        if hasattr(os, "posix_fallocate"):  # else a full disk would end the process later
            os.posix_fallocate(file.fileno(), 0, 8 * k * k)
        return np.memmap(file, np.float64, "w+", shape=(k, k))


def as_hessian(calibration: Any, k: int) -> Hessian:
    """The Hessian of ``calibration``: a Hessian, an array of inputs [..., k], or an iterable of
    such arrays, which is read once."""
    if isinstance(calibration, Hessian):
        if calibration.k != k:
            raise ValueError(
                f"calibration is a Hessian of k={calibration.k}, must be k={k}, the weight's rows"
            )
        return calibration
    if isinstance(calibration, Mapping):
        raise TypeError(
            f"calibration holds {len(calibration)} layers, must be of one: pass"
            f" calibration[{next(iter(calibration), 'layer')!r}]"
        )
    if not hasattr(calibration, "__iter__") and not hasattr(calibration, "__array__"):
        raise TypeError(
            "method 'gptq' needs calibration: inputs of the layer [m, k], an iterable of such"
            " batches, or a numba_marlin.Hessian"
        )
    hessian = Hessian(k)
    for x in [calibration] if hasattr(calibration, "__array__") else calibration:
        hessian.add(x)
    return hessian
