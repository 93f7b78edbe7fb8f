"""The tables of README.md from results.jsonl."""

import json
from collections import Counter
from pathlib import Path

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
NAMES = {
    "triton": "Triton",
    "tinygrad": "tinygrad",
    "cute": "CuTe DSL",
    "cutlass": "CUTLASS's examples of the CuTe DSL",
    "hopper": "CUTLASS's examples of CUDA C++ for Hopper",
    "warp": "Warp",
}
OUTCOMES = ("right", "report", "wrong", "refused", "cut short", "error")
LONGEST = 240


def rows_of(results: Path) -> list[dict]:
    rows = list(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
    order = list(NAMES)
    return sorted(rows, key=lambda row: (order.index(row["toolchain"]), row["case"], row["target"]))


def summary(rows: list[dict]) -> list[str]:
    lines = [
        f"| toolchain | target | cases | kernels launched | {' | '.join(OUTCOMES)} |",
        "|---|---|--:|--:|" + len(OUTCOMES) * "--:|",
    ]
    groups = dict.fromkeys((row["toolchain"], row["target"]) for row in rows)
    for toolchain, target in sorted(groups, key=lambda key: (list(NAMES).index(key[0]), key[1])):
        mine = [row for row in rows if (row["toolchain"], row["target"]) == (toolchain, target)]
        lines.append(line_of(NAMES[toolchain], target, mine))
    return [*lines, line_of("all", "", rows)]


def line_of(name: str, target: str, rows: list[dict]) -> str:
    found = Counter(row["outcome"] for row in rows)
    counts = " | ".join(f"{found[each]:,}" if found[each] else "" for each in OUTCOMES)
    kernels = sum(row["kernels"] for row in rows)
    return f"| {name} | {target} | {len(rows):,} | {kernels:,} | {counts} |"


def cells(row: dict) -> str:
    """Outcome, worst error beside its bound, warnings and what was said of one target."""
    worst = f" ({row['worst']:.2g})" if row.get("worst") else ""
    said = " ".join(row["said"].split()).replace("|", "\\|")
    said = said if len(said) <= LONGEST else said[:LONGEST] + " ..."
    warned = ", ".join(f"`{each}`" for each in row.get("warnings", ()))
    if row["outcome"] == "report":
        return f"report of `{row['check']}`; without races {row['without']}: {said}"
    outcome = row["outcome"] if row["outcome"] == "right" else f"**{row['outcome']}**"
    return "; ".join(part for part in (outcome + worst, warned, said) if part)


def details(rows: list[dict], toolchain: str) -> list[str]:
    mine = [row for row in rows if row["toolchain"] == toolchain]
    targets = sorted({row["target"] for row in mine})
    versions = ", ".join(sorted({row["version"] for row in mine}))
    lines = [
        "",
        f"### {NAMES[toolchain]}",
        "",
        f"{versions}.",
        "",
        f"| case | warp instructions | {' | '.join(targets)} |",
        "|---|--:|" + len(targets) * "---|",
    ]
    for name in dict.fromkeys(row["case"] for row in mine):
        of = {row["target"]: row for row in mine if row["case"] == name}
        counts = ", ".join(
            f"{each['instructions']:,}" for each in of.values() if "instructions" in each
        )
        found = " | ".join(cells(of[target]) if target in of else "" for target in targets)
        lines.append(f"| {name} | {counts} | {found} |")
    return lines


def tables(rows: list[dict]) -> str:
    lines = summary(rows)
    for toolchain in NAMES:
        if any(row["toolchain"] == toolchain for row in rows):
            lines += details(rows, toolchain)
    return "\n".join(lines)


def write(results: Path, page: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{tables(rows_of(results))}\n{END}{after}", encoding="utf-8")
