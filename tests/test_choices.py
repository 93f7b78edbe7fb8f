"""Contract under test: each kernel's own rules of choice (``choose.py``), at their limits: what one
row, one tile or another device changes, and what is said of it."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem, candidate, configured, rank
from numba_marlin.kernels.ampere import choose as ampere
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.nvfp4.block_decode import choose as block_decode
from numba_marlin.kernels.nvfp4.block_scaled import choose as block_scaled
from numba_marlin.kernels.wgmma import choose as wgmma
from numba_marlin.problems import BlockProblem

H200 = devices.device("H200")


@pytest.mark.parametrize("m, tokens", [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 32)])
def test_few_rows_get_the_least_tile_that_holds_them(m, tokens):
    assert block_decode.choose_few_rows(m, 4096, 132).tokens == tokens


@pytest.mark.parametrize(
    "result, activation, narrow",
    [
        ("float16", "gated_silu", False),
        ("bfloat16", "gated_silu", False),
        ("float32", "gated_silu", True),
        ("float16", None, True),
        ("float32", None, True),
    ],
)
def test_halves_of_a_gated_result_are_stored_from_wide_tiles_only(result, activation, narrow):
    """A result of one small tile, of which 128 x 64 ends first where it is allowed."""
    found = block_scaled.choose_tiles(128, 64, 132, result=result, activation=activation)
    assert (found.tile_m, found.tile_n) == ((128, 64) if narrow else (128, 128))


def test_the_tile_whose_last_wave_ends_first_is_taken():
    assert block_scaled.choose_tiles(256, 128, 1).tile_m == 256  # one tile, not two in turn
    assert block_scaled.choose_tiles(256, 128, 2).tile_m == 128


def ampere_us(m, device=H200, k=8192, sms=None):
    problem = Problem(m, 8192, k)
    device = device if sms is None else replace(device, sms=sms)
    config = ampere.configuration(problem, ampere.DEEP, device)
    return ampere.predicted_us(problem, config, device)


def test_only_tiles_of_few_rows_wait_for_the_memory_of_the_device():
    slow = replace(H200, bandwidth_bytes=H200.bandwidth_bytes / 2)
    unknown = replace(H200, bandwidth_bytes=None)
    for m, follows in ((16, True), (32, True), (33, False), (64, False)):
        assert (ampere_us(m, slow) > 1.3 * ampere_us(m)) == follows
        assert follows or ampere_us(m, slow) == ampere_us(m) == ampere_us(m, unknown)


def test_stripes_of_whole_tile_columns_are_shared_by_nobody():
    """64 columns of 64 tiles: each of 64 blocks has one; of 128 blocks two share one."""
    columns, k_tiles = 64, 64
    problem = Problem(64, 128 * columns, 128 * k_tiles)
    us = {}
    for sms in (columns, 2 * columns):
        device = replace(H200, sms=sms)
        config = ampere.configuration(problem, ampere.DEEP, device)
        found = ampere.work(problem, config, sms)
        assert found["tiles_per_block"] == columns * k_tiles // sms
        us[sms] = ampere.predicted_us(problem, config, device) / (
            1.0 if not ampere.wide_leads(problem, sms) else ampere.OTHER_SHAPE
        )
        alone = ampere.LAUNCH_US + found["tiles_per_block"] * ampere.TILE_US[4]
        assert us[sms] == pytest.approx(alone + (sms // columns - 1) * ampere.SHARING_US[4])


def test_who_shares_a_tile_is_told():
    problem = Problem(256, 8192, 8192)
    texts = {
        (config.split, config.parts > 1): " ".join(wgmma.reasons(problem, config, H200.sms))
        for config in wgmma.configurations(problem, H200)
        if config.tile_m == 128
    }
    assert "whole tiles only" in texts[False, False]
    assert "equal stripes" in texts[True, False]
    few = Problem(16, 1024, 8192)
    parts = [each for each in wgmma.configurations(few, H200) if each.parts > 1]
    assert parts
    for each in parts:
        said = " ".join(wgmma.reasons(few, each, H200.sms))
        assert f"{each.parts} blocks share each tile" in said and "whole tiles" not in said


def test_a_candidate_can_be_kept_in_a_set():
    problem = BlockProblem(64, 1024, 1024)
    kept = {candidate(problem, H200, "block_scaled"), candidate(problem, H200, "block_scaled")}
    assert len(kept) == 1 and len(set(rank(Problem(16, 4096, 4096), H200))) > 5


@pytest.mark.parametrize(
    "m, tall", [(128, False), (129, True), (256, True), (384, False), (511, True), (640, True)]
)
def test_no_tile_of_256_rows_is_half_empty(m, tall):
    """Unless there are many tiles: see ``choose._arranged``."""
    found = wgmma.configurations(Problem(m, 8192, 8192), H200)
    assert any(each.tile_m == 256 for each in found) == tall


def test_how_often_weights_are_read_is_told():
    few, many = (
        " ".join(candidate(Problem(m, 8192, 8192), H200, "ampere").reasons) for m in (64, 65)
    )
    assert "m=64 fits a tile of 64 rows: every weight is read once" in few
    assert "m=65 takes 2 passes of 64 rows" in many and "fits a tile" not in many
    pair = candidate(Problem(16, 57344, 8192), H200, "ampere")
    assert pair.config.blocks_per_sm == 2 and "2 blocks an SM" in " ".join(pair.reasons)
    assert "blocks an SM" not in few + many
    for config in decode.configurations(Problem(8, 8192, 8192), H200):
        said = " ".join(decode.reasons(Problem(8, 8192, 8192), config, 132))
        assert ("each one block's alone" in said) == config.whole
        assert ("take equal parts of" in said) != config.whole
        assert "passes" not in said and "takes 2 passes" in " ".join(
            decode.reasons(Problem(config.batch + 1, 8192, 8192), config, 132)
        )


def test_two_blocks_of_decode_an_sm_have_to_be_asked_for():
    """In a model they pile up (``choose.ALONE``)."""
    for m, n, k in ((1, 57344, 8192), (8, 28672, 4096), (16, 8192, 8192), (32, 8192, 28672)):
        problem = Problem(m, n, k)
        assert {each.resident for each in decode.configurations(problem, H200)} == {1}
        (pair,) = (each for each in decode.FITTED if each.resident == 2)
        asked = configured(problem, H200, "decode", asdict(pair) | {"ragged": False})
        found = candidate(problem, H200, "decode", asked)
        assert found.config == asked and decode.was_timed(asked)


def test_a_time_that_nobody_measured_is_said_to_be_a_guess():
    for types, timed in (({}, True), ({"bits": 8}, False), ({"zeros": "integer"}, False)):
        problem = Problem(8, 8192, 8192, **types)
        for config in decode.configurations(problem, H200):
            said = " ".join(decode.reasons(problem, config, 132))
            assert ("nobody timed this arrangement" not in said) == timed


def test_a_step_of_a_tile_that_was_not_timed_is_found_between_its_neighbours():
    """Of the timed tiles, those with neighbours on both sides are found from the others."""
    held_out = {}
    for each, us in wgmma.STEP_US.items():
        others = {other: known for other, known in wgmma.STEP_US.items() if other != each}
        rows = [other.tile_m for other in others if other.columns_like(each)]
        if rows and min(rows) < each.tile_m < max(rows):
            held_out[each] = wgmma.Costs(step=others).step_of(each) / us - 1
    assert len(held_out) == 11 and max(map(abs, held_out.values())) < 0.08
    between = wgmma.Arrangement(80, 256, 2, 1, 8)
    steps = {each.tile_m: us for each, us in wgmma.STEP_US.items() if each.columns_like(between)}
    assert wgmma.COSTS.step_of(between) == pytest.approx((steps[64] + steps[96]) / 2)


def test_tiles_that_fill_one_wave_are_chosen():
    """512 rows, 5120 columns: of 176 x 128, three by forty, all tiles are in one wave; of 128 x
    128, four by forty, they are not."""
    assert candidate(Problem(512, 5120, 4096), H200, "wgmma").config.tile_m in (176, 192)


def test_a_tile_costs_more_the_more_blocks_share_it():
    """7168 x 576 in stripes: 26 blocks for each of five tiles, which took 9.2 us where eight equal
    parts took 5.2 (experiments/25_every_cell)."""
    problem = Problem(32, 576, 7168)
    chosen = candidate(problem, H200, "wgmma").config
    assert (chosen.tile_m, chosen.tile_n, chosen.parts) == (16, 128, 8)
    stripes = replace(chosen, tile_m=32, split=True, parts=1)
    us = wgmma.predicted_us(problem, stripes, H200)
    assert us == pytest.approx(9.2, rel=0.1)
    assert wgmma.predicted_us(problem, stripes, H200, replace(wgmma.COSTS, sharer=0.0)) < us - 1


def test_clocks_fall_with_the_length_of_a_launch():
    factors = [wgmma.COSTS.of_clocks(us, 128) for us in (10.0, 60.0, 200.0, 500.0, 5000.0)]
    assert factors[0] == factors[1] == 1 and factors == sorted(factors)
    assert factors[3] == factors[4] == wgmma.COSTS.sustained_slower
    assert wgmma.COSTS.of_clocks(5000.0, 48) == 1


def test_no_configuration_is_tried_twice():
    for m in (1, 16, 64, 128, 256, 1024):
        found = wgmma.configurations(Problem(m, 8192, 8192), H200)
        assert len(set(found)) == len(found)


def test_the_kernel_for_few_rows_leads_up_to_its_limit():
    for m, kernel in ((64, "block_decode"), (65, "block_scaled")):
        assert rank(BlockProblem(m, 8192, 8192), H200)[0].kernel == kernel


def test_two_blocks_an_sm_where_both_have_enough_to_do_and_fit():
    problem = Problem(16, 51200, 8192)
    tiles = (51200 // 128) * (8192 // 128)
    sms = int(tiles // (2 * ampere.TILES_FOR_TWO))  # at most so many have enough
    for count, blocks in ((sms, 2), (sms + 1, 1)):
        device = replace(H200, sms=count)
        assert ampere.configuration(problem, ampere.DEEP, device).blocks_per_sm == blocks
    pair = ampere.configuration(problem, ampere.DEEP, replace(H200, sms=sms))
    full = 2 * (pair.shared_bytes + ampere.SYSTEM_SHARED_BYTES)
    for nbytes, blocks in ((full, 2), (full - 1, 1)):
        architecture = replace(H200.architecture, shared_bytes_per_sm=nbytes)
        small = SimpleNamespace(sms=sms, architecture=architecture)
        assert ampere.configuration(problem, ampere.DEEP, small).blocks_per_sm == blocks


def test_what_the_next_launch_reads_ahead_fades_as_tiles_take_the_multiprocessors():
    """Whole tiles of 64 columns: from all of it, at half of them, to nothing where every one is
    taken."""

    def us(tiles):
        problem = Problem(1, 64 * tiles, 4096, 128)
        config = next(each for each in decode.configurations(problem, H200) if each.whole)
        return decode.predicted_us(problem, config, H200)

    times = [us(tiles) for tiles in (66, 67, 90, 131, 132)]
    assert times == sorted(times) and times[0] < 0.8 * times[-1]
    assert times[1] < 1.03 * times[0] and times[-1] < 1.03 * times[-2]
