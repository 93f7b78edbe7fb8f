"""Writes the tables of README.md from results.jsonl: where the time goes, by cell; and the ten
views, with what each was requested to show."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE)]

import beside
import kept

SAMPLE = "h200_ampere.json"  # a profile measured on an H200, kept
TIMES, VIEWS_TABLE, KEPT = "times", "views", "kept"
ORDER = (
    "launch",
    "setup",
    "copy",
    "multiply",
    "wait_copies",
    "wait_room",
    "wait_barrier",
    "wait_block",
    "wait_kernel",
    "wait_role",
    "reduce_block",
    "reduce_grid",
    "write",
    "recorder",
    "unrecorded",
    "tail",
)
TITLES = {
    "wait_copies": "wait: copies",
    "wait_room": "wait: room",
    "wait_barrier": "wait: barrier",
    "wait_block": "wait: block",
    "wait_kernel": "wait: kernel before",
    "wait_role": "wait: role",
    "reduce_block": "add up in block",
    "reduce_grid": "between blocks",
    "setup": "set up",
}
# picture, what people ask for, what is shown, section, figures of it: first, behind the last
VIEWS = (
    (
        "summary",
        "Profiling summary: throughput, bottleneck, recommendations",
        (
            "time beside cuBLAS and the model, what is used of measured ceilings, findings with the"
            " rule behind each"
        ),
        "summary",
        0,
        4,
    ),
    (
        "roofline",
        "... and how far from the roof",
        "the launch and cuBLAS under ceilings measured in the same run",
        "summary",
        4,
        5,
    ),
    (
        "launch",
        "Kernel launch configuration, theoretical and achieved occupancy",
        "achieved: warps that really were on an SM, from their recorded starts and ends",
        "launch",
        0,
        3,
    ),
    ("blocks", "Blocks on SMs", "which block ran where, by %smid", "blocks", 0, 1),
    (
        "memory",
        "Memory hierarchy snapshot",
        (
            "sizes asked of the driver (an H200 has 60 MiB of L2) and how full each level is,"
            " bytes counted, rates between levels; a hit rate needs hardware counters, so the best"
            " possible one is named as such"
        ),
        "memory",
        0,
        1,
    ),
    (
        "warp",
        "Thread-level view: activity of a warp over time, with stall reasons",
        "what it did when, and for what it waited, by its own clock",
        "warp",
        0,
        2,
    ),
    (
        "transactions",
        "Memory transactions, coalescing, waste",
        "by verb and instruction, sectors touched and needed",
        "transactions",
        0,
        2,
    ),
    (
        "packing",
        "Data packing",
        (
            "a word of the weights: its codes are eight of k apart, not neighbours; the lowest"
            " nibble is code 0"
        ),
        "packing",
        0,
        2,
    ),
    (
        "tensor",
        "Tensor core activity",
        "issued and useful operations of a measured ceiling, and what NVML's GPM says",
        "tensor",
        0,
        3,
    ),
    (
        "timeline",
        "Kernel execution timeline by phase",
        "of an average warp, adding up to the time of a launch, and all warps of a block",
        "timeline",
        0,
        1,
    ),
    (
        "warps",
        "... warp by warp",
        "loads and multiplies overlap: a bar a phase, one after the other, is not what happens",
        "timeline",
        2,
        3,
    ),
    (
        "device",
        "Real-time GPU statistics",
        "NVML and GPM while the kernel ran; `numba-marlin watch` shows them live",
        "device",
        0,
        3,
    ),
)


def latest(path: Path) -> list[dict]:
    """Return the last row of every cell, in the order of the cells' first rows."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["kernel"], row["m"], row["n"], row["k"]] = row
    return list(rows.values())


def alone(row: dict) -> float:
    """Return the microseconds of the plain kernel with launches that do not overlap."""
    return row.get("alone_us", row["us"])


def off(row: dict) -> float:
    return row["timeline_us"] / alone(row) - 1


