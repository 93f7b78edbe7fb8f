"""Figures with axes as SVG text, WIDTH units wide, coloured by the page's style sheet (classes k0,
k1 ...)."""

from __future__ import annotations

import math
from html import escape

from numba_marlin.views.page import Lines, Roofline, Timeline
from numba_marlin.views.scales import decades, engineering, number, ticks

WIDTH = 960
LETTER = 6.3  # about a letter's width at the size of labels
ROW, GAP = 24, 5
HEIGHT, LEFT, BOTTOM, TOP = 280, 64, 40, 12  # of plots


def svg(height: float, body: list[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img"'
        f' aria-label="{escape(label)}">{"".join(body)}</svg>'
    )


def words(x: float, y: float, text: str, anchor: str = "start", css: str = "") -> str:
    named = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def timeline(part: Timeline, colours: dict[str, int]) -> str:
    left = min(max((len(lane.label) for lane in part.lanes), default=0) * LETTER + 14, WIDTH / 3)
    low, high = part.extent
    scale = (WIDTH - left - 8) / ((high - low) or 1)
    bottom = len(part.lanes) * (ROW + GAP) + 4
    body = []
    for tick in ticks(low, high, 10):
        x, said = left + (tick - low) * scale, number(tick)
        half = len(said) * LETTER / 2  # a label at the end of the axis stays inside
        body += [
            line(x, 0, x, bottom, "tick"),
            words(min(x, WIDTH - half), bottom + 14, said, "middle", "axis"),
        ]
    body.append(words(WIDTH - 8, bottom + 28, part.unit, "end", "axis"))
    for position, lane in enumerate(part.lanes):
        y = position * (ROW + GAP) + 2
        body.append(words(left - 8, y + ROW * 0.68, lane.label, "end"))
        for span in lane.spans:
            x, width = left + (span.start - low) * scale, max((span.end - span.start) * scale, 0.6)
            css = f"k{colours[span.kind]}" if span.kind in colours else "plain"
            body.append(
                f'<g class="span {css}"><title>{escape(span.label or span.kind)}:'
                f" {number(span.start)} to {number(span.end)} {escape(part.unit)}</title><rect"
                f' x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}"/>'
            )
            said = span.label if len(span.label) * LETTER < width - 6 else ""
            body.append(
                (words(x + width / 2, y + ROW * 0.68, said, "middle") if said else "") + "</g>"
            )
    return svg(bottom + 34, body, part.title or "timeline")


def curves(part: Lines, colours: dict[str, int]) -> str:
    points = [point for each in part.series for point in each.points]
    if not points:
        return "<p>no points</p>"
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    bottom = min(0.0, min(y for _, y in points))
    top = part.y_max or max(y for _, y in points) or 1.0
    right = WIDTH - max(len(each.label) for each in part.series) * LETTER - 14

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - low) / ((high - low) or 1) * (right - LEFT), HEIGHT - BOTTOM - (
            y - bottom
        ) / ((top - bottom) or 1) * (HEIGHT - BOTTOM - TOP)

    body = []
    for tick in ticks(bottom, top):
        _, y = place(low, tick)
        body += [
            line(LEFT, y, right, y, "tick"),
            words(LEFT - 6, y + 4, number(tick), "end", "axis"),
        ]
    for tick in ticks(low, high, 10):
        x, _ = place(tick, bottom)
        body.append(words(x, HEIGHT - BOTTOM + 16, number(tick), "middle", "axis"))
    taken: list[float] = []
    for position, each in enumerate(part.series):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in each.points))
        body.append(f'<polyline class="curve k{position % 10}" points="{path}"/>')
        if each.points:
            y = place(*each.points[-1])[1]
            while any(abs(y - other) < 14 for other in taken):
                y += 14
            taken.append(y)
            body.append(words(right + 6, y + 4, each.label, css=f"end k{position % 10}"))
    body += [
        words((LEFT + right) / 2, HEIGHT - 6, part.x_label, "middle", "axis"),
        words(4, 10, part.y_label, css="axis"),
    ]
    return svg(HEIGHT, body, part.title or part.y_label)


def roofline(part: Roofline, colours: dict[str, int]) -> str:
    ridge = (
        part.arithmetic[0].value / part.memory[0].value
        if part.arithmetic and part.memory
        else 100.0
    )
    xs = [point.x for point in part.points if point.x > 0] + [ridge]
    low, high = (
        10 ** math.floor(math.log10(min(xs) / 1.5)),
        10 ** math.ceil(math.log10(max(xs) * 1.5)),
    )
    tops = [each.value for each in part.arithmetic] + [
        point.y for point in part.points if point.y > 0
    ]
    ys = [point.y for point in part.points if point.y > 0] + [
        each.value * low for each in part.memory
    ]
    if not (ys and tops):
        return "<p>no points</p>"
    bottom, top = min(ys) / 2, max(tops) * 2
    height = HEIGHT + 140

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + math.log(x / low) / math.log(high / low) * (WIDTH - LEFT - 26),
            height
            - BOTTOM
            - math.log(y / bottom) / math.log(top / bottom) * (height - BOTTOM - TOP),
        )

    body = []
    for tick in decades(low, high):
        x, _ = place(tick, bottom)
        body += [
            line(x, TOP, x, height - BOTTOM, "tick"),
            words(x, height - BOTTOM + 16, number(tick), "middle", "axis"),
        ]
    for tick in decades(bottom, top):
        _, y = place(low, tick)
        body += [
            line(LEFT, y, WIDTH - 26, y, "tick"),
            words(LEFT - 6, y + 4, engineering(tick).strip(), "end", "axis"),
        ]
    flat = min((each.value for each in part.arithmetic), default=top)
    for each in part.memory:
        end = (
            min(high, max(flat, *(a.value for a in part.arithmetic), 0) / each.value)
            if part.arithmetic
            else high
        )
        (x1, y1), (x2, y2) = place(low, each.value * low), place(end, each.value * end)
        angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
        body += [
            line(x1, y1, x2, y2, "roof"),
            (
                f'<g transform="translate({x1 + 14:.1f} {y1 - 14:.1f})'
                f' rotate({angle:.1f})">{words(0, 0, each.label, css="axis")}</g>'
            ),
        ]
    for each in part.arithmetic:
        start = max(low, min((each.value / m.value for m in part.memory), default=low))
        (x1, y1), (x2, _) = place(start, each.value), place(high, each.value)
        body += [line(x1, y1, x2, y1, "roof"), words(x2, y1 - 6, each.label, "end", "axis")]
    for point in part.points:
        if point.x > 0 and point.y > 0:
            x, y = place(point.x, point.y)
            css = f"k{colours[point.kind]}" if point.kind in colours else "k0"
            side, anchor = (-9, "end") if x > WIDTH * 0.7 else (9, "start")
            body.append(
                f'<g class="point {css}"><circle cx="{x:.1f}" cy="{y:.1f}"'
                f' r="5"/>{words(x + side, y + 4, point.label, anchor)}</g>'
            )
    body += [
        words(WIDTH / 2, height - 6, "operations per byte", "middle", "axis"),
        words(LEFT + 4, TOP + 4, "operations/s", css="axis"),
    ]
    return svg(height, body, part.title or "roofline")
