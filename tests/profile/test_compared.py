"""Contract under test: two profiles side by side are drawn from their own numbers, and share an
axis or a roof only where they have the same one."""

import pytest

from numba_marlin.profile.pages import compared
from numba_marlin.profile.sources import verdict
from numba_marlin.views import html, text
from tests.profile.built import data


def figures(one, other):
    found = compared.compared(one, other, ("before", "after"))
    return {part.title: part for part in found.parts}


def bars(figure):
    return {bar.label: bar.value for bar in figure.bars}


def test_every_picture_is_made_of_both_runs():
    one, other = data(), data(n=512)
    found = figures(one, other)
    assert bars(found["A launch"]) == {
        "1: before": one["time"]["us"],
        "2: after": other["time"]["us"],
    }
    moved = bars(found["Bytes at each level"])
    for number, run in ((1, one), (2, other)):
        assert moved[f"requested by warps, {number}"] == run["counts"]["asked_bytes"]
        assert moved[f"shared memory, {number}"] == run["counts"]["shared_bytes"]
        shares = bars(found["Share of each ceiling"])
        for name, share in verdict.shares(run).items():
            assert shares[f"{name}, {number}"] == share
    points = {point.label: point.y for point in found["Roofline"].points}
    assert points == {
        "1: before": one["rates"]["flops_per_s"],
        "2: after": other["rates"]["flops_per_s"],
    }
    lanes = found["A warp of each"].lanes
    assert [lane.label for lane in lanes] == ["1: before", "2: after"]
    assert all(lane.spans for lane in lanes)


def test_parts_are_drawn_in_pairs_unless_both_are_short():
    one, other = data(), data()
    one["parts"]["us"] = {"multiply": 50.0, "launch": 49.0, "write": 1.0}
    other["parts"]["us"] = {"multiply": 50.0, "launch": 0.5, "write": 1.0}
    assert bars(figures(one, other)["Where the time goes"]) == {
        "dequantise and multiply, 1": 50.0,
        "dequantise and multiply, 2": 50.0,
        "launch, 1": 49.0,
        "launch, 2": 0.5,
    }


@pytest.mark.parametrize(
    "title, alter",
    [
        ("Roofline", lambda run: run["ceilings"].update(read_bytes=1e12)),
        ("A warp of each", lambda run: run["lanes"].update(unit="us")),
        ("A warp of each", lambda run: run["lanes"].update(warps=[])),
    ],
)
def test_what_has_no_common_axis_is_not_drawn_on_one(title, alter):
    one, other = data(), data()
    assert title in figures(one, other)
    alter(other)
    assert title not in figures(one, other)


def test_a_measured_run_beside_a_modelled_one_has_no_single_source():
    one, other = data(), data()
    other["time"]["source"] = "measured"
    assert figures(one, one)["A launch"].source == "modelled"
    assert figures(one, other)["A launch"].source == ""


def test_it_fits_a_terminal_and_a_page():
    from numba_marlin.views import Page

    page = Page("two", (compared.compared(data(), data(n=512), ("before", "after")),))
    shown = text.render(page, 80, unicode=False)
    assert max(map(len, shown.splitlines())) <= 80 and shown.isascii()
    assert html.render(page).count("<svg") >= 2
