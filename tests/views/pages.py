"""A page with one of everything, for tests, and a browser to show it in."""

import contextlib
from pathlib import Path

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
    Step,
    Table,
    Text,
    Timeline,
)

CHROMIUM = (
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/snap/bin/chromium",
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def everything() -> Page:
    bits = Bits(
        (
            BitRow(
                "word",
                0x8B1F7C3A,
                kinds=tuple(f"nibble {7 - i // 4}" for i in range(32)),
                note="one <int32>",
            ),
            BitRow("half", 0x640A, 16),
        ),
        source="recorded",
    )
    lanes = Grid(
        tuple(
            tuple(
                Cell(
                    str(8 * r + c),
                    f"group {r}",
                    "hot" if 8 * r + c == 5 else "",
                    key=f"lane {8 * r + c}",
                )
                for c in range(8)
            )
            for r in range(4)
        ),
        row_labels=tuple(f"row {r}" for r in range(4)),
        column_labels=tuple(map(str, range(8))),
        title="lanes",
    )
    spans = tuple(
        Span(10 * i, 10 * i + 9, verb, verb)
        for i, verb in enumerate(("fetch", "wait", "multiply", "fetch"))
    )
    return Page(
        "Everything & more",
        (
            Section(
                "launch",
                "Launch",
                ("A note.",),
                (
                    Facts(
                        (("grid", "4 x 1 x 1", "recorded"), ("threads", "256")),
                        title="What is launched",
                    ),
                    Bars(
                        (Bar("memory", 3.1, "3.1 of 4.8 TB/s", of=4.8), Bar("cache", 1.1)),
                        title="Rates",
                        source="modelled",
                        unit="TB/s",
                    ),
                    Table(
                        ("verb", "instructions"),
                        (
                            (Cell("multiply", "multiply"), "12,000"),
                            ("fetch", Cell("4", tone="hot")),
                        ),
                        title="Verbs",
                        source="counted",
                    ),
                    Text("careful", "warning"),
                    Text("as it is\n  kept", "code"),
                ),
            ),
            Section("steps", "Steps", steps=(Step("bits", (bits,)), Step("lanes", (lanes,)))),
            Section(
                "time",
                "Time",
                (),
                (
                    Timeline(
                        (Lane("warp 0", spans), Lane("warp 1", spans[1:])),
                        "cycles",
                        title="Order",
                        source="recorded",
                    ),
                    Lines(
                        (
                            Series("power", ((0, 300), (1, 320))),
                            Series("clock", ((0, 200), (1, 220))),
                        ),
                        "s",
                        "W",
                        source="measured",
                        title="Power",
                    ),
                    Levels(
                        (
                            Level(
                                "Global",
                                "141 GB",
                                (("weights", "67 KB", "counted"),),
                                "83 KB",
                                "8 KB",
                                "spec",
                            ),
                            Level("L2", "50 MB"),
                        ),
                        title="Levels",
                    ),
                    Roofline(
                        (Ceiling("reads", 4e12),),
                        (Ceiling("multiplies", 7e14),),
                        (Point("here", 4, 1.5e13, "fetch"), Point("there", 2000, 7e14, "wait")),
                        title="Roofline",
                    ),
                ),
            ),
        ),
        subtitle="one of each",
    )


@contextlib.contextmanager
def shown(html: str, folder: Path, fragment: str = ""):
    """(page of a headless Chromium that shows the file, what it complained about or asked the
    network for); skips where there is no browser."""
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="pages are tested in Chromium by playwright: install numba-marlin[test]",
    )
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    installed = next((path for path in CHROMIUM if Path(path).exists()), None)
    complaints: list[str] = []
    with playwright.sync_playwright() as p:
        try:
            browser = p.chromium.launch(executable_path=installed, args=list(FLAGS))
        except playwright.Error as error:
            pytest.skip(f"no Chromium to show pages in: {str(error).splitlines()[0]}")
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                complaints.append(f"request: {request.url}")
                if not request.url.startswith(("file:", "data:"))
                else None
            ),
        )
        page.goto(file.as_uri() + fragment)
        yield page, complaints
        browser.close()
