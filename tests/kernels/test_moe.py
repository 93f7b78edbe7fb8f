"""Contract under test: the kernel ``moe`` multiplies every pair of a token and an expert by the
expert's weights, whatever the routing is.

Compiling takes longer than the machine does, so configurations are few and have many routings.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from numba_marlin import compiler, testing
from numba_marlin.compiler import gates
from numba_marlin.emulator import Schedule
from numba_marlin.emulator.errors import MachineError
from numba_marlin.emulator.scheduling.schedules import WEAK
from numba_marlin.formats.floats import round_to
from numba_marlin.formats.routing import Routing
from numba_marlin.kernels.experts.moe import KERNEL as MOE
from numba_marlin.mutation.mutants import mutants
from numba_marlin.testing.experts import ids_of, layer
from numba_marlin.testing.launches import TARGET
from tests.kernels import moe, moe_many
from tests.kernels.moe_few import CONFIGURATIONS, DOWN, SMALL

pytest.importorskip("ml_dtypes")

# [m, 2] of five experts
ROUTINGS = {
    "one token": [[3, 1]],
    "every expert": [[0, 1], [2, 3], [4, 0], [1, 2]],
    "all on one": [[2, expert] for expert in (0, 1, 3, 4) * 5],
    "last two": [[3, 4], [4, 3], [3, 4]],
    "first two": [[0, 1], [1, 0]] * 5,
    "exactly a row block": [[1, 4]] * 8,
    "one more than a row block": [[1, 4]] * 9,
}


def routed(config, m, seed=1):
    return ids_of(np.random.default_rng(seed), m, config.experts, config.top_k)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_is_within_bounds(name):
    config = CONFIGURATIONS[name]
    k = {1: 112, 2: 96, 4: 128, 8: 256, -1: 112}[config.group_blocks]
    k *= 1 if config.ragged else 2
    n = 384 if config.gated else 200
    moe.check(layer(config, routed(config, 7), n, k, seed=3), races=True)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("config", (SMALL, DOWN), ids=("of tokens", "down"))
def test_every_routing_is_exact(config, routing):
    """Bit for bit: an index that is wrong anywhere changes an integer."""
    given = layer(config, ROUTINGS[routing], 136, 96, integers=True)
    allowed = given.bounds()
    c = moe.run(given, races=True, a_stride=104)
    assert np.array_equal(c, round_to(allowed.product, c.dtype)), routing


@pytest.mark.parametrize("sms", (1, 2, 7, 64))
def test_any_number_of_blocks_does(sms):
    """Also more than there are steps."""
    moe.check(layer(DOWN, ROUTINGS["every expert"], 136, 96), sms=sms)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, seeds", ((DOWN, 8), (moe_many.DOWN, 2)), ids=("few rows", "many rows")
)
def test_memory_as_weak_as_the_model_has_it_changes_no_bit(config, seeds):
    """Partial results and locks go from block to block by releases and acquires alone."""
    given_layer = layer(config, ROUTINGS["every expert"], 128, 128)
    wanted = moe.run(given_layer, sms=3)
    for seed in range(seeds):
        schedule = Schedule(seed, memory=WEAK)
        assert np.array_equal(moe.run(given_layer, sms=3, seed=schedule), wanted), seed


def test_a_launch_without_work_writes_nothing():
    """All experts are on other devices."""
    given = layer(SMALL, [[0, 1]], 64, 64)
    none = replace(given.routing, offsets=np.zeros_like(given.routing.offsets))
    assert np.isnan(moe.run(replace(given, routing=none), races=True)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config, routing",
    ((DOWN, "first two"), (DOWN, "every expert"), (CONFIGURATIONS["silu"], "every expert")),
    ids=("down, two experts", "down, all", "silu"),
)
def test_no_schedule_finds_a_race_or_changes_a_bit(config, routing, thorough):
    given_layer = layer(config, ROUTINGS[routing], 128, 64)
    wanted = moe.run(given_layer)

    @settings(
        max_examples=20 if thorough else 2,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(testing.schedules((1, 2)))
    def holds(schedule):
        assert np.array_equal(moe.run(given_layer, seed=schedule, races=True), wanted)

    holds()


# Of the counter of a gate's and an up's rows, behind that of shared tiles: atomics, and barriers of
# a warp, by their number in the kernel.
GUARDS = [("barrier", 5, "deleted"), ("barrier", 6, "deleted"), ("scope", 1, "gpu -> cta")]
GUARDS += [("order", 1, f"acq_rel -> {order}") for order in ("relaxed", "acquire", "release")]


@pytest.mark.thorough
@pytest.mark.parametrize("kind, number, change", GUARDS)
def test_without_a_guard_of_gate_and_up_it_is_noticed(kind, number, change):
    """They are in different tiles here, of different blocks."""
    config = CONFIGURATIONS["silu"]
    found = mutants(compiler.build(MOE, config, target=TARGET).ptx)
    opcodes = {"barrier": "bar.warp.sync"}
    (mutant,) = (
        each
        for each in found
        if (each.kind, each.number, each.change) == (kind, number, change)
        and each.opcode.startswith(opcodes.get(kind, "atom"))
    )

    def without(text):
        return text[: mutant.start] + mutant.mutated + text[mutant.stop :]

    given = layer(config, ROUTINGS["every expert"], 256, 64)
    moe.run(given, sms=8, races=True)
    with pytest.raises(MachineError, match="Race"):
        moe.run(given, sms=8, races=True, edit_ptx=without)


def test_whole_tiles_do_not_depend_on_other_tokens():
    config = CONFIGURATIONS["whole"]
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


def test_the_order_of_rows_in_a_list_changes_no_bit_of_whole_tiles():
    """Sorting need not be stable for the result."""
    config = CONFIGURATIONS["whole"]
    given = layer(config, ROUTINGS["first two"], 136, 128)

    def turned(pairs):
        offsets = given.routing.offsets
        return np.concatenate(
            [pairs[begin:end][::-1] for begin, end in zip(offsets[:-1], offsets[1:])]
        )

    assert np.array_equal(moe.run(given), moe.run(given, order=turned))


@pytest.mark.parametrize(
    "change, match",
    (
        ({"experts": 0}, "experts=0 must be 1 to 1024"),
        ({"activation": "silu", "combine": True}, "activation='silu' must be without combine"),
        ({"top_k": 9}, "top_k=9 must be 1 to experts=5"),
        ({"stages": 40}, "bytes of shared memory, must be at most"),
    ),
)
def test_configurations_that_cannot_be_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        replace(SMALL, **change)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_spills_and_nothing_is_in_double(name):
    built = compiler.build(MOE, CONFIGURATIONS[name], target=TARGET, compiler="numba-cuda")
    assert built.resources.spill_loads == built.resources.stack == 0
    assert not gates.broken_promises(built)
