"""Contract under test: an explanation says the figures of its candidates, each with its unit, and
nothing of what is not known."""

import math
import re
from dataclasses import replace

import pytest

from numba_marlin.hardware import devices
from numba_marlin.heuristics import (
    Candidate,
    Problem,
    check_device,
    default_config,
    devices_for,
    explain_problem,
    rank,
    tuned,
)
from numba_marlin.heuristics.explanation import Explanation, _folded

H200 = devices.device("H200")
PROBLEM = Problem(16, 8192, 8192)
FIGURES = {
    "blocks": 24,
    "waves": 0.5,
    "tiles": {"k": 1, "n": 2, "m": 3},
    "tiles_per_block": 4,
    "busy": 0.25,
    "predicted_us": 12.34,
    "free_us": 10.0,
}
FIRST = Candidate(
    "tiled",
    default_config("tiled", PROBLEM, H200),
    (4, 2, 3),
    256,
    96 * 1024,
    ("because",),
    FIGURES,
)
SECOND = replace(
    FIRST, grid=(4, 1, 1), shared_bytes=1536, reasons=(), figures={"blocks": 4, "waves": 0.125}
)


def said(device=H200):
    return Explanation(PROBLEM, device, (FIRST, SECOND)).text(200).splitlines()


def test_the_choice_is_said_first_and_why():
    other = replace(SECOND, kernel="naive")
    slower = replace(other, figures=FIGURES | {"predicted_us": 20.0})
    won = tuned.Choice("tiled", FIRST.config, 11.26, "2026-11-28")
    lost = tuned.Choice("naive", FIRST.config, 9.0, "2026-11-28")
    model = "because its predicted time is least: 12.3 us"
    for candidates, problem, measured, because in (
        ((FIRST, SECOND, slower), PROBLEM, None, f"{model} (naive: 20.0 us)"),
        ((FIRST, SECOND, other), PROBLEM, lost, f"{model} (next: naive)"),
        ((FIRST, slower), PROBLEM, won, "because it was the fastest when measured here, 11.3 us"),
        ((FIRST, SECOND), PROBLEM, None, "because no other kernel takes this problem on this"),
        (
            (SECOND, other),
            PROBLEM,
            None,
            "because it is first by rule, no time is predicted (next: naive)",
        ),
        (
            (FIRST, slower),
            replace(PROBLEM, batch_invariant=True),
            None,
            "because every m takes it, with the same order of sums",
        ),
    ):
        found = Explanation(problem, H200, candidates, measured).text(200)
        assert found.startswith(f"chosen: tiled, {because}")


def test_the_winner_of_a_measurement_is_said_to_be_one(monkeypatch):
    won = tuned.Choice("ampere", default_config("ampere", PROBLEM, H200), 9.0, "2026-11-28")
    monkeypatch.setattr(tuned, "stored_choice", lambda problem, device: won)
    text = explain_problem(PROBLEM, H200).text(200)
    assert text.startswith("chosen: ampere, because it was the fastest when measured here, 9.0 us")


def test_the_problem_and_the_device_come_next():
    # 8192 x 8192 codes of four bits, 64 x 8192 scales, 16 x 8192 numbers twice
    least = 8192 * 8192 // 2 + 2 * 64 * 8192 + 2 * 2 * 16 * 8192
    assert said()[1].startswith("y[16, 8192] = x[16, 8192] @ W[8192, 8192], 4-bit weights")
    assert said()[2:4] == [
        "device: H200, 132 SMs, sm_90, 227 KiB shared memory per block (spec)",
        f"moves at least {least:,} bytes, in {least / 4.8e6:.3g} us if nothing else took time"
        " (modelled)",
    ]
    unknown = said(replace(H200, bandwidth_bytes=None))
    assert unknown[3] == f"moves at least {least:,} bytes (modelled)"


def test_every_candidate_is_said_with_its_figures():
    heads = [line for line in said() if re.match(r"\d+\. ", line)]
    assert heads == [
        "1. tiled  grid 4 x 2 x 3, 256 threads, 100.25 KiB shared",
        "2. tiled  grid 4 x 1 x 1, 256 threads, 5.75 KiB shared",
    ]
    assert [line for line in said() if line.startswith(("   - ", "   modelled"))] == [
        "   - because",
        "   modelled: blocks 24, waves 0.5; tiles 1 (k) x 2 (n) x 3 (m), 4 per block, SMs 25% busy;"
        " 12.3 us, 10.0 us if free to choose",
        "   modelled: blocks 4, waves 0.125",
    ]


def test_in_one_line_and_as_a_table():
    found = Explanation(PROBLEM, H200, (FIRST, SECOND, SECOND))
    assert "on H200: tiled, then 2 other candidates" in repr(found)
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", found._repr_html_())
    ]
    assert rows[0] == ["kernel", "configuration", "grid", "predicted", "why"]
    assert [row[2:] for row in rows[1:3]] == [
        ["4 x 2 x 3", "12.3 us", "because"],
        ["4 x 1 x 1", "", ""],
    ]


def test_figures_of_every_candidate_follow_from_its_grid():
    for device in ("H200", "A100", "RTX 4090"):
        where = devices.device(device)
        found = rank(Problem(100, 512, 1024), where)
        for each in found:
            blocks = math.prod(each.grid)
            assert each.figures["blocks"] == blocks
            assert each.figures["waves"] == round(blocks / where.sms, 3)


def test_devices_of_a_kernel_begin_with_the_fastest_memory():
    found = devices_for("tiled")
    speeds = [each.bandwidth_bytes for each in found]
    assert len(found) > 3 and speeds == sorted(speeds, reverse=True)
    for each in devices_for("wgmma"):
        check_device("wgmma", each)


def test_an_explanation_is_of_what_was_asked():
    found = explain_problem(PROBLEM, "A100")
    assert found.device == devices.device("A100") and found.candidates == rank(
        PROBLEM, found.device
    )
    assert found.choice == found.candidates[0]


def test_the_fastest_three_of_a_kernel_are_ranked():
    kernels = [each.kernel for each in rank(PROBLEM, H200)]
    assert max(map(kernels.count, kernels)) == 3


@pytest.mark.parametrize("device", ["A100", "H200"])
def test_lines_of_an_explanation_fit(device):
    found = explain_problem(Problem(256, 57344, 8192), device)
    assert max(map(len, str(found).splitlines())) <= 100
    assert max(map(len, found.text(500).splitlines())) > 100
    assert str(found).split() == found.text(60).split()
    assert max(map(len, found.text(60).splitlines())) <= 60


def test_no_word_of_an_explanation_is_broken():
    found = list(_folded(["   - cut along-rows here", "", "wordwithoutanend"], 11))
    assert found == ["   - cut", "     along-rows", "     here", "", "wordwithoutanend"]
