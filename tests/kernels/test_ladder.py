"""Contract under test: every rung computes C = A @ W for every shape it accepts, and leaves nothing
else touched.

Two gates (``reference``): small integers with power-of-two scales must match bit for bit, real data
must stay under the elementwise bound. ``pytest --run-on cuda`` runs the same tests on a GPU.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin import compiler, reference, testing
from numba_marlin.formats import QuantizedWeight
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.quantizers import dequantize, quantize
from tests.kernels.harness import KERNELS, PLAIN, TILES, cases, run_kernel

NAMES = tuple(KERNELS)
ORDINARY = [
    (1, 64, 64, 32),
    (7, 128, 128, 64),
    (16, 256, 256, -1),
    (17, 192, 320, 64),
    (33, 256, 128, 128),
    (64, 256, 256, 128),
]


def rungs(group_sizes):
    """(name, group_size): every kernel with each that it takes; the plain ones have no per-column
    scales."""
    return [
        (name, size) for name in NAMES for size in group_sizes if size != -1 or name not in PLAIN
    ]


PROBLEMS = [
    (name, m, n, k, size)
    for m, n, k, size in ORDINARY
    # one group of all of k is one scale per column
    for name, _ in rungs((-1 if size == k else size,))
]


def real_problem(m, n, k, group_size, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((m, k)).astype(np.float16)
    return x, quantize(generator.standard_normal((k, n)).astype(np.float32), group_size=group_size)


@pytest.mark.parametrize("name, m, n, k, group_size", PROBLEMS)
def test_small_integers_match_bit_for_bit(name, m, n, k, group_size, run_on):
    problem = testing.exact_problem(m, n, k, group_size, seed=m + n + k)
    actual = run_kernel(name, problem.x, problem.weight, run_on=run_on).c
    assert (actual.view(np.uint16) == problem.expected.view(np.uint16)).all() or (
        actual == problem.expected
    ).all()


@pytest.mark.parametrize("name, m, n, k, group_size", PROBLEMS)
def test_real_data_stays_under_the_elementwise_bound(name, m, n, k, group_size, run_on):
    x, weight = real_problem(m, n, k, group_size)
    report = reference.check(run_kernel(name, x, weight, run_on=run_on).c, x, weight)
    assert report.ok, report


@pytest.mark.parametrize(
    "m, tile, group_size",
    cases(
        product((1, 16, 20, 40, 64), TILES, (-1, 32, 64, 128)),
        # ORDINARY has what config_for chooses, with every number of rows of blocks and every group
        lambda m, tile, group_size: (
            (m, tile, group_size) in ((16, TILES[1], 128), (64, TILES[0], 32))
        ),
    ),
)
def test_every_tile_configuration_of_the_faithful_kernel(m, tile, group_size, run_on):
    # deep tiles with a tail of n, as test_gates compiles the largest
    problem = testing.exact_problem(m, 320 if tile == TILES[0] else 256, 512, group_size, seed=m)
    actual = run_kernel("ampere", problem.x, problem.weight, tile=tile, sms=2, run_on=run_on).c
    assert (actual == problem.expected).all()


@pytest.mark.parametrize("k", (16, 48, 64, 80, 144, 832))
@pytest.mark.parametrize("n", (64, 192, 320))
@pytest.mark.parametrize("tile", cases(((tile,) for tile in TILES), lambda tile: tile == TILES[0]))
def test_tails_of_k_and_n(tile, n, k, run_on):
    problem = testing.exact_problem(5, n, k, -1, seed=k + n)
    assert (
        run_kernel("ampere", problem.x, problem.weight, tile=tile, run_on=run_on).c
        == problem.expected
    ).all()


@pytest.mark.parametrize("k", (32, 64, 80, 144))
@pytest.mark.parametrize("m", (1, 9, 35))
@pytest.mark.parametrize("name", PLAIN)
def test_tails_of_k_and_m_of_the_plain_rungs(name, m, k, run_on):
    """Tiles of 16 x 64 of x, groups that end inside a tile of k."""
    problem = testing.exact_problem(m, 128, k, 16, seed=k + m)
    assert (run_kernel(name, problem.x, problem.weight, run_on=run_on).c == problem.expected).all()


@pytest.mark.thorough
@pytest.mark.parametrize("sms", (1, 2, 3, 4, 5, 7, 16))
@pytest.mark.parametrize(
    "tile, group_size",
    cases(product(TILES, (-1, 128)), lambda tile, group_size: (tile, group_size) != (TILES[1], -1)),
)
def test_stripes_of_any_number_of_blocks(tile, group_size, sms, run_on):
    """Slices cut at every place: one block a slice, many blocks a slice, a block with parts of
    several slices."""
    problem = testing.exact_problem(3, 512, 640, group_size, seed=sms)
    assert (
        run_kernel("ampere", problem.x, problem.weight, tile=tile, sms=sms, run_on=run_on).c
        == problem.expected
    ).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "stages, blocks_per_sm, tile",
    cases(
        ((*depth, tile) for depth in ((3, 1), (5, 1), (6, 2)) for tile in TILES),
        # every other test has four
        lambda stages, blocks_per_sm, tile: stages == 6 and tile == TILES[0],
    ),
)
def test_any_depth_of_pipeline(stages, blocks_per_sm, tile, run_on):
    problem = testing.exact_problem(16, 512, 1280, 32, seed=stages)
    # the deepest as test_gates compiles it
    config = AmpereConfig(1, *tile, 2, stages, stages == 6, blocks_per_sm=blocks_per_sm)
    assert (
        run_kernel("ampere", problem.x, problem.weight, config=config, run_on=run_on).c
        == problem.expected
    ).all()


def test_several_row_tiles_share_one_launch(run_on):
    problem = testing.exact_problem(150, 256, 256, 128, seed=1)
    assert (
        run_kernel("ampere", problem.x, problem.weight, sms=5, run_on=run_on).c == problem.expected
    ).all()


@pytest.mark.parametrize("name, group_size", rungs((-1, 128)))
def test_identity_activations_return_the_dequantised_weight(name, group_size, run_on):
    """With x = I the output *is* the decoded weight: the layout, the nibbles and the scales, each
    bit of them."""
    generator = np.random.default_rng(3)
    k, n = 256, 128
    scales = testing.make_scales("ordinary", 1 if group_size == -1 else k // group_size, n, seed=5)
    weight = QuantizedWeight(
        codes=generator.integers(0, 16, (k, n), dtype=np.uint8),
        scales=scales,
        group_size=group_size,
    )
    # the second group begins at row 128
    x = np.eye(k, dtype=np.float16)[120:136]
    assert (run_kernel(name, x, weight, run_on=run_on).c == dequantize(weight)[120:136]).all()


@pytest.mark.parametrize(
    "max_m, tiles, group_sizes",
    (
        (16, TILES[:1], (-1, 32)),
        pytest.param(40, TILES, (-1, 32, 64, 128), marks=pytest.mark.thorough),
    ),
)
def test_any_shape_any_grid_is_exact(max_m, tiles, group_sizes, run_on):
    """One row of blocks, one tile and two kinds of groups are four kernels, which other tests
    compile too; all are ten times as many."""

    @settings(max_examples=12 if max_m > 16 else 6, deadline=None)
    @given(
        problem=testing.exact_problems(
            testing.problems(max_m=max_m, max_n=320, max_k=384, group_sizes=group_sizes)
        ),
        sms=st.integers(1, 6),
        tile=st.sampled_from(tiles),
    )
    def holds(problem, sms, tile):
        actual = run_kernel(
            "ampere", problem.x, problem.weight, sms=sms, tile=tile, run_on=run_on
        ).c
        assert (actual == problem.expected).all()

    holds()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ("denormal", "signed", "zero"))
@pytest.mark.parametrize("name, group_size", rungs((-1, 64)))
def test_unusual_scales_stay_under_the_bound(name, group_size, kind, run_on):
    generator = np.random.default_rng(11)
    k, n = 128, 128
    scales = testing.make_scales(kind, 1 if group_size == -1 else k // group_size, n, seed=2)
    weight = QuantizedWeight(
        codes=generator.integers(0, 16, (k, n), dtype=np.uint8),
        scales=scales,
        group_size=group_size,
    )
    x = generator.standard_normal((4, k)).astype(np.float16)
    report = reference.check(run_kernel(name, x, weight, run_on=run_on).c, x, weight)
    assert report.ok, report


def test_per_column_scales_are_applied_before_the_cast(run_on):
    """The original casts the sum to fp16 first and overflows: here sums of 2^20 meet scales of
    2^-10."""
    k, n = 256, 64
    weight = QuantizedWeight(
        codes=np.full((k, n), 12, np.uint8),
        scales=np.full((1, n), 2.0**-10, np.float16),
        group_size=-1,
    )
    x = np.full((2, k), 1024, np.float16)
    for name, _ in rungs((-1,)):
        assert (run_kernel(name, x, weight, run_on=run_on).c == 1024).all()


@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(warps_n=1, warps_k=1, stage_k=128, stages=3),
        WgmmaConfig(tile_n=64, warpgroups=1, tile_m=16, split=False, parts=2),
    ],
    ids=["decode", "wgmma"],
)
@pytest.mark.thorough
def test_partial_sums_between_blocks_may_be_larger_than_float16s_numbers(config, run_on):
    """The original puts them together in fp16: here blocks have sums of 2e5 and more, which all but
    cancel."""
    k, n = 1024, 64
    weight = QuantizedWeight(
        codes=np.full((k, n), 15, np.uint8),
        scales=np.ones((k // 128, n), np.float16),
        group_size=128,
    )
    x = np.full((2, k), 64, np.float16)
    x[:, k // 2 :] = -64
    x[:, -1] = -63
    backend = "cuda" if run_on == "cuda" else "emulator"
    y, info = nm.matmul(x, nm.pack(weight), backend, config=config, return_info=True)
    assert info.candidate.grid[0] > 1 and (y == 7).all()


@pytest.mark.parametrize(
    "name, group_size",
    # the larger a kernel, the longer the other compiler takes
    cases(rungs((64, -1)), lambda name, group_size: group_size != -1 and name != "ampere"),
)
def test_both_compilers_give_the_same_bits(name, group_size, run_on):
    if len(compiler.available_compilers()) < 2:
        pytest.skip(
            "only one compiler is installed here: the other is numba-cuda-mlir (extra mlir)"
        )
    x, weight = real_problem(9, 128, 256, group_size)
    bits = [
        run_kernel(name, x, weight, compiled_by=by, run_on=run_on).c.view(np.uint16)
        for by in compiler.available_compilers()
    ]
    assert (bits[0] == bits[1]).all()


@pytest.mark.parametrize(
    "target",
    cases(
        ((each,) for each in ("sm_80", "sm_86", "sm_89", "sm_120")),
        lambda target: target == "sm_80",
    ),
)
def test_every_target_gives_the_same_bits_on_the_machine(target, run_on):
    if run_on == "cuda":
        pytest.skip("a GPU runs its own target only")
    x, weight = real_problem(9, 128, 256, 64)
    expected = run_kernel("ampere", x, weight).c.view(np.uint16)
    assert (run_kernel("ampere", x, weight, target=target).c.view(np.uint16) == expected).all()
