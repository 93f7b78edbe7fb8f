"""Figures as lines of text. Each function: (part, terminal) -> rich Text (or str), at most
``terminal.width`` wide where the figure allows it."""

from __future__ import annotations

import math
import os
import textwrap

from numba_marlin.views.page import Bars, Bits, Cell, Grid, Levels, Lines, Roofline, Timeline
from numba_marlin.views.scales import engineering, number, short, ticks

FULL, EMPTY = {True: "\u2588", False: "#"}, {True: "\u2591", False: "."}
SPARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def rich_text():
    from rich.text import Text

    return Text()


def letters_of(kinds: list[str]) -> dict[str, str]:
    """A different letter per kind: one of its own where possible, and not of what all begin
    with ("lane 3" becomes 3)."""
    result: dict[str, str] = {}
    kinds = list(dict.fromkeys(kinds))
    prefix = len(os.path.commonprefix(kinds)) if len(kinds) > 1 else 0
    for kind in kinds:
        own = [letter for letter in kind[prefix:] if letter.isalnum()]
        result[kind] = next(
            (
                letter
                for letter in (*own, *(each.upper() for each in own), *SPARE)
                if letter not in result.values()
            ),
            "?",
        )
    return result


def timeline(part: Timeline, out):
    """One line per lane, one letter per kind; where several spans meet in one column, the longest
    wins."""
    text = rich_text()
    kinds = [span.kind or span.label for lane in part.lanes for span in lane.spans]
    letters = letters_of(kinds)
    label = min(max((len(lane.label) for lane in part.lanes), default=0), out.width // 3)
    columns = max(out.width - label - 2, 10)
    low, high = part.extent
    scale = columns / ((high - low) or 1)
    for lane in part.lanes:
        text.append(f"{lane.label[:label]:<{label}} ", "dim")
        share: list[dict] = [{} for _ in range(columns)]
        for span in lane.spans:
            start, end = (span.start - low) * scale, (span.end - low) * scale
            for column in range(int(start), min(math.ceil(end), columns)):
                kind = span.kind or span.label
                share[column][kind] = (
                    share[column].get(kind, 0) + min(end, column + 1) - max(start, column)
                )
        for each in share:
            longest = max(each, key=each.__getitem__) if each else ""
            text.append(letters[longest] if each else " ", out.style(longest))
        text.append("\n")
    text.append(" " * (label + 1))
    at = 0
    for tick in ticks(low, high, max(columns // 12, 1)):
        place = int((tick - low) * scale)
        mark = number(tick)
        if place >= at and place + len(mark) <= columns:
            text.append(" " * (place - at) + mark, "dim")
            at = place + len(mark)
    text.append(
        (
            f" {part.unit}\n"
            if at + len(part.unit) + 1 <= columns
            else f"\n{'':{label + 1}}{part.unit}\n"
        ),
        "dim",
    )
    legend(text, letters, out)
    return text


def without_last(text):
    """Without its last line's end."""
    if len(text):
        text.right_crop(1)
    return text


def legend(text, letters: dict[str, str], out) -> None:
    at = 0
    for kind, letter in letters.items():
        item = f"{letter} {kind}"
        if at and at + len(item) + 3 > out.width:
            text.append("\n")
            at = 0
        text.append(("   " if at else "") + item, out.style(kind))
        at += len(item) + (3 if at else 0)


def grid(part: Grid, out):
    """Columns of equal width, in as many bands as the terminal needs; a chosen cell stands in
    brackets."""
    text = rich_text()
    rows = [
        [cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row] for row in part.cells
    ]
    count = max((len(row) for row in rows), default=0)
    hot = any(cell.tone == "hot" for row in rows for cell in row)
    width = max(
        [len(short(cell)) for row in rows for cell in row]
        + [len(label) for label in part.column_labels]
        + [1]
    ) + (2 if hot else 1)
    label = (
        max([len(each) for each in part.row_labels] + [len(part.corner)])
        if part.row_labels or part.corner
        else 0
    )
    band = max((out.width - label) // width, 1)
    if band < count:
        band = next((size for size in (64, 32, 16, 8, 4, 2, 1) if size <= band), 1)
    for first in range(0, count, band):
        if first:
            text.append("\n")
        if part.column_labels:
            text.append(f"{part.corner:<{label}}", "dim")
            text.append(
                "".join(f"{each:>{width}}" for each in part.column_labels[first : first + band])
                + "\n",
                "dim",
            )
        for position, row in enumerate(rows):
            text.append(
                f"{part.row_labels[position] if position < len(part.row_labels) else '':<{label}}",
                "dim",
            )
            for cell in row[first : first + band]:
                shown = f"[{cell.text}]" if cell.tone == "hot" else cell.text + (" " if hot else "")
                text.append(f"{shown:>{width}}", out.style(cell.kind, cell.tone))
            text.append("\n")
    return without_last(text)


def bits(part: Bits, out):
    """Groups of four bits; under the first number, changes of kind are marked by the legend's
    letters."""
    text = rich_text()
    label = max((len(row.label) for row in part.rows), default=0)
    letters = letters_of([kind for row in part.rows for kind in row.kinds if kind])
    for row in part.rows:
        text.append(f"{row.label:<{label}} ", "bold")
        for position, bit in enumerate(row.bits):
            text.append(" " if position and (row.width - position) % 4 == 0 else "")
            text.append(bit, out.style(row.kinds[position] if row.kinds else ""))
        at = label + 1 + row.width + (row.width - 1) // 4
        for words, style in (
            (f"0x{row.value & (1 << row.width) - 1:0{row.width // 4}x}", "dim"),
            (row.note, ""),
        ):
            if words and at + 2 + len(words) > out.width:
                text.append(f"\n{'':{label - 1}}")
                at = label - 1
            if words:
                text.append(f"  {words}", style)
                at += 2 + len(words)
        text.append("\n")
        if row.kinds:
            text.append(" " * (label + 1))
            for position, kind in enumerate(row.kinds):
                text.append(" " if position and (row.width - position) % 4 == 0 else "")
                text.append(letters[kind] if kind else " ", out.style(kind) or "dim")
            text.append("\n")
    legend(text, letters, out)
    return text


def bars(part: Bars, out):
    text = rich_text()
    label = min(max((len(bar.label) for bar in part.bars), default=0), out.width // 2)
    said = [bar.text or f"{number(bar.value)} {part.unit}".rstrip() for bar in part.bars]
    room = max(out.width - label - max(map(len, said), default=0) - 3, 8)
    largest = max((abs(bar.value) for bar in part.bars), default=0) or 1
    for bar, words in zip(part.bars, said):
        full = bar.of or largest
        length = min(round(room * abs(bar.value) / full), room)
        if bar.value and not length:
            length = 1
        text.append(f"{bar.label[:label]:<{label}} ")
        text.append(FULL[out.unicode] * length, out.style(bar.kind))
        text.append((EMPTY[out.unicode] if bar.of else " ") * (room - length), "dim")
        text.append(f" {words}\n")
    return without_last(text)


def levels(part: Levels, out):
    """Levels one under the other, with what passes between them."""
    text = rich_text()
    line, down, up = ("\u2500", "\u2193", "\u2191") if out.unicode else ("-", "v", "^")
    for position, level in enumerate(part.levels):
        head = f"{line * 2} {level.name} "
        size = f" {level.size}{f' ({level.source})' if level.source else ''}" if level.size else ""
        text.append(head, f"bold {out.style(level.kind)}".strip())
        alone = len(head) + len(size) + 1 > out.width  # the size stands on a line of its own
        text.append(line * max(out.width - len(head) - (0 if alone else len(size)), 1), "dim")
        text.append(
            "\n" + "\n".join(folded(size.strip(), out.width - 3, "   ")) + "\n"
            if alone
            else size + "\n"
        )
        if level.filled is not None:
            room = max(out.width - 12, 8)
            length = min(round(room * level.filled), room)
            text.append(f"   {FULL[out.unicode] * length}")
            text.append(f"{EMPTY[out.unicode] * (room - length)}", "dim")
            text.append(f" {level.filled:.0%}\n")
        label = max((len(row[0]) for row in level.rows), default=0)
        for row in level.rows:
            for words in folded(
                row[1] + (f" ({row[2]})" if len(row) > 2 and row[2] else ""),
                out.width - label - 5,
                f"   {row[0]:<{label}}  ",
            ):
                text.append(words + "\n")
        if position + 1 < len(part.levels):
            for mark, words in ((down, level.down), (up, level.up)):
                for line_of in folded(words, out.width - 8, f"      {mark} ") if words else ():
                    text.append(line_of + "\n", "bold")
    return without_last(text)


def folded(words: str, width: int, lead: str) -> list[str]:
    lines = textwrap.wrap(words, max(width, 20)) or [""]
    return [lead + lines[0], *(" " * len(lead) + line for line in lines[1:])]


def curves(part: Lines, out):
    """What a curve was at least, on average and at most: a terminal has no room for axes of several
    curves."""
    text = rich_text()
    blocks = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588" if out.unicode else " .:-=+*%#"
    label = max((len(each.label) for each in part.series), default=0)
    top = part.y_max or max((y for each in part.series for _, y in each.points), default=1) or 1
    for each in part.series:
        ys = [y for _, y in each.points]
        said = f" {number(min(ys))} .. {number(max(ys))}" if ys else " no points"
        room = max(out.width - label - len(said) - 2, 8)
        columns = min(room, len(ys))  # each shows the largest of its points
        edges = [column * len(ys) // columns for column in range(columns + 1)] if ys else []
        picked = [max(ys[start:stop]) for start, stop in zip(edges, edges[1:])]
        text.append(f"{each.label:<{label}} ")
        text.append(
            "".join(blocks[min(int(max(y, 0) / top * 8 + 0.5), 8)] for y in picked) + said + "\n"
        )
    text.append(f"{part.y_label} over {part.x_label}", "dim")
    return text


def roofline(part: Roofline, out):
    """A line a point: its place under the lowest ceiling that covers it."""
    text = rich_text()
    for each, unit in [(each, "B/s") for each in part.memory] + [
        (each, "op/s") for each in part.arithmetic
    ]:
        text.append(f"ceiling {each.label}: {engineering(each.value)}{unit}\n", "dim")
    label = max((len(point.label) for point in part.points), default=0)
    for point in part.points:
        roof = min(
            [each.value * point.x for each in part.memory]
            + [each.value for each in part.arithmetic]
        )
        bound = (
            "memory"
            if part.memory and min(each.value * point.x for each in part.memory) <= roof
            else "arithmetic"
        )
        text.append(f"{point.label:<{label}} ", out.style(point.kind))
        said = (
            f"{number(point.x)} op/byte, {engineering(point.y)}op/s: {point.y / roof:.0%} of the"
            f" roof ({bound})"
        )
        text.append(
            f"{said}\n"
            if label + 1 + len(said) <= out.width
            else "\n" + "\n".join(folded(said, out.width - 2, "  ")) + "\n"
        )
    return without_last(text)
