"""Contract under test: a page says the same as text, HTML and JSON; text fits its width and needs
no colour; what cannot be shown is refused."""

import html.parser
import json
from dataclasses import fields, is_dataclass, replace

import pytest

from numba_marlin.views import (
    Bars,
    Cell,
    Facts,
    Level,
    Page,
    Section,
    Table,
    Text,
    plain,
    scales,
    text,
)
from numba_marlin.views import (
    html as html_view,
)
from numba_marlin.views.page import SOURCES
from numba_marlin.views.palette import palette
from numba_marlin.views.text_figures import letters_of
from tests.views.pages import everything, shown

VOID = {"meta", "link", "input", "br", "rect", "line", "circle", "polyline"}


class Balanced(html.parser.HTMLParser):
    """Collects text, ids and references; every tag must be closed by its own end."""

    def __init__(self, document):
        super().__init__()
        self.open, self.said, self.ids, self.resources = [], [], [], []
        self.feed(document)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.resources += [
            found[name] for name in ("src", "href", "srcset", "data") if found.get(name)
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.said.append(data)


def spoilt(value, mark):
    """A page with ``mark`` in every string of it that is free."""
    if isinstance(value, str):
        return value if value in SOURCES else value + mark
    if isinstance(value, tuple):
        return tuple(spoilt(each, mark) for each in value)
    if is_dataclass(value):
        kept = {"key", "style", "tone", "source"}
        return replace(
            value,
            **{
                each.name: spoilt(getattr(value, each.name), mark)
                for each in fields(value)
                if each.name not in kept
            },
        )
    return value


@pytest.mark.parametrize("mark", ["\x1b]0;owned\x07", "\x9b2J", "\r", "\u202e", "\udc80"])
def test_no_control_character_of_a_page_reaches_the_terminal(mark):
    shown_ = text.render(spoilt(everything(), mark), 100)
    assert repr(mark[0])[1:-1] in shown_
    assert [each for each in shown_ if not each.isprintable() and each != "\n"] == []


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [50, 80, 120])
def test_text_fits_its_width(width, unicode):
    said = text.render(everything(), width, unicode=unicode)
    assert max(map(len, said.splitlines())) <= width
    assert unicode or said.isascii()
    assert "\x1b" not in said and not any(line.endswith(" ") for line in said.splitlines())


def test_colour_changes_nothing_but_colour():
    import re

    page = everything()
    assert (
        re.sub(r"\x1b\[[\d;]*m", "", text.render(page, colour=True)).split()
        == text.render(page).split()
    )
    assert text.render(page, colour=True) != text.render(page)


def test_every_word_of_a_page_is_in_all_three():
    page = everything()
    as_text, as_html = text.render(page, 120), " ".join(Balanced(html_view.render(page)).said)
    as_json = json.loads(plain.render(page))
    assert as_json["schema"] == "numba-marlin/page/1"
    kept = [json.dumps(as_json), as_text, as_html]
    for word in (
        "A note.",
        "4 x 1 x 1",
        "12,000",
        "3.1 of 4.8 TB/s",
        "one <int32>",
        "nibble 7",
        "multiply",
        "warp 1",
        "83 KB",
        "careful",
        "row 3",
        "power",
        "there",
        "recorded",
    ):
        assert all(word in each for each in kept), word


def test_a_chosen_cell_shows_without_colour():
    assert "[5]" in text.render(everything())


def test_html_is_balanced_self_contained_and_escaped():
    page = replace(everything(), title='<script>alert(1)</script> & "quotes"')
    document = html_view.render(page)
    found = Balanced(document)
    assert len(set(found.ids)) == len(found.ids)
    assert all(each.startswith(("#", "data:")) for each in found.resources)
    assert "<script>alert" not in document and "default-src &#x27;none&#x27;" in document


def test_altered_data_alter_every_rendering():
    page = everything()
    other = replace(
        page,
        sections=(
            replace(
                page.sections[0],
                parts=(Facts((("grid", "5 x 1 x 1"),)), *page.sections[0].parts[1:]),
            ),
            *page.sections[1:],
        ),
    )
    for render in (text.render, html_view.render, plain.render):
        assert render(page) != render(other) and "5 x 1 x 1" in render(other)


