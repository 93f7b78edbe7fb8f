"""Contract under test: the litmus tests of the PTX memory model end as the model allows: in every
way that a machine can which does one access after the other, and, where the schedule makes memory
weak, in every way that the axioms allow, and in no other.

Where memory is in order, .acquire, .release and fence.sc, by which PTX forbids some or all of what
.relaxed allows, have the same outcomes as none. Accesses that are weak, or whose scopes do not
include each other, are races whatever came of them.
"""

from functools import cache
from itertools import product
from pathlib import Path

import pytest

from numba_marlin.emulator import Machine, Race, Schedule
from numba_marlin.emulator.scheduling.schedules import APART, WEAK
from tests.ci_scripts import script
from tests.emulator.litmus_cases import (
    LITMUS,
    STRENGTHS,
    WHERE,
    Strength,
    allowed,
    in_order,
    memory,
    outcome,
    program,
)
from tests.emulator.ptx_cases import frame

SEEDS = 1200
BY_NAME = {litmus.short: litmus for litmus in LITMUS}
STRONG = ("relaxed", "acquire and release", "fences", "sequentially consistent")


@cache
def machines(litmus, strength, where):
    """One for each thread that may be the first."""
    return [Machine(program(litmus, strength, where, i)[0]) for i in range(len(litmus.threads))]


def reached(litmus, strength, where, wanted, kept="in order", seeds=SEEDS):
    """The outcomes of schedules, until those ``wanted`` are found."""
    x, found, made = memory(), set(), machines(litmus, strength, where)
    launch = program(litmus, strength, where)[1:]
    for each in made:
        for buffer in each.memory.buffers:
            each.memory.release(buffer)
        each.memory.buffer(x, "x")
    for seed in range(seeds):
        schedule = Schedule(seed, APART, memory=kept)
        found.add(outcome(made[seed % len(made)], x, launch, litmus, schedule))
        if found >= wanted:
            break
    return found


CHEAP = {("store buffering", "relaxed", "blocks"), ("message passing", "relaxed", "blocks")}


@pytest.mark.parametrize(
    "litmus, strength, where",
    [
        pytest.param(
            litmus,
            STRENGTHS[strength],
            where,
            id=f"{litmus.name}-{strength}-{where}",
            marks=[] if (litmus.name, strength, where) in CHEAP else [pytest.mark.thorough],
        )
        for litmus, strength, where in product(LITMUS, STRONG, WHERE)
        if "relaxed" == strength or "blocks" == where
    ],
)
def test_every_outcome_of_one_access_after_the_other_and_no_other(litmus, strength, where):
    wanted = in_order(litmus)
    assert reached(litmus, strength, where, wanted) == wanted


@pytest.mark.parametrize("litmus", LITMUS, ids=lambda litmus: litmus.short)
def test_the_model_allows_what_is_known_of_it(litmus):
    """In order everywhere, what is named where all is relaxed, and nothing else with fence.sc."""
    relaxed = allowed(litmus, STRENGTHS["relaxed"], "blocks")
    assert relaxed == in_order(litmus) | litmus.relaxed and not in_order(litmus) & litmus.relaxed
    for strength in STRENGTHS.values():
        assert in_order(litmus) <= allowed(litmus, strength, "blocks")
    consistent = STRENGTHS["sequentially consistent"]
    assert allowed(litmus, consistent, "blocks") == in_order(litmus)
    narrow = STRENGTHS["sequentially consistent, cta"]
    assert allowed(litmus, narrow, "warps of a block") == in_order(litmus)
    if litmus.short != "LB":
        assert allowed(litmus, narrow, "blocks") == relaxed


WEAKLY = {
    *((short, "relaxed", "blocks") for short in ("SB", "MP", "LB", "2+2W", "R", "S")),
    ("MP", "acquire and release", "blocks"),
    ("MP", "acquire and release, cta", "blocks"),
    ("SB", "fences", "blocks"),
    ("SB", "sequentially consistent", "blocks"),
    ("LB+deps", "relaxed", "blocks"),
    ("LB", "fences, cta", "blocks"),
    ("LB", "acquire and release, cta", "blocks"),
    ("LB", "fences, cta", "warps of a block"),
    ("CoRR", "weak", "blocks"),
}


