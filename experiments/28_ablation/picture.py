"""Pictures as SVG, legible on light and on dark pages: no background, a text colour that follows
the reader's scheme, colours of middle brightness."""

from html import escape

from ablations import EVERY

STYLE = (
    "text{font:12px sans-serif;fill:#333}.faint{stroke:#999;stroke-opacity:.35}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)
COLOURS = {
    "copies": "#3f8fd2",
    "shared": "#1f9e89",
    "integer": "#c98a1b",
    "fp16": "#c2567a",
    "convert": "#e0503a",
    "tensor": "#7c6bd6",
    "control": "#888888",
}
ROWS = 16  # of the tiles shown by unit
LANE, STEP, LEFT = 9, 2.4, 250
BATCH_COLOURS = ("#3f8fd2", "#1f9e89", "#c98a1b", "#c2567a")


def svg(width, height, body):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}"><style>{STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x, y, width, height, colour):
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def legend(names, y):
    body, x = [], LEFT
    for name, colour in names:
        body += [box(x, y - 9, 10, 10, colour), text(x + 14, y, name)]
        x += 30 + 7 * len(name)
    return body


def units(machine_code):
    """A strip an ablation: the instructions of one step from left to right as they are issued, each
    in the lane of its unit."""
    mine = [row for row in machine_code if row["rows"] == ROWS and row["name"] != "intact_again"]
    body, y = legend(COLOURS.items(), 14), 34
    lanes = {unit: number for number, unit in enumerate(COLOURS)}
    for row in mine:
        body.append(text(LEFT - 10, y + LANE * 3.5, EVERY[row["name"]].without, "end"))
        body.append(
            text(LEFT - 10, y + LANE * 3.5 + 14, f"{len(row['order'])} instructions", "end")
        )
        for unit, colour in COLOURS.items():
            top = y + LANE * lanes[unit]
            strokes = "".join(
                f"M{LEFT + STEP * at:.1f} {top}h{STEP}v{LANE - 1}h-{STEP}z"
                for at, each in enumerate(row["order"])
                if each == unit
            )
            body.append(f'<path d="{strokes}" fill="{colour}"/>')
        y += LANE * len(lanes) + 10
        body.append(f'<line class="faint" x1="0" x2="{LEFT}" y1="{y - 5}" y2="{y - 5}"/>')
    return svg(LEFT + STEP * max(len(row["order"]) for row in mine) + 10, y, body)


def slowdowns(found):
    """Bars: times as long as the intact kernel, for every shape and number of rows."""
    shapes = list(dict.fromkeys(row["shape"] for row in found))
    batches = sorted({row["m"] for row in found})
    cells = {(row["kernel"], row["shape"], row["m"]): row["times_intact"] for row in found}
    names = [name for name in EVERY if name != "intact" and any(key[0] == name for key in cells)]
    most = max(cells.values())
    scale, gap = 330 / most, 390
    colours = dict(zip(batches, BATCH_COLOURS))
    body = legend([(f"m={m}", colour) for m, colour in colours.items()], 14)
    for column, shape in enumerate(shapes):
        body.append(text(LEFT + gap * column, 34, f"{shape}: times as long"))
    y = 44
    for name in names:
        body.append(text(LEFT - 10, y + 4 * len(batches), EVERY[name].without, "end"))
        for column, shape in enumerate(shapes):
            for number, m in enumerate(batches):
                if (name, shape, m) in cells:
                    times = cells[name, shape, m]
                    top, x = y + 7 * number, LEFT + gap * column
                    body.append(box(x, top, scale * times, 6, colours[m]))
                    body.append(
                        f'<text x="{x + scale * times + 3:.1f}" y="{top + 6}"'
                        f' style="font-size:8px">{times:.2f}</text>'
                    )
        y += 7 * len(batches) + 8
    for column in range(len(shapes)):
        x = LEFT + gap * column + scale
        body.append(f'<line class="faint" x1="{x:.1f}" x2="{x:.1f}" y1="40" y2="{y}"/>')
    return svg(LEFT + gap * len(shapes), y + 4, body)
