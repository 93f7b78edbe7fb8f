"""What the tensor cores lose of fp8 sums, by what a weight's byte is and how much of k is added up
before fp32 goes on. On the PTX machine's adder of e4m3 ``wgmma``, which agrees with an H200 bit for
bit (experiments/05_hardware); no GPU.

    python experiments/23_w4a8/losses.py          # the table below, into README.md; seconds

Forms: a byte that is the weight exactly (code - 8); the code; the code at even k and the code less
15 at odd k (``kernels.w4a8.elements``). What the second adds is taken off exactly, of the third by
the offsets that x brings, in float16. x [8, 2048], W [2048, 64] of normal numbers, ``quantize``d;
with one scale per column but for groups of 128.
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]

from numba_marlin.bench.tables import replace_between
from numba_marlin.emulator.tensor.tensor_sums import SMALL, SMALL_FLOATS, add_products
from numba_marlin.formats.small_floats import encode
from numba_marlin.layout.offsets import OFFSET_GROUP, OFFSET_UNIT
from numba_marlin.quantizers import quantize
from numba_marlin.quantizers.activations import quantize_rows

MARKERS = ("<!-- losses:begin -->", "<!-- losses:end -->")
ROWS, K, COLUMNS, TERMS = 8, 2048, 64, 32
ODD = np.arange(K)[:, None] % 2
# form -> what its byte is more than the weight, at every k
MORE = {"the weight": 0 * ODD, "the code": 8 + 0 * ODD, "codes in turns": np.where(ODD, -7, 8)}
DEPTHS = ((128, 128), (-1, 1024), (-1, K))  # group size, and what is added up at a time


def activations(random):
    """{what: x}"""
    normal, gate = random.standard_normal((2, ROWS, K))
    return {
        "normal": normal,
        "ReLU of normal": np.maximum(normal, 0),
        "normal, mean 1": normal + 1,
        "Student's t, 3 degrees": random.standard_t(3, (ROWS, K)),
        "SiLU of normal": gate / (1 + np.exp(-gate)),
        "SwiGLU of normal": gate / (1 + np.exp(-gate)) * normal,
    }


def tensor_cores(x, bytes_of_w):
    """float32 sums of codes of x [m, k] times e4m3 bytes [k, n], 32 of k after the other."""
    sums = np.zeros((1, len(x), bytes_of_w.shape[1]), np.float32)
    for first in range(0, x.shape[1], TERMS):
        here = slice(first, first + TERMS)
        both = np.concatenate([x[:, here], bytes_of_w[here].T]).astype(np.uint16) + SMALL["e4m3"]
        factors = np.ascontiguousarray(both[None], dtype=np.uint16)
        sums = add_products("f8", factors, len(x), sums, SMALL_FLOATS)
    return sums[0].astype(np.float64) / OFFSET_UNIT


def lost(x, weight, more, depth):
    """(root mean square of what is lost, its mean), of the exact result's root mean square."""
    values, codes = x.values(), x.plain_codes().view(np.uint8)
    numbers = weight.codes.astype(np.float64) - 8
    bytes_of_w = encode(((numbers + more) * OFFSET_UNIT).astype(np.float32), "e4m3")
    scales = np.repeat(weight.scales.astype(np.float64), weight.rows_per_group, axis=0)
    found = np.zeros((x.m, weight.n))
    for first in range(0, x.k, depth):
        here = slice(first, first + depth)
        found += tensor_cores(codes[:, here], bytes_of_w[here]) * scales[first]
    groups = values.reshape(x.m, -1, OFFSET_GROUP)
    too_much = (groups * more[:OFFSET_GROUP, 0]).sum(axis=2)
    if more[0] != more[1]:
        too_much = -x.offsets[:, 0, : groups.shape[1]].astype(np.float64) / OFFSET_UNIT
    found -= too_much @ scales[::OFFSET_GROUP]
    exact = values @ (numbers * scales)
    unit = np.sqrt(np.mean(exact**2))
    return np.sqrt(np.mean((found - exact) ** 2)) / unit, np.mean(found - exact) / unit


def table():
    random = np.random.default_rng(0)
    w = random.standard_normal((K, COLUMNS)).astype(np.float32)
    weights = {size: quantize(w, group_size=size) for size in (128, -1)}
    lines = [
        "| x | quantised to e4m3 |"
        + "".join(f" {form}, {depth} of k |" for _, depth in DEPTHS for form in MORE),
        "|---|--:|" + "--:|" * (len(DEPTHS) * len(MORE)),
    ]
    for name, x in activations(random).items():
        x = x.astype(np.float16)
        codes = quantize_rows(x, "fp8")
        plain = weights[128]
        numbers = (plain.codes.astype(np.float64) - 8) * np.repeat(
            plain.scales.astype(np.float64), plain.rows_per_group, axis=0
        )
        before, after = x.astype(np.float64) @ numbers, codes.dequantized(np.float64) @ numbers
        rounded = np.sqrt(np.mean((after - before) ** 2) / np.mean(before**2))
        cells = (
            "{:.5f} ({:+.5f})".format(*lost(codes, weights[size], more, depth))
            for size, depth in DEPTHS
            for more in MORE.values()
        )
        lines.append(f"| {name} | {rounded:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = table()
    replace_between(HERE / "README.md", MARKERS, found)
    print(found)