def times(rows: list[dict], tolerance: float) -> str:
    """Two lines a cell: the parts, and those of the one build that tells everything apart, where
    they are others. (Rows from before there were several builds have one.)"""
    seen = [
        name
        for name in ORDER
        if any(
            abs(parts.get(name, 0)) >= 0.05
            for row in rows
            for parts in (row["parts_us"], row.get("raw_parts_us", {}))
        )
    ]
    heads = [
        "kernel",
        "m",
        "k x n",
        "plain us",
        "overlapping",
        "parts add up to",
        "ends alone",
        "work",
        "each wait",
        "all at once",
        "all events",
        *(TITLES.get(name, name) for name in seen),
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" + "--:|" * (len(heads) - 1)]
    for row in rows:

        def cost(us, row=row):
            return f"{us / alone(row) - 1:+.0%}" if us else ""

        def parts(found):
            return [f"{found[name]:.1f}" if found.get(name) else "" for name in seen]

        mark = "**" if abs(off(row)) <= tolerance else ""
        finer = sorted(row.get("finer_us", {}).values())
        each = (
            ""
            if not finer
            else (
                cost(finer[0])
                if cost(finer[0]) == cost(finer[-1])
                else f"{cost(finer[0])} .. {cost(finer[-1])}"
            )
        )
        cells = [
            row["kernel"],
            str(row["m"]),
            f"{row['k']} x {row['n']}",
            f"{alone(row):.1f}",
            f"{row['us']:.1f}" if "alone_us" in row and alone(row) > 1.01 * row["us"] else "",
            f"{mark}{row['timeline_us']:.1f} ({off(row):+.1%}){mark}",
            cost(row.get("ends_us")),
            cost(row.get("work_us")),
            each,
            cost(row["light_us"]),
            cost(row["detailed_us"]),
        ]
        lines.append("| " + " | ".join(cells + parts(row["parts_us"])) + " |")
        if row.get("raw_parts_us", row["parts_us"]) != row["parts_us"]:
            lines.append(
                "| "
                + " | ".join(
                    [
                        "",
                        "",
                        "all at once:",
                        "",
                        "",
                        (
                            f"{row['raw_timeline_us']:.1f}"
                            f" ({row['raw_timeline_us'] / alone(row) - 1:+.1%})"
                        ),
                        *[""] * 5,
                        *parts(row["raw_parts_us"]),
                    ]
                )
                + " |"
            )
    wide = [row for row in rows if abs(off(row)) > tolerance]
    said = (
        f"In {len(rows) - len(wide)} of {len(rows)} cells the parts add up to the plain kernel's"
        f" time within {tolerance:.0%} (bold)."
    )
    if wide:
        said += (
            " In the others reading the clock costs more: "
            + ", ".join(f"{row['kernel']} m={row['m']} ({off(row):+.0%})" for row in wide)
            + "."
        )
    first = rows[0]
    return "\n".join(
        [
            *lines,
            "",
            said,
            "",
            (
                f"Measured {first['date']} on {first['device']}, driver {first['driver']}; commit"
                f" {first['commit']}."
            ),
        ]
    )


def views() -> str:
    lines = ["| asked for | shown | command | |", "|---|---|---|---|"]
    for key, asked, shown, section, *_ in VIEWS:
        lines.append(
            f"| {asked} | {shown} | `numba-marlin profile --m 16 --n 8192 --k 8192 --kernel ampere"
            f" --view {section}` | ![{asked}]({key}.png) |"
        )
    return "\n".join(lines)


def replaced(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def write(results: Path, readme: Path, tolerance: float) -> int:
    rows = latest(results)
    text = replaced(
        replaced(readme.read_text(encoding="utf-8"), TIMES, times(rows, tolerance)),
        VIEWS_TABLE,
        views(),
    )
    text = replaced(text, KEPT, kept.table(readme.parent))
    readme.write_text(text, encoding="utf-8")
    wide = [
        f"{row['kernel']} m={row['m']} {off(row):+.1%}" for row in rows if abs(off(row)) > tolerance
    ]
    print(
        f"{len(rows)} cells, {len(wide)} outside {tolerance:.0%}"
        + (f": {', '.join(wide)}" if wide else "")
    )
    return 1 if wide else 0


def pictures() -> None:
    """Of the kept profile, as experiment 09 takes its own."""
    from playwright.sync_api import sync_playwright

    walk = beside.script("09_views/run.py")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        path = Path(folder, "page.html")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        subprocess.run(
            [
                sys.executable,
                "-m",
                "numba_marlin",
                "profile",
                "--open",
                str(HERE / SAMPLE),
                "--html",
                str(path),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        browser = p.chromium.launch(
            executable_path=next((each for each in walk.CHROMIUM if Path(each).exists()), None),
            args=list(walk.FLAGS),
        )
        for number, (key, _, _, section, first, last) in enumerate(VIEWS):
            page = browser.new_page(
                viewport={"width": walk.WIDTH, "height": walk.HEIGHT},
                color_scheme="dark" if number % 2 else "light",
            )
            page.goto(path.as_uri() + f"#{section}")
            page.evaluate(walk.ONLY, [first, last])
            page.locator("section.here").screenshot(path=str(HERE / f"{key}.png"))
            page.close()
        browser.close()
