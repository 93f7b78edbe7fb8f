"""Contract under test: an instrumented build multiplies bit for bit as the plain one, every warp is
recorded, and the parts of the time add up to all of it."""

import numpy as np
import pytest

from numba_marlin import compiler
from numba_marlin.compiler.resources import count_ptx
from numba_marlin.emulator import Machine
from numba_marlin.profile.instrument import coarse, recorder, records, sections, totals
from numba_marlin.profile.instrument.sections import NUMBER, SECTIONS
from tests.profile.observed import added_up, events

KERNELS = [
    "general",
    "naive",
    "tiled",
    "buffered",
    "ampere",
    "decode",
    pytest.param("wgmma", marks=pytest.mark.thorough),
]
SEEN = {  # sections that every run of a kernel has
    "general": {"setup", "multiply", "write"},
    "naive": {"setup", "multiply"},
    "tiled": {"copy", "wait_barrier", "multiply", "write"},
    "buffered": {"copy", "wait_copies", "wait_barrier", "multiply", "write"},
    "ampere": {"copy", "wait_barrier", "multiply", "reduce_block", "write"},
    "decode": {"copy", "wait_copies", "wait_room", "multiply", "reduce_block", "write"},
    "wgmma": {"copy", "wait_copies", "multiply", "write"},
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("record", [events, added_up], ids=["events", "totals"])
def test_recording_changes_no_bit_of_the_result(name, record):
    run = record(name)
    assert (run.c == run.expected).all()


@pytest.mark.parametrize("name", KERNELS)
def test_events_of_every_warp_follow_each_other_from_its_start_to_its_end(name):
    run, launch = events(name), events(name).launch
    assert len(launch.start_ns) == run.blocks * run.build.warps and launch.clipped == 0
    assert (launch.warp == np.tile(np.arange(run.build.warps), run.blocks)).all() and (
        launch.end_ns > launch.start_ns
    ).all()
    assert (np.diff(launch.begin_ns, axis=1) >= 0).all() and (
        launch.begin_ns[:, -1] <= launch.end_ns
    ).all()
    seen = {SECTIONS[number].name for number in np.unique(launch.section[launch.section >= 0])}
    assert seen >= SEEN[name]


@pytest.mark.parametrize("name", KERNELS)
def test_parts_add_up_to_the_launch(name):
    for run, shares in ((events(name), records.shares), (added_up(name), totals.shares)):
        launch = run.launch
        parts = shares([launch])
        assert sum(parts.values()) == pytest.approx(launch.last_ns - launch.first_ns)
        assert all(value >= 0 for value in parts.values()) and parts["multiply"] > 0


@pytest.mark.parametrize("name", ["tiled", "ampere", "decode"])
def test_both_recorders_see_the_same_order_of_magnitude_in_every_wait(name):
    """(Their clocks differ: the machine's counts instructions, the recorder's own included.) Waits
    that the light build joins are compared together."""
    of_events, of_totals = (
        records.shares([events(name).launch]),
        totals.shares([added_up(name).launch]),
    )
    work = {
        section: sum(
            parts[each] for each in ("multiply", "copy", "reduce_block", "reduce_grid", "write")
        )
        for section, parts in (("events", of_events), ("totals", of_totals))
    }
    assert work["totals"] == pytest.approx(work["events"], rel=0.35)


def test_a_full_slot_says_what_was_not_recorded():
    launch = events("tiled", 8).launch
    parts = records.shares([launch])
    assert (
        launch.clipped > 0
        and parts["unrecorded"] > 0
        and sum(parts.values()) == pytest.approx(launch.last_ns - launch.first_ns)
    )
    with pytest.raises(ValueError, match="must be a power of two"):
        recorder.instrument(events("tiled").compiled, 100)


def test_a_warp_without_a_record_is_an_error():
    run = events("tiled")
    with pytest.raises(ValueError, match="left no record"):
        records.raw(np.zeros(run.build.nbytes(1), np.uint8), run.build, 1)


def test_ptx_without_line_numbers_is_refused():
    run = events("tiled")
    plain = compiler.build(*_kernel_and_config("tiled"))
    with pytest.raises(ValueError, match="line_info=True"):
        recorder.instrument(plain)
    assert "%nmr_at" in run.build.compiled.ptx and run.build.compiled.parameters[-1] == (
        "record",
        "u64",
    )


def _kernel_and_config(name):
    from tests.kernels.harness import KERNELS as BY_NAME
    from tests.kernels.harness import config_for
    from tests.profile.observed import CASES

    return BY_NAME[name], config_for(name, *CASES[name][2])


def test_the_light_build_reads_the_clock_twice_a_wait_and_stores_nothing_in_loops():
    """The faithful kernel's four unrolled tiles: a read before each wait for a stage and one
    behind, whatever verbs lie between."""
    compiled = added_up("ampere").compiled
    machine = Machine(compiled.ptx)
    found = coarse.readings(machine.module, machine.kernel())
    waits = [each for each in found if each.enter == ("wait_copies", "multiply")]
    assert len(waits) == 5 and sum(each.leave == ("wait_copies", "multiply") for each in found) == 5
    light, plain, detailed = (
        count_ptx(ptx)
        for ptx in (
            added_up("ampere").build.compiled.ptx,
            compiled.ptx,
            events("ampere").build.compiled.ptx,
        )
    )
    stores = {
        name: sum(count for opcode, count in counts.items() if opcode.startswith("st.global"))
        for name, counts in (("light", light), ("plain", plain), ("detailed", detailed))
    }
    assert stores["light"] - stores["plain"] < 20 < stores["detailed"] - stores["plain"]


def test_sections_of_the_faithful_kernel():
    machine = Machine(events("ampere").compiled.ptx)
    kernel = machine.kernel()
    of_pc = sections.sections(machine.module, kernel)
    by_section = {
        name: {ins.root for ins, section in zip(kernel.instructions, of_pc) if section == name}
        for name in set(of_pc)
    }
    assert (
        "cp.async" in by_section["copy"]
        and "mma" in by_section["multiply"]
        and by_section["wait_barrier"] >= {"bar"}
        and "ldmatrix" in by_section["multiply"]
    )
    assert any(
        ins.root == "ld"
        for ins, section in zip(kernel.instructions, of_pc)
        if section == "wait_block"
    )


def invented(clocks, period=1000.0, launches=3):
    """Raw records of launches of two blocks on two multiprocessors whose clocks tick at ``clocks``
    (a ns) from different zeros: setup for 100 ns, multiply for 700 of 800 ns."""
    header_type = records._HEADER
    found = []
    for number in range(launches):
        header = np.zeros(2, header_type)
        events_ = np.zeros((2, 1, 2), np.uint32)
        for sm, rate in enumerate(clocks):
            start = 10_000 + number * period + 50 * sm
            zero = (7 << 32) - 1000 if sm else 123_456_789  # a clock whose low half wraps around
            header[sm] = (
                start,
                zero + start * rate,
                sm,
                0,
                start + 800,
                zero + (start + 800) * rate,
                72,
            )
            events_[sm, 0] = int(zero + (start + 100) * rate) & 0xFFFFFFFF, NUMBER["multiply"]
        found.append(records.Raw(header, events_, 1, np.zeros(2, bool)))
    return found


def test_clocks_of_multiprocessors_are_laid_on_one_timer():
    launches = records.align(invented((2, 3)))
    for number, launch in enumerate(launches):
        assert launch.start_ns == pytest.approx([1000 * number, 1000 * number + 50], abs=1e-3)
        assert launch.begin_ns[:, 1] - launch.start_ns == pytest.approx([100, 100], abs=1e-3)
    parts = records.shares(launches)
    assert records.period_ns(launches) == pytest.approx(1000) and sum(
        parts.values()
    ) == pytest.approx(1000)
    assert (
        parts["multiply"] == pytest.approx(700)
        and parts["setup"] == pytest.approx(100)
        and parts["tail"] == pytest.approx(25)
        and parts["launch"] == pytest.approx(175)
    )


def test_launches_that_overlap_are_counted_once():
    """They end every 600 ns, but each takes 800: what a warp did before the launch before had ended
    is nobody's."""
    parts = records.shares(records.align(invented((1, 1), period=600.0)))
    assert (
        sum(parts.values()) == pytest.approx(600)
        and parts["launch"] == 0
        and parts["setup"] == 0
        and parts["multiply"] == pytest.approx(575)
    )


def launch_of(start, end, waits=True):
    spent = np.zeros((1, len(SECTIONS)))
    spent[0, NUMBER["multiply"]] = end - start
    return totals.Totals(
        np.zeros(1, int),
        np.zeros(1, int),
        np.zeros(1, int),
        np.array([start]),
        np.array([end]),
        np.array([waits]),
        spent,
    )


def test_what_comes_before_a_launch_is_a_wait_in_kernels_that_wait_for_the_one_before():
    parts = totals.shares([launch_of(100.0, 900.0), launch_of(950.0, 1800.0)])
    assert (
        sum(parts.values()) == pytest.approx(900)
        and parts["wait_kernel"] == pytest.approx(50)
        and parts["multiply"] == pytest.approx(850)
        and parts["launch"] == 0
    )
    kept_apart = totals.shares([launch_of(100.0, 900.0), launch_of(950.0, 1800.0)], apart=True)
    assert kept_apart["launch"] == pytest.approx(50) and kept_apart["wait_kernel"] == 0
    apart = totals.shares([launch_of(0.0, 900.0, False), launch_of(1000.0, 1900.0, False)])
    assert (
        apart["launch"] == pytest.approx(100)
        and apart["wait_kernel"] == 0
        and sum(apart.values()) == pytest.approx(1000)
    )


def test_a_start_is_the_end_less_all_sections_also_where_clocks_wrap_around():
    slots = np.zeros((3, 1), totals._SLOT)
    for number in range(3):
        slots[number, 0] = (
            5_000 + 1_000 * number,
            (1 << 40) + 2_000 * number,
            number % 2,
            0,
            1,
            0,
            [0] * len(SECTIONS),
        )
        (
            slots["cycles"][number, 0, NUMBER["multiply"]],
            slots["cycles"][number, 0, NUMBER["setup"]],
        ) = (300, 100)
    launch = totals.align([slots[:1], slots[2:]])[1]  # of one multiprocessor: two ticks a ns
    assert (launch.end_ns - launch.start_ns).tolist() == [200.0] and launch.sections_ns[
        0, NUMBER["multiply"]
    ] == 150
