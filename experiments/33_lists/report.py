"""The tables of README.md from results.jsonl."""

import json
from collections import Counter
from pathlib import Path

from judging import OUTCOMES

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
LISTS = {
    "zluda": "ZLUDA's tests of PTX, with values",
    "cuda_cpp": "Features of CUDA C++, by NVRTC",
    "flags": "Flags of NVRTC and nvcc, and targets",
    "cub": "CUB's primitives",
    "fuzzed": "Random arithmetic and flow, against gcc",
    "texts": "PTX files of other projects, read",
}
HEAD = [
    f"| list | cases | {' | '.join(OUTCOMES)} |",
    "|---|--:|" + len(OUTCOMES) * "--:|",
]


def counted(title: str, rows: list[dict]) -> str:
    found = Counter()
    for row in rows:
        found.update(row.get("outcomes") or {row["outcome"]: 1})
    counts = " | ".join(f"{found[each]:,}" if found[each] else "" for each in OUTCOMES)
    return f"| {title} | {found.total():,} | {counts} |"


def summary(rows: list[dict]) -> list[str]:
    """A line a list."""
    return HEAD + [
        counted(title, mine)
        for name, title in LISTS.items()
        if (mine := [row for row in rows if row["list"] == name])
    ]


def line(row: dict) -> str:
    said = [row["said"].replace("|", "\\|")] if row["said"] else []
    said += [f"`{each}`" for each in row["warnings"]]
    return f"| {row['case']} | {row['group']} | {row['outcome']} | {'; '.join(said)} |"


def tables(rows: list[dict]) -> list[str]:
    lines = summary(rows)
    for name, title in LISTS.items():
        mine = [row for row in rows if row["list"] == name]
        if not mine:
            continue
        versions = ", ".join(" ".join(each) for each in mine[0]["versions"].items())
        lines += ["", f"### {title}", "", f"Measured {mine[0]['date']} with {versions}.", ""]
        groups = dict.fromkeys(row["group"] for row in mine)
        if len(groups) > 1:
            lines += [HEAD[0].replace("list", "group"), HEAD[1]]
            lines += [counted(each, [r for r in mine if r["group"] == each]) for each in groups]
            lines.append("")
        if any(row.get("outcomes") for row in mine):
            lines += [HEAD[0].replace("list", "of many"), HEAD[1]]
            lines += [counted(row["case"], [row]) for row in mine]
            said = [f"- {row['case']}: {row['said']}" for row in mine if row["said"]]
            lines += ["", *said] if said else []
        else:
            lines += ["| case | group | outcome | said |", "|---|---|---|---|", *map(line, mine)]
    return lines


def write(results: Path, page: Path) -> None:
    rows = list(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    body = "\n".join(tables(rows))
    page.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")
