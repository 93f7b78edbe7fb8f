"""Measurements on one synthetic layer: the criterion for clipping, the effect of the Hessian's
precision, and the cost of each step."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import numpy as np

from numba_marlin.quantizers import dequantize, gptq, mse, rtn
from numba_marlin.quantizers.hessian import Hessian


def layer(k: int, n: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [rows, k] with a falling spectrum and eight large channels, and heavy-tailed
    weights [k, n], in float32."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, k), dtype=np.float32) @ (
        random.standard_normal((k, k), dtype=np.float32)
        * np.arange(1, k + 1, dtype=np.float32)[:, None] ** np.float32(-0.6)
    )
    x *= np.exp(0.5 * random.standard_normal(k, dtype=np.float32))
    x[:, random.choice(k, 8, replace=False)] *= 10
    return x, (0.02 * random.standard_t(5, (k, n))).astype(np.float32)


def loss(weight, w: np.ndarray, h: np.ndarray) -> float:
    """Return the mean square of the change of the outputs."""
    error = dequantize(weight, np.float64) - w
    return float(np.sum(error * (h @ error)) / w.shape[1])


def by_projection(wanted, back, rule, clips, group, column):
    """Do what ``gptq.round_group`` does, but compare grids as the Marlin paper's tool does: by the
    loss of rounding to nearest."""
    return _chosen(
        wanted,
        back,
        rule,
        clips,
        lambda error: np.sum(
            np.square((back.unit * np.sqrt(back.squares)).T.astype(error.dtype) @ error), axis=0
        ),
    )


def by_squares(wanted, back, rule, clips, group, column):
    """Compare grids by the squares of the weights' errors."""
    return _chosen(wanted, back, rule, clips, lambda error: np.sum(np.square(error), axis=0))


def _chosen(wanted, back, rule, clips, badness):
    low, high = (end[None].astype(np.float64) for end in (wanted.min(axis=0), wanted.max(axis=0)))
    best = np.full(wanted.shape[1], np.inf)
    scales = None
    for clip in clips:
        tried, zero = rule.grid(clip * low, clip * high)
        step = tried.astype(wanted.dtype)
        value = badness((rule.codes(wanted, step, zero) - zero) * step - wanted)
        scales = tried[0].copy() if scales is None else np.where(value < best, tried[0], scales)
        best = np.minimum(value, best)
    grid = gptq.Grid(scales.astype(wanted.dtype), zero)
    return gptq.round_rows(wanted, back, rule, lambda row: grid), gptq.Grid(scales, zero)


def clipping(seeds=(0, 1, 2), k: int = 1024, n: int = 512) -> Iterator[dict]:
    """Return losses with groups of 128, relative to the loss of rounding to nearest."""
    own = gptq.round_group
    for seed in seeds:
        x, w = layer(k, n, 4 * k, seed)
        hessian = Hessian(k).add(x)
        h = hessian.mean()
        unit = loss(rtn.quantize(w), w, h)
        yield {
            "kind": "clipping",
            "seed": seed,
            "k": k,
            "n": n,
            "judge": "mse instead of gptq",
            "loss": loss(mse.quantize(w), w, h) / unit,
        }
        for judge, function, clip in (
            ("none", own, False),
            ("squares of errors", by_squares, True),
            ("loss, rounding to nearest", by_projection, True),
            ("loss, with feedback", own, True),
        ):
            gptq.round_group = function
            try:
                weight = gptq.quantize(w, calibration=hessian, clip=clip)
            finally:
                gptq.round_group = own
            yield {
                "kind": "clipping",
                "seed": seed,
                "k": k,
                "n": n,
                "judge": judge,
                "loss": loss(weight, w, h) / unit,
            }


class Given(Hessian):
    """A Hessian with given values."""

    def __init__(self, h: np.ndarray):
        super().__init__(len(h))
        self._sum, self.rows = np.triu(h.astype(np.float64)), 1


def precision(seeds=(0, 1, 2), k: int = 1024, n: int = 256, rows: int = 65536) -> Iterator[dict]:
    """Compare sums of x^T x in float32, as in ``Hessian``, with sums in float64: error, CPU time,
    and changes in the quantised weight."""
    for seed in seeds:
        x, w = layer(k, n, rows, seed)
        start = time.process_time()
        exact = x.T.astype(np.float64) @ x.astype(np.float64) / rows
        costs = {"float64": time.process_time() - start}
        start = time.process_time()
        single = np.zeros((k, k), np.float32)
        for first in range(0, rows, 4096):
            single += x[first : first + 4096].T @ x[first : first + 4096]
        costs["float32"] = time.process_time() - start
        start = time.process_time()
        mixed = Hessian(k).add(x)
        costs["float32 products, float64 sums"] = time.process_time() - start
        expected = gptq.quantize(w, calibration=Given(exact))
        norms = np.sqrt(np.outer(np.diagonal(exact), np.diagonal(exact)))
        for kind, h in (
            ("float64", exact),
            ("float32", single / np.float32(rows)),
            ("float32 products, float64 sums", mixed.mean()),
        ):
            weight = gptq.quantize(w, calibration=Given(h))
            yield {
                "kind": "hessian",
                "seed": seed,
                "k": k,
                "rows": rows,
                "sums": kind,
                "largest_error": float(np.max(np.abs(h - exact) / norms)),
                "cpu_seconds": round(costs[kind], 2),
                "codes_changed": float(np.mean(weight.codes != expected.codes)),
                "loss": loss(weight, w, exact) / loss(expected, w, exact),
            }


def costs(k: int = 4096, n: int = 4096, rows: int = 8192) -> Iterator[dict]:
    """Return the CPU seconds (of all threads) of each step for one large layer, and the process's
    peak memory so far."""
    x, w = layer(k, n, rows, 0)
    h = None

    def timed(what, function):
        cpu, wall = time.process_time(), time.perf_counter()
        result = function()
        return {
            "kind": "cost",
            "k": k,
            "n": n,
            "what": what,
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "seconds": round(time.perf_counter() - wall, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }, result

    row, hessian = timed(f"Hessian of {rows} rows", lambda: Hessian(k).add(x))
    yield row
    unit = None
    for what, function in (
        ("rtn", lambda: rtn.quantize(w)),
        ("mse", lambda: mse.quantize(w)),
        ("gptq, no clipping", lambda: gptq.quantize(w, calibration=hessian, clip=False)),
        ("gptq", lambda: gptq.quantize(w, calibration=hessian)),
        ("gptq, act order", lambda: gptq.quantize(w, calibration=hessian, act_order=True)),
        ("gptq, a scale per column", lambda: gptq.quantize(w, group_size=-1, calibration=hessian)),
    ):
        row, weight = timed(what, function)
        h = hessian.mean() if h is None else h
        value = loss(weight, w, h)
        unit = value if unit is None else unit
        yield row | {"loss": value / unit}
