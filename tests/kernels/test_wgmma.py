"""Contract under test: the Hopper kernel computes C = A @ W in every configuration, for every shape
it takes, whoever shares a tile with whom.

``pytest --run-on cuda`` runs the same tests on a GPU.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from numba_marlin import reference, testing
from numba_marlin.emulator import Deadlock, PendingCopyRead
from numba_marlin.kernels.wgmma import KERNEL
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.testing.launches import on_machine
from tests.kernels.configurations import ARRANGEMENTS, BETWEEN, WGMMA
from tests.kernels.harness import cases, prepare, run_kernel


def exact(m, n, k, group_size, config, run_on, **options):
    problem = testing.exact_problem(
        m,
        n,
        k,
        group_size,
        seed=m + n + k,
        dtype=config.dtype,
        bits=config.bits,
        zeros_kind=config.zeros,
        scale_dtype=config.dtype,
        bias=config.bias,
    )
    config = replace(config, group_blocks=-1 if group_size == -1 else group_size // 16)
    actual = run_kernel(
        KERNEL,
        problem.x,
        problem.weight,
        config=config,
        bias=problem.bias,
        run_on=run_on,
        **options,
    ).c
    assert (actual == problem.expected).all(), np.argwhere(actual != problem.expected)[:4]


# One and two warpgroups, tiles that nobody shares, that pairs of blocks and that parts share.
TELLING = (
    "one word, one warpgroup",
    "two warpgroups, two words",
    "pairs, two rows of consumers",
    "four parts, two rows of consumers",
)


@pytest.mark.parametrize(
    "name", cases(((name,) for name in ARRANGEMENTS), lambda name: name in TELLING)
)
def test_every_arrangement_is_exact(name, run_on):
    exact(20, 192, 320, 64, ARRANGEMENTS[name], run_on, sms=4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", cases(((name,) for name in BETWEEN), lambda name: name == "192 rows, whole")
)
def test_tiles_between_powers_of_two_are_exact(name, run_on):
    """Rows past the first tile, the last ones of it, and k in more steps than there are stages."""
    config = BETWEEN[name]
    exact(config.tile_m + 13, 72, 192 if config.k_groups == 1 else 320, 64, config, run_on, sms=3)


@pytest.mark.parametrize(
    "group_size",
    cases(
        ((group_size,) for group_size in (-1, 32, 64, 128, 256)),
        lambda group_size: group_size in (32, 256),
    ),
)
def test_groups_larger_and_smaller_than_a_stage(group_size, run_on):
    exact(5, 128, 512, group_size, WGMMA, run_on, sms=2)


@pytest.mark.parametrize("m", (1, 15, 16, 17, 33))
def test_rows_that_do_not_exist_are_never_written(m, run_on):
    exact(m, 64, 128, 64, WGMMA, run_on, sms=2)


@pytest.mark.parametrize("n, k", ((8, 16), (72, 48), (136, 80), (200, 144)))
@pytest.mark.parametrize(
    "name", cases((("two words",), ("a pair of blocks",)), lambda name: name == "a pair of blocks")
)
def test_tails_of_n_and_k(name, n, k, run_on):
    exact(3, n, k, -1, ARRANGEMENTS[name], run_on, sms=2)


@pytest.mark.parametrize(
    "sms", cases(((sms,) for sms in (1, 2, 3, 5, 7)), lambda sms: sms in (1, 5, 7))
)
def test_stripes_of_any_number_of_blocks(sms, run_on):
    """Tiles cut at every place: whole ones, one shared by many blocks, a block with parts of
    two."""
    exact(20, 192, 320, 64, WGMMA, run_on, sms=sms)


@pytest.mark.parametrize(
    "group_m", cases(((group_m,) for group_m in (1, 2, 8)), lambda group_m: group_m != 1)
)
def test_any_order_of_tiles(group_m, run_on):
    exact(50, 192, 128, 64, replace(WGMMA, group_m=group_m), run_on, sms=3)


def test_rows_of_x_may_lie_apart(run_on):
    exact(5, 64, 128, 64, WGMMA, run_on, sms=1, a_stride=152)


@pytest.mark.thorough
def test_more_steps_than_stages_and_a_block_with_many_tiles(run_on):
    """The ring goes round, and its parities with it, across the tiles of one block."""
    exact(33, 192, 448, 64, WGMMA, run_on, sms=1)
    exact(33, 192, 448, 64, ARRANGEMENTS["two rows of two"], run_on, sms=1)
    exact(33, 192, 704, 64, ARRANGEMENTS["pairs, two rows of consumers"], run_on, sms=2)


@pytest.mark.parametrize(
    "name, group_size, zeros, bits, dtype",
    cases(
        (
            (*arrangement, *types)
            for arrangement in (
                ("two warpgroups, two words", 32),
                ("pairs, two rows of consumers", -1),
            )
            for types in product((None, "integer", "float16"), (4, 8), ("float16", "bfloat16"))
        ),
        # two kinds of zero points, both arrangements, 4 bits with one dtype and 8 with the other
        lambda name, group_size, zeros, bits, dtype: (
            (group_size, zeros, bits, dtype)
            in ((32, "float16", 4, "float16"), (-1, "integer", 8, "bfloat16"))
        ),
    ),
)
def test_every_type_is_exact_with_tails_of_n_and_k(name, group_size, zeros, bits, dtype, run_on):
    exact(
        5,
        200,
        160,
        group_size,
        replace(ARRANGEMENTS[name], dtype=dtype, bits=bits, zeros=zeros),
        run_on,
        sms=2,
    )


@pytest.mark.parametrize(
    "group_size, name, zeros, bits",
    cases(
        product(
            (-1, 128),
            ("one word, one warpgroup", "four words", "two rows of two"),
            ("integer", "float16"),
            (4, 8),
        ),
        lambda group_size, name, zeros, bits: (
            (group_size, name, zeros, bits) == (128, "two rows of two", "integer", 8)
        ),
    ),
)
def test_zero_points_and_bytes_of_every_number_of_words(group_size, name, zeros, bits, run_on):
    """Where in a word of zero points a warp finds its own, and where its words stand."""
    exact(
        3,
        192,
        256,
        group_size,
        replace(ARRANGEMENTS[name], bits=bits, zeros=zeros, bias=True),
        run_on,
        sms=2,
    )


@pytest.mark.parametrize(
    "name, group_size",
    cases(
        product(
            (
                "one word, one warpgroup",
                "two warpgroups, two words",
                "two rows of consumers",
                "pairs, two rows of consumers",
            ),
            (64, 128, 256),
        ),
        lambda name, group_size: (name, group_size) in (("pairs, two rows of consumers", 128),),
    ),
)
def test_scaled_sums_are_exact(name, group_size, run_on):
    """Groups of one stage and of several; stripes and clusters that begin inside a group; rows of
    consumers with no stage of a group, or half of them."""
    exact(20, 192, 768, group_size, replace(ARRANGEMENTS[name], scaling="sums"), run_on, sms=5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype, bits, zeros",
    (("float16", 8, "integer"), ("bfloat16", 4, "integer"), ("bfloat16", 8, None)),
)
def test_scaled_sums_of_other_types_are_exact(dtype, bits, zeros, run_on):
    exact(
        5,
        72,
        256,
        128,
        replace(
            ARRANGEMENTS["two words"],
            scaling="sums",
            dtype=dtype,
            bits=bits,
            zeros=zeros,
            bias=True,
        ),
        run_on,
        sms=2,
    )


def test_scaled_sums_round_no_weight(run_on):
    """Scales with all their bits: within the bound of a kernel that multiplies integers, which
    rounded weights are not."""
    x = np.ones((3, 128), np.float16)
    weight = testing.make_quantized("uniform", "ordinary", 128, 64, 64, 7)
    weight = replace(weight, codes=np.full((128, 64), 11, np.uint8))
    of = {
        scaling: (
            run_kernel(
                KERNEL,
                x,
                weight,
                config=replace(WGMMA, group_blocks=4, scaling=scaling),
                sms=1,
                run_on=run_on,
            ).c
        )
        for scaling in ("sums", "weights")
    }
    assert (
        reference.check(of["sums"], x, weight, method="sums").ok
        and not reference.check(of["weights"], x, weight, method="sums").ok
    )


@pytest.mark.parametrize(
    "name", ("one word, one warpgroup", "two rows of two", "pairs, two rows of consumers")
)
@pytest.mark.parametrize("who", ("lt", "ge"))
def test_nothing_but_weights_is_touched_before_the_launch_before_is_complete(name, who):
    """Consumers, or the producer, that leave where they should wait: c and the workspace were not
    written, or x was not copied and nothing can be."""
    config = replace(ARRANGEMENTS[name], group_blocks=4)
    first_of_producers = config.threads - 128
    leave = (
        f"{{ .reg .pred leaves; .reg .b32 own; mov.u32 own, %tid.x; setp.{who}.u32 leaves, own,"
        f" {first_of_producers}; @leaves exit; }}"
    )

    def edit(ptx):
        assert ptx.count("griddepcontrol.wait;") == 2
        return ptx.replace("griddepcontrol.wait;", leave)

    problem = testing.exact_problem(20, 192, 320, 64, seed=1)
    prepared = prepare(KERNEL, problem.x, problem.weight, config=config, sms=4)
    with pytest.raises((Deadlock, PendingCopyRead)):
        on_machine(prepared, edit_ptx=edit)
    assert (
        np.isnan(prepared.buffers["c"]).all()
        and np.isnan(prepared.buffers.get("partials", np.nan)).all()
    )


@pytest.mark.parametrize(
    "wrong, rule",
    (
        ({"tile_m": 24}, "multiple of 16"),
        ({"tile_n": 192}, "64, 128 or 256"),
        ({"warpgroups": 3}, "1 or 2"),
        ({"group_blocks": 3}, "group sizes"),
        ({"tile_m": 256}, "accumulators"),
        ({"stages": 1}, "at least 2"),
        ({"stages": 2, "k_groups": 2}, "at least 4"),
        ({"stages": 12}, "shared memory"),
        ({"k_groups": 2, "stages": 5}, "divide stages"),
        ({"cluster": 3}, "1, 2, 4 or 8"),
        ({"parts": 5}, "1 or one of"),
        ({"cluster": 2}, "choose one of them"),
        ({"parts": 2}, "choose one of them"),
        ({"cluster": 2, "parts": 2, "split": False}, "choose one of them"),
        ({"group_m": 0}, "at least 1"),
        ({"dtype": "float32"}, "float16 or bfloat16"),
        ({"bits": 3}, "4 or 8"),
        ({"zeros": "float32"}, "None, 'integer' or 'float16'"),
        ({"scaling": "x"}, "'weights' or 'sums'"),
        ({"scaling": "sums"}, "tile_m 64 at most"),
        ({"scaling": "sums", "tile_m": 64, "group_blocks": 2}, "groups of 64"),
        ({"scaling": "sums", "tile_m": 64, "group_blocks": -1}, "groups of 64"),
        ({"scaling": "sums", "tile_m": 64, "zeros": "float16"}, "integer zero points"),
    ),
)
def test_a_configuration_that_cannot_be_is_refused(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        WgmmaConfig(**wrong)
