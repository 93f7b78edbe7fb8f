"""Contract under test: a light build that leaves waits out is the same kernel with fewer readings,
and none in loops of one section; what several builds saw is put together without changing the
sum."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.emulator import Machine
from numba_marlin.profile import build as profile
from numba_marlin.profile.instrument import coarse, recorder, totals
from numba_marlin.profile.instrument.sections import NUMBER, SECTIONS
from numba_marlin.profile.pages import profile_page
from numba_marlin.views import text
from tests.profile.observed import added_up, untold

KERNELS = ["tiled", "ampere", "decode", pytest.param("wgmma", marks=pytest.mark.thorough)]


def kernel_of(name):
    machine = Machine(added_up(name).compiled.ptx)
    return machine.module, machine.kernel()


def enters(found):
    return [(each.pc, each.enter) for each in found if each.enter]


@pytest.mark.parametrize("name", KERNELS)
def test_a_build_without_waits_multiplies_bit_for_bit_and_counts_them_as_work(name):
    run, full = untold(name, coarse.WAITS), added_up(name)
    assert (run.c == run.expected).all()
    parts, told = totals.shares([run.launch]), totals.shares([full.launch])
    assert sum(parts.values()) == pytest.approx(run.launch.last_ns - run.launch.first_ns)
    assert sum(told[wait] for wait in coarse.WAITS) > 0 and all(
        parts[wait] == 0 for wait in coarse.WAITS
    )
    assert {section for section in parts if parts[section]} == {
        section for section in told if told[section]
    } - coarse.WAITS
    assert (run.launch.block == full.launch.block).all() and (
        run.launch.warp == full.launch.warp
    ).all()


@pytest.mark.parametrize("name", KERNELS)
def test_a_wait_that_is_not_told_counts_as_the_work_that_it_interrupts(name):
    """And as no other: what is divided later must be what the finer builds divide."""
    interrupts = coarse.interruptions(coarse.readings(*kernel_of(name)))
    parts, told = (
        totals.shares([untold(name, coarse.WAITS).launch]),
        totals.shares([added_up(name).launch]),
    )
    for section in set(told) - coarse.WAITS - {"launch", "tail"}:
        waited = sum(told[wait] for wait in interrupts if section in interrupts[wait])
        assert 0.9 * told[section] <= parts[section] <= 1.05 * (told[section] + waited)


@pytest.mark.parametrize("name", KERNELS)
def test_each_wait_alone_is_read_where_it_is_read_among_all(name):
    module, kernel = kernel_of(name)
    everything = coarse.readings(module, kernel)
    for wait in coarse.interruptions(everything):
        alone = coarse.readings(module, kernel, coarse.WAITS - {wait})
        assert enters(alone) == [each for each in enters(everything) if each[1][0] == wait]
        assert [each.leave for each in alone if each.leave] == [
            each.leave for each in everything if each.leave and each.leave[0] == wait
        ]
    with pytest.raises(ValueError, match="only waits can be omitted"):
        coarse.readings(module, kernel, frozenset({"multiply"}))


def test_one_kind_of_wait_is_seen_alike_alone_and_among_all():
    """By the machine's clock, which counts instructions and so those of the other readings too."""
    alone, everything = (
        totals.shares([run.launch])
        for run in (untold("decode", coarse.WAITS - {"wait_copies"}), added_up("decode"))
    )
    assert (
        alone["wait_copies"] == pytest.approx(everything["wait_copies"], rel=0.35)
        and alone["wait_room"] == 0 < everything["wait_room"]
    )


@pytest.mark.parametrize("name", KERNELS)
def test_without_waits_nothing_is_read_in_a_loop_of_one_section(name):
    """It begins before the loop."""
    module, kernel = kernel_of(name)
    at = coarse._anchors(module, kernel)
    loops = [
        range(ins.target, ins.pc + 1)
        for ins in kernel.instructions
        if ins.root == "bra" and ins.target <= ins.pc
    ]
    loops = [loop for loop in loops if len({at[pc] for pc in loop} - {None} - coarse.WAITS) == 1]
    assert any("multiply" in at[loop.start : loop.stop] for loop in loops)
    assert not [
        each
        for each in coarse.readings(module, kernel, coarse.WAITS)
        if any(each.pc in loop for loop in loops)
    ]


