"""Contract under test: configurations of a kernel that have the same ``order_of_sums`` give a row
of x the same bits, whatever m, the tile, the grid and the row's place; where it is None the bits
hang on m. The data are sums that nearly cancel, so that results tell in which order they were added
up.

``pytest --run-on cuda`` asks a GPU, for every m from 1 to 257, with the configurations that the
batch-invariant mode takes.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import heuristics, pack, shard, unpack
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.heuristics import LADDER, Problem, candidate, find_kernel
from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.buffered import BufferedConfig
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.general import GeneralConfig
from numba_marlin.kernels.naive import NaiveConfig
from numba_marlin.kernels.tiled import TiledConfig
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.quantizers import quantize
from tests.kernels import configurations
from tests.kernels.harness import PLAIN, cases, run_kernel

# k: five stages of 64, so that rows of consumers change their parts from tile to tile
ROWS, N, K, GROUP = 40, 128, 320, 32
DECODE = DecodeConfig(
    batch=8, warps_n=1, warps_k=2, stage_k=64, stages=3, group_blocks=2, whole=True
)
WGMMA = WgmmaConfig(tile_m=16, tile_n=64, warpgroups=1, stages=2, group_blocks=2, split=False)
AMPERE = AmpereConfig(1, 8, 8, 2, 4, True, whole=True)
ALIKE = {  # configurations that differ in all that must not matter
    "general": [GeneralConfig(GROUP)],
    "naive": [NaiveConfig(GROUP)],
    "tiled": [TiledConfig(GROUP)],
    "buffered": [BufferedConfig(GROUP)],
    "ampere, deep": [AMPERE, replace(AMPERE, thread_m_blocks=3)],
    "decode": [DECODE, replace(DECODE, batch=24, warps_n=2, stages=2, ragged=True)],
    "decode, a tail": [
        replace(DECODE, stage_k=128, ragged=True),
        replace(DECODE, stage_k=128, batch=16, ragged=True),
    ],
    "wgmma": [WGMMA, replace(WGMMA, tile_m=32, tile_n=128, warpgroups=2, stages=3, group_m=1)],
    "wgmma, two rows of consumers": [
        replace(WGMMA, k_groups=2, stages=4),
        replace(WGMMA, tile_m=32, k_groups=2, stages=4),
    ],
    "wgmma, pairs of blocks": [
        replace(WGMMA, tile_m=32, cluster=2),
        replace(WGMMA, parts=2),
        replace(WGMMA, tile_m=48, tile_n=128, cluster=2),
    ],
}
# show once more what others of their kernel show
THOROUGH = (
    "ampere, deep",
    "decode, a tail",
    "decode",
    "wgmma",
    "wgmma, two rows of consumers",
    "wgmma, pairs of blocks",
)
SHARED_K, SHARED_GROUP = 384, 64
SHARING = {  # as other tests compile them
    "ampere": AmpereConfig(1, 8, 8, 4, 4),
    "decode": configurations.DECODE,
    "wgmma": replace(configurations.WGMMA, group_blocks=4),
}


@functools.cache
def cancelling(rows, n, k, group_size):
    """x and weights of which the second half of k nearly takes back what the first half adds; half
    of k is whole groups."""
    generator = np.random.default_rng(rows + n + k)
    half = generator.standard_normal((rows, k // 2)) * 30
    x = np.concatenate(
        [half, -half * (1 + generator.standard_normal(half.shape) * 2.0**-9)], axis=1
    ).astype(np.float16)
    w = generator.standard_normal((k // 2, n)).astype(np.float32)
    weight = quantize(np.concatenate([w, w]), group_size=group_size)
    return x, weight


def bits(config, x, weight, run_on, sms):
    return run_kernel(
        find_kernel(heuristics.kernel_of(config)), x, weight, config=config, run_on=run_on, sms=sms
    ).c.view(np.uint16)


@pytest.mark.parametrize(
    "name", cases(((name,) for name in ALIKE), lambda name: name not in THOROUGH)
)
def test_the_same_order_of_sums_gives_the_same_bits(name, run_on, thorough):
    x, weight = cancelling(ROWS, N, K, GROUP)
    definition = find_kernel(heuristics.kernel_of(ALIKE[name][0]))
    assert len({definition.order_of_sums(config) for config in ALIKE[name]} | {None}) == 2, (
        "one order, not None"
    )
    expected = bits(ALIKE[name][0], x, weight, run_on, sms=4)
    for config in ALIKE[name] if thorough else ALIKE[name][:2]:
        for first, m, sms in ((0, ROWS, 2), (39, 1, 4), (20, 7, 3), (3, 17, 2)):
            found = bits(config, x[first : first + m], weight, run_on, sms)
            assert (found == expected[first : first + m]).all(), (config, first, m, sms)


PLACES = {  # ragged: 144 columns, and 136 of them
    "decode, two owners": replace(DECODE, ragged=True),
    "decode, four owners": replace(DECODE, warps_k=4, stage_k=128, ragged=True),
    "decode, more warps than owners": replace(DECODE, warps_k=8, stage_k=256, ragged=True),
    "wgmma, two rows of consumers": ALIKE["wgmma, two rows of consumers"][0],
    "wgmma, pairs of blocks": ALIKE["wgmma, pairs of blocks"][0],
}


@pytest.mark.parametrize(
    "name", cases(((name,) for name in PLACES), lambda name: name == "decode, four owners")
)
def test_the_place_of_a_column_in_a_tile_does_not_change_its_bits(name, run_on):
    """So that a part of a weight's columns gives the bits of the whole (``rank``'s whole_n)."""
    x, weight = cancelling(ROWS, 144, K, GROUP)
    part = unpack(shard(pack(weight), 1, 2, "n", sizes=(8, 136)))
    whole = bits(PLACES[name], x, weight, run_on, sms=4)
    assert (bits(PLACES[name], x, part, run_on, sms=4) == whole[:, 8:]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHARING)
def test_where_tiles_are_shared_bits_hang_on_m(name, run_on):
    """What the mode is for, and that the test above can fail."""
    config = SHARING[name]
    assert find_kernel(name).order_of_sums(config) is None
    x, weight = cancelling(ROWS, N, SHARED_K, SHARED_GROUP)
    alone = [bits(config, x[:m], weight, run_on, sms=3)[:1] for m in (1, ROWS)]
    assert (alone[0] != alone[1]).any()


def test_another_order_of_sums_gives_other_bits(run_on, thorough):
    """So none of the orders is split finer than it need be, and the data tell."""
    x, weight = cancelling(ROWS, N, K, GROUP)
    found = [
        bits(configs[0], x, weight, run_on, sms=4)
        for name, configs in ALIKE.items()
        if name not in ("general", *PLAIN) and (thorough or name not in THOROUGH)
    ]
    assert all(
        (one != other).any() for position, one in enumerate(found) for other in found[:position]
    )


@pytest.mark.parametrize(
    "kernel, group_size",
    [(name, size) for name in LADDER for size in (-1, 128) if size != -1 or name not in PLAIN],
)
def test_every_batch_up_to_257_has_the_bits_of_257_on_a_gpu(kernel, group_size, run_on):
    if run_on != "cuda":
        pytest.skip(
            "a GPU's business: what an instruction does with its width is the machine's own choice"
            " here"
        )
    device = driver.describe(0)
    if not device.runs(find_kernel(kernel).min_arch):
        pytest.skip(f"{kernel} does not run on {device.arch}")
    for n, k in ((576, 1280), (1024, 4352)):
        x, weight = cancelling(257, n, k, group_size)

        def found(first, m, n=n, k=k, x=x, weight=weight):
            chosen = candidate(Problem(m, n, k, group_size, batch_invariant=True), device, kernel)
            return bits(chosen.config, x[first : first + m], weight, run_on, device.sms)

        expected = found(0, 257)
        for m in range(1, 257):
            first = 97 * m % (258 - m)
            assert (found(first, m) == expected[first : first + m]).all(), (n, k, first, m)


def test_the_mode_proposes_nothing_of_which_the_order_hangs_on_m():
    for name in devices.names():
        for problem in (
            Problem(1, 576, 7168),
            Problem(300, 8192, 8192, 64),
            Problem(17, 72, 272, -1, bias=True),
        ):
            for each in heuristics.rank(
                replace(problem, batch_invariant=True), devices.device(name)
            ):
                assert find_kernel(each.kernel).order_of_sums(each.config) is not None
