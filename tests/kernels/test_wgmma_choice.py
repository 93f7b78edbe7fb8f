"""Contract under test: the choices for the wgmma kernel are configurations that exist, and lead where they led on an H200."""
import pytest

from numba_marlin.kernels.wgmma_choice import ARRANGEMENTS, choices, config_of

MEASURED = {  # (m, n, k) -> microseconds of the fastest on an H200, g = 128, and its (tile_m, tile_n)
    (32, 8192, 8192): (19.3, (32, 256)), (64, 8192, 8192): (23.5, (64, 256)), (128, 8192, 8192): (30.5, (128, 128)), (256, 8192, 8192): (52.3, (256, 64)),
    (1024, 8192, 8192): (177.4, (256, 128)), (4096, 8192, 8192): (782.6, (256, 128)),
    (32, 33792, 16384): (104.4, (32, 256)), (64, 33792, 16384): (128.5, (64, 256)), (128, 33792, 16384): (180.3, (128, 256)),
}


@pytest.mark.parametrize("problem", MEASURED)
def test_the_first_choice_is_the_one_that_led_and_takes_about_as_long(problem):
    best, (microseconds, tile) = choices(*problem, 128, 132)[0], MEASURED[problem]
    assert (best.config.tile_m, best.config.tile_n) == tile
    assert best.microseconds == pytest.approx(microseconds, rel=0.1)


@pytest.mark.parametrize("m", (1, 33, 129, 1000))
@pytest.mark.parametrize("n, k, group_size", ((8, 16, -1), (576, 7168, 32), (7392, 10944, 64), (131072, 131072, 256)))
def test_any_problem_has_choices(m, n, k, group_size):
    for choice in choices(m, n, k, group_size, 132):
        assert choice.microseconds > 0 and 1 <= choice.config.grid(m, n, k, 132)[0] <= 132


@pytest.mark.parametrize("group_blocks", (-1, 2, 4, 8, 16))
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_every_arrangement_fits_into_shared_memory_with_any_group(arrangement, group_blocks):
    assert config_of(arrangement, group_blocks).shared_bytes > 0
