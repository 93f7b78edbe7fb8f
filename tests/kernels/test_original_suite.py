"""Contract under test: the faithful kernel is right for every shape of the original Marlin's tests,
and gives the same bits every time.

The original checks the mean error of a whole matrix against 0.001; here every output is held under
its own bound (``reference``), C and the partial sums start as NaN, guard bands and locks are looked
at after each launch. ``order="random"`` is allowed: the data are random. Where the reference would
take long (more than ``CHECKED_WEIGHTS`` weights), one random column out of every few is checked,
and all others for being finite.

``pytest --run-on cuda`` runs all of it. On the PTX machine the same tests run a subset, batches of
at most ``MACHINE_BATCHES[-1]`` rows; what it cannot do in a few seconds is skipped by name. Large
weights are random codes and scales: to quantise them would take longer than all the rest.
"""

import functools
import itertools

import numpy as np
import pytest

from numba_marlin import compiler, reference
from numba_marlin.formats import QuantizedWeight
from numba_marlin.hostloops import pack_marlin
from tests.kernels.harness import KERNELS, TILES, cases, on_gpu, prepare, run_kernel, sms_of

BATCHES = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 118, 128, 152, 768, 1024)
MACHINE_BATCHES = (1, 16, 17, 33, 48, 64, 152)
# As the heuristics choose tiles: one row of blocks, and more; test_ladder has two rows of tiles.
TELLING = {TILES[0]: (1, 16), TILES[1]: (17, 48)}
LLAMA = ((8192, 8192), (28672, 8192), (8192, 57344), (4096, 4096), (10752, 4096))  # k, n
CHECKED_WEIGHTS = 1 << 24
# at least 100 are asked for; a race seen while the kernel was written showed in one launch of some
# hundred
LAUNCHES = 500


def need_gpu(run_on, why):
    if run_on != "cuda":
        pytest.skip(f"{why}: run it on a GPU with --run-on cuda")


