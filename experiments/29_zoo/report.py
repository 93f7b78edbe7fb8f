"""The tables of README.md from results.jsonl."""

import json
from pathlib import Path

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
BOUNDS = {"sums": "fp32 sums", "weights": "weights rounded to fp16"}
GROUPS = {
    "tensor": ("tensor",),
    "fp16": ("fp16",),
    "fp32": ("fp32", "fp64", "special"),
    "integer, logic": ("integer", "logic"),
    "convert": ("convert",),
    "move": ("move", "warp", "parameter"),
    "compare, jump": ("compare", "control"),
    "shared": ("shared",),
    "copies": ("copy",),
    "global": ("global", "local", "atomic"),
    "sync": ("sync",),
}


def verdict(row: dict) -> str:
    if row["outcome"] in ("refused", "skipped"):
        return row["outcome"]
    exact = f"{row['exact']} wrong" if row["exact"] else "all"
    if row["bound"] is None:
        wrong = row.get("not_finite") or row["wrong"]
        return f"**wrong**: {wrong} results | {row.get('relative', 0):.1e} | {exact}"
    halves = row["half_roundings"]
    bound = f"{halves} roundings to fp16" if halves else BOUNDS[row["bound"]]
    right = "right" if row["outcome"] == "right" else "**wrong**"
    return f"{right}: {bound} ({row['ratio']:.2g}) | {row['relative']:.1e} | {exact}"


def races(row: dict) -> str:
    if row["races"] is None:
        return "not finished"
    if not row["races"]:
        return "none"
    wrong = sum(map(bool, row["orders"]))
    kind = row["races"][0]["said"].split(":")[0]
    return f"{kind}; wrong in {wrong} of {len(row['orders'])} other orders"


def right_table(rows: list[dict]) -> list[str]:
    lines = [
        "| kernel | package | compiler | target | m x n | result: bound (worst error / bound)"
        " | norm-wise error | exact data | first race | other checks |",
        "|---|---|---|---|---|---|--:|---|---|---|",
    ]
    for row in rows:
        if row["outcome"] in ("refused", "skipped"):
            rest = f"{row['outcome']}, below | | | | |"
        else:
            checks = sorted({each["check"] for each in row["warnings"]})
            places = f" ({len(row['warnings'])} places)" if checks else ""
            rest = f"{verdict(row)} | {races(row)} | {', '.join(checks) or 'none'}{places} |"
        lines.append(
            f"| {row['kernel']} | {row['package']} | {row['compiler']} | {row['target']}"
            f" | {row['m']} x {row['n']} | {rest}"
        )
    return lines


def traffic_table(rows: list[dict]) -> list[str]:
    lines = [
        "| kernel | compiler | target | m x n | KiB asked | by a perfect L1 | needed"
        " | asked : needed | warp instructions | for 1,024 operations | "
        + " | ".join(GROUPS)
        + " |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|" + "--:|" * len(GROUPS),
    ]
    for row in rows:
        if "kinds" not in row:
            continue
        total = sum(row["kinds"].values())
        shares = [
            f"{100 * sum(row['kinds'].get(kind, 0) for kind in kinds) / total:.0f}%"
            for kinds in GROUPS.values()
        ]
        useful = 2 * row["m"] * row["n"] * row["k"]
        lines.append(
            f"| {row['kernel']} | {row['compiler']} | {row['target']} | {row['m']} x {row['n']}"
            f" | {row['asked'] / 1024:.0f} | {row['block_bytes'] / 1024:.0f}"
            f" | {row['needed'] / 1024:.0f} | {row['asked'] / row['needed']:.2f}"
            f" | {row['instructions']:,} | {1024 * row['instructions'] / useful:.1f} | "
            + " | ".join("" if share == "0%" else share for share in shares)
            + " |"
        )
    return lines


def places(rows: list[dict]) -> list[str]:
    """What was found, with lines; kernels of one name and text once."""
    lines, seen = [], {}
    for row in rows:
        if row["outcome"] in ("refused", "skipped"):
            first = " ".join(row["said"].split())
            lines.append(f"- {row['kernel']}, {row['target']}: {row['outcome']}. {first}")
            continue
        for each in row["races"] or ():
            text = " ".join(each["said"].split())
            if seen.setdefault((row["name"], text), row) is row:
                lines.append(
                    f"- {row['kernel']}, {row['target']}, n={row['n']}: line {each['line']},"
                    f" `{each['text']}`: {text}"
                )
    return lines


def tables(results: Path) -> str:
    """What stands between the markers of the page."""
    rows = list(map(json.loads, results.read_text(encoding="utf-8").splitlines()))
    rows.sort(key=lambda row: (row["package"] == "numba_marlin", row["compiler"], row["name"]))
    versions = sorted({part for row in rows for part in row.get("version", "").split(", ") if part})
    return "\n".join(
        [
            *right_table(rows),
            "",
            *traffic_table(rows),
            "",
            "The first race of each, with the lines of the PTX and the source; refused and skipped"
            " ones, with the reason:",
            "",
            *places(rows),
            "",
            f"Versions: {', '.join(versions)}.",
        ]
    )


def write(results: Path, page: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{tables(results)}\n{END}{after}", encoding="utf-8")
