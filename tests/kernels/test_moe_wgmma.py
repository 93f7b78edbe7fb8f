"""Contract under test: the kernel ``moe_wgmma`` multiplies every pair of a token and an expert by
the expert's weights, whatever the routing is, gathers rows where they lie, and activates gate and
up.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from numba_marlin import compiler, testing
from numba_marlin.compiler import gates
from numba_marlin.emulator.errors import MachineError
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.routing import Routing
from numba_marlin.kernels.experts.moe_wgmma import KERNEL
from numba_marlin.testing.experts import ids_of, layer
from numba_marlin.testing.launches import TARGET
from tests.kernels import moe
from tests.kernels.harness import cases
from tests.kernels.moe_many import (
    CONFIGURATIONS,
    DOWN,
    GATED,
    GATES,
    LARGE,
    SMALL,
    columns_of,
    k_of,
)

pytest.importorskip("ml_dtypes")

ROUTINGS = {
    "one token": [[3, 1]],
    "every expert": [[0, 1], [2, 3], [4, 0], [1, 2]],
    "all on one": [[2, expert] for expert in (0, 1, 3, 4) * 5],
    "last two": [[3, 4], [4, 3], [3, 4]],
    "first two": [[0, 1], [1, 0]] * 5,
    "exactly a row block": [[1, 4]] * 16,
    "one more than a row block": [[1, 4]] * 17,
    "three row blocks": [[4, 0]] * 40,
}


def routed(config, m, seed=1):
    return ids_of(np.random.default_rng(seed), m, config.experts, config.top_k)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_is_within_bounds(name):
    config = CONFIGURATIONS[name]
    ids = routed(config, 21)
    moe.check(layer(config, ids, columns_of(config), k_of(config), seed=3), races=True)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("config", (SMALL, DOWN), ids=("of tokens", "down"))
def test_every_routing_is_exact(config, routing):
    """Bit for bit: an index that is wrong anywhere changes an integer."""
    given = layer(config, ROUTINGS[routing], 136, 128, integers=True)
    c = moe.run(given, races=True, a_stride=136)
    assert np.array_equal(c, round_to(given.bounds().product, c.dtype)), routing


@pytest.mark.parametrize("rows, columns", cases(LARGE, lambda rows, columns: False))
def test_large_tiles_are_exact(rows, columns):
    config = LARGE[rows, columns]
    ids = [[0, 1 + token % 4] for token in range(250)]  # one expert has two row blocks
    given = layer(config, ids, 136, 128, integers=True)
    c = moe.run(given, sms=2)
    assert np.array_equal(c, round_to(given.bounds().product, c.dtype))


def test_no_row_but_those_of_an_expert_is_read_or_written():
    """Rows of tokens that nobody multiplies are NaN; rows of pairs in no list stay as they were."""
    given = layer(SMALL, [[0, 1], [2, 3], [4, 0]] * 6, 64, 64)
    first = given.routing.offsets[1]  # expert 0 alone
    offsets = np.minimum(given.routing.offsets, first)
    x = given.x.copy()
    others = np.ones(len(x), bool)
    others[given.routing.pairs[:first] // 2] = False
    x[others] = np.nan
    c = moe.run(replace(given, x=x, routing=replace(given.routing, offsets=offsets)), races=True)
    written = np.zeros(len(c), bool)
    written[given.routing.pairs[:first]] = True
    assert others.any() and np.isnan(c[~written]).all() and np.isfinite(c[written]).all()


@pytest.mark.parametrize("sms", (1, 2, 7, 64))
def test_any_number_of_blocks_does(sms):
    """Also more than there are steps."""
    moe.check(layer(DOWN, ROUTINGS["every expert"], 136, 128), sms=sms)


def test_a_launch_without_work_writes_nothing():
    """All experts are on other devices."""
    given = layer(SMALL, [[0, 1]], 64, 64)
    none = replace(given.routing, offsets=np.zeros_like(given.routing.offsets))
    assert np.isnan(moe.run(replace(given, routing=none), races=True)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, routing",
    ((DOWN, "first two"), (DOWN, "every expert"), (GATED, "every expert")),
    ids=("down, two experts", "down, all", "silu"),
)
def test_no_schedule_finds_a_race_or_changes_a_bit(config, routing, thorough):
    given_layer = layer(config, ROUTINGS[routing], 128, 128)
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


def test_an_activation_is_that_of_rounded_products():
    """Of small integers: the sums are exact, so the result is one of two neighbours in 16 bits."""
    given = layer(GATED, ROUTINGS["every expert"], 256, 128, integers=True)
    exact = given.bounds().product
    c = moe.run(given)
    fits = np.abs(exact) < 65000
    assert fits.mean() > 0.9
    spacing = np.spacing(np.abs(c[fits])).astype(np.float64)
    assert (np.abs(c[fits] - exact[fits]) <= 0.51 * spacing).all()


def test_whole_tiles_do_not_depend_on_other_tokens():
    config = replace(SMALL, split=False)
    given = layer(config, routed(config, 9), 136, 128)
    many = moe.run(given).reshape(9, 2, -1)
    for token in (0, 5):
        ids = given.routing.ids[token : token + 1]
        alone = replace(
            given,
            x=given.x[token : token + 1],
            routing=Routing.of(ids, given.routing.weights[token : token + 1], 5),
        )
        assert np.array_equal(moe.run(alone, sms=2)[0:2], many[token])


# what is taken out, and what the machine then says
GUARDS = {
    "fence.proxy.async.shared::cta;": "fence.proxy.async",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64": None,
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_it_is_noticed(guard):
    given = layer(SMALL, ROUTINGS["every expert"], 64, 128)

    def without(text):
        lines = [line for line in text.splitlines() if guard not in line]
        assert len(lines) < len(text.splitlines())
        return "\n".join(lines)

    with pytest.raises(MachineError, match=GUARDS[guard]):
        moe.run(given, races=True, edit_ptx=without)


@pytest.mark.parametrize(
    "config, change, match",
    (
        (SMALL, {"experts": 0}, "experts=0 must be 1 to 1024"),
        (SMALL, {"top_k": 9}, "top_k=9 must be 1 to experts=5"),
        (SMALL, {"parts": 2, "split": False}, "parts=2 and k_groups=1 must be 1"),
        (SMALL, {"activation": "silu"}, "tile_n=64 must be 128 at least"),
        (GATED, {"combine": True}, "activation='silu' must be without combine"),
        (GATED, {"zeros": "integer"}, "zeros='integer' must be None with activation='silu'"),
        (SMALL, {"stages": 80}, "bytes of shared memory, must be"),
    ),
)
def test_configurations_that_cannot_be_are_refused(config, change, match):
    with pytest.raises(ValueError, match=match):
        replace(config, **change)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="k=96 must be a multiple of 64"):
        SMALL.grid(4, 64, 96, 3)
    with pytest.raises(ValueError, match="n=192 must be a multiple of 128"):
        GATED.grid(4, 192, 128, 3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    [pytest.param(config, id=str(name)) for name, config in GATES.items()],
)
def test_nothing_spills_and_nothing_is_in_double(config):
    built = compiler.build(KERNEL, config, target=TARGET, compiler="numba-cuda")
    assert built.resources.spill_loads == built.resources.stack == 0
    assert not gates.broken_promises(built)
