"""The parts of a page: frozen dataclasses, no rendering.

``source`` of a figure states the origin of its numbers: "measured" (on a device), "recorded" (read
out of a run on the PTX machine), "counted" (added up over such a run), "modelled" (computed by
stated rules), "spec" (the maker's data sheet); "" where a figure has no numbers. ``kind`` of a
span, a cell or a bar names what it is (a verb, a warp): equal kinds have equal colours on a page.
``key`` of a cell links it to others: pointing at one shows all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace

from numba_marlin.wording import did_you_mean, printable

MEASURED, RECORDED, COUNTED, MODELLED, SPEC = SOURCES = (
    "measured",
    "recorded",
    "counted",
    "modelled",
    "spec",
)


def checked(source: str) -> None:
    if source and source not in SOURCES:
        raise ValueError(f"source={source!r} must be one of {', '.join(SOURCES)}, or empty")


@dataclass(frozen=True)
class Text:
    """A paragraph; ``style`` "" (prose), "code" (kept as it is, fixed width), "source" (the same,
    but lines may be cut where a terminal ends) or "warning"."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Figure:
    """What all figures have."""

    title: str = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True)
    note: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        checked(self.source)


@dataclass(frozen=True)
class Facts(Figure):
    """Rows (label, value) or (label, value, source)."""

    rows: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for row in self.rows:
            checked(row[2] if len(row) > 2 else "")


@dataclass(frozen=True)
class Cell:
    """``text`` in a table or grid; ``tone`` "" or one of good, bad, hot (chosen), dim; ``tip``:
    more about it, shown on pointing at it."""

    text: str
    kind: str = ""
    tone: str = ""
    tip: str = ""
    key: str = ""


@dataclass(frozen=True)
class Table(Figure):
    """Rows of str or Cell under ``heads``; columns whose cells are numbers stand to the right."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]


@dataclass(frozen=True)
class Grid(Figure):
    """Small cells in rows and columns: lanes, banks, a fragment, blocks on SMs."""

    cells: tuple[tuple[str | Cell, ...], ...]
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()
    corner: str = ""


@dataclass(frozen=True)
class BitRow:
    """A number of ``width`` bits, most significant first; ``kinds``: one a bit, most significant
    first, or empty; ``note`` stands behind it."""

    label: str
    value: int
    width: int = 32
    kinds: tuple[str, ...] = ()
    note: str = ""

    @property
    def bits(self) -> str:
        return f"{self.value & (1 << self.width) - 1:0{self.width}b}"


@dataclass(frozen=True)
class Bits(Figure):
    """Numbers bit by bit, under each other."""

    rows: tuple[BitRow, ...]


@dataclass(frozen=True)
class Span:
    start: float
    end: float
    label: str
    kind: str = ""


@dataclass(frozen=True)
class Lane:
    """One line of a timeline; its spans do not overlap."""

    label: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline(Figure):
    """``until``: where the axis ends at least, for timelines that are to be compared."""

    lanes: tuple[Lane, ...]
    unit: str = ""
    until: float | None = None

    @property
    def extent(self) -> tuple[float, float]:
        spans = [span for lane in self.lanes for span in lane.spans]
        return (
            (
                min(span.start for span in spans),
                max([span.end for span in spans] + [self.until or 0.0]),
            )
            if spans
            else (0.0, 1.0)
        )


@dataclass(frozen=True)
class Bar:
    """``text`` stands at its end (default: the value); ``of``: the full length, where it is a
    share."""

    label: str
    value: float
    text: str = ""
    kind: str = ""
    of: float | None = None


@dataclass(frozen=True)
class Bars(Figure):
    bars: tuple[Bar, ...]
    unit: str = ""


@dataclass(frozen=True)
class Level:
    """A level of a hierarchy, or a box of a flow: its size, what is in it, what passes between it
    and the next. ``filled``: the share of its size that is used, 0 to 1, drawn as a bar."""

    name: str
    size: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    down: str = ""
    up: str = ""
    source: str = ""
    kind: str = ""
    filled: float | None = None

    def __post_init__(self) -> None:
        checked(self.source)


@dataclass(frozen=True)
class Levels(Figure):
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Series:
    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Lines(Figure):
    """Curves, linear axes; ``y_max`` None: from the points."""

    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    y_max: float | None = None


@dataclass(frozen=True)
class Ceiling:
    """Of memory in bytes/s, or of arithmetic in operations/s: the Roofline says which."""

    label: str
    value: float


@dataclass(frozen=True)
class Point:
    """``x`` operations per byte, ``y`` operations per second."""

    label: str
    x: float
    y: float
    kind: str = ""


@dataclass(frozen=True)
class Roofline(Figure):
    memory: tuple[Ceiling, ...]
    arithmetic: tuple[Ceiling, ...]
    points: tuple[Point, ...]


Part = Text | Facts | Table | Grid | Bits | Timeline | Bars | Levels | Lines | Roofline


@dataclass(frozen=True)
class Step:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Section:
    """``key``: its name in addresses and options, short, unique on its page. ``parts`` are always
    shown, of ``steps`` one at a time in HTML."""

    key: str
    title: str
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def all_parts(self) -> Iterator[Part]:
        yield from self.parts
        for step in self.steps:
            yield from step.parts


@dataclass(frozen=True)
class Page:
    """ValueError if two sections have the same key."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""

    def __post_init__(self) -> None:
        keys = [section.key for section in self.sections]
        if len(set(keys)) != len(keys):
            raise ValueError(f"sections of a page must have different keys, not {', '.join(keys)}")

    def only(self, keys: tuple[str, ...]) -> Page:
        """The page with these sections; ValueError names those there are."""
        known = [section.key for section in self.sections]
        for key in keys:
            if key not in known:
                raise ValueError(
                    f"{key!r} is not one of {', '.join(known)}{did_you_mean(key, known)}"
                )
        return Page(
            self.title,
            tuple(section for section in self.sections if section.key in keys),
            self.subtitle,
        )


def in_printable_words(value):
    """A page, or a piece of one, with every string in it printable: what it says may come from
    anybody's file, and terminals and readers obey what they are sent."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(in_printable_words(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{each.name: in_printable_words(getattr(value, each.name)) for each in fields(value)},
        )
    return value