def test_wrong_sources_and_doubled_keys_are_refused():
    with pytest.raises(ValueError, match="source='guessed' must be one of measured"):
        Bars((), source="guessed")
    with pytest.raises(ValueError, match="source='guessed'"):
        Facts((("a", "b", "guessed"),))
    with pytest.raises(ValueError, match="source='guessed'"):
        Level("L2", source="guessed")
    with pytest.raises(ValueError, match="different keys, not a, a"):
        Page("t", (Section("a", "A"), Section("a", "B")))


def test_a_page_can_be_cut_to_sections():
    assert [section.key for section in everything().only(("time", "launch")).sections] == [
        "launch",
        "time",
    ]
    with pytest.raises(ValueError, match="'speed' is not one of launch, steps, time"):
        everything().only(("speed",))


def test_kinds_keep_their_colour_all_over_a_page():
    colours = palette(everything())
    assert (
        colours["multiply"] == 0
        and len({colours["multiply"], colours["fetch"], colours["wait"]}) == 3
    )


def test_legends_have_a_letter_a_kind():
    assert letters_of(["lane 0", "lane 1", "lane 0"]) == {"lane 0": "0", "lane 1": "1"}
    many = letters_of([f"verb{i}" for i in range(30)])
    assert len(set(many.values())) == 30


@pytest.mark.parametrize("low, high", [(0, 1), (3, 3), (0.001, 0.02), (-5, 250_000)])
def test_ticks_are_few_and_inside(low, high):
    found = scales.ticks(low, high, 6)
    assert 1 <= len(found) <= 12 and all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_empty_figures_can_be_shown():
    from numba_marlin.views import Bits, Grid, Levels, Lines, Roofline, Timeline

    empty = tuple(
        each
        for each in (
            Bars(()),
            Bits(()),
            Facts(()),
            Grid(()),
            Levels(()),
            Lines(()),
            Table(("a",), ()),
            Timeline(()),
            Roofline((), (), ()),
        )
    )
    page = Page("t", (Section("s", "S", parts=empty),))
    assert text.render(page, 80) and html_view.render(page) and plain.render(page)


def test_numbers_stand_to_the_right():
    said = text.render(
        Page(
            "t",
            (
                Section(
                    "s",
                    "S",
                    parts=(Table(("what", "bytes"), (("a", "1,234"), (Cell("b"), "5"))), Text("x")),
                ),
            ),
        ),
        80,
    ).splitlines()
    row = next(line for line in said if line.startswith("b"))
    assert row.endswith("    5")


def test_a_browser_shows_a_page_and_its_keys_work(tmp_path):
    with shown(html_view.render(everything()), tmp_path) as (page, complaints):

        def visible():
            return page.eval_on_selector_all(
                "main > section", "all => all.filter(s => s.offsetParent).map(s => s.id)"
            )

        def step():
            return page.eval_on_selector_all(
                ".step", "all => all.filter(s => s.offsetParent).map(s => s.dataset.title)"
            )

        assert page.title() == "Everything & more" and visible() == ["launch"]
        page.keyboard.press("ArrowRight")
        assert visible() == ["steps"] and step() == ["bits"]
        page.keyboard.press("ArrowRight")
        assert step() == ["lanes"] and page.url.endswith("#steps/2")
        assert "lanes" in page.inner_text("#said")
        page.keyboard.press("ArrowRight")
        assert visible() == ["time"]
        page.keyboard.press("ArrowLeft")
        assert step() == ["lanes"]
        page.keyboard.press("PageUp")
        assert visible() == ["launch"]
        page.keyboard.press("a")
        assert visible() == ["launch", "steps", "time"] and step() == ["bits", "lanes"]
        page.keyboard.press("a")
        page.keyboard.press("End")
        assert visible() == ["time"] and page.locator("nav a[aria-current]").inner_text() == "Time"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
        page.click("nav a >> text=Steps")
        page.hover("[data-key='lane 7']")
        assert page.locator(".on[data-key]").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert complaints == []


def test_the_browser_test_hears_complaints(tmp_path):
    document = (
        html_view.render(everything())
        .replace("</main>", '<img src="https://example.invalid/x.png"></main>')
        .replace("default-src 'none'", "default-src *")
    )
    document = document.replace("default-src &#x27;none&#x27;", "default-src *").replace(
        "img-src data:", "img-src *"
    )
    with shown(document, tmp_path, "#steps/2") as (page, complaints):
        assert page.locator(".step.here").get_attribute("data-title") == "lanes"
        page.evaluate("console.error('wrong')")
        assert (
            any("request: https://example.invalid" in each for each in complaints)
            and "error: wrong" in complaints
        )