@functools.lru_cache(maxsize=1)
def random_weight(n, k, group_size, seed=0):
    """-> (QuantizedWeight, PackedWeight) of uniform codes and scales."""
    generator = np.random.default_rng((seed, n, k))
    codes = np.frombuffer(generator.bytes(k * n), np.uint8).reshape(k, n) & np.uint8(15)
    scales = generator.uniform(
        0.005, 0.025, (1 if group_size == -1 else k // group_size, n)
    ).astype(np.float16)
    weight = QuantizedWeight(codes=codes, scales=scales, group_size=group_size)
    return weight, pack_marlin(weight)


def random_x(m, k, seed=0):
    return np.random.default_rng((seed, m, k)).standard_normal((m, k)).astype(np.float16)


def columns_to_check(n, k):
    """All, or a random one out of every ``step``."""
    step = -(-n * k // CHECKED_WEIGHTS)
    first = np.arange(0, n, step)
    return np.minimum(first + np.random.default_rng((n, k)).integers(0, step, first.size), n - 1)


def judge(c, x, weight, what):
    columns = columns_to_check(weight.n, weight.k)
    narrow = weight
    if columns.size < weight.n:
        narrow = QuantizedWeight(
            codes=weight.codes[:, columns],
            scales=weight.scales[:, columns],
            group_size=weight.group_size,
        )
    report = reference.check(c[:, columns], x, narrow, order="random")
    assert report.ok, f"{what}: {report}"
    assert np.isfinite(c).all(), f"{what}: {np.argwhere(~np.isfinite(c))[0]} is not finite"


def run_and_judge(m, n, k, group_size, tile, run_on):
    weight, packed = random_weight(n, k, group_size)
    x = random_x(m, k)
    c = run_kernel("ampere", x, packed, tile=tile, sms=sms_of(run_on), run_on=run_on).c
    judge(c, x, weight, f"m={m}, n={n}, k={k}, group_size={group_size}, tile={tile}")


@pytest.mark.parametrize(
    "m, tile",
    cases(
        itertools.product(BATCHES, TILES),
        lambda m, tile: m in TELLING[tile] or m > MACHINE_BATCHES[-1],
    ),
)
def test_every_batch_size(m, tile, run_on):
    if m > MACHINE_BATCHES[-1]:
        need_gpu(run_on, f"m={m} takes the machine several seconds")
    run_and_judge(m, 512, 1024, -1, tile, run_on)


@pytest.mark.parametrize(
    "k, tile",
    # the deep tiles can be half full
    cases(
        itertools.product((64, 128, 192, 768, 832, 896), TILES), lambda k, tile: tile == TILES[0]
    ),
)
def test_every_depth(k, tile, run_on):
    """Fewer tiles than stages, a last tile half full, a last round of the pipeline cut short at
    each stage."""
    run_and_judge(16, 512, k, -1, tile, run_on)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("n, k", ((256, 512), pytest.param(256, 1024, marks=pytest.mark.thorough)))
def test_groups_of_128_at_every_batch_size_to_64(n, k, tile, run_on, thorough):
    """The original tests groups at m=16 alone."""
    on_machine = MACHINE_BATCHES[:-1] if thorough else (1, 16) if tile == TILES[0] else (64,)
    for m in range(1, 65) if run_on == "cuda" else on_machine:
        run_and_judge(m, n, k, 128, tile, run_on)


@pytest.mark.parametrize("tile", TILES)
def test_groups_of_128_in_a_wide_matrix(tile, run_on):
    need_gpu(run_on, "33 million weights")
    run_and_judge(16, 32768, 1024, 128, tile, run_on)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("k, n", LLAMA)
def test_shapes_of_llama(k, n, tile, run_on):
    need_gpu(run_on, f"{k * n / 1e6:.0f} million weights")
    for m in (1, 16, 64):
        run_and_judge(m, n, k, 128, tile, run_on)
    random_weight.cache_clear()  # up to 700 MB


def at_home(name, m, n, k, group_size, *, seed=0, stream=0, **options):
    """(x, weight, a DeviceProblem not launched yet)"""
    weight, packed = random_weight(n, k, group_size)
    x = random_x(m, k, seed)
    return (
        x,
        weight,
        on_gpu(
            prepare(name, x, packed, run_on="cuda", sms=sms_of("cuda"), **options), stream=stream
        ),
    )


# Slices shared by many blocks, groups that span two tiles of k, groups smaller than a tile, tails,
# several row tiles.
REPEATED = (
    (1, 256, 16384, 128, (16, 4)),
    (16, 4096, 4096, 128, (16, 4)),
    (16, 8192, 8192, 128, (8, 8)),
    (64, 256, 16384, -1, (16, 4)),
    (33, 1984, 4096, 32, (16, 4)),
    (48, 1024, 4096, 64, (8, 8)),
    (16, 320, 4112, -1, (8, 8)),
    (150, 512, 2048, 128, (16, 4)),
)


@pytest.mark.parametrize("m, n, k, group_size, tile", REPEATED)
def test_every_launch_gives_the_same_bits(m, n, k, group_size, tile, run_on):
    need_gpu(run_on, f"{LAUNCHES} launches; the machine is deterministic")
    x, weight, problem = at_home("ampere", m, n, k, group_size, tile=tile)
    bits = problem.repeat(LAUNCHES)
    problem.collect()
    differing = np.flatnonzero((bits != bits[0]).any(axis=(1, 2)))
    assert differing.size == 0, (
        f"launches {differing[:10]} of {LAUNCHES} differ from the first in up to"
        f" {(bits != bits[0]).sum(axis=(1, 2)).max()} outputs"
    )
    judge(bits[0].view(np.float16), x, weight, "the first launch")


@pytest.mark.parametrize(
    "m, n, k, group_size",
    (
        (1, 512, 1024, -1),
        (16, 4096, 4096, 128),
        (64, 1024, 2048, 64),
        (150, 320, 832, 32),
        (16, 192, 4112, -1),
    ),
)
@pytest.mark.parametrize("name", KERNELS)
def test_both_compilers_give_the_same_bits_at_full_size(name, m, n, k, group_size, run_on):
    """(``test_ladder`` has the small shapes, which the machine runs too.)"""
    need_gpu(run_on, "a full-size matrix, for every kernel and both compilers")
    if len(compiler.available_compilers()) < 2:
        pytest.skip(
            "only one compiler is installed here: the other is numba-cuda-mlir (extra mlir)"
        )
    bits = []
    for compiled_by in compiler.available_compilers():
        x, weight, problem = at_home(name, m, n, k, group_size, compiled_by=compiled_by)
        bits.append(problem.launched().collect()["c"].view(np.uint16))
    assert np.array_equal(*bits), f"{(bits[0] != bits[1]).sum()} of {bits[0].size} outputs differ"
    judge(bits[0].view(np.float16), x, weight, f"{name}, {compiled_by}")


def test_streams_with_their_own_workspaces_do_not_disturb_each_other(run_on):
    """Kernels that wait for their own blocks compete for the multiprocessors: each must still end,
    with the bits it gives alone."""
    need_gpu(run_on, "the machine has no streams")
    from tests.kernels.on_gpu import Streams

    with Streams(4) as streams:
        problems = [
            at_home("ampere", m, 4096, 4096, 128, seed=m, stream=stream)
            for stream, m in zip(streams, (1, 16, 40, 64))
        ]
        alone = [problem.launched().collect()["c"].view(np.uint16) for _, _, problem in problems]
        for _ in range(50):
            for _, _, problem in problems:
                problem.launch()
        for (x, weight, problem), expected in zip(problems, alone):
            together = problem.collect()["c"]
            assert np.array_equal(together.view(np.uint16), expected), (
                f"m={x.shape[0]} gave other bits beside other streams"
            )
            judge(together, x, weight, f"m={x.shape[0]} beside other streams")
