"""Pages as data, and three ways to show one: text for a terminal, one self-contained HTML file,
JSON.

``page`` has the pieces: a Page has a title and sections, a Section has notes, parts and steps, a
part is a paragraph, a table or a figure. Other rooms build pages; ``text.render``, ``html.render``
and ``plain.render`` show them. A figure states the source of its numbers (``page.SOURCES``). Kinds
(a verb, a warp, a lane) have the same colour all over a page (``palette``). The room imports
nothing of the package, and rich only to print.
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
