"""Contract under test: docs/lists.md counts what experiments recorded and other pages hold."""

from tests.ci_scripts import script


def test_the_page_is_what_its_script_makes():
    """If this fails: python .ci/lists_table.py."""
    table = script("lists_table")
    assert table.PAGE.read_text(encoding="utf-8") == table.page()