@pytest.mark.parametrize("name", ["decode", pytest.param("wgmma", marks=pytest.mark.thorough)])
def test_lanes_that_only_watch_their_leader_copy_leave_without_a_record(name):
    module, kernel = kernel_of(name)
    found = coarse.leavings(module, kernel)
    by_pc = {each.pc: each for each in coarse.readings(module, kernel)}
    copies = min(pc for pc, each in by_pc.items() if each.switch and each.switch[0] == "copy")
    # the leader's lane goes on to copy
    assert found and all(ins.root == "bra" for ins in found) and found[0].pc < copies
    light = added_up(name).build.compiled.ptx
    assert (
        light.count("exit; // instead of") == len(found)
        and f"@{found[0].guard.name} exit; // instead of" in light
    )
    assert (added_up(name).launch.sections_ns[:, NUMBER["copy"]] > 0).any()


SPINS_IN_ONE_BLOCK = """.version 8.0
.target sm_90
.address_size 64
.visible .entry spins(.param .u64 spins_param_0)
{
	.reg .b32 %r<8>;
	.reg .pred %p<4>;
	.shared .align 8 .b64 barrier;
	.shared .b32 value;
	.loc 1 1 1
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, barrier;
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra READY;
	mbarrier.init.shared.b64 [%r1], 32;
	st.shared.u32 [value], %r0;
READY:
	bar.sync 0;
	setp.lt.u32 %p1, %r0, 32;
	@%p1 bra ROUND;
	mov.u32 %r2, 0;
LATE:
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p2, %r2, 500;
	@%p2 bra LATE;
	mbarrier.arrive.shared.b64 _, [%r1];
	bra DONE;
ROUND:
	mov.u32 %r3, 0;
SPIN:
	mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
	@!%p3 bra SPIN;
	ld.shared.u32 %r4, [value];
	add.u32 %r3, %r3, 1;
	setp.lt.u32 %p2, %r3, 3;
	@%p2 bra SPIN;
DONE:
	ret;
}
"""


@pytest.mark.parametrize("without", [frozenset(), coarse.WAITS - {"wait_copies"}], ids=len)
def test_a_wait_that_is_its_own_loop_begins_once(without):
    """On Python 3.14 ``while not ...: pass`` is one basic block: a wait and its loop."""
    compiled = dataclasses.replace(
        added_up("naive").compiled,
        ptx=SPINS_IN_ONE_BLOCK,
        entry="spins",
        parameters=(("c", "u64"),),
        threads=64,
    )
    build = totals.instrument(compiled, machine_code=False, without=without)
    slots = np.zeros(build.nbytes(1), np.uint8)
    machine = Machine(build.compiled.ptx)
    at = machine.memory.buffer(slots, recorder.PARAMETER).address
    machine.run(grid=1, block=64, args=[0, at])
    launch = totals.align([totals.raw(slots, build, 1)])[0]
    waited = launch.sections_ns[:, NUMBER["wait_copies"]]
    whole = launch.end_ns - launch.start_ns
    assert (launch.sections_ns >= 0).all() and 0.8 * whole < waited < whole


def slots(blocks=2, warps=2):
    found = np.zeros((blocks, warps), totals._SLOT)
    found["used"], found["timer"][:, 0], found["clock"] = 1, 1000, 500
    return found


class Build:
    warps = 2

    def nbytes(self, blocks):
        return blocks * self.warps * totals.SLOT_BYTES


def test_blocks_and_warps_without_work_leave_no_record_and_others_must():
    idle = slots()
    idle["used"][1], idle["used"][0, 1] = 0, 0
    read = totals.raw(idle.view(np.uint8).reshape(-1), Build(), 2)
    assert len(totals.align([read])[0].end_ns) == 1
    lost = slots()
    lost["used"][1, 0] = 0
    for broken in (lost, np.zeros_like(lost)):
        with pytest.raises(ValueError, match="left no record"):
            totals.raw(broken.view(np.uint8).reshape(-1), Build(), 2)


def test_what_a_block_left_in_an_earlier_launch_is_not_of_this_one():
    first, second = slots(), slots()
    second["timer"][0, 0], second["timer"][1, 0] = 2000, 900
    launches = totals.align([first, second])
    assert [len(each.end_ns) for each in launches] == [4, 2] and set(
        launches[1].block.tolist()
    ) == {0}


def shares(**us):
    return {section.name: 0.0 for section in SECTIONS} | {"launch": 1.0, "tail": 1.0} | us


