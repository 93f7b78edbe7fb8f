"""Contract under test: a profile's counts are those of the machine's run, in bytes of sectors, times
the factor to the whole launch; and the limits of rules belong to one side."""

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
