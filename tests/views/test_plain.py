"""Contract under test: a page as JSON names its parts, and has nothing that JSON lacks."""

import json
import math

import pytest

from numba_marlin.views import plain
from numba_marlin.views.page import Bar, Bars, Facts, Page, Section, Text


def test_parts_have_their_names_and_what_lies_in_them_has_none():
    bars = Bars((Bar("a", 1.0), Bar("b", math.inf)))
    parts = (Text("words"), bars, Facts((("a", "b"),)))
    page = Page("title", (Section("key", "of", parts=parts),))
    found = json.loads(plain.render(page))
    assert found["schema"] == plain.SCHEMA and "part" not in found
    words, drawn, facts = found["sections"][0]["parts"]
    assert [words["part"], drawn["part"], facts["part"]] == ["text", "bars", "facts"]
    assert "part" not in drawn["bars"][0] and [bar["value"] for bar in drawn["bars"]] == [1.0, None]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks_is_null(value):
    assert plain.plain([value, 1.5, -2, True, "inf"]) == [None, 1.5, -2, True, "inf"]
    assert plain.plain({"left": "as it is"}) == {"left": "as it is"}


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_nesting_is_counted_in_levels(most):
    assert not plain.nested_deeper([0], 1) and plain.nested_deeper([[0]], 1)
    deep = 0
    for _ in range(most):
        deep = {"a": [deep]}
    assert not plain.nested_deeper(deep, 2 * most) and not plain.nested_deeper(0, most)
    assert not most or plain.nested_deeper(deep, 2 * most - 1)
