"""Contract under test: W4A8 whose blocks share tiles along k gives the bits of its parts, added up
in the order of k, for every type and shape; and it is proposed where tiles leave multiprocessors
idle. (With offsets: test_w4a8_offsets.py.)
"""

from dataclasses import replace

import pytest

from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.problems import ActivationsProblem
from tests.kernels.harness import cases
from tests.kernels.many_rows import KINDS, PAIR, SMALLEST, right, same_bits

H200 = devices.device("H200")

PARTS = {
    "two": {"parts": 2},
    "more than a thread adds up at once": PAIR | {"tile_m": 64, "parts": 8, "stages": 5},
    "three, of groups of 32": {"parts": 3, "group_blocks": 2, "zeros": "integer"},
    "four, one scale per column": {"parts": 4, "group_blocks": -1, "bias": True},
    "in turns": PAIR | {"parts": 2, "dtype": "bfloat16"},
}


@pytest.mark.parametrize(
    "name", cases(((each,) for each in PARTS), lambda name: name in ("two", "in turns"))
)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up(kind, name, run_on):
    """Of 9 steps, so that parts are not equal, the last not full where k may be so; on more teams
    than tiles, and on fewer."""
    config = replace(SMALLEST[kind], **PARTS[name])
    k = 1152 if config.group_blocks == 8 else 1056
    for sms in (4 * config.parts, config.parts):
        right(36, 136, k, config, run_on, sms=sms)
        same_bits(36, 136, k, config, run_on, sms=sms)


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_parts_as_steps_and_no_more(kind, run_on):
    config = replace(SMALLEST[kind], parts=3)
    same_bits(20, 64, 384, config, run_on, sms=3)
    with pytest.raises(ValueError, match="parts=3 must be 2 at most: k=256"):
        same_bits(20, 64, 256, config, sms=3)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_integers_have_one_order_of_sums(kind):
    for group_blocks in (-1, 8):
        whole = replace(SMALLEST[kind], group_blocks=group_blocks)
        parts = replace(whole, parts=2)
        same = kind == "int8" and group_blocks == -1
        assert (whole.order_of_sums == parts.order_of_sums) == same


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_are_cut_where_they_leave_multiprocessors_idle(kind):
    def tiles(m, n, k):
        problem = ActivationsProblem(m, n, k, activations=kind)
        found = choose.configurations(problem, H200)
        assert all(each.tiles(m, n) * each.parts <= 132 for each in found if each.parts > 1)
        assert all(each.parts <= -(-k // 128) for each in found)
        best = candidate(problem, H200, f"wgmma_{kind}").config
        return best.tiles(m, n), best.parts

    few, parts = tiles(64, 8192, 28672)
    assert 66 < few * parts <= 132 and parts > 1
    assert tiles(64, 57344, 8192)[1] == 1  # enough of them
    assert tiles(64, 64, 128)[1] == 1  # one step


@pytest.mark.parametrize("kind", KINDS)
def test_batch_invariant_are_whole_tiles_and_parts_of_integers(kind):
    for group_size in (128, -1):
        problem = ActivationsProblem(64, 8192, 28672, group_size, activations=kind)
        found = choose.invariant_configurations(problem, H200)
        assert len({each.order_of_sums for each in found}) == 1
        of_integers = kind == "int8" and group_size == -1
        assert any(each.parts > 1 for each in found) == of_integers
