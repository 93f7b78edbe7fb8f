"""Contract under test: ``heuristics`` finds a kernel and a configuration for every type of weight
that there is, and refuses by name what there is not."""

import itertools
from dataclasses import replace

import pytest

from numba_marlin import heuristics, testing
from numba_marlin.formats import marlin
from numba_marlin.hardware import devices
from numba_marlin.heuristics import (
    LADDER,
    Problem,
    candidate,
    check_config,
    default_config,
    explain,
    rank,
)
from numba_marlin.kernels.decode import choose as decode

H200 = devices.device("H200")


def test_a_configuration_says_which_kernel_it_is_for():
    for kernel in LADDER:
        assert heuristics.kernel_of(default_config(kernel, Problem(16, 256, 1024), H200)) == kernel
    with pytest.raises(TypeError, match="config is a dict, must be one of GeneralConfig"):
        heuristics.kernel_of({})


@pytest.mark.parametrize("kernel", ("decode", "wgmma"))
def test_small_groups_get_fewer_stages_rather_than_none(kernel):
    """Scales of groups of 32 take the place of a stage."""
    config = default_config(kernel, Problem(16, 8192, 8192, 32), H200)
    assert config.group_blocks == 2 and config.shared_bytes <= H200.shared_bytes_per_block


@pytest.mark.parametrize(
    "bits, zeros", list(itertools.product((4, 8), (None, "integer", "float16")))
)
def test_decode_has_an_arrangement_of_every_batch_for_every_type(bits, zeros):
    """With two stages at least, in shared memory; and what has more bytes is thought to take
    longer."""
    for group_size in (-1, 32, 64, 128, 256):
        problem = Problem(8, 8192, 8192, group_size, bits=bits, zeros=zeros)
        found = decode.configurations(problem, H200)
        largest = 24 if bits == 8 or zeros == "float16" else 32  # more registers than there are
        assert {config.batch for config in found} == {8, 16, largest} and {
            config.whole for config in found
        } == {False, True}
        assert all(config.stages > 2 for config in found if config.batch == 8), (
            "weights must be on their way while others are used"
        )
        for config in found:
            assert config.shared_bytes <= H200.shared_bytes_per_block and (
                config.bits,
                config.zeros,
            ) == (bits, zeros)
        plain = {
            (config.batch, config.warps_n): config
            for config in decode.configurations(replace(problem, bits=4, zeros=None), H200)
        }
        for config in found:
            other = plain[32 if config.batch == largest else config.batch, config.warps_n]
            us, plain_us = (
                decode.predicted_us(problem, config, H200),
                decode.predicted_us(replace(problem, bits=4, zeros=None), other, H200),
            )
            assert us == plain_us if (bits, zeros) == (4, None) else plain_us < us < 2.5 * plain_us


def test_problems_of_other_kinds_go_to_the_kernel_that_takes_them():
    for types in (
        {"dtype": "bfloat16"},
        {"bits": 8},
        {"zeros": "integer"},
        {"zeros": "float16"},
        {"scale_dtype": "bfloat16"},
        {"bias": True},
        {"group_size": 16},
    ):
        problem = Problem(4, 256, 512, **{"group_size": 128, **types})
        candidates = rank(problem, H200)
        assert "ampere" not in [each.kernel for each in candidates]
        general = next(each for each in candidates if each.kernel == "general")
        for name, value in types.items():
            assert getattr(general.config, name) == value
        with pytest.raises(
            ValueError, match=r"kernel 'ampere' does not take .*; kernels that do: .*general"
        ):
            candidate(problem, H200, "ampere")
    with pytest.raises(
        ValueError,
        match=(
            r"kernel 'tiled' does not take bits=8; nor n=72, which must be a multiple of 64;"
            r" kernels that do: .*general"
        ),
    ):
        candidate(Problem(4, 72, 512, bits=8), H200, "tiled")


def test_a_configuration_of_other_types_is_refused():
    problem = Problem(4, 72, 512, 128, bits=8, zeros="integer")
    config = default_config("general", problem, H200)
    check_config("general", config, problem)
    with pytest.raises(ValueError, match="config.zeros=integer must be the weight's zeros=None"):
        check_config("general", config, Problem(4, 72, 512, 128, bits=8))
    with pytest.raises(
        ValueError, match="config.dtype=float16 must be the activations' dtype=bfloat16"
    ):
        check_config("general", config, Problem(4, 72, 512, 128, "bfloat16", 8, "integer"))


@pytest.mark.parametrize(
    "types, message",
    [
        ({"dtype": "float32"}, "dtype='float32' must be one of"),
        ({"bits": 2}, "bits=2"),
        ({"zeros": True}, "zeros=True"),
        ({"scale_dtype": "half"}, "scale_dtype='half'"),
    ],
)
def test_types_that_there_are_not_are_refused(types, message):
    with pytest.raises(ValueError, match=message):
        Problem(4, 64, 64, **types)


def test_least_bytes_count_what_is_packed():
    assert (
        Problem(2, 72, 256, 128).least_bytes
        == 2 * 2 * 256 + 256 * 128 // 2 + 2 * 128 * 2 + 2 * 2 * 72
    )
    whole = Problem(2, 64, 256, 128, bits=8, zeros="integer", bias=True)
    assert whole.least_bytes == 2 * 2 * 256 + 256 * 64 + 2 * 64 * (2 + 1) + 2 * 64 + 2 * 2 * 64


def test_the_problem_of_a_weight_has_its_types():
    weight = testing.make_quantized(
        "uniform", "ordinary", 256, 72, 32, 0, bits=8, zeros_kind="float16"
    )
    problem = Problem.of(5, marlin.pack(weight), "bfloat16", bias=True)
    assert (
        problem
        == Problem.of(5, weight, "bfloat16", bias=True)
        == Problem(5, 72, 256, 32, "bfloat16", 8, "float16", "float16", True)
    )
    assert problem.has_zeros and not Problem(5, 64, 64).has_zeros
    text = str(explain(5, 72, 256, 32, bits=8, zeros="float16", dtype="bfloat16", bias=True))
    said = "8-bit weights, groups of 32, zero points (float16), a bias; bfloat16, scales float16"
    assert said in " ".join(text.split())