@pytest.mark.parametrize(
    "litmus, strength, where",
    [
        pytest.param(
            litmus,
            STRENGTHS[strength],
            where,
            id=f"{litmus.short}-{strength}-{where}",
            marks=[] if (litmus.short, strength, where) in WEAKLY else [pytest.mark.thorough],
        )
        for litmus, strength, where in product(LITMUS, STRENGTHS, WHERE)
        if "blocks" == where or strength in ("relaxed", "fences, cta")
    ],
)
def test_weak_memory_has_every_outcome_of_the_model_and_no_other(litmus, strength, where):
    wanted = allowed(litmus, strength, where)
    assert reached(litmus, strength, where, wanted, WEAK) == wanted
    assert reached(litmus, strength, where, {()}, WEAK, 30) <= wanted


COUNTED = """
mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %t, 0; @%q0 exit;
mul.wide.u32 %p1, %r0, 256; add.u64 %p1, %p1, %p0;
st.global.u32 [%p1], 1;
atom.acq_rel.gpu.global.add.u32 %r1, [%p0+1024], 1;
setp.ne.u32 %q0, %r1, 1; @%q0 exit;
ld.global.u32 %r2, [%p0]; ld.global.u32 %r3, [%p0+256];
add.u32 %r2, %r2, %r3; st.global.u32 [%p0+1028], %r2;
exit;
"""


def test_the_last_of_two_blocks_that_count_together_sees_what_both_have_left():
    """Also where one step of the machine has the atomics of both."""
    machine, x = Machine(frame(COUNTED)), memory()
    machine.memory.buffer(x, "x")
    for seed in range(60):
        x[:] = 0
        schedule = Schedule(seed, memory=WEAK)
        machine.run("k", 2, 32, args=[machine.memory.buffers[0].address], seed=schedule)
        assert x[256:258].tolist() == [2, 2], seed


SWAPPED = """
mov.u32 %r0, %ctaid.x; setp.ne.u32 %q0, %t, 0; @%q0 exit;
setp.eq.u32 %q1, %r0, {first}; @%q1 bra FIRST;
atom.acquire.gpu.global.exch.b32 %r1, [%p0+256], 1; ld.global.u32 %r2, [%p0];
st.global.v2.u32 [%p0+512], {{%r1, %r2}}; exit;
FIRST: st.global.u32 [%p0], 1; atom.release.gpu.global.cas.b32 %r1, [%p0+256], {compared}, 0;
st.global.u32 [%p0+768], %r1; exit;
"""


@pytest.mark.parametrize("compared, heard", [(0, True), (5, False)])
def test_a_swap_for_the_same_value_releases_and_one_that_fails_does_not(compared, heard):
    """0 for 0 is a write, which comes before the exchange where it has found 0."""
    found = set()
    for first in range(2):
        machine, x = Machine(frame(SWAPPED.format(first=first, compared=compared))), memory()
        machine.memory.buffer(x, "x")
        for seed in range(40):
            x[:] = 0
            schedule = Schedule(seed, APART, memory=WEAK)
            machine.run("k", 2, 32, args=[machine.memory.buffers[0].address], seed=schedule)
            if x[192] == 0:  # the exchange comes behind
                found.add(int(x[129]))
    assert found == ({1} if heard else {0, 1})


PASSED_ON = """
mov.u32 %r0, %ctaid.x; and.b32 %r1, %t, 31; setp.ne.u32 %q0, %r1, 0; @%q0 exit;
shl.b32 %r0, %r0, 1; shr.u32 %r1, %t, 5; add.u32 %r0, %r0, %r1;
setp.ne.u32 %q0, %r0, 0; @%q0 bra SECOND;
ld.relaxed.gpu.global.u32 %r2, [%p0]; fence.acq_rel.cta; st.relaxed.gpu.global.u32 [%p0+256], 1;
st.global.u32 [%p0+512], %r2; exit;
SECOND: setp.ne.u32 %q0, %r0, 1; @%q0 bra THIRD;
ld.relaxed.gpu.global.u32 %r2, [%p0+256]; fence.acq_rel.cta;
ld.relaxed.gpu.global.u32 %r3, [%p0]; st.global.u32 [%p0+1024], %r3;
st.global.u32 [%p0+768], %r2; exit;
THIRD: setp.ne.u32 %q0, %r0, 2; @%q0 exit;
st.relaxed.gpu.global.u32 [%p0], 1; exit;
"""


