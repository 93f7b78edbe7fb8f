"""Contract under test: how full each level is, what moves between levels per second, what registers
are for, and how many blocks are launched and done, follow from the profile's own figures."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin.counts.liveness import fullest, live_words, words_of
from numba_marlin.emulator import Machine
from numba_marlin.profile import build as profile
from numba_marlin.profile.pages import memory_views, profile_page
from numba_marlin.profile.sources import registers
from numba_marlin.views import Bars, Levels, Lines, Series, html, text
from numba_marlin.views.page import Level, Page, Section
from tests.emulator.ptx_cases import frame
from tests.profile.built import counted, data, section


def levels_of(found):
    (figure,) = [each for each in memory_views.memory(found).parts if isinstance(each, Levels)]
    return {level.name: level for level in figure.levels}


def test_levels_are_as_full_as_the_launch_makes_them():
    found = data()
    found["launch"] |= {"blocks": 264, "threads": 128, "registers": 64, "shared_bytes": 50_000}
    found["occupancy"]["blocks"] = 3  # but the grid has two for an SM
    found["limits"] |= {"registers": 65536, "shared_bytes": 200_000, "l2_bytes": 1000}
    found["rates"]["least_bytes"] = 250
    found["state"] = {"samples": [{"memory_used": 30}]}
    found["limits"]["memory_bytes"] = 120
    levels = levels_of(found)
    assert levels["device memory"].filled == 0.25 and levels["L2"].filled == 0.25
    assert levels["shared memory, L1"].filled == 0.5
    assert levels["registers"].filled == 2 * 128 * 64 / 65536
    found["occupancy"]["blocks"], found["rates"]["least_bytes"] = 1, 5000
    levels = levels_of(found)
    assert levels["shared memory, L1"].filled == 0.25 and levels["L2"].filled == 1.0
    found["launch"]["registers"], found["state"] = None, {"missing": "no GPU"}
    levels = levels_of(found)
    assert levels["registers"].filled is None and levels["device memory"].filled is None


def test_rates_are_counted_bytes_over_the_time_of_the_launch():
    found = data()
    found["time"] |= {"us": 10.0, "fitted": True}
    found["limits"]["clock_mhz"], found["device"]["sms"] = 1000, 100
    found["counts"] |= {"asked_bytes": 20_000_000, "shared_bytes": 50_000_000}
    levels = levels_of(found)
    # in 10 us a hundred SMs have a million cycles
    assert "2.00 TB/s, 20.0 bytes per cycle of an SM" in levels["L2"].down
    assert "5.00 TB/s, 50.0 bytes per cycle of an SM" in levels["shared memory, L1"].down
    assert "at most" not in levels["L2"].down
    found["time"]["fitted"], found["limits"]["clock_mhz"] = False, None
    levels = levels_of(found)
    assert "at most 2.00 TB/s (" in levels["L2"].down and "cycle" not in levels["L2"].down


@pytest.mark.parametrize("share, bar", [(0.5, "50.00%"), (1.5, "100.00%"), (None, None)])
def test_a_level_shows_how_full_it_is(share, bar):
    part = Levels((Level("L2", "60 MiB", filled=share), Level("empty")))
    page = Page("One", (Section("one", "One", (), (part,)),))
    document, shown = html.render(page), text.render(page, 60, unicode=False)
    assert ('style="width:' in document) == (share is not None)
    assert share is None or f'style="width:{bar}"' in document
    assert ("%" in shown) == (share is not None) and max(map(len, shown.splitlines())) <= 60


PTX = """ld.global.v2.u32 {%r1, %r2}, [%p0]; mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1;
mov.f32 %f3, %f1; mov.f32 %f4, %f1; mov.u32 %r3, %r1; mov.u32 %r4, %r2; mov.u32 %r5, 7;
ld.global.u32 %r6, [%p0+64];
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4}, {%r5},
{%f1, %f2, %f3, %f4};
st.global.v4.f32 [%p0], {%f1, %f2, %f3, %f4}; st.global.u32 [%p0+16], %r6;"""


def test_registers_are_sorted_by_what_instructions_do_with_them():
    kernel = Machine(frame(PTX)).kernel("k")
    pc, live = fullest(kernel)
    assert sum(map(words_of, live)) == max(live_words(kernel)) == live_words(kernel)[pc]
    found = registers.by_use(kernel)["words"]
    # four sums, three registers of fragments, one loaded word on its way, one address
    assert found == {
        "sums": 4,
        "fragments": 3,
        "loaded words": 1,
        "addresses": 2,
        "other values": sum(map(words_of, live)) - 10,
    }


def test_every_live_register_of_a_kernel_is_for_something():
    found = data()
    words = found["registers"]["words"]
    assert set(words) == set(registers.USES)
    assert sum(words.values()) == found["counts"]["live_registers"]
    # of tiled: a warp's 8 sums of an n8k16 tile and its fragments
    assert words["sums"] >= 4 and words["fragments"] >= 4 and words["addresses"] > 0
    (bars,) = memory_views.by_use(found)
    assert isinstance(bars, Bars) and [bar.value for bar in bars.bars] == list(words.values())
    del found["registers"]
    assert memory_views.by_use(found) == () and section(found, "memory")


def recording(starts, ends, blocks):
    return SimpleNamespace(block=np.array(blocks), start_ns=np.array(starts), end_ns=np.array(ends))


def test_blocks_are_launched_with_their_first_warp_and_done_with_their_last():
    launches = [recording([0.0], [1.0], [0])]
    launches.append(
        recording([100.0, 200.0, 600.0, 700.0], [500.0, 1100.0, 900.0, 800.0], [4, 4, 7, 7])
    )
    found = profile.progress(None, SimpleNamespace(recordings=launches))
    assert (found["unit"], found["source"], found["blocks"]) == ("us", "measured", 2)

    def at(curve, us):
        return [count for time, count in found[curve] if time <= us][-1]

    # block 4 from 0 to 1.0 us, block 7 from 0.5 to 0.8
    assert [at("started", us) for us in (0, 0.45, 0.55, 1.0)] == [1, 1, 2, 2]
    assert [at("done", us) for us in (0, 0.75, 0.85, 1.0)] == [0, 0, 1, 2]


def test_the_curves_of_blocks_are_drawn():
    found = data()
    (figure,) = profile_page.launched_and_done(found)
    assert isinstance(figure, Lines) and all(isinstance(each, Series) for each in figure.series)
    launched, done = (dict(each.points) for each in figure.series)
    end = max(launched)
    assert launched[end] == done[end] == found["progress"]["blocks"]
    assert all(done[time] <= launched[time] for time in launched)
    assert len(np.unique(counted().recording.block)) == found["progress"]["blocks"]
    assert "Blocks launched and done" in section(found, "blocks")
    del found["progress"]
    assert profile_page.launched_and_done(found) == ()


def test_what_should_be_looked_at_stands_first():
    shown = section(data(), "summary")
    findings = shown[shown.index("Findings") : shown.index("Roofline")].splitlines()
    tones = [line[:4].strip() for line in findings if line[:4].strip() in ("bad", "look", "ok")]
    order = ("bad", "look", "ok")
    assert tones == sorted(tones, key=order.index) and len(set(tones)) > 1
