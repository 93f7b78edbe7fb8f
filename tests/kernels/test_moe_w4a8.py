"""Contract under test: the kernels ``moe_wgmma_int8`` and ``moe_wgmma_fp8`` multiply the 8-bit rows
of every pair of a token and an expert by the expert's weights, whatever the routing is: in int8 the
bits of ``reference.activations``, in fp8 those of small integers, and of others within its bound.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from numba_marlin import compiler, heuristics, reference, testing
from numba_marlin.compiler import gates
from numba_marlin.emulator import Deadlock
from numba_marlin.emulator.errors import MachineError
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.routing import Routing
from numba_marlin.hardware import devices
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.kernels.w4a8.config import MOST_K
from numba_marlin.problems import ExpertsProblem
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference.experts import activate
from numba_marlin.testing.experts import ids_of, layer
from numba_marlin.testing.launches import TARGET
from tests.kernels import moe
from tests.kernels.edits import change
from tests.kernels.harness import cases
from tests.kernels.moe_bytes import (
    CONFIGURATIONS,
    DOWN,
    KINDS,
    PAIR,
    PROPOSED,
    SMALL,
    columns_of,
    proposed,
)

pytest.importorskip("ml_dtypes")

H200 = devices.device("H200")
K = 256  # two groups of 128: one of all of k would be a scale per column
ROUTINGS = {
    "one token": [[3, 1]],
    "every expert": [[0, 1], [2, 3], [4, 0], [1, 2]],
    "all on one": [[2, expert] for expert in (0, 1, 3, 4) * 5],
    "last two": [[3, 4], [4, 3], [3, 4]],
    "exactly a row block": [[1, 4]] * 16,
    "one more than a row block": [[1, 4]] * 17,
}
SMALL_INT8 = SMALL["int8"]
DOWN_INT8 = replace(SMALL_INT8, **DOWN)


def routed(config, m, seed=1):
    return ids_of(np.random.default_rng(seed), m, config.experts, config.top_k)


def exact(given_layer, c):
    expected = given_layer.expected()
    assert c.dtype == expected.dtype and np.array_equal(c, expected)


@pytest.mark.parametrize(
    "name",
    cases(
        ((name,) for name in CONFIGURATIONS),
        # those that other tests compile too
        lambda name: name in ("int8, of tokens", "int8, down"),
    ),
)
def test_every_configuration_is_right(name):
    """Random numbers: in int8 bit for bit all the same."""
    config = CONFIGURATIONS[name]
    given_layer = layer(config, routed(config, 21), columns_of(config), K, seed=3)
    c = moe.check(given_layer, races=True, a_stride=K + 16)
    if config.activations == "int8" and not config.gated:
        exact(given_layer, c)


@pytest.mark.parametrize(
    "kind, routing",
    cases(
        ((kind, routing) for kind in KINDS for routing in ROUTINGS),
        lambda kind, routing: kind == "int8" and routing != "exactly a row block",
    ),
)
def test_every_routing_is_exact(kind, routing):
    """Bit for bit: an index that is wrong anywhere changes an integer, or takes another scale."""
    config = SMALL_INT8 if kind == "int8" else replace(SMALL["fp8"], **DOWN)
    given_layer = layer(config, ROUTINGS[routing], 136, K, integers=True)
    exact(given_layer, moe.run(given_layer, races=True, a_stride=K + 16))


def test_no_row_but_those_of_an_expert_is_read_or_written():
    """Rows of tokens that nobody multiplies have scales of NaN; rows of pairs in no list stay as
    they were."""
    given_layer = layer(SMALL_INT8, [[0, 1], [2, 3], [4, 0]] * 6, 64, K)
    routing = given_layer.routing
    first = routing.offsets[1]  # expert 0 alone
    offsets = np.minimum(routing.offsets, first)
    scales = np.full_like(given_layer.x.scales, np.nan)
    mine = routing.pairs[:first] // 2
    scales[mine] = given_layer.x.scales[mine]
    x = replace(given_layer.x, scales=scales)
    c = moe.run(replace(given_layer, x=x, routing=replace(routing, offsets=offsets)), races=True)
    written = np.zeros(len(c), bool)
    written[routing.pairs[:first]] = True
    assert np.isnan(scales).any() and np.isnan(c[~written]).all() and np.isfinite(c[written]).all()


@pytest.mark.parametrize("sms", cases(((sms,) for sms in (1, 2, 7, 64)), lambda sms: sms == 64))
def test_any_number_of_blocks_does(sms):
    """Also more than there are tiles."""
    given_layer = layer(DOWN_INT8, ROUTINGS["every expert"], 136, K)
    exact(given_layer, moe.run(given_layer, sms=sms))


def test_a_launch_without_work_writes_nothing():
    """All experts are on other devices."""
    given_layer = layer(SMALL_INT8, [[0, 1]], 64, K)
    none = replace(given_layer.routing, offsets=np.zeros_like(given_layer.routing.offsets))
    assert np.isnan(moe.run(replace(given_layer, routing=none), races=True)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes, routing",
    ((DOWN, "every expert"), (PAIR, "all on one"), (PAIR | {"activation": "silu"}, "last two")),
    ids=("down", "in turns", "silu"),
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_schedule_finds_a_race_or_changes_a_bit(kind, changes, routing, thorough):
    given_layer = layer(replace(SMALL[kind], **changes), ROUTINGS[routing], 128, K)
    wanted = moe.run(given_layer)

    @settings(
        max_examples=20 if thorough else 1,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(testing.schedules((1, 2)))
    def holds(schedule):
        assert np.array_equal(moe.run(given_layer, seed=schedule, races=True), wanted)

    holds()


@pytest.mark.parametrize(
    "kind, changes",
    cases(
        (
            (kind, changes)
            for kind in KINDS
            for changes in (
                {},
                {"tile_n": 256},
                {"tile_n": 256, "group_blocks": 2, "bias": True},
            )
        ),
        lambda kind, changes: kind == "int8" and not changes,
    ),
)
def test_an_activation_is_that_of_rounded_products(kind, changes):
    """Of small integers: the sums are exact, so the result is one of two neighbours in 16 bits."""
    config = replace(SMALL[kind], **PAIR | changes)
    ids = ROUTINGS["every expert"]
    products = layer(config, ids, 384, K, integers=True)
    rows = products.expected().astype(np.float64)
    c = moe.run(replace(products, config=replace(config, activation="silu")))
    fits = np.abs(rows).max(axis=1) < 60000
    wanted = activate(rows[fits], "silu")
    fits_too = np.abs(wanted) < 60000
    assert fits_too.mean() > 0.5
    spacing = np.spacing(np.abs(c[fits][fits_too])).astype(np.float64)
    assert (np.abs(c[fits][fits_too] - wanted[fits_too]) <= 0.51 * spacing).all()


def test_a_token_does_not_depend_on_the_others():
    given_layer = layer(SMALL_INT8, routed(SMALL_INT8, 9), 136, K)
    many = moe.run(given_layer).reshape(9, 2, -1)
    for token in (0, 5):
        x, ids = given_layer.x, given_layer.routing.ids[token : token + 1]
        alone = replace(
            given_layer,
            x=replace(x, codes=x.codes[token : token + 1], scales=x.scales[token : token + 1]),
            routing=Routing.of(ids, given_layer.routing.weights[token : token + 1], 5),
        )
        assert np.array_equal(moe.run(alone, sms=2)[0:2], many[token])


@pytest.mark.parametrize("kind", cases(((kind,) for kind in KINDS), lambda kind: kind == "int8"))
def test_rows_of_zeros_and_of_nan(kind):
    """A token of zeros has rows of zeros; one whose scale is NaN, as a device makes it, rows of
    NaN, and no other has."""
    given_layer = layer(SMALL[kind], [[0, 1]] * 4, 64, K)
    scales = given_layer.x.scales.copy()
    scales[1], scales[2] = 0, np.nan
    c = moe.run(replace(given_layer, x=replace(given_layer.x, scales=scales))).reshape(4, 2, -1)
    assert not c[1].any() and np.isnan(c[2]).all() and np.isfinite(c[[0, 3]]).all()


@pytest.mark.thorough
def test_the_largest_numbers_fit():
    """Codes of 0, which are -8, and x of 127: the largest sums, to the last bit."""
    for blocks in (8, -1):
        config = replace(SMALL_INT8, group_blocks=blocks)
        given_layer = layer(config, [[0, 1]] * 3, 64, K)
        arrays = given_layer.experts.arrays | {}
        arrays["qweight"] = np.zeros_like(arrays["qweight"])
        x = quantize_rows(np.full((3, K), -3.0, np.float16))
        fixed = replace(given_layer, x=x, experts=replace(given_layer.experts, arrays=arrays))
        exact(fixed, moe.run(fixed))


# ---- broken kernels

GUARDS = {
    r"fence\.proxy\.async\.shared::cta;": (MachineError, "fence.proxy.async"),
    r"cp\.async\.mbarrier\.arrive\.noinc[^;]*;": (Deadlock, None),
    r"mbarrier\.arrive\.shared::cta[^;]*;": (Deadlock, "mbarrier"),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_missing_guard_is_noticed(guard):
    error, match = GUARDS[guard]
    with pytest.raises(error, match=match):
        given_layer = layer(SMALL_INT8, ROUTINGS["every expert"], 136, 3 * 128)
        moe.run(given_layer, races=True, edit_ptx=change(guard, "", None), sms=1)


# ---- what is refused, what is chosen


@pytest.mark.parametrize(
    "config, changes, match",
    (
        (SMALL_INT8, {"experts": 0}, "experts=0 must be 1 to 1024"),
        (SMALL_INT8, {"top_k": 9}, "top_k=9 must be 1 to experts=5"),
        (SMALL_INT8, {"activation": "silu"}, "tile_n=64 must be 128 at least"),
        (SMALL_INT8, PAIR | {"activation": "silu", "combine": True}, "must be without combine"),
        (SMALL_INT8, PAIR | {"activation": "silu", "zeros": "integer"}, "must be None with"),
        (SMALL_INT8, {"zeros": "float16"}, "zeros='float16' must be None or 'integer'"),
        (SMALL_INT8, {"stages": 60}, "bytes of shared memory, must be"),
    ),
)
def test_configurations_that_cannot_be_are_refused(config, changes, match):
    with pytest.raises(ValueError, match=match):
        replace(config, **changes)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="k=192 must be a multiple of 128"):
        SMALL_INT8.grid(4, 64, 192, 3)
    with pytest.raises(ValueError, match=f"must be {MOST_K} at most"):
        replace(SMALL_INT8, group_blocks=-1).grid(4, 64, MOST_K + 128, 3)


@pytest.mark.parametrize(
    "changes, refused",
    (
        ({"zeros": "float16"}, "zeros=float16"),
        ({"bits": 8}, "bits=8"),
        ({"k": 512, "group_size": 256}, "group_size=256"),
        ({"k": 192, "group_size": 64}, "k=192, which must be a multiple of 128"),
        ({"activations": None}, "activations=None, but int8"),
        ({"activations": "fp8"}, "activations=fp8, but int8"),
        ({"activation": "silu", "zeros": "integer"}, "activation='silu' with zeros='integer'"),
        ({"codes": "e2m1", "group_size": 32}, "codes=e2m1"),
    ),
)
def test_what_it_does_not_take_is_named(changes, refused):
    problem = ExpertsProblem(64, 256, 256, experts=8, top_k=2, activations="int8")
    takes = find_kernel("moe_wgmma_int8").takes
    assert not takes.refusals(problem)
    assert any(refused in each for each in takes.refusals(replace(problem, **changes)))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_chosen_for_activations_in_8_bits_and_no_others(kind):
    problem = ExpertsProblem(2048, 4096, 4096, experts=8, top_k=2, activations=kind)
    for invariant in (False, True):
        best = heuristics.rank(replace(problem, batch_invariant=invariant), H200)[0]
        assert best.kernel == f"moe_wgmma_{kind}" and best.figures["predicted_us"] > 0
        assert any("modelled: " in each for each in best.reasons)
    plain = heuristics.rank(replace(problem, activations=None), H200)
    assert plain and not any(each.kernel.endswith(kind) for each in plain)
    for kernel in ("moe", "moe_wgmma"):
        refusals = find_kernel(kernel).takes.refusals(problem)
        assert refusals == (f"activations={kind}, but x in 16 bits",)


def test_more_rows_get_higher_tiles():
    heights = [
        heuristics.rank(
            ExpertsProblem(m, 4096, 4096, experts=8, top_k=2, activations="int8"), H200
        )[0].config.tile_m
        for m in (1, 64, 512, 8192)
    ]
    assert heights == sorted(heights) and heights[0] == 16 and heights[-1] >= 128


# ---- what is compiled


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [pytest.param(config, id=name) for name, config in (PROPOSED | CONFIGURATIONS).items()],
)
def test_every_proposal_is_clean(config):
    """No spills, no serialised wgmma, and the products of its tile."""
    kernel = find_kernel(f"moe_wgmma_{config.activations}")
    compiled = compiler.build(kernel, config, target=TARGET, compiler="numba-cuda")
    assert compiled.resources.spill_loads == compiled.resources.stack == 0
    assert not gates.broken_promises(compiled)
    assert gates.opcode_count(compiled, "wgmma.mma_async") == 4 * config.strips


def test_proposals_are_of_every_height():
    assert {each.tile_m for each in proposed("int8")} == {16, 32, 64, 128, 176}
    small_groups = {each.tile_m for each in proposed("int8", group_size=32)}
    assert small_groups == {16, 32, 64, 128, 176, 192}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_large_tiles_are_exact(kind):
    config = next(each for each in proposed(kind) if (each.tile_m, each.ordered) == (176, True))
    config = replace(config, stages=2, experts=5, top_k=2)
    ids = [[0, 1 + token % 4] for token in range(250)]  # one expert has two row blocks
    given_layer = layer(config, ids, 136, K, integers=True)
    exact(given_layer, moe.run(given_layer, sms=2))


def test_bounds_of_rows_that_are_wrong_are_broken():
    """The reference notices a row that took another's scale."""
    given_layer = layer(SMALL_INT8, [[0, 1]] * 3, 64, K)
    wrong = replace(given_layer.x, scales=given_layer.x.scales[::-1].copy())
    c = round_to(replace(given_layer, x=wrong).bounds().product, "float16")
    assert not reference.judged(c, given_layer.bounds()).ok
