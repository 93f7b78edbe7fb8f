"""Block-scaled FP4 weights for tests: ``make_blocks``, and ``exact_blocks`` for products with
one correct result, bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from numba_marlin import reference
from numba_marlin.formats import BlockWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.testing.exact import ExactProblem
from numba_marlin.testing.weights import seeds

KINDS_OF_BLOCKS = ("nvfp4", "mxfp4")
_SHAPE = {"nvfp4": ("e4m3", 16), "mxfp4": ("e8m0", 32)}


def make_blocks(
    kind: str,
    k: int,
    n: int,
    seed: int,
    global_scale: float | None = None,
    divides: bool = False,
    ordinary: bool = False,
) -> BlockWeight:
    """A BlockWeight [k, n] with random codes and scales from all that the formats have, including
    negative ones, zeros and subnormals; e8m0 scales of a column are within 2**24 of each other.
    ordinary: only scales that quantisers choose, between 1/4 and 4."""
    grid, rows = _SHAPE[kind]
    rng = np.random.default_rng(seed)
    shape = -(-k // rows), n
    if grid == "e4m3":
        scales = (
            rng.integers(0x28, 0x48, shape, dtype=np.uint8)
            if ordinary
            else rng.choice(np.delete(np.arange(256), (0x7F, 0xFF)), shape).astype(np.uint8)
        )
    else:
        lowest = np.full(n, 125) if ordinary else rng.integers(0, 255 - 24, n)
        scales = (lowest + rng.integers(0, 5 if ordinary else 25, shape)).astype(np.uint8)
    codes = rng.integers(0, 16, (k, n), dtype=np.uint8)
    if not ordinary:
        codes[:rows, 0] &= 8  # a block of zeros
    return BlockWeight(codes, "e2m1", scales, grid, (min(rows, k), 1), global_scale, divides)


def exact_blocks(
    kind: str,
    m: int,
    n: int,
    k: int,
    seed: int,
    spread: int = 2,
    *,
    dtype: str = "float16",
    bias: bool = False,
) -> ExactProblem:
    """Activations -1, 0, 1, all codes, scales 1, 2 ... 2**(spread - 1) and a global scale 2: as in
    ``exact.exact_problem``, only the result is rounded."""
    grid, rows = _SHAPE[kind]
    rng = np.random.default_rng(seed)
    one, step = {"e4m3": (0x38, 8), "e8m0": (127, 1)}[grid]
    scales = (one + step * rng.integers(0, spread, (-(-k // rows), n))).astype(np.uint8)
    weight = BlockWeight(
        rng.integers(0, 16, (k, n), dtype=np.uint8), "e2m1", scales, grid, (rows, 1), 2.0
    )
    x = round_to(rng.integers(-1, 2, (m, k)).astype(np.float64), dtype)
    addend = round_to(2.0 * rng.integers(-3, 4, n), dtype) if bias else None
    if not reference.is_exact_problem(x, weight, "float32", addend):
        raise ValueError(f"k={k} or spread={spread} is too large for exact sums")
    return ExactProblem(x, weight, round_to(reference.matmul(x, weight, addend), dtype), addend)


def block_weights(kinds=KINDS_OF_BLOCKS, most: int = 8) -> st.SearchStrategy[BlockWeight]:
    """``make_blocks`` of these kinds, up to ``most`` blocks of 16 rows by 8 columns; NVFP4 with and
    without a global scale, multiplying or dividing."""

    def of(kind):
        rows, columns = (st.integers(1, most).map(step.__mul__) for step in (16, 8))
        factor = (
            st.sampled_from((None, 1.0, 2.0**-9, 0.0371246337890625, 3.0))
            if kind == "nvfp4"
            else st.none()
        )
        return st.builds(
            make_blocks,
            st.just(kind),
            rows,
            columns,
            seeds(),
            factor,
            st.booleans() if kind == "nvfp4" else st.just(False),
            st.booleans(),
        )

    return st.sampled_from(kinds).flatmap(of)
