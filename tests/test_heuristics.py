"""Contract under test: ``heuristics`` ranks what fits the problem and the device by a time that was
near the truth where somebody looked, and says why. Pure."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin import heuristics
from numba_marlin.hardware import devices
from numba_marlin.hardware.architectures import AMPERE
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import (
    LADDER,
    Problem,
    candidate,
    check_config,
    default_config,
    explain,
    find_kernel,
    rank,
    tuned,
)
from numba_marlin.kernels.language.definition import ceil_div

H200 = devices.device("H200")


def tile(config):
    return 16 * config.thread_m_blocks, 16 * config.thread_n_blocks, 16 * config.thread_k_blocks


@pytest.mark.parametrize(
    "m, n, expected",
    [
        (1, 8192, (16, 128, 128)),
        (16, 8192, (16, 128, 128)),
        (17, 8192, (32, 128, 128)),
        (33, 8192, (48, 128, 128)),
        (64, 8192, (64, 128, 128)),
        (128, 8192, (64, 128, 128)),
        (256, 8192, (64, 256, 64)),
        (1024, 8192, (64, 256, 64)),
        (1, 57344, (16, 256, 64)),
        (64, 33792, (64, 256, 64)),
    ],
)
def test_wide_tiles_lead_where_they_keep_every_sm_busy_alone(m, n, expected):
    assert tile(candidate(Problem(m, n, 8192), H200, "ampere").config) == expected


@given(
    m=st.integers(1, 200),
    n=st.integers(1, 40).map(lambda i: 64 * i),
    k=st.integers(1, 20).map(lambda i: 128 * i),
    group_size=st.sampled_from((-1, 32, 64, 128)),
    sms=st.integers(1, 200),
)
def test_every_candidate_fits_its_problem_and_its_device(m, n, k, group_size, sms):
    device = Device(name="some", sms=sms, compute_capability=(9, 0), source="model")
    problem = Problem(m, n, k, group_size)
    found = rank(problem, device)
    assert {each.kernel for each in found} == {
        name for name in LADDER if not find_kernel(name).takes.refusals(problem)
    }
    assert len({(each.kernel, each.config) for each in found}) == len(found), "no candidate twice"
    predicted = [each.figures.get("predicted_us", float("inf")) for each in found]
    assert predicted == sorted(predicted) and predicted[0] > 0
    for each in found:
        check_config(each.kernel, each.config, problem)
        assert each.shared_bytes <= device.shared_bytes_per_block
        assert all(blocks >= 1 for blocks in each.grid)
        if "tiles" in each.figures:
            tiles, cluster = each.figures["tiles"], getattr(each.config, "cluster", 1)
            assert (
                each.figures["blocks"] * each.figures["tiles_per_block"]
                >= tiles["k"] * tiles["n"] * tiles["m"]
            ), "all of the work is given out"
            assert 0 < each.figures["busy"] <= 1 and each.grid[0] % cluster == 0
        if each.kernel == "ampere":
            assert each.grid[0] <= sms * each.config.blocks_per_sm, (
                "blocks wait for each other: all must be resident"
            )
            assert each.config.ragged == bool(n % tile(each.config)[1] or k % tile(each.config)[2])
        if each.kernel == "decode":
            assert each.config.ragged == bool(n % each.config.columns or k % each.config.stage_k)


def test_every_figure_of_a_known_case():
    first = candidate(Problem(16, 8192, 8192), H200, "ampere")
    # 64 x 64 tiles of 128 x 128 over 132 SMs: 4096 / 132 = 31.03 tiles a block, so 32 for some
    assert first.grid == (132, 1, 1)
    assert first.figures["tiles"] == {"k": 64, "n": 64, "m": 1}
    assert first.figures["tiles_per_block"] == 32
    least = 2 * 16 * 8192 + 8192 * 8192 // 2 + 2 * 64 * 8192 + 2 * 16 * 8192
    assert first.figures["least_bytes"] == least
    assert first.figures["memory_us"] == round(least / 4.8e12 * 1e6, 3)


def test_a_config_that_does_not_fit_in_shared_memory_is_left_out_and_refused_by_name():
    small = Device(
        name="small",
        sms=10,
        compute_capability=(8, 0),
        source="model",
        limits=replace(AMPERE, shared_bytes_per_sm=17 * 1024),
    )
    problem = Problem(16, 256, 1024)
    assert [each.kernel for each in rank(problem, small)] == [
        "buffered",
        "tiled",
        "naive",
        "general",
    ], "nobody knows their times: the simplest last"
    with pytest.raises(ValueError, match=r"shared_bytes=\d+ per block, small has 16384"):
        candidate(problem, small, "ampere")


def test_shared_memory_may_be_full_to_the_last_byte():
    problem = Problem(16, 256, 1024)
    chosen = candidate(problem, H200, "ampere")

    def device(nbytes):  # a kilobyte of each block's is the system's
        limits = replace(AMPERE, shared_bytes_per_sm=nbytes + 1024)
        about = {"name": "exact", "sms": 10, "compute_capability": (8, 0), "source": "model"}
        return Device(**about, limits=limits)

    exact = candidate(problem, device(chosen.shared_bytes), "ampere", chosen.config)
    assert exact.shared_bytes == chosen.shared_bytes
    with pytest.raises(ValueError, match=f"exact has {chosen.shared_bytes - 1}"):
        candidate(problem, device(chosen.shared_bytes - 1), "ampere", chosen.config)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 256, 1024), "m=0 must be positive"),
        ((-1, 256, 1024), "m=-1 must be positive"),
        ((2**31, 256, 1024), "m=2147483648 must be positive and fit in 32 bits"),
        ((16, 100, 1024), "n=100 must be a positive multiple of 8"),
        ((16, 256, 1000), "k=1000"),
        ((16, 256, 1032), "k=1032"),
        ((16, 256, 1024, 48), "group_size=48"),
        ((16, 256, 192, 128), "group_size=128 must divide k=192"),
        ((16, 256, 1024, 0), "group_size=0 must be positive"),
    ],
)
def test_impossible_problems_are_refused_by_value_and_rule(arguments, message):
    with pytest.raises(ValueError, match=message):
        explain(*arguments)


def test_a_size_that_is_no_int_is_a_type_error():
    # NumPy's are ints
    assert json.dumps(explain(np.int64(4), 64, 64, 64, "H200").to_dict()) == json.dumps(
        explain(4, 64, 64, 64, "H200").to_dict()
    )
    with pytest.raises(TypeError, match="m=1.0 must be an int"):
        explain(1.0, 256, 1024)


def test_the_faithful_kernel_leaves_multiprocessors_idle_only_where_no_slice_is_shared_then():
    """k in tiles, slices, multiprocessors: all small ones, and the one that the rule is there
    for."""
    config, idle = default_config("ampere", Problem(64, 64, 128), H200), 0
    for k_tiles, slices, sms in (
        *itertools.product(range(1, 70, 3), range(1, 150, 3), (1, 7, 40, 132)),
        (128, 128, 132),
    ):
        blocks = config.grid(
            16 * config.thread_m_blocks,
            16 * config.thread_n_blocks * slices,
            16 * config.thread_k_blocks * k_tiles,
            sms,
        )[0]
        if blocks < min(sms, k_tiles * slices):
            idle += 1
            assert ceil_div(k_tiles * slices, blocks) % k_tiles == 0, (k_tiles, slices, sms, blocks)
    assert blocks == 128 and idle > 1


def test_more_tiles_than_the_faithful_kernel_can_count_are_refused():
    config = default_config("ampere", Problem(64, 64, 128), H200)
    assert config.grid(64 * 2**15 - 64, 128 * 2**17, 128, 1) == (1, 1, 1)
    with pytest.raises(ValueError, match="4294967296 tiles for 132 blocks, must be 2..32 at most"):
        config.grid(64 * 2**15, 128 * 2**17, 128, 132)


def test_a_problem_that_no_kernel_takes_is_refused_with_every_reason():
    with pytest.raises(
        ValueError,
        match="no kernel runs m=2147483647, n=1073741824, k=16.*tiles for.*beyond CUDA's limit",
    ):
        explain(2**31 - 1, 2**30, 16, -1)


def test_a_device_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="device is a int, must be a name or a Device"):
        explain(1, 64, 128, device=0)


def test_a_grid_beyond_cudas_limits_is_refused():
    with pytest.raises(ValueError, match="beyond CUDA's limit"):
        candidate(Problem(16 * 65536, 64, 128, 64), H200, "tiled")


def test_a_config_for_other_groups_or_without_the_tail_code_is_refused():
    problem = Problem(16, 320, 1024, 128)
    with pytest.raises(ValueError, match="group_blocks=2 must be 8"):
        check_config("ampere", default_config("ampere", Problem(16, 320, 1024, 32), H200), problem)
    with pytest.raises(ValueError, match="ragged=False needs n=320"):
        check_config("ampere", default_config("ampere", Problem(16, 256, 1024, 128), H200), problem)
    with pytest.raises(ValueError, match="config.group_size=64 must be"):
        check_config("tiled", default_config("tiled", Problem(16, 320, 1024, 64), H200), problem)
    with pytest.raises(TypeError, match="kernel 'ampere' needs a AmpereConfig"):
        check_config("ampere", default_config("tiled", problem, H200), problem)


@pytest.mark.parametrize("name", devices.names())
def test_an_explanation_reads_and_serialises_for_every_known_device(name):
    explanation = explain(7, 320, 1040, -1, device=name)
    assert "tail" in str(explanation)
    assert (
        json.loads(json.dumps(explanation.to_dict()))["candidates"][0]["kernel"]
        == explanation.choice.kernel
    )
    assert explanation.to_dict()["device"]["source"] in ("spec", "model")


def test_an_unknown_device_or_kernel_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="device='H300' is not one of A100"):
        explain(1, 64, 128, device="H300")
    with pytest.raises(
        ValueError, match="kernel='warp' must be one of general, naive, tiled, buffered, ampere,"
    ):
        heuristics.find_kernel("warp")


@pytest.mark.parametrize(
    "capability, target",
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_120"),
        ((13, 0), "sm_80"),
    ],
)
def test_targets_of_devices(capability, target):
    assert devices.target_of(capability) == target


def test_machine_code_runs_on_later_minors_of_its_major_version_only():
    assert devices.runs_machine_code("sm_80", (8, 9))
    assert not devices.runs_machine_code("sm_89", (8, 6))
    assert not devices.runs_machine_code("sm_80", (9, 0))
    assert not devices.runs_machine_code("sm_90a", (9, 1)), (
        "architecture-specific code runs nowhere else"
    )
    with pytest.raises(ValueError, match="7.5 is below 8.0"):
        devices.target_of((7, 5))


def test_large_problems_of_few_rows_get_two_blocks_an_sm_where_they_fit():
    def ampere(m, n, device=H200):
        return candidate(Problem(m, n, 8192), device, "ampere")

    assert (ampere(16, 57344).config.blocks_per_sm, ampere(16, 57344).config.stages) == (2, 6)
    assert ampere(16, 57344).grid == (2 * H200.sms, 1, 1)
    assert ampere(16, 8192).config.blocks_per_sm == 1
    assert ampere(17, 57344).config.blocks_per_sm == 1
    # 99 KiB of shared memory hold one
    assert ampere(16, 57344, devices.device("RTX 4090")).config.blocks_per_sm == 1


@pytest.mark.parametrize(
    "m, kernel", ((1, "decode"), (16, "decode"), (64, "wgmma"), (256, "wgmma"), (4096, "wgmma"))
)
def test_on_hopper_the_kernel_made_for_the_batch_leads(m, kernel):
    candidates = rank(Problem(m, 8192, 8192), H200)
    assert candidates[0].kernel == kernel
    assert (
        candidates[0].figures["predicted_us"]
        < next(each for each in candidates if each.kernel == "ampere").figures["predicted_us"]
    )


# (m, n, k) -> microseconds of the fastest on an H200, groups of 128, launches back to back, cold L2
# (experiments/02_hopper)
MEASURED = {
    (1, 8192, 8192): 11.6,
    (8, 8192, 8192): 12.6,
    (16, 8192, 8192): 15.0,
    (32, 8192, 8192): 17.0,
    (64, 8192, 8192): 20.9,
    (128, 8192, 8192): 29.3,
    (256, 8192, 8192): 49.5,
    (1024, 8192, 8192): 177.4,
    (1, 8192, 28672): 31.4,
    (16, 8192, 28672): 34.5,
    (32, 8192, 28672): 45.7,
    (64, 8192, 28672): 59.2,
    (128, 8192, 28672): 86.9,
    (256, 8192, 28672): 157.5,
    (1024, 8192, 28672): 685.2,
    (1, 57344, 8192): 58.8,
    (16, 57344, 8192): 65.0,
    (32, 57344, 8192): 90.2,
    (64, 57344, 8192): 117.0,
    (128, 57344, 8192): 172.1,
    (256, 57344, 8192): 325.1,
    (1024, 57344, 8192): 1351.2,
    (1, 4096, 4096): 4.7,
    (16, 4096, 4096): 7.0,
    (32, 4096, 4096): 7.7,
    (64, 4096, 4096): 9.7,
    (128, 4096, 4096): 12.0,
    (256, 4096, 4096): 17.8,
    (64, 33792, 135168): 1017.6,
    (128, 33792, 135168): 1660.0,
}


@pytest.mark.parametrize(
    "m, n, k, tile",
    (
        (64, 8192, 8192, (64, 128)),
        (64, 8192, 28672, (64, 256)),
        (128, 8192, 8192, (128, 128)),
        (256, 8192, 8192, (128, 128)),
        (256, 57344, 8192, (256, 128)),
        (128, 33792, 16384, (128, 256)),
        (128, 4096, 4096, (128, 64)),
    ),
)
def test_the_tile_that_was_fastest_on_an_h200_leads(m, n, k, tile):
    config = candidate(Problem(m, n, k), H200, "wgmma").config
    assert (config.tile_m, config.tile_n) == tile


@pytest.mark.parametrize("sizes", MEASURED)
def test_predictions_are_near_what_was_measured(sizes):
    assert explain(*sizes).choice.figures["predicted_us"] == pytest.approx(
        MEASURED[sizes], rel=0.12
    )


def test_kernels_that_need_another_architecture_are_left_out_and_refused_by_name():
    ada = devices.device("RTX 4090")
    assert {each.kernel for each in rank(Problem(16, 4096, 4096), ada)} == {
        "ampere",
        "buffered",
        "tiled",
        "naive",
        "general",
    }
    with pytest.raises(ValueError, match="kernel 'wgmma' needs sm_90a, RTX 4090 is sm_89"):
        candidate(Problem(16, 4096, 4096), ada, "wgmma")
    blackwell = {each.kernel for each in rank(Problem(16, 4096, 4096), devices.device("B200"))}
    assert "decode" in blackwell and "wgmma" not in blackwell, "wgmma is Hopper's alone"


def test_what_was_measured_here_leads(monkeypatch):
    here = replace(H200, source="measured")
    problem = Problem(16, 8192, 8192)
    other = rank(problem, here)[2]
    monkeypatch.setattr(
        tuned,
        "stored_choice",
        lambda problem, device: tuned.Choice(other.kernel, other.config, 12.3, "2026-11-21"),
    )
    found = rank(problem, here)
    assert (found[0].kernel, found[0].config) == (other.kernel, other.config)
    assert found[0].reasons[0] == "measured to be best here on 2026-11-21: 12.30 us"
    assert len({(each.kernel, each.config) for each in found}) == len(found)
    # of other groups: a damaged file
    wrong = default_config("ampere", Problem(16, 8192, 8192, 64), H200)
    monkeypatch.setattr(
        tuned,
        "stored_choice",
        lambda problem, device: tuned.Choice("ampere", wrong, 1.0, "2026-11-21"),
    )
    assert rank(problem, here) == rank(problem, H200)
