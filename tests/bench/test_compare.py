"""Contract under test: a difference is one only where medians and quartiles say so, and files
without a common cell are no comparison."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.bench.compare import VERDICTS, compare, judge
from tests.bench.invented import row


def verdict(a, b, **options):
    (found,) = compare([a], [b], **options).verdicts
    return found.verdict


@pytest.mark.parametrize(
    "us, spread, expected",
    [
        (9.0, 0.1, "faster"),
        (11.0, 0.1, "slower"),
        (10.05, 0.02, "same"),
        (10.0, 0.02, "same"),
        (9.0, 1.5, "ambiguous"),  # 10% less, but the quartiles overlap
        (11.0, 1.5, "ambiguous"),
        (10.0, 1.0, "ambiguous"),  # the same median, but it may be 10% either way
    ],
)
def test_the_rule(us, spread, expected):
    assert verdict(row(spread=0.05), row(us=us, spread=spread)) == expected


@pytest.mark.parametrize("spread", [[8.0, 10.05], [9.95, 12.0]])
def test_what_may_be_far_on_one_side_is_not_the_same(spread):
    assert verdict(row(spread=0.05), row() | {"us_spread": spread}) == "ambiguous"


def test_the_tolerance_decides_what_is_a_change():
    a, b = row(us=100.0, spread=0.01), row(us=103.0, spread=0.01)
    assert [verdict(a, b, tolerance=t) for t in (0.02, 0.05)] == ["slower", "same"]


def test_speedups_compare_what_drifting_clocks_hide():
    """Everything 10% slower in B, cuBLAS too: by time it is slower, by speed-up the same."""
    a, b = (
        row(us=10.0, speedup=3.0, speedup_spread=[2.99, 3.01]),
        row(us=11.0, speedup=3.0, speedup_spread=[2.99, 3.01]),
    )
    assert (verdict(a, b), verdict(a, b, by="speedup")) == ("slower", "same")
    assert verdict(a, row(speedup=4.0, speedup_spread=[3.9, 4.1]), by="speedup") == "faster"


@given(st.floats(0.5, 2), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.2))
def test_swapping_the_files_swaps_the_verdict(ratio, spread_a, spread_b, tolerance):
    """Less by more than the tolerance is more by more than it the other way round; the converse
    holds but for the tolerance's own width."""
    a, b = row(us=10.0, spread=10 * spread_a), row(us=10 * ratio, spread=10 * ratio * spread_b)
    forth, back = verdict(a, b, tolerance=tolerance), verdict(b, a, tolerance=tolerance)
    assert (forth == "faster") <= (back == "slower") and (forth == "slower") <= (back != "slower")


@given(st.floats(-0.9, 5), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5))
def test_every_change_has_one_verdict(change, below, above, tolerance):
    assert judge(change, change - below, change + above, tolerance) in VERDICTS


def test_the_choice_counts_else_the_fastest_and_of_repetitions_the_last():
    a = [row(us=10.0), row(us=5.0, chosen=False, kernel="tiled"), row(us=11.0)]
    b = [row(us=3.0, chosen=False, kernel="naive"), row(us=2.0, chosen=False, kernel="tiled")]
    (found,) = compare(a, b).verdicts
    assert (found.a["us"], found.b["us"]) == (11.0, 2.0)
    (found,) = compare(a, b, each=True).verdicts
    assert (found.a["kernel"], found.b["kernel"]) == ("tiled", "tiled")


def test_cells_of_one_file_only_are_counted():
    found = compare([row(m=1), row(m=2)], [row(m=2), row(m=3), row(m=4)])
    assert (len(found.verdicts), found.only_a, found.only_b) == (1, 1, 2)


def test_other_devices_and_throttling_are_noted():
    found = compare([row()], [row(device="other", clocks={"throttle": ["power cap"]})])
    assert found.notes == (
        "devices differ: GPU and other",
        "1 of 2 measurements were made while the GPU held its clocks back",
    )


def test_rows_without_a_spread_compare_by_their_extremes_or_medians():
    old = {name: value for name, value in row(us=9.0).items() if name != "us_spread"}
    assert verdict(row(), old) == "faster"
    assert verdict(row(), {**old, "us_max": 10.5}) == "ambiguous"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([row(m=1)], [row(m=2)]), "no cell in common"),
        (([row()], [row()], 1.5), "tolerance=1.5 must be"),
        (([row()], [row()], 0.02, "smell"), "by='smell' must be one of"),
        (([row(speedup=None)], [row()], 0.02, "speedup"), "by='speedup': the row of ampere"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(*arguments)


def test_the_limits_of_the_rule_belong_to_what_is_the_same():
    """At the tolerance exactly it is the same; at twice the tolerance the interval still is."""
    assert judge(0.25, -0.5, 0.5, 0.25) == judge(-0.25, -0.5, 0.5, 0.25) == "same"
    assert judge(0.0, -0.5625, 0.5, 0.25) == judge(0.0, -0.5, 0.5625, 0.25) == "ambiguous"
    assert judge(0.28125, 0.125, 0.5, 0.25) == "slower" and judge(0.5, 0.0, 1, 0.25) == "ambiguous"
    assert judge(-0.28125, -0.5, -0.125, 0.25) == "faster"
    assert judge(-0.5, -1, 0.0, 0.25) == "ambiguous"


def test_the_interval_goes_from_the_best_to_the_worst_that_quartiles_allow():
    a, b = row(us=10.0) | {"us_spread": [8.0, 16.0]}, row(us=15.0) | {"us_spread": [12.0, 20.0]}
    (found,) = compare([a], [b]).verdicts
    assert (found.change, found.interval) == (0.5, (12 / 16 - 1, 20 / 8 - 1))


def test_a_change_is_written_with_five_digits():
    (found,) = compare([row(us=3.0, spread=0.0)], [row(us=4.0, spread=0.0)]).verdicts
    assert found.to_dict()["change"] == 0.33333
    assert found.to_dict()["interval"] == [0.33333, 0.33333]
