"""Contract under test: a page on a terminal, where it is not a figure: warnings, code, steps, and
columns that share the width."""

import re

from numba_marlin.views import (
    BitRow,
    Bits,
    Facts,
    Level,
    Levels,
    Page,
    Point,
    Roofline,
    Section,
    Step,
    Text,
    svg,
)
from numba_marlin.views import text as view
from numba_marlin.views.page import Ceiling


def rendered(*parts, width=50, steps=(), **options):
    return view.render(Page("t", (Section("s", "S", parts=parts, steps=steps),)), width, **options)


def test_a_warning_is_red_and_code_is_indented_as_it_is():
    said = [Text("careful", style="warning"), Text("words"), Text("a\n  b", style="code")]
    coloured = rendered(*said, colour=True)
    (warned,) = re.findall(r"\x1b\[([\d;]+)mcareful", coloured)
    assert set(warned.split(";")) == {"1", "31"} and "mwords" not in coloured
    assert "\n  a\n    b" in rendered(*said)


def test_steps_are_counted_and_those_left_out_are_told():
    steps = tuple(Step(f"step {name}", (Text(f"does {name}"),)) for name in "abc")
    lines = rendered(steps=steps)
    assert "\n\n1/3 step a\n\ndoes a\n\n2/3 step b\n" in lines and "more of" not in lines
    few = Page("t", (Section("s", "S", steps=steps),))
    assert "(2 more of 3 steps)" in view.render(few, 50, steps=1)
    assert "step b" not in view.render(few, 50, steps=1)
    assert "more of" not in view.render(few, 50, steps=3)


def test_names_of_facts_take_a_third_at_most():
    long = Facts((("name " * 8, "value"),))
    first = next(line for line in rendered(long, width=60).splitlines() if "value" in line)
    assert first.index("value") == 60 // 3 + 2
    short = Facts((("exactly 12..", "value " * 20),))
    lines = rendered(short, width=50).splitlines()
    assert any(line.startswith("exactly 12..  value") for line in lines)
    assert "(" not in rendered(short) and "spec" in rendered(Facts((("a", "b", "spec"),)))


def test_the_size_of_a_level_stands_beside_its_name_while_both_fit():
    for nbytes, beside in ((36, True), (60, False)):
        lines = rendered(Levels((Level("L2", "s" * nbytes),)), width=50).splitlines()
        assert any("L2" in line and "ss" in line for line in lines) == beside
        assert max(map(len, lines)) <= (50 if beside else 63)


def test_points_that_a_logarithm_lacks_are_not_drawn():
    roof = Ceiling("reads", 4e12), Ceiling("mul", 8e14)
    points = (
        Point("half", 0.5, 1e12),
        Point("one", 1, 1),
        Point("none", 0, 1e12),
        Point("idle", 9, 0),
    )
    document = svg.roofline(Roofline(roof[:1], roof[1:], points), {})
    assert [name for name in ("half", "one", "none", "idle") if f">{name}<" in document] == [
        "half",
        "one",
    ]


def test_a_note_of_bits_stands_on_a_line_of_its_own_where_it_does_not_fit():
    for length, fits in ((31, True), (32, False)):
        bits = Bits((BitRow("w", 5, 8, note="n" * length),))
        last = rendered(bits, width=50).rstrip("\n").splitlines()[-1]
        assert last == ("w 0000 0101  0x05  " if fits else "  ") + "n" * length