def test_a_finer_build_divides_what_the_coarse_one_measured():
    """The finer build takes a fifth longer; 4 of 10 us are waiting all the same."""
    found = totals.divided(
        shares(multiply=10.0, write=1.0),
        {"wait_copies": shares(multiply=7.2, wait_copies=4.8, write=1.5)},
        {"wait_copies": frozenset({"multiply"})},
    )
    assert found == pytest.approx(shares(multiply=6.0, wait_copies=4.0, write=1.0))


def test_a_wait_is_taken_from_the_work_that_misses_it():
    """At the barrier 2 us of multiplying and none of 3 us of adding up are waiting; waits for
    copies come from another build, which takes longer."""
    work = shares(multiply=10.0, reduce_block=3.0)
    finer = {
        "wait_barrier": shares(multiply=8.0, reduce_block=3.0, wait_barrier=2.0),
        "wait_copies": shares(multiply=14.0, wait_copies=6.0, reduce_block=3.5),
    }
    found = totals.divided(
        work,
        finer,
        {
            "wait_barrier": frozenset({"multiply", "reduce_block"}),
            "wait_copies": frozenset({"multiply"}),
        },
    )
    assert found == pytest.approx(
        shares(multiply=5.0, reduce_block=3.0, wait_barrier=2.0, wait_copies=3.0)
    )


def test_the_sum_stays_that_of_the_coarse_build_whatever_the_finer_ones_say():
    generator = np.random.default_rng(0)
    names = ["multiply", "copy", "reduce_block", "write"]
    for _ in range(200):
        work = shares(**dict(zip(names, generator.uniform(0, 5, 4) * (generator.random(4) < 0.8))))
        finer = {
            wait: shares(
                **dict(
                    zip([*names, wait], generator.uniform(0, 5, 5) * (generator.random(5) < 0.8))
                )
            )
            for wait in ("wait_copies", "wait_barrier", "wait_room")
        }
        found = totals.divided(
            work,
            finer,
            {
                wait: frozenset(generator.choice(names, generator.integers(1, 4), replace=False))
                for wait in finer
            },
        )
        assert sum(found.values()) == pytest.approx(sum(work.values())) and all(
            value >= 0 for value in found.values()
        )
        assert all(found[name] <= work[name] for name in names)


def test_builds_of_a_kernel_are_made_for_the_waits_that_it_has():
    made, interrupts = totals.builds(added_up("decode").compiled, machine_code=False)
    assert (
        set(made) == {"light", "work", *interrupts}
        and interrupts["wait_room"] == {"copy"}
        and "multiply" in interrupts["wait_copies"]
    )
    assert (
        made["work"].marks
        < min(made[wait].marks for wait in interrupts)
        <= max(made[wait].marks for wait in interrupts)
        < made["light"].marks
    )
    made, interrupts = totals.builds(added_up("tiled").compiled, machine_code=False)
    # of one kind of wait all at once tells it
    assert set(made) == {"light", "work"} and set(interrupts) == {"wait_barrier"}
    assert set(totals.builds(added_up("naive").compiled, machine_code=False)[0]) == {"light"}


def measured(**us):
    """A kept profile of a GPU, its parts as if from several builds."""
    found = profile.load(
        Path(__file__).resolve().parents[2] / "experiments" / "10_profile" / "h200_ampere.json"
    )
    found["time"] |= {
        "alone_us": 10.0,
        "us": 10.0,
        "light_us": 11.5,
        "work_us": 10.2,
        "finer_us": {"wait_copies": 11.0, "wait_barrier": 10.3},
    }
    found["parts"] = {"source": "measured", "us": {"multiply": 8.0, "wait_copies": 2.25}, **us}
    return text.render(profile_page.page(found).only(("timeline",)), 120)


def test_the_timeline_says_which_build_said_what():
    both, alone = measured(raw_us={"multiply": 8.75, "wait_copies": 2.5}), measured()
    for said in (
        "+2.5%",
        "+2.0%",
        "wait for copies +10.0%",
        "wait at a barrier +3.0%",
        "11.25 us, +12.5%",
        "all at once, us",
        "8.75",
        "8.00",
        "-0.75",
        "-0.25",
    ):
        assert said in " ".join(both.split())
    assert "all at once" not in alone and "11.25" not in alone and "+15.0%" in alone
