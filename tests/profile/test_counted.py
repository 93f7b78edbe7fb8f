"""Contract under test: a profile's counts are those of the machine's run, in bytes of sectors,
times the factor to the whole launch; its rates follow; limits of rules belong to one side."""

from dataclasses import replace

import pytest

from numba_marlin.profile import build as profile
from numba_marlin.profile.sources import rules
from tests.profile.built import counted, data


@pytest.mark.parametrize("factor", [1, 2.5])
def test_counts_are_the_machines_times_the_factor(factor):
    run = replace(counted(), factor=factor)
    found, total = profile.counts_of(run), run.counts.total
    reads, writes = total.tally.reads, total.tally.writes
    expected = {
        "instructions": total.tally.executed,
        "flops": total.tally.flops,
        "asked_bytes": 32 * (reads.sectors + writes.sectors),
        "block_bytes": 32 * total.block_sectors,
        "distinct_bytes": 32 * total.sectors,
        "needed_bytes": 32 * (reads.needed + writes.needed),
        "shared_bytes": total.tally.shared.bytes,
        "wavefronts": total.tally.shared.wavefronts,
        "conflicts": total.tally.shared.wavefronts - total.tally.shared.ideal,
    }
    assert {name: found[name] for name in expected} == {
        name: round(value * factor) for name, value in expected.items()
    }
    assert found["coalescing"] == pytest.approx(
        100 * (reads.needed + writes.needed) / (reads.sectors + writes.sectors)
    )
    written = {each["name"]: each for each in found["buffers"]}["c"]
    assert written["written"] == round(writes.traffic * factor) and written["read"] == 0


@pytest.mark.parametrize(
    "blocks, tone", [(132, None), (131, rules.WARN), (106, rules.WARN), (105, rules.BAD)]
)
def test_as_many_blocks_as_multiprocessors_are_enough(blocks, tone):
    some = data()
    some["launch"] |= {"blocks": blocks, "dependent": False}
    found = rules.few_blocks(some)
    assert (found and found.tone) == tone


def test_rates_are_work_by_time_and_shares_of_the_ceilings():
    found = data()
    seconds, ceilings, device = found["time"]["us"] / 1e6, found["ceilings"], found["device"]
    problem, rates = counted().problem, found["rates"]
    flops = 2 * problem.m * problem.n * problem.k
    assert rates["bytes_per_s"] == pytest.approx(problem.least_bytes / seconds)
    assert rates["flops_per_s"] == pytest.approx(flops / seconds)
    assert rates["intensity"] == pytest.approx(flops / problem.least_bytes)
    assert rates["memory_share"] == pytest.approx(rates["bytes_per_s"] / ceilings["read_bytes"])
    assert rates["compute_share"] == pytest.approx(rates["flops_per_s"] / ceilings["matrix_flops"])
    executed, clock = found["counts"]["flops"], found["limits"]["clock_mhz"] * 1e6
    assert rates["tensor_share"] == pytest.approx(executed / seconds / ceilings["matrix_flops"])
    # four schedulers of each multiprocessor issue an instruction a cycle
    issued = found["counts"]["instructions"] / (4 * device["sms"] * clock * seconds)
    assert rates["issue_share"] == pytest.approx(issued)


def test_a_warp_on_the_machine_is_measured_in_instructions():
    run = counted()
    found, recording = profile.lanes(run, None), run.recording
    rows = [row for row in range(len(recording.block)) if recording.block[row] == 0]
    origin = min(recording.start_ns[row] for row in rows)
    assert found["unit"] == "warp instructions of the machine" and found["warps"]
    for row, each in zip(rows, found["warps"]):
        begin, until = recording.begin_ns[row], recording.until_ns()[row]
        taken = (recording.section[row] >= 0) & (until > begin)
        assert sum(each["totals"].values()) == pytest.approx((until - begin)[taken].sum())
        assert each["first"][0][0] == begin[taken].min() - origin


def test_the_worst_of_the_accesses_and_the_longest_wait_are_named():
    some = data()
    some["counts"]["coalescing"] = 55.0
    some["accesses"] = [
        {"opcode": "ld", "verb": "fetch", "sectors": 1000, "needed": 900},
        {"opcode": "st", "verb": "finish", "sectors": 1000, "needed": 200},
        {"opcode": "atom", "verb": "lock", "sectors": 1, "needed": 0},  # too few to matter
    ]
    assert "worst: st of finish, 20%" in rules.coalescing(some).text
    some["rates"] |= {"memory_share": 0.1, "tensor_share": 0.1}
    some["time"]["fitted"] = True
    for longest, other in (("wait_barrier", "wait_copies"), ("wait_copies", "wait_barrier")):
        some["parts"]["us"] = {"multiply": 10.0, longest: 60.0, other: 30.0}
        assert "60%" in rules.waits(some).text
        assert profile.reason_of(longest) in rules.waits(some).text
        assert profile.reason_of(longest) in rules.bottleneck(some)[1]
