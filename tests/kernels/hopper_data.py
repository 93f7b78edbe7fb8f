"""Data for full-size problems on a GPU, and what is right of their results. Large weights are
random words, repeated at a distance that is no multiple of a row."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import reference
from numba_marlin.formats import PackedWeight, marlin
from numba_marlin.formats.floats import float_type
from tests.kernels.harness import prepare, sms_of

CHECKED_ROWS, CHECKED_BLOCKS = 48, 4


def need_gpu(run_on, why):
    if run_on != "cuda":
        pytest.skip(f"{why}: run it on a GPU with --run-on cuda")


def random_packed(problem, seed=0):
    """A PackedWeight of random words and scales."""
    generator = np.random.default_rng((seed, problem.n, problem.k))
    columns = marlin.packed_columns(problem.n)
    words = np.frombuffer(generator.bytes(4 * ((1 << 20) + 77)), np.int32)
    qweight = np.resize(words, (problem.k // 16, 2 * columns))
    scales = generator.uniform(0.005, 0.025, (problem.groups, columns)).astype(
        float_type(problem.scale_dtype)
    )
    return PackedWeight("marlin", qweight, scales, 4, problem.group_size, problem.k, problem.n)


def random_x(m, k, seed=0):
    return np.random.default_rng((seed, m, k)).standard_normal((m, k)).astype(np.float16)


def some(count, size, generator):
    """``count`` of range(size), the first and the last among them; all if there are no more."""
    return (
        np.arange(size)
        if size <= count
        else np.unique(np.r_[0, size - 1, generator.choice(size, count - 2, replace=False)])
    )


def judge(c, x, packed, cell):
    """AssertionError unless all of c is finite, and rows and columns drawn at random are within
    their bounds."""
    assert np.isfinite(c).all(), f"{cell}: {np.argwhere(~np.isfinite(c))[0]} is not finite"
    generator = np.random.default_rng(c.shape)
    rows = some(CHECKED_ROWS, x.shape[0], generator)
    blocks = some(2 if packed.k > 50000 else CHECKED_BLOCKS, packed.n_packed // 64, generator)
    columns = (64 * blocks[:, None] + np.arange(64)).reshape(-1)
    words = (128 * blocks[:, None] + np.arange(128)).reshape(-1)
    narrow = marlin.unpack(
        PackedWeight(
            "marlin",
            packed.qweight[:, words],
            packed.scales[:, columns],
            4,
            packed.group_size,
            packed.k,
            columns.size,
        )
    )
    inside = columns < packed.n
    narrow = replace(narrow, codes=narrow.codes[:, inside], scales=narrow.scales[:, inside])
    report = reference.check(
        c[np.ix_(rows, columns[inside])], x[rows], narrow, order="random", method=cell.method
    )
    assert report.ok, f"{cell}: {report}"


def at_home(cell, packed, seed=0, stream=0, held=None, sms=None):
    """(x, a DeviceProblem not launched yet)"""
    from tests.kernels.on_gpu import DeviceProblem

    x = random_x(cell.problem.m, cell.problem.k, seed)
    return x, DeviceProblem(
        prepare(
            cell.definition, x, packed, config=cell.config, sms=sms or sms_of("cuda"), run_on="cuda"
        ),
        stream,
        held,
    )
