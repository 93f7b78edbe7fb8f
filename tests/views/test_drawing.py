"""Contract under test: what a figure draws is where its numbers say: letters of a terminal's
columns, and points of a plot."""

import math
import re

import pytest

from numba_marlin.views import (
    Bar,
    Bars,
    BitRow,
    Bits,
    Ceiling,
    Cell,
    Facts,
    Grid,
    Lane,
    Level,
    Levels,
    Lines,
    Page,
    Point,
    Roofline,
    Section,
    Series,
    Span,
    Table,
    Text,
    Timeline,
    scales,
    svg,
    text,
)
from numba_marlin.views import html as html_view

LATE = Span(138, 140, "c")
TIMES = Timeline(
    (
        Lane(
            "w0", (Span(100, 110, "a", "fetch"), Span(110, 130, "b", "wait"), Span(138, 140, "c"))
        ),
        Lane("warp1", (Span(120, 140, "d", "fetch"),)),
    ),
    "cycles",
    until=147,
)
RATES = Bars(
    (
        Bar("half", 2.5, of=5.0),
        Bar("most", 5.0, "five"),
        Bar("none", 0),
        Bar("tiny", 0.001),
        Bar("over", 9, of=3),
    ),
    unit="TB/s",
)
BITS = Bits(
    (BitRow("w", 0x8F0, 12, kinds=("lo",) * 4 + ("hi",) * 8, note="n"), BitRow("long", -1, 8))
)
LEVELS = Levels(
    (
        Level("L2", "50 MB", (("a", "b", "spec"), ("cc", "d")), "down", "up", "counted"),
        Level("L1", down="to nobody", up="to nobody"),
    )
)
ROOF = Roofline(
    (Ceiling("reads", 4e12),),
    (Ceiling("mul", 8e14),),
    (Point("m", 100, 2e14), Point("a", 400, 4e14), Point("ridge", 200, 8e14)),
)
CURVES = Lines((Series("p", ((10, 0), (11, 4), (12, 8))), Series("none", ())), "s", "W")
SAW = Lines((Series("p", tuple((i, i % 60) for i in range(100))),), "s", "W", y_max=120)
BANDS = Grid(
    tuple(tuple(str(10 * row + column) for column in range(20)) for row in range(2)),
    row_labels=("r0", "r1"),
    column_labels=tuple(f"c{column}" for column in range(20)),
    corner="rc",
)

DRAWN = {
    "a letter for every column of 47 cycles, by the span that fills most of it": (
        TIMES,
        """
w0    fffffffffwwwwwwwwwwwwwwwwwww      ccc
warp1                   fffffffffffffffffff
      100               120               140
      cycles
f fetch   w wait   c c
""",
    ),
    "bars of what they are a share of, or of the largest": (
        RATES,
        """
half ################................. 2.5 TB/s
most ##################                five
none                                   0 TB/s
tiny #                                 0.001 TB/s
over ################################# 9 TB/s
""",
    ),
    "columns in bands of a power of two": (
        BANDS,
        """
rc  c0  c1  c2  c3  c4  c5  c6  c7
r0   0   1   2   3   4   5   6   7
r1  10  11  12  13  14  15  16  17

rc  c8  c9 c10 c11 c12 c13 c14 c15
r0   8   9  10  11  12  13  14  15
r1  18  19  20  21  22  23  24  25

rc c16 c17 c18 c19
r0  16  17  18  19
r1  26  27  28  29
""",
    ),
    "a chosen cell in brackets, the others below it": (
        Grid(((Cell("1", tone="hot"), "2"), ("3", "4")), row_labels=("r0",)),
        """
r0[1] 2
   3  4
""",
    ),
    "bits in groups of four, a letter a kind": (
        BITS,
        """
w    1000 1111 0000  0x8f0  n
     llll hhhh hhhh
long 1111 1111  0xff
l lo   h hi
""",
    ),
    "levels with what passes between them": (
        LEVELS,
        """
-- L2 ---------------------------- 50 MB (counted)
   a   b (spec)
   cc  d
      v down
      ^ up
-- L1 --------------------------------------------
""",
    ),
    "a curve with its least and its most": (
        SAW,
        """
p    ......::::::------===  ......::::::- 0 .. 59
W over s
""",
    ),
    "a curve of three points, and one of none": (
        CURVES,
        """
p     =# 0 .. 8
none  no points
W over s
""",
    ),
    "points under the roof that covers them": (
        ROOF,
        """
ceiling reads: 4 TB/s
ceiling mul: 800 Top/s
m
  100 op/byte, 200 Top/s: 50% of the roof (memory)
a
  400 op/byte, 400 Top/s: 50% of the roof
  (arithmetic)
ridge
  200 op/byte, 800 Top/s: 100% of the roof
  (memory)
""",
    ),
    "facts with a column of sources": (
        Facts((("grid", "4"), ("a", "b", "recorded"))),
        """
grid  4
a     b  recorded
""",
    ),
    "numbers of a table to the right": (
        Table(("what", "n"), (("a", "1,000"), ("bbb", "5"))),
        """
what |     n
-----+------
a    | 1,000
bbb  |     5
""",
    ),
    "code as it is, two to the right": (Text("a\n  b", "code"), "\n  a\n    b\n"),
}


