"""Contract under test: a profile's views and findings follow from its numbers, every section from
its own; nothing is drawn that is not in it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numba_marlin.cli.main import main
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate
from numba_marlin.problems import BlockProblem
from numba_marlin.profile import build as profile
from numba_marlin.profile import lanes
from numba_marlin.profile.pages import profile_page
from numba_marlin.profile.pages.operand_views import packing
from numba_marlin.profile.sources import model, rules
from numba_marlin.profile.sources.occupancy import occupancy
from numba_marlin.views import Grid, html, text
from tests.profile.built import H200, counted, data, section
from tests.views.pages import shown


def test_every_view_is_there_and_fits_80_columns():
    keys = [each.key for each in profile_page.page(data()).sections]
    assert keys == [
        "summary",
        "launch",
        "blocks",
        "memory",
        "warp",
        "transactions",
        "packing",
        "tensor",
        "timeline",
        "device",
        "tried",
        "counters",
    ]
    shown_ = text.render(profile_page.page(data()), 80, unicode=False)
    assert max(map(len, shown_.splitlines())) <= 80 and shown_.isascii()


def change(path, value):
    def apply(found):
        for name in path[:-1]:
            found = found[name]
        found[path[-1]] = value(found[path[-1]]) if callable(value) else value

    return apply


ALTERED = [  # section, what of the profile is altered
    ("summary", change(("time", "us"), 1234.5)),
    ("summary", change(("counts", "coalescing"), 41.0)),
    ("launch", change(("launch", "registers"), 251)),
    ("launch", change(("occupancy", "achieved"), 0.77)),
    ("blocks", lambda found: found["placement"]["rows"].pop()),
    ("memory", change(("counts", "asked_bytes"), lambda value: 3 * value)),
    ("memory", change(("limits", "l2_bytes"), 7 << 20)),
    (
        "warp",
        lambda found: found["lanes"]["warps"][0]["spans"].insert(0, [-500.0, 0.0, "wait_room"]),
    ),
    (
        "warp",
        lambda found: [
            lane.update(spans=[[0, 10, "wait_kernel"]]) for lane in found["lanes"]["warps"]
        ],
    ),
    ("warp", lambda found: [lane["first"].pop() for lane in found["lanes"]["warps"]]),
    (
        "warp",
        lambda found: [lane["totals"].update(wait_kernel=1e6) for lane in found["lanes"]["warps"]],
    ),
    ("transactions", change(("accesses", 0, "bytes"), 987654321)),
    ("transactions", lambda found: found["first_accesses"].pop(0)),
    ("packing", change(("word", "codes", 3, "value"), 42.5)),
    ("packing", change(("word", "value"), 0x12345678)),
    ("packing", change(("word", "codes", 3, "n"), 12)),
    ("tensor", change(("counts", "flops"), lambda value: 5 * value)),
    ("timeline", change(("parts", "us", "launch"), 999.0)),
    ("timeline", change(("sections", "multiply", "instructions"), 31337)),
    ("device", change(("state",), {"missing": "somebody pulled the plug"})),
    ("counters", change(("tools",), [{"name": "ncu", "text": "a new one"}])),
    ("counters", change(("problem", "m"), 77)),
    ("counters", lambda found: found.update(ncu={"smsp__inst_executed.sum": 12345.0})),
]


@pytest.mark.parametrize(
    "key, alter", ALTERED, ids=[f"{number} {key}" for number, (key, _) in enumerate(ALTERED)]
)
def test_an_altered_number_alters_its_view(key, alter):
    found = data()
    before = section(found, key)
    alter(found)
    assert section(found, key) != before


def test_the_codes_of_a_word_are_drawn_where_they_belong():
    found = data()
    drawn = next(part for part in packing(found).parts if isinstance(part, Grid))
    places = {
        (row, column): cell.text
        for row, cells in enumerate(drawn.cells)
        for column, cell in enumerate(cells)
        if cell.text != "."
    }
    assert places == {
        (each["k"], each["n"]): str(number) for number, each in enumerate(found["word"]["codes"])
    }
    found["word"]["codes"][0]["k"] = 10**9  # a file may say anything
    assert not any(isinstance(part, Grid) for part in packing(found).parts)


def test_another_run_has_other_views():
    one, other = data(), data(n=512)
    differing = {
        each.key
        for each in profile_page.page(one).sections
        if section(one, each.key) != section(other, each.key)
    }
    assert differing >= {
        "summary",
        "launch",
        "blocks",
        "memory",
        "transactions",
        "tensor",
        "timeline",
    }


def test_a_part_of_a_problem_stands_for_the_whole():
    """What four multiprocessors' columns need, scaled, is what the whole needs, exactly."""
    whole, part = counted(n=1024, work=1e9), counted(n=1024, work=0.01)
    assert whole.whole and not part.whole and part.part.n < 1024
    for found in (whole, part):
        assert found.counts.total.tally.flops * found.factor == 2 * 16 * 1024 * 256
    assert profile.counts_of(part)["instructions"] == pytest.approx(
        profile.counts_of(whole)["instructions"], rel=1e-6
    )
    assert profile.counts_of(part)["asked_bytes"] == pytest.approx(
        profile.counts_of(whole)["asked_bytes"], rel=1e-6
    )
    assert "times 4" in section(profile.build(part, H200), "memory") or part.factor != 4