def test_who_has_learned_of_a_narrow_fence_has_seen_the_load_before_it():
    """The first thread's load of x is late for another block's store of a 1, not for its own block:
    to the second thread, which has read y behind the fence, x is no older than to the first."""
    machine, x, found = Machine(frame(PASSED_ON)), memory(), set()
    machine.memory.buffer(x, "x")
    args = [machine.memory.buffers[0].address]
    for seed in range(300):
        x[:] = 0
        machine.run("k", 2, 64, args=args, seed=Schedule(seed, APART, memory=WEAK))
        found.add(tuple(x[128:320:64].tolist()))
    assert {(1, 0, 0), (1, 1, 1)} <= found and (1, 1, 0) not in found


@pytest.mark.parametrize("name", ("acquire and release, cta", "fences, cta"))
def test_a_block_hears_nothing_of_its_own_scope_from_the_block_that_it_follows(name):
    """In the same place of an SM, one after the other: of two blocks all the same."""
    litmus, strength = BY_NAME["MP"], STRENGTHS[name]
    text, threads, blocks = program(litmus, strength, "blocks")
    machine, x = Machine(text), memory()
    machine.memory.buffer(x, "x")
    found = set()
    for seed in range(200):
        schedule = Schedule(seed, APART, memory=WEAK)
        launch = threads, blocks
        found.add(outcome(machine, x, launch, litmus, schedule, resident_blocks=1))
        if (1, 0, 1, 1) in found:
            break
    assert (1, 0, 1, 1) in found <= allowed(litmus, strength, "blocks")


@pytest.mark.parametrize(
    "strength, where, kind",
    [
        (STRENGTHS["weak"], "blocks", {"missing-release", "missing-acquire"}),
        (STRENGTHS["weak"], "lanes of a warp", {"missing-warp-sync"}),
        (Strength("cta", ".relaxed.cta", ".relaxed.cta"), "blocks", {"narrow-scope"}),
        (Strength("half", ".relaxed.gpu", ""), "warps of a block", {"missing-barrier"}),
    ],
)
def test_what_is_weak_or_of_too_narrow_a_scope_is_a_race(strength, where, kind):
    litmus = BY_NAME["MP"]
    text, *launch = program(litmus, strength, where)
    for seed in range(3):
        machine, x = Machine(text, races=True), memory()
        machine.memory.buffer(x, "x")
        with pytest.raises(Race) as caught:
            outcome(machine, x, launch, litmus, Schedule(seed, APART))
        assert caught.value.kind in kind


@pytest.mark.parametrize("where", WHERE)
def test_scopes_that_include_both_are_none(where):
    litmus = BY_NAME["MP"]
    strength = Strength("wide", ".relaxed.sys", ".relaxed.gpu", "fence.sc.sys;")
    text, *launch = program(litmus, strength, where)
    machine, x = Machine(text, races=True), memory()
    machine.memory.buffer(x, "x")
    outcome(machine, x, launch, litmus, Schedule(1, APART))


PAGE = Path(__file__).resolve().parents[2] / "docs" / "litmus.md"


@pytest.mark.parametrize("litmus", LITMUS, ids=lambda litmus: litmus.short)
def test_the_page_has_every_outcome_that_the_model_allows_and_no_forbidden_one(litmus):
    table = script("litmus_table")
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {litmus.short}: {litmus.name}\n")[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    assert "forbidden" not in text.split("\n## ")[0], ".ci/litmus_table.py"
    places = len(table.names(litmus))
    for i, (name, where) in enumerate(table.COLUMNS):
        cells = [line.strip("| ").split(" | ") for line in lines]
        said = {tuple(map(int, row[:places])) for row in cells if row[places + i] != "-"}
        assert said == allowed(litmus, STRENGTHS[name], where), ".ci/litmus_table.py"