@pytest.mark.parametrize("what", DRAWN)
def test_a_terminal_of_fifty_columns(what):
    part, expected = DRAWN[what]
    page = Page("t", (Section("s", "S", parts=(part,)),))
    head, drawn = text.render(page, 50, unicode=False).split("-----\n", 1)
    assert head == "t\n\nS [s]\n" and drawn.rstrip("\n") == expected.rstrip("\n")


@pytest.mark.parametrize(
    "value, said",
    [(5, "5"), (1_234_567, "1,234,567"), (999.4, "999"), (1000.6, "1,001"), (0.12345, "0.123")]
    + [(-2000.7, "-2,001"), (1000, "1,000")],
)
def test_numbers_have_three_figures_or_are_whole(value, said):
    assert scales.number(value) == said


@pytest.mark.parametrize(
    "value, said",
    [(999, "999 "), (1e3, "1 k"), (1e6, "1 M"), (1e9, "1 G"), (1e12, "1 T"), (4e15, "4 P")]
    + [(-5e6, "-5 M"), (1.5e12, "1.5 T")],
)
def test_engineers_have_a_letter_for_three_zeros(value, said):
    assert scales.engineering(value) == said


def test_ticks_are_round_and_reach_both_ends():
    assert scales.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert scales.ticks(3, 47, 4) == [20, 40] and scales.ticks(2, 2) == [2]
    assert scales.ticks(0, 0.5, 5) == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert scales.decades(10, 1000) == [10, 100, 1000] and scales.decades(3, 2000) == [
        10,
        100,
        1000,
    ]


@pytest.mark.parametrize(
    "column, is_numbers",
    [(["1", "2 us"], True), (["1", ""], True), (["-", "1"], True), (["", " "], False)]
    + [(["a", "1"], False), (["1.5 GB", "2%"], True), (["1,000", "1e-3"], True)],
)
def test_a_column_of_numbers_may_have_blanks(column, is_numbers):
    assert scales.numeric(column) is is_numbers


def drawn(part) -> str:
    return html_view.part_html(part, {"fetch": 0, "wait": 1})


def numbers(pattern: str, document: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, each)) for each in re.findall(pattern, document)]


def lines_of(css: str, document: str) -> list[tuple[float, ...]]:
    number = r'="([-\d.]+)"'
    return numbers(f'<line x1{number} y1{number} x2{number} y2{number} class="{css}"', document)


