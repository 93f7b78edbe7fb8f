"""Errors of 4-bit weights and of their products, relative to float weights: NVFP4, MXFP4 and INT4
with groups of 128 and of 32, rounded to nearest. Runs on a CPU, in seconds.

Weights [k, n] are drawn from a normal distribution, from Student's t with 5 and with 3 degrees of
freedom, scaled to the same variance (the fewer, the heavier the tails), and from a normal one of
which one row in 128 is eight times as large, as those of input channels with outliers are.
``relative_rms`` is the rms of the weights' errors divided by the weights' rms; ``relative_output``
is the same for x W with standard normal x [256, k]. INT4 is also measured with the scale of least
square error for each group (``method="mse"``), and MXFP4 also with scales rounded up, so that
nothing is clipped, instead of the rule of the specification.
"""

import numpy as np

from numba_marlin import pack
from numba_marlin import quantizers as quantize
from numba_marlin.formats.operands import to_weight
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.operands import quantize_blocks

BATCH = 256


def normal(rng, k, n):
    return rng.standard_normal((k, n))


def student(freedom):
    def draw(rng, k, n):
        return rng.standard_t(freedom, (k, n)) / np.sqrt(freedom / (freedom - 2))

    return draw


def with_large_rows(rng, k, n):
    return normal(rng, k, n) * np.where(np.arange(k) % 128 == 77, 8, 1)[:, None]


DATA = {
    "normal": normal,
    "student-t 5": student(5),
    "student-t 3": student(3),
    "outlier rows": with_large_rows,
}


def blocks(form, **options):
    return lambda w: to_weight(quantize_blocks(np.ascontiguousarray(w.T), form, **options))


WEIGHTS = {
    "nvfp4": blocks("nvfp4"),
    "mxfp4": blocks("mxfp4"),
    "mxfp4 up": blocks("mxfp4", rounding="ceil"),
    "int4-g128": lambda w: quantize(w, group_size=128),
    "int4-g128 mse": lambda w: quantize(w, group_size=128, method="mse"),
    "int4-g32": lambda w: quantize(w, group_size=32),
    "int4-g32 mse": lambda w: quantize(w, group_size=32, method="mse"),
}


def relative(error, of):
    return float(np.sqrt(np.mean(error**2) / np.mean(of**2)))


def rows(k, n, seed):
    for data, draw in DATA.items():
        rng = np.random.default_rng(seed)
        w = (0.02 * draw(rng, k, n)).astype(np.float32)
        x = rng.standard_normal((BATCH, k))
        product = x @ w
        for name, quantise in WEIGHTS.items():
            q = quantise(w)
            error = dequantize(q, "float64") - w
            yield {
                "experiment": "accuracy",
                "data": data,
                "weights": name,
                "k": k,
                "n": n,
                "seed": seed,
                "bits_per_weight": round(8 * pack(q).nbytes / w.size, 4),
                "relative_rms": float(f"{relative(error, w):.4g}"),
                "relative_output": float(f"{relative(x @ error, product):.4g}"),
                "largest_error": float(f"{np.abs(error).max() / w.std():.4g}"),
            }
