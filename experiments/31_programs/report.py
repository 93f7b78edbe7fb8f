"""The tables of README.md from results.jsonl."""

import json
from collections import Counter
from pathlib import Path

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
OUTCOMES = ("right", "ends", "report", "wrong", "refused", "cut short", "error")
# a program that was not compiled, or launches nothing here, says nothing of the machine
LEFT_OUT = ("not compiled", "nothing launched")
LONGEST = 170


def short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def outcome(row: dict) -> str:
    if row["outcome"] == "report":
        return f"report; its own check without races: {row['without']}"
    return row["outcome"]


def line(row: dict) -> str:
    name = " ".join([row["program"], *row["arguments"]])
    kernels = len(row["launched"])
    unread = f", {len(row['unread'])} refused" if row["unread"] else ""
    changed = "smaller" if row["changed"] else ""
    said = [short(row["said"])] if row["said"] else []
    said += [", ".join(f"`{each}`" for each in row["warnings"])] if row["warnings"] else []
    return (
        f"| {name} | {row['kernels']}{unread} | {kernels} | {row['instructions']:,} | {changed}"
        f" | {outcome(row)} | {'; '.join(said)} |"
    )


def tables(rows: list[dict]) -> list[str]:
    suites = sorted({row["suite"] for row in rows})
    lines = [
        f"| programs | kernels read | of | launched kernels | {' | '.join(OUTCOMES)} | left out |",
        "|---|--:|--:|--:|" + (len(OUTCOMES) + 1) * "--:|",
    ]
    for suite in suites:
        mine = [row for row in rows if row["suite"] == suite]
        found = Counter(row["outcome"] for row in mine)
        programs = {row["program"]: row for row in mine if row["outcome"] != "not compiled"}
        kernels = sum(row["kernels"] for row in programs.values())
        unread = sum(len(row["unread"]) for row in programs.values())
        launched = {(row["program"], kernel) for row in mine for kernel in row.get("launched", ())}
        counts = " | ".join(str(found[each] or "") for each in OUTCOMES)
        left = sum(found[each] for each in LEFT_OUT)
        lines.append(
            f"| {suite} | {kernels - unread:,} | {kernels:,} | {len(launched):,} | {counts}"
            f" | {left or ''} |"
        )
    for suite in suites:
        mine = [row for row in rows if row["suite"] == suite]
        lines += [
            "",
            f"### {suite}",
            "",
            "| program | kernels | launched | warp instructions | sizes | outcome | said |",
            "|---|--:|--:|--:|---|---|---|",
        ]
        lines += [line(row) for row in mine if row["outcome"] not in LEFT_OUT]
        left = [row for row in mine if row["outcome"] in LEFT_OUT]
        if left:
            reasons: dict[str, list[str]] = {}
            for row in left:
                why = row["said"] if row["outcome"] == "not compiled" else row["outcome"]
                reasons.setdefault(short(why), []).append(row["program"])
            lines += ["", "Left out:", ""]
            lines += [f"- {why}: {', '.join(sorted(set(names)))}" for why, names in reasons.items()]
    return lines


def write(results: Path, page: Path) -> None:
    rows = list(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
    rows.sort(key=lambda row: (row["suite"], row["program"], list(map(int_of, row["arguments"]))))
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    body = "\n".join(tables(rows))
    page.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")


def int_of(word: str) -> int:
    return int(word) if word.isdigit() else 0
