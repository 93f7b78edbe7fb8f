"""Contract under test: a profile's verdict is the largest share of what it lists; a time that was
not measured on the device, and a lower bound, are said to be what they are."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from numba_marlin.hardware.devices import device
from numba_marlin.heuristics import Problem, candidate
from numba_marlin.profile import build as profile
from numba_marlin.profile.pages import profile_page
from numba_marlin.profile.sources import model, rules, verdict
from numba_marlin.views import text
from tests.profile.built import H200, counted, data, section

KEPT = Path(__file__).resolve().parents[2] / "experiments" / "10_profile" / "h200_ampere.json"
A100 = device("A100")


def test_the_kept_profile_is_not_blamed_on_its_launch():
    """62% of its warps' time is arithmetic, at 11% occupancy; 9% is before they start."""
    found = profile.load(KEPT)
    what, why = verdict.bottleneck(found)
    assert what == "instruction latency" and "62% of a warp's time" in why and "11%" in why
    texts = [each.text for each in rules.findings(found) if each.tone != rules.GOOD]
    assert any("the grid brings 8 of the 16 that fit" in each for each in texts)
    assert any(each.startswith("decode took 14.64 us on NVIDIA H200") for each in texts)


def changed(**parts):
    found = data()
    found["rates"].update(memory_share=0.4, tensor_share=0.2, issue_share=0.3)
    found["time"]["fitted"] = True
    found["occupancy"].update(achieved=0.1, achieved_warps=6.4)
    found["parts"]["us"] = parts
    return found


@pytest.mark.parametrize(
    "parts, expected",
    [
        ({"multiply": 61.0, "launch": 39.0}, "instruction latency"),
        ({"multiply": 39.0, "launch": 61.0}, "launch"),
        ({"multiply": 30.0, "copy": 35.0, "wait_copies": 36.0}, "wait for copies"),
    ],
)
def test_the_verdict_is_the_largest_part_whether_it_works_or_waits(parts, expected):
    assert verdict.bottleneck(changed(**parts))[0] == expected


def test_few_warps_are_advice_where_they_work_and_only_there():
    assert rules.latency_of_instructions(changed(multiply=61.0, launch=39.0))
    assert not rules.latency_of_instructions(changed(multiply=39.0, launch=61.0))
    many = changed(multiply=61.0, launch=39.0)
    many["occupancy"]["achieved"] = 0.25
    assert not rules.latency_of_instructions(many)


def timed(m, n, k, kernel="tiled", on=H200):
    """The times of a profile, with the counts of a small product of tiled."""
    problem = Problem(m, n, k)
    found = replace(counted(), problem=problem, candidate=candidate(problem, on, kernel))
    return profile.times(model.model(found, on), found, on, None)


def test_a_kernel_that_nobody_predicts_takes_what_was_measured():
    """Else the kernel without a pipeline would be faster than those with one."""
    slow, fast = timed(16, 4096, 4096), timed(16, 4096, 4096, "decode")
    assert slow["us"] == slow["recorded"]["us"] > 100 > fast["us"]
    assert slow["source"] == "measured" and not slow["bound"]
    assert fast["source"] == "modelled" and fast["recorded"] is None
    assert slow["modelled_us"] < slow["us"]  # the bound stays, beside it


@pytest.mark.parametrize("m, on", [(17, H200), (16, A100)])
def test_a_lower_bound_is_called_one(m, on):
    """Where nobody measured this product, or not on this device."""
    time = timed(m, 4096, 4096, on=on)
    assert time["bound"] and time["source"] == "modelled" and time["recorded"] is None
    nearest = time["nearest"]
    assert (nearest is not None) == (on is H200) and (nearest is None or nearest["m"] == 16)


def test_what_follows_from_a_lower_bound_is_an_upper_one():
    shown = section(data(), "summary")
    for words in ("at least", "at most 1", "Bottleneck: not known", "nearest measured", "tiled m="):
        assert words in shown
    assert "at least" not in section(changed(multiply=61.0), "summary")
    assert "Bottleneck: instruction issue" not in shown
    mostly_waiting = data()
    mostly_waiting["parts"]["us"] = {"launch": 50.0, "wait_copies": 50.0}
    assert not rules.launch_and_tail(mostly_waiting) and not rules.waits(mostly_waiting)
    mostly_waiting["time"]["fitted"] = True
    assert rules.launch_and_tail(mostly_waiting) and rules.waits(mostly_waiting)


def test_an_error_is_of_the_device_on_which_it_was_measured():
    here, there = (timed(16, 4096, 4096, "ampere", on)["model_error"] for on in (H200, A100))
    assert "measured cells (NVIDIA H200)" in here["text"]
    assert "%" not in there["text"] and "on A100 is not known" in there["text"]
    found = profile.build(counted(), A100)
    found["time"] |= {"fitted": True, "model_error": there}
    page = text.render(profile_page.page(found), 200)
    assert "% on average" not in page


def test_every_recorded_row_is_found_again():
    """Whatever m, n, k and configuration it is of."""
    for row in model.weight_rows():
        if row["kernel"] in ("tiled", "naive", "general", "buffered"):
            problem = model.problem_of(row)
            config = candidate(problem, H200, row["kernel"]).config
            assert row["config"] == asdict(config)
            assert model.recorded(row["kernel"], problem, config, H200) == row
            assert model.recorded(row["kernel"], replace(problem, bits=8), config, H200) is None
            assert model.recorded(row["kernel"], problem, config, A100) is None


def test_a_kept_profile_of_another_version_is_still_judged():
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    found = found.get("profile", found)
    del found["problem"]["codes"]
    assert all(each.text for each in rules.findings(found))
