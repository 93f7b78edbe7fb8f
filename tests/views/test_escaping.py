"""Contract under test: words of a page are words in HTML, whatever characters they have: no word
opens a tag, adds an attribute or ends one."""

import html.parser
from dataclasses import fields, is_dataclass, replace

from numba_marlin.views import Cell, Facts, Grid, Level, Levels, Lines, Page, Section, Series, Table
from numba_marlin.views import html as html_view
from numba_marlin.views.page import SOURCES
from numba_marlin.wording import html_table
from tests.views.pages import everything

HOSTILE = '<b a="">\'&lt;'
HARMLESS = "x" * len(HOSTILE)
CHOSEN = ("source", "style", "tone")  # from lists of the page's own


class Tags(html.parser.HTMLParser):
    """The tags with the names of their attributes; the words between tags, and in attributes."""

    def __init__(self, document):
        super().__init__()
        self.tags, self.said = [], []
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *(name for name, _ in attributes)))
        self.said += [value for _, value in attributes if value]

    def handle_endtag(self, tag):
        self.tags.append(("/", tag))

    def handle_data(self, data):
        self.said.append(data)


def full() -> Page:
    """A page with one of everything, and with every field that a part may leave empty."""
    page = everything()
    more = (
        Grid(
            ((Cell("1", "lane", tip="about it", key="one"), "2"),),
            row_labels=("row",),
            column_labels=("a", "b"),
            corner="corner",
            note="noted",
        ),
        Levels((Level("L2", "50 MB", (("in", "it"),), "down", "up"), Level("L1")), title="levels"),
        Lines((Series("curve", ((0, 1), (1, 2))),), "x", "y"),
        Facts((("name", "value"),), note="noted"),
    )
    return replace(page, sections=(*page.sections, Section("more", "More", ("note",), more)))


def marked(value, mark, count):
    """With ``mark`` behind every word; count: of the words, by what has them."""
    if is_dataclass(value):
        changed = {}
        for each in fields(value):
            if each.name not in CHOSEN:
                there = getattr(value, each.name)
                if isinstance(there, str) and there:
                    count[type(value).__name__, each.name] = 1
                changed[each.name] = marked(there, mark, count)
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(marked(each, mark, count) for each in value)
    if value in SOURCES:  # of a fact
        return value
    return value + mark if isinstance(value, str) and value else value


def test_words_are_words():
    count: dict = {}
    hostile = Tags(html_view.render(marked(full(), HOSTILE, count)))
    harmless = Tags(html_view.render(marked(full(), HARMLESS, count)))
    assert len(count) > 30 and hostile.tags == harmless.tags
    assert sum(HOSTILE in said for said in hostile.said) == sum(
        HARMLESS in said for said in harmless.said
    )


def test_words_of_a_notebooks_table_are_words():
    tables = [
        Tags(html_table([(f"cell{mark}", 1)], (f"head{mark}", "b"))) for mark in (HOSTILE, HARMLESS)
    ]
    assert tables[0].tags == tables[1].tags and f"cell{HOSTILE}" in tables[0].said


def test_control_characters_are_shown_in_html_too():
    document = html_view.render(marked(full(), "\x1b]0;owned\x07\u202e\ud800", {}))
    assert "\\x1b]0;owned\\x07\\u202e\\ud800" in document
    assert all(each.isprintable() or each in "\n\t" for each in document)


def test_what_stands_between_backticks_is_code_and_still_words():
    said = html_view.prose("`profile <b>` shows `one, and ``")
    assert said == "<code>profile &lt;b&gt;</code> shows <code>one, and </code>`"
    page = Page("title", (Section("one", "One", ("see `watch`",)),))
    assert "<p>see <code>watch</code></p>" in html_view.render(page)
    rows = (("see `<it>`",), (Cell("`one`"),))
    parts = (Facts(rows=(("why", "see `<watch>`"),)), Table(heads=("a",), rows=rows))
    shown = html_view.render(Page("title", (Section("one", "One", (), parts),)))
    for words in ("see <code>&lt;watch&gt;</code>", "see <code>&lt;it&gt;</code>"):
        assert words in shown
    assert "<td><code>one</code></td>" in shown
