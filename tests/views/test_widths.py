"""Contract under test: pages fit the window. A grid of sixteen columns is not cut on a laptop; a
figure that is wider than the window says that it scrolls, and the page itself never does."""

import pytest

from numba_marlin.views import Grid, Page, Section, html
from tests.views.pages import shown

FRAGMENT = tuple(tuple(f"-0.{row:02}{column:02}" for column in range(16)) for row in range(16))
LABELS = tuple(f"row {row}" for row in range(16))
WORD = "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"


def page_of(columns):
    cells = tuple(row * (columns // 16) for row in FRAGMENT)
    names = tuple(map(str, range(columns)))
    grid = Grid(cells, LABELS, names, "", title=WORD, source="recorded")
    return html.render(Page("Fragments", (Section("fragments", "Fragments", (), (grid,)),)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "columns, window, cut", [(16, 1280, False), (128, 1280, True), (16, 420, True)]
)
def test_sixteen_columns_fit_and_what_is_cut_says_so(columns, window, cut, tmp_path):
    with shown(page_of(columns), tmp_path) as (browser, complaints):
        browser.set_viewport_size({"width": window, "height": 860})
        browser.wait_for_timeout(100)
        wide = "(found) => found.scrollWidth > found.clientWidth + 1"
        assert browser.locator(".scroll").evaluate(wide) == cut
        assert (
            browser.locator("figure").evaluate(
                "(found) => getComputedStyle(found.firstChild, '::after').content.includes('roll')"
            )
            == cut
        )
        # who has no mouse reaches what is hidden
        assert (browser.locator(".scroll").get_attribute("tabindex") == "0") == cut
        assert browser.evaluate("document.documentElement.scrollWidth") <= window
        assert complaints == []


def test_only_wide_grids_are_dense():
    assert '<table class="dense">' in page_of(16)
    few = Grid((("1", "2"),), title="few")
    assert '<table class="dense">' not in html.render(
        Page("Few", (Section("few", "Few", (), (few,)),))
    )
