"""Rows as Markdown tables, and text between two markers of a file. Pure."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def markdown(header: list[str], lines: list[list[str]], left: int = 1) -> str:
    """A Markdown table; the first ``left`` columns are aligned left, the others right. ValueError
    for a line of another width."""
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"a line has {len(line)} cells, the header {len(header)}: {line}")
    rule = ["---" if column < left else "--:" for column in range(len(header))]
    return "\n".join(
        [
            "| " + " | ".join(header) + " |",
            "|" + "|".join(rule) + "|",
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def replace_between(path: Path, markers: tuple[str, str], body: str) -> None:
    """Put ``body`` between the markers of a file; ValueError unless it has both, once and in
    order."""
    text = path.read_text(encoding="utf-8")
    begin, end = markers
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{path} must hold {begin} and after it {end}, each once")
    before, after = text.split(begin)[0], text.split(end)[1]
    path.write_text(f"{before}{begin}\n{body}\n{end}{after}", encoding="utf-8")


def origin(rows) -> str:
    """The environment of the rows: one line per run, in order."""
    runs: dict[str, None] = {}
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        runs.setdefault(
            f"Measured {row['date']} on {row['device']}, driver {row['driver']}; {versions}; commit"
            f" {row['commit']}.",
            None,
        )
    return "\n".join(runs)


def clocks(rows) -> str:
    """A sentence on clocks and throttling over all rows that recorded them; empty if none did."""
    noted = [row["clocks"] for row in rows if (row.get("clocks") or {}).get("sm_mhz")]
    if not noted:
        return ""
    low, high = min(each["sm_mhz"][0] for each in noted), max(each["sm_mhz"][1] for each in noted)
    limit = max(each.get("sm_mhz_at_most", 0) for each in noted)
    reasons = Counter(reason for each in noted for reason in each.get("throttle", ()))
    held = ", ".join(
        f"{reason} in {count} of {len(noted)} measurements"
        for reason, count in sorted(reasons.items())
    )
    return (
        f"SM clock {low} to {high} MHz while timing{f', {limit} at most' if limit else ''}; held"
        f" back by: {held or 'nothing'}."
    )
