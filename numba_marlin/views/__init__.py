"""Pages as data, and three ways to show one: text for a terminal, one self-contained HTML file, JSON.

``page`` has the pieces: a Page is a title and sections, a Section notes, parts and steps, a part a paragraph, a table or a figure. Whoever knows
something builds a page of it; ``text.render``, ``html.render`` and ``plain.render`` show any page alike. Every figure can say where its numbers
come from (``page.SOURCES``). Kinds (a verb, a warp, a lane) get their colour from ``palette``, the same all over a page. The room imports nothing of
the package, and rich only to print.
"""

from numba_marlin.views.page import (
    COUNTED,
    MEASURED,
    MODELLED,
    RECORDED,
    SOURCES,
    SPEC,
    Bar,
    Bars,
    BitRow,
    Bits,
    Cell,
    Ceiling,
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

__all__ = [
    "COUNTED",
    "MEASURED",
    "MODELLED",
    "RECORDED",
    "SOURCES",
    "SPEC",
    "Bar",
    "Bars",
    "BitRow",
    "Bits",
    "Ceiling",
    "Cell",
    "Facts",
    "Grid",
    "Lane",
    "Level",
    "Levels",
    "Lines",
    "Page",
    "Point",
    "Roofline",
    "Section",
    "Series",
    "Span",
    "Step",
    "Table",
    "Text",
    "Timeline",
]