def test_spans_of_a_timeline_lie_at_their_times():
    document = drawn(TIMES)
    left, right = 5 * svg.LETTER + 14, svg.WIDTH - 8
    scale = (right - left) / 47
    spans = [(100, 110, 0), (110, 130, 0), (138, 140, 0), (120, 140, 1)]
    found = numbers(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="(\d+)"', document)
    assert len(found) == len(spans)
    for (x, y, width, height), (start, end, lane) in zip(found, spans):
        assert x == pytest.approx(left + (start - 100) * scale, abs=0.06)
        assert width == pytest.approx((end - start) * scale, abs=0.06)
        assert height == svg.ROW and y == 2 + lane * (svg.ROW + svg.GAP)
    for (x, _, other, _), tick in zip(lines_of("tick", document), scales.ticks(100, 147, 10)):
        assert x == other == pytest.approx(left + (tick - 100) * scale, abs=0.06)
    assert ">120</text>" in document and "fetch: 1" not in document
    assert "<title>a: 100 to 110 cycles</title>" in document
    assert document.count('class="span k0"') == 2 and document.count('class="span plain"') == 1


def test_kinds_of_a_timeline_are_named_below_it():
    assert re.findall(r"<li><i[^>]*></i>(\w+)</li>", drawn(TIMES)) == ["fetch", "wait"]


def test_long_names_of_lanes_take_a_third_at_most():
    long = Timeline((Lane("name" * 100, (Span(0, 1, "a"),)),))
    (x, width) = numbers(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn(long))[0]
    assert x == svg.WIDTH / 3 and x + width == pytest.approx(svg.WIDTH - 8, abs=0.1)
    page = Page("t", (Section("s", "S", parts=(long,)),))
    assert f"\n{('name' * 5)[:16]} aaa" in text.render(page, 50, unicode=False)


def test_a_span_is_named_where_its_name_has_room():
    times = Timeline((Lane("", (Span(0, 100, "long name"), Span(100, 101, "long name"))),))
    assert drawn(times).count(">long name</text>") == 1


def test_points_of_a_curve_lie_at_their_numbers():
    found = re.findall(r'points="([^"]*)"', drawn(CURVES))
    right = svg.WIDTH - 4 * svg.LETTER - 14
    low, high = svg.HEIGHT - svg.BOTTOM, svg.TOP
    points = [tuple(map(float, each.split(","))) for each in found[0].split()]
    middle = (svg.LEFT + right) / 2, (low + high) / 2
    assert points == [
        pytest.approx(each, abs=0.06) for each in ((svg.LEFT, low), middle, (right, high))
    ]
    assert found[1] == ""
    halved = drawn(Lines(CURVES.series, y_max=16))
    assert numbers(r" ([\d.]+),([\d.]+)\"", halved)[0] == pytest.approx(
        (right, middle[1]), abs=0.06
    )


def test_points_of_a_roofline_lie_under_its_roofs():
    """Logarithmic both ways: the ridge is where the roofs meet, and half of the roof is as far
    below it for memory as for arithmetic."""
    document = drawn(ROOF)
    (x1, y1, x2, y2), (x3, y3, x4, y4) = lines_of("roof", document)
    (mx, my), (ax, ay), (rx, ry) = numbers(r'<circle cx="([\d.]+)" cy="([\d.]+)"', document)
    assert (x2, y2) == (x3, y3) == (rx, ry) and y3 == y4 and x4 == svg.WIDTH - 26
    assert x1 == svg.LEFT
    slope = (y2 - y1) / (x2 - x1)
    assert my - (y1 + slope * (mx - x1)) == pytest.approx(ay - y3, abs=0.2)
    height = svg.HEIGHT + 140
    least, most = 4e12 * 10 / 2, 8e14 * 2  # half of the roof at the first decade, twice the highest
    share = math.log(8e14 / least) / math.log(most / least)
    bottom = height - svg.BOTTOM
    assert y3 == pytest.approx(bottom - share * (bottom - svg.TOP), abs=0.06)
    upright = [each for each in lines_of("tick", document) if each[0] == each[2]]
    assert {each[1::2] for each in upright} == {(svg.TOP, bottom)}
    octave = (ay - y3) / (rx - mx) / -slope  # half the operations are half of the way up
    assert octave == pytest.approx(1, abs=0.02) and ax - rx == pytest.approx(rx - mx, abs=0.2)
    angle = float(re.search(r"rotate\(([-\d.]+)\)", document)[1])
    assert angle == pytest.approx(math.degrees(math.atan(slope)), abs=0.1)


def test_bars_are_as_long_as_their_share():
    widths = [float(each) for each in re.findall(r'style="width:([\d.]+)%"', drawn(RATES))]
    assert widths == [50, 55.56, 0, 0.01, 100]
    assert drawn(RATES).count("track open") == 3


def test_bits_are_grouped_by_four_from_the_least():
    document = drawn(BITS)
    rows = re.findall(r"<tr>.*?</tr>", document)
    cells = [re.findall(r"<td( class=\"[^\"]*\")?>([01])</td>", row) for row in rows]
    assert ["".join(bit for _, bit in row) for row in cells] == ["100011110000", "11111111"]
    gaps = [[i for i, (named, _) in enumerate(row) if "gap" in named] for row in cells]
    assert gaps == [[4, 8], [4]]
    assert all(("set" in named) == (bit == "1") for row in cells for named, bit in row)
    assert "0x8f0" in document and "0xff<" in document


def test_bits_of_an_odd_width_are_grouped_from_the_least_too():
    document = drawn(Bits((BitRow("seven", 0x5A, 7),)))
    cells = re.findall(r"<td( class=\"[^\"]*\")?>[01]</td>", document)
    assert [i for i, named in enumerate(cells) if "gap" in named] == [3]


def test_a_level_and_what_passes_between_two_are_in_the_html():
    document = drawn(LEVELS)
    for words in ("L2", "50 MB", "counted", "cc", "\u2193 down", "\u2191 up"):
        assert words in document, words
    assert document.count('class="level"') == 2 and "L1" in document
    assert "to nobody" not in document  # below the last level there is nothing


def test_a_figure_says_what_it_is_and_where_its_numbers_are_from():
    bar = (Bar("a", 1.0),)
    for figure, said in (
        (Bars(bar, title="Rates"), "Rates"),
        (Bars(bar, source="measured"), "(measured)"),
        (Bars(bar, title="Rates", source="measured"), "Rates (measured)"),
    ):
        page = Page("t", (Section("s", "S", parts=(figure,)),))
        assert said in [line.strip() for line in text.render(page, 50).splitlines()]
        caption = re.search("<figcaption>(.*?)</figcaption>", html_view.render(page))[1]
        assert figure.title in caption and (f">{figure.source}<" in caption) == bool(figure.source)
    assert "<figcaption>" not in drawn(Bars(bar)) and 'class="note"' not in drawn(Bars(bar))
    assert '<p class="note">of one run</p>' in drawn(Bars(bar, note="of one run"))


def test_names_of_curves_that_end_together_stand_apart():
    together = tuple(Series(name, ((0, 0), (1, 8))) for name in "abc")
    found = re.findall(r'<text ([^>]*class="end[^>]*)>', drawn(Lines(together)))
    heights = sorted(float(re.search(r' y="([\d.]+)"', each)[1]) for each in found)
    assert len(heights) == 3
    assert [y - heights[0] for y in heights] == pytest.approx([0, 14, 28], abs=0.11)


def test_the_tone_of_a_cell_is_seen_before_its_kind():
    out = text.Terminal(80, True, True, {"copy": 0, "multiply": 1})
    assert out.style("copy") != out.style("multiply") and out.style("copy")
    assert out.style("copy", "bad") == out.style("", "bad") == text.TONES["bad"]
    assert out.style("unknown") == ""


def test_bars_of_nothing_but_zeros_are_drawn():
    zeros = Bars((Bar("a", 0.0), Bar("b", 0)), unit="us")
    assert re.findall(r'style="width:([\d.]+)%"', drawn(zeros)) == ["0.00", "0.00"]
    page = Page("t", (Section("s", "S", parts=(zeros,)),))
    assert "0 us" in text.render(page, 50)


def test_a_grid_has_a_corner_where_its_rows_have_labels():
    assert "<thead><tr><td>rc</td><th scope=col>c0</th>" in drawn(BANDS)
    assert "<thead><tr><th" in drawn(Grid((("1",),), column_labels=("c",)))
