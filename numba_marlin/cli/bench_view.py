"""The output of ``bench`` and ``compare`` for people: tables."""

from __future__ import annotations

from numba_marlin.cli.report import columns
from numba_marlin.wording import printable

MOST_LINES = 1000  # of a table


def print_table(
    headers: list[str],
    lines: list[list[str]],
    left: int,
    styles: list[str] | None = None,
    dispensable: tuple[str, ...] = (),
) -> None:
    """Print a table: the first ``left`` columns are aligned left, the others right; ``styles``: a
    rich style per line. If the terminal is too narrow, ``dispensable`` columns are left out in
    order; cells are never truncated. Of more than MOST_LINES the first are shown, and their number:
    laying out a line takes a millisecond, and nobody reads them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    left_out, lines = len(lines) - MOST_LINES, lines[:MOST_LINES]
    headers, lines = fitting(
        headers, [[printable(cell) for cell in line] for line in lines], columns(), dispensable
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for position, header in enumerate(headers):
        table.add_column(header, justify="left" if position < left else "right", no_wrap=True)
    for position, line in enumerate(lines):
        table.add_row(*map(Text, line), style=styles[position] if styles else None)
    Console(width=max(columns(), _width(headers, lines)), highlight=False).print(table)
    if left_out > 0:
        print(f"... and {left_out:,} more lines (--json and --out have all)")


def fitting(
    headers: list[str], lines: list[list[str]], width: int, dispensable: tuple[str, ...]
) -> tuple[list[str], list[list[str]]]:
    """Drop as many ``dispensable`` columns as needed to fit ``width``."""
    for name in dispensable:
        if _width(headers, lines) <= width:
            break
        if name in headers:
            position = headers.index(name)
            headers, *lines = [line[:position] + line[position + 1 :] for line in [headers, *lines]]
    return headers, lines


def _width(headers: list[str], lines: list[list[str]]) -> int:
    """The width of the table, with two blanks between columns and one on each side."""
    return 2 * len(headers) + 1 + sum(max(map(len, column)) for column in zip(headers, *lines))


def sizes(row: dict) -> str:
    return f"{row['k']} x {row['n']}"


def kinds(row: dict) -> str:
    """Describe how the problem differs from fp16 x INT4 in groups of 128."""
    parts = [] if row["group_size"] == 128 else [f"g{row['group_size']}"]
    parts += [] if row.get("dtype", "float16") == "float16" else ["bf16"]
    parts += [] if row.get("bits", 4) == 4 else [f"{row['bits']} bit"]
    parts += ["zeros"] if row.get("zeros") else []
    parts += ["bias"] if row.get("bias") else []
    return " ".join(parts)


def microseconds(us: float) -> str:
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def rows_table(rows: list[dict]) -> None:
    """Print one line per row: the heuristics' choice in plain text, what it is compared with
    dimmed."""
    with_kinds = any(kinds(row) for row in rows)
    headers = [
        "k x n",
        "m",
        *(["types"] if with_kinds else []),
        "kernel",
        "us",
        "+-",
        "cuBLAS us",
        "speed-up",
        "TB/s",
        "TFLOP/s",
        "of limit",
    ]
    lines, styles, before = [], [], None
    for row in rows:
        low, high = row["us_spread"]
        here = sizes(row)
        lines.append(
            [
                "" if here == before else here,
                str(row["m"]),
                *([kinds(row)] if with_kinds else []),
                row["kernel"],
                microseconds(row["us"]),
                f"{(high - low) / 2 / row['us']:.1%}",
                microseconds(row["cublas_us"]) if row.get("cublas_us") else "",
                f"{row['speedup']:.2f}" if row.get("speedup") else "",
                f"{row['tb_per_s']:.2f}",
                f"{row['tflops']:.0f}",
                f"{row['limit_share']:.0%}",
            ]
        )
        styles.append("" if row.get("chosen") else "dim")
        before = here
    print_table(
        headers, lines, left=1, styles=styles, dispensable=("TFLOP/s", "TB/s", "+-", "cuBLAS us")
    )


def counted_table(rows: list[dict]) -> None:
    lines = [
        [
            sizes(row),
            str(row["m"]),
            row["kernel"],
            " x ".join(map(str, row["grid"])),
            f"{row['instructions']:,}",
            f"{1024 * row['instructions'] / (row['k'] * row['n']):.0f}",
        ]
        for row in rows
    ]
    print_table(
        ["k x n", "m", "kernel", "grid", "warp instructions", "a 1024 weights"],
        lines,
        left=1,
        dispensable=("grid",),
    )