def test_sections_counts_are_the_runs():
    found = data()
    assert (
        sum(each["instructions"] for each in found["sections"].values())
        == found["counts"]["instructions"]
        == counted().counts.total.tally.executed
    )
    assert (
        sum(each["flops"] for each in found["sections"].values())
        == found["counts"]["flops"]
        == 2 * 16 * 256 * 256
    )


@pytest.mark.parametrize(
    "threads, registers, shared, expected",
    [
        (256, 64, 48 * 1024, (4, "shared memory")),
        (256, 128, 0, (2, "registers")),
        (1024, 32, 0, (2, "warps")),
        (32, 16, 0, (32, "blocks")),
        (288, 112, 196432, (1, "shared memory")),
        (128, 42, 0, (10, "registers")),
    ],
)
def test_occupancy_is_what_the_guide_says(threads, registers, shared, expected):
    """42 registers a thread are 1344 a warp, handed out as 1536: 42 warps of 65536, ten blocks of
    four."""
    found = occupancy(H200.architecture, 132, threads, registers, shared, 10_000)
    assert (
        (found.blocks, found.limited_by) == expected
        and found.warps == found.blocks * -(-threads // 32)
        and found.share == found.warps / 64
    )


def test_a_small_grid_leaves_places_empty():
    assert occupancy(H200.architecture, 132, 256, 32, 0, 66).launched_warps == pytest.approx(4)
    with pytest.raises(ValueError, match="does not fit: shared memory"):
        occupancy(H200.architecture, 132, 256, 32, 300 * 1024, 1)


def with_numbers(**changes):
    """A profile with nothing to find, but for what is changed."""
    found = data()
    found["rates"].update(memory_share=0.4, tensor_share=0.2, compute_share=0.2, issue_share=0.3)
    found["parts"]["us"] = {"multiply": 80.0, "copy": 15.0, "launch": 1.0}
    found["counts"].update(coalescing=100.0, conflicts=0, flops=found["rates"]["flops"])
    found["launch"].update(blocks=132, spill_bytes=0, dependent=False)
    found["occupancy"].update(share=0.5)
    found["time"].update(fitted=True)
    for path, value in changes.items():
        place, _, name = path.partition("__")
        found[place][name] = value
    return found


RULES = [
    ({"rates__memory_share": 0.83}, "memory bandwidth is 83% used"),
    ({"rates__tensor_share": 0.71}, "tensor cores are 71% used"),
    ({"launch__blocks": 100}, "100 blocks leave 32 of 132"),
    ({"launch__blocks": 64, "launch__dependent": True}, "the launch behind begins there"),
    (
        {"parts__us": {"multiply": 50.0, "tail": 50.0}},
        "50% of an average warp's time is before it starts",
    ),
    ({"parts__us": {"multiply": 50.0, "wait_copies": 50.0}}, "more stages"),
    (
        {"parts__us": {"multiply": 50.0, "wait_copies": 50.0}, "rates__memory_share": 0.9},
        "what it should look like",
    ),
    ({"parts__us": {"multiply": 50.0, "wait_block": 40.0}}, "blocks take turns"),
    ({"counts__coalescing": 60.0}, "40.0% of the sectors touched are waste"),
    ({"counts__conflicts": 10**9}, "bank conflicts"),
    ({"launch__spill_bytes": 48}, "48 bytes of registers"),
    ({"state__throttle": ["power cap"]}, "held back by power cap"),
    ({"time__cublas_us": 1e9}, "times as fast as cuBLAS"),
    (
        {"occupancy__share": 0.1, "parts__us": {"multiply": 40.0, "wait_barrier": 60.0}},
        "more would hide waits",
    ),
    ({"counts__flops": 10**12}, "batch rows that only fill up the tile"),
    ({"parts__us": {"multiply": 50.0, "wait_role": 50.0}}, "one role of the block is slower"),
]


@pytest.mark.parametrize("changes, expected", RULES, ids=[expected for _, expected in RULES])
def test_findings_follow_from_the_numbers(changes, expected):
    quiet, found = (
        " ".join(each.text for each in rules.findings(with_numbers(**some)))
        for some in ({}, changes)
    )
    assert expected in found and expected not in quiet


def test_the_bottleneck_is_the_resource_that_is_used_most_else_what_is_waited_for():
    assert (
        rules.bottleneck(with_numbers(rates__memory_share=0.7, rates__tensor_share=0.9))[0]
        == "tensor cores"
    )
    assert (
        rules.bottleneck(with_numbers(rates__memory_share=0.95, rates__tensor_share=0.9))[0]
        == "memory bandwidth"
    )
    what, why = rules.bottleneck(with_numbers(parts__us={"multiply": 40.0, "wait_copies": 60.0}))
    assert what == "wait for copies" and "60%" in why


def test_modelled_parts_add_up_to_the_modelled_time():
    found = data()
    assert (
        sum(found["parts"]["us"].values()) == pytest.approx(found["time"]["us"], abs=0.02)
        and found["parts"]["source"] == found["time"]["source"] == "modelled"
    )


def test_the_models_error_is_that_of_the_recorded_times():
    found = model.error("ampere")
    assert found.cells > 40 and 0 < found.mean < 0.15 and found.mean < found.largest
    assert model.error("naive") is None  # nobody predicts it


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--m", "1"], "a size is missing"),
        (["--demo", "--m", "1"], "--demo has its own"),
        (["--open", "no.json"], "no.json: no such file"),
        (["--demo", "--device", "model"], "has no timing"),
        (["--m", "1", "--n", "64", "--k", "64", "--device", "toaster"], "is not one of"),
    ],
)
def test_bad_input_says_what_to_do(arguments, message, capsys):
    assert main(["profile", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_page_in_a_browser(tmp_path):
    page = profile_page.page(data())
    with shown(html.render(page), tmp_path) as (browser, complaints):
        assert browser.title() == page.title
        for each in page.sections:
            browser.keyboard.press("PageDown") if each.key != "summary" else None
            assert browser.locator(f"#{each.key}").is_visible()
        assert complaints == []


def test_numbers_in_json_are_plain():
    assert np.isfinite(json.loads(json.dumps(data()))["time"]["us"])


def test_what_is_too_much_to_draw_keeps_its_place_and_its_share():
    """Waits and products by turns, a thousand times, then one long write."""
    spans = [
        each
        for step in range(1000)
        for each in ((step, step + 0.25, "wait_copies"), (step + 0.25, step + 1.0, "multiply"))
    ] + [(1000.0, 1500.0, "write")]
    drawn = lanes.drawable(spans, most=150)
    assert (
        40 < len(drawn) <= 150
        and drawn[-1][1] == pytest.approx(1500)
        and all(one[1] == other[0] and one[2] != other[2] for one, other in zip(drawn, drawn[1:]))
    )
    assert drawn[-1] == (pytest.approx(1000), pytest.approx(1500), "write")
    for first, last, wanted in ((0, 500, 0.25), (500, 1000, 0.25), (0, 1000, 0.25)):
        waited = sum(
            max(min(end, last) - max(start, first), 0)
            for start, end, name in drawn
            if name == "wait_copies"
        )
        assert waited / (last - first) == pytest.approx(wanted, abs=0.03)
    assert lanes.drawable(spans, most=len(spans)) == spans and lanes.drawable([], most=3) == []


def test_one_activity_is_one_span():
    assert lanes.joined(
        [(0.0, 1.0, "copy"), (1.0, 2.0, "copy"), (2.0, 3.0, "write"), (4.0, 5.0, "write")]
    ) == [(0.0, 2.0, "copy"), (2.0, 3.0, "write"), (4.0, 5.0, "write")]


def test_a_recorded_time_is_shown_beside_the_model():
    problem = BlockProblem(4096, 4096, 4096)
    config = candidate(problem, devices.device("H200"), "block_scaled").config
    found = model.recorded("block_scaled", problem, config)
    assert found["us"] > 100 and "H200" in found["device"]
    path = Path(__file__).resolve().parents[2] / "experiments" / "11_block_scaled" / "results.jsonl"
    same = [
        row
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if (row["kernel"], row["part"], row["m"], row["n"], row["k"])
        == ("block_scaled", "whole", 4096, 4096, 4096)
        and model.is_config(row["config"], config)
    ]
    assert len({row["us"] for row in same}) > 1 and found.items() <= same[-1].items()  # the last
    assert model.recorded("block_scaled", replace(problem, k=4128), config) is None
