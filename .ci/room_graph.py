"""Draw which rooms of the package import which: docs/rooms.svg.

    python .ci/room_graph.py

An arrow leads from a room to one whose modules it imports when it is imported itself (imports
inside functions are left out). A room stands above all that it imports; an arrow that others imply
is left out. ``tests/test_readme.py`` holds the picture against the code.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "numba_marlin"
PICTURE = ROOT / "docs" / "rooms.svg"
WIDTH, BOX, HEIGHT, GAP = 1100, 104, 26, 74  # in pixels; GAP: from one row to the next
STYLE = """
  svg { font: 13px system-ui, sans-serif; background: #ffffff }
  rect { fill: #eef3fb; stroke: #4a6fa5; rx: 4 } path { fill: none; stroke: #8a96a8; opacity: .55 }
  text { text-anchor: middle; fill: #1c2430 }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181f } rect { fill: #22303f; stroke: #7ea3d8 } text { fill: #e6ebf2 } }
"""


def rooms() -> set[str]:
    return {each.parent.name for each in PACKAGE.glob("*/__init__.py")}


def imports() -> dict[str, set[str]]:
    """Room -> the rooms that its modules import at their top level."""
    known = rooms()
    found: dict[str, set[str]] = {room: set() for room in known}
    for room in known:
        for path in (PACKAGE / room).rglob("*.py"):
            for node in top_level(ast.parse(path.read_text(encoding="utf-8"))):
                found[room] |= {name for name in names_of(node) if name in known}
        found[room].discard(room)
    return found


def top_level(tree: ast.Module):
    """What runs when the module is imported, but for what only type checkers read."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            waiting += list(ast.iter_child_nodes(node))


def names_of(node) -> list[str]:
    """The second words of "numba_marlin.ROOM...", and the names that come from numba_marlin."""
    if isinstance(node, ast.ImportFrom):
        if node.module == "numba_marlin":
            return [each.name for each in node.names]
        dotted = [node.module or ""]
    else:
        dotted = [each.name for each in node.names]
    return [each.split(".")[1] for each in dotted if each.startswith("numba_marlin.")]


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """The longest way down from each room. Raises ValueError for a circle."""
    found: dict[str, int] = {}

    def level(room: str, above: tuple[str, ...]) -> int:
        if room in above:
            raise ValueError(f"rooms import each other: {' -> '.join((*above, room))}")
        if room not in found:
            below = [level(each, (*above, room)) for each in sorted(graph[room])]
            found[room] = 1 + max(below, default=-1)
        return found[room]

    for room in sorted(graph):
        level(room, ())
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that other arrows imply."""
    reach: dict[str, set[str]] = {}
    for room in sorted(graph, key=levels(graph).__getitem__):
        reach[room] = set(graph[room]).union(*(reach[each] for each in graph[room]))
    return {
        room: {each for each in graph[room] if not any(each in reach[o] for o in graph[room])}
        for room in graph
    }


def places(graph: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """The middle of each room's box. Rooms of a row stand near those that they import."""
    rows: dict[int, list[str]] = {}
    for room, level in levels(graph).items():
        rows.setdefault(level, []).append(room)
    found: dict[str, tuple[float, float]] = {}
    for level in sorted(rows):

        def below(room: str) -> tuple[float, str]:
            across = [found[each][0] for each in graph[room] if each in found]
            return (sum(across) / len(across) if across else WIDTH / 2, room)

        row = sorted(rows[level], key=below)
        step = WIDTH / len(row)
        for index, room in enumerate(row):
            down = (max(rows) - level) * GAP + HEIGHT
            found[room] = (step * (index + 0.5), down)
    return found


def picture() -> str:
    graph = reduced(imports())
    where = places(graph)
    height = max(down for _, down in where.values()) + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
        ' aria-label="which rooms import which">',
        f"<style>{STYLE}</style>",
    ]
    for room in sorted(graph):
        x, y = where[room]
        for other in sorted(graph[room]):
            to_x, to_y = where[other]
            begin, end = y + HEIGHT / 2, to_y - HEIGHT / 2
            bend = (begin + end) / 2
            lines.append(
                f'<path d="M{x:.0f} {begin:.0f} C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f}'
                f' {to_x:.0f} {end:.0f}"/>'
            )
    for room, (x, y) in sorted(where.items()):
        lines.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}"'
            f'/><text x="{x:.0f}" y="{y + 4:.0f}">{room}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
