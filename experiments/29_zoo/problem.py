"""The problem that every kernel of the zoo is given: x [m, k] fp16 times a 4-bit weight [k, n] with
fp16 scales of groups of 128, symmetric: a zero point of 8 wherever a format stores one.

Two sets of numbers: "gaussian" (a normal x, a rounded normal weight), judged by bounds, and "exact"
(small integers, scales that are powers of two: every order of summation gives the same bits).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from numba_marlin import testing
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.stored import STORED
from numba_marlin.quantizers import quantize

N, K, GROUP = 256, 512, 128
SMS = 3  # multiprocessors of the device that persistent kernels are launched for
DATA = ("gaussian", "exact")


def operands(data: str, m: int, n: int) -> tuple[np.ndarray, QuantizedWeight]:
    """x fp16 [m, k] and the weight."""
    if data == "exact":
        problem = testing.exact_problem(m, n, K, GROUP, seed=29)
        return problem.x, problem.weight
    generator = np.random.default_rng(29)
    x = generator.standard_normal((m, K)).astype(np.float16)
    w = (0.05 * generator.standard_normal((K, n))).astype(np.float32)
    return x, quantize(w, group_size=GROUP)


def stored(form: str, weight: QuantizedWeight) -> dict[str, np.ndarray]:
    """The tensors of a stored format ("awq", "gptq", "gptq_v2")."""
    return STORED[form].write(weight)


def poisoned(shape: tuple[int, ...], dtype=np.float16) -> np.ndarray:
    """An output before the launch: NaN."""
    return np.full(shape, np.nan, dtype)
