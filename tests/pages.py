"""The pages for people: README.md and docs/, as one text."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def relative_to_root(page: Path) -> str:
    """The page's text, its links as from the repository's root."""
    text = page.read_text(encoding="utf-8")
    if page.parent == ROOT:
        return text
    return re.sub(r"\]\((\w+\.(?:md|svg))", r"](docs/\1", text).replace("](../", "](")


TEXT = "\n\n".join(map(relative_to_root, PAGES))
# what people wrote; the others are made by scripts from the code, and compared with it in tests
WRITTEN = "\n\n".join(
    relative_to_root(page)
    for page in PAGES
    if page.name not in ("checks.md", "lists.md", "litmus.md", "museum.md", "programs.md", "ptx.md")
)
