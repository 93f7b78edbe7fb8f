"""The museum: published defects of GPU kernels, cut down, before the judge.

    python experiments/27_museum/run.py page        # judges every kernel, writes docs/museum.md
    python experiments/27_museum/run.py sanitize    # on a GPU: three tools of compute-sanitizer on
                                                    every kernel: sanitizer.jsonl, and the page
    python experiments/27_museum/run.py table       # the page's table of what they said
    python experiments/27_museum/run.py launch exhibits/01_guard.py broken   # what that starts

An exhibit is a file of ``exhibits/``: a task of ``numba_marlin.judge`` (``fixed_task``, where the
fix is the host's), the kernels ``broken`` and ``fixed``, and what its page says. ``numba-marlin
judge exhibits/01_guard.py exhibits/01_guard.py --entry broken`` judges one by hand.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import difflib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from sanitizer_output import MARKERS, find_sanitizer, headlines, parse_summary
from sanitizer_process import under

from numba_marlin.bench.environment import commit, versions
from numba_marlin.bench.tables import replace_between
from numba_marlin.judge.judging import Options, judge
from numba_marlin.judge.launching import Kernel
from numba_marlin.judge.task import problem
from numba_marlin.judge.verdict import Verdict
from numba_marlin.on_cpu.compiling import compiled
from numba_marlin.row_stack import restore_row_stack

PAGE = ROOT / "docs" / "museum.md"
RESULTS = HERE / "sanitizer.jsonl"
TOOLS = ("racecheck", "memcheck", "synccheck")
KERNELS = ("broken", "fixed")
OPTIONS = Options(cases=5, schedules=4)
NOT_RUN = "not run yet"
SECONDS = 90  # of one launch under a tool
LOOKS_AT = """racecheck looks at shared memory only. Its report about the *fixed* kernel 8 is no
race by the PTX ISA: `bar.warp.sync` orders the stores of a warp's lanes before the arrival of one
of them."""
HEAD = """# The museum: published defects, cut down

Made by `python experiments/27_museum/run.py page`; what the machine says is what it said.

Each exhibit is a defect that somebody reported, or mended, in a kernel that people use, cut down to
a kernel of our own that has its mechanism and nothing else; the sources are in
[`experiments/27_museum`](../experiments/27_museum). [The judge](judge.md) looked at each: the
broken one as far as its first defect, the fixed one in all cases and orders of warps, with races
looked for. What [compute-sanitizer](#what-compute-sanitizer-says) says of them stands at the end.
"""


def exhibits() -> list[Path]:
    return sorted((HERE / "exhibits").glob("*.py"))


def exhibit(path: Path) -> SimpleNamespace:
    """What its file defines, by name; ``title``: its first line."""
    found = runpy.run_path(str(path))
    title = found["__doc__"].splitlines()[0].rstrip(".")
    return SimpleNamespace(**found, title=title, path=path)


def verdict(shown: SimpleNamespace, which: str, options: Options = OPTIONS) -> Verdict:
    """Of the kernel ``which``. The broken one is judged at its edges only."""
    task = _task(shown, which)
    made = compiled(getattr(shown, which), task.types)
    kernel = Kernel(made.text, made.entry, made.name, True, made.parameters)
    return judge(task, kernel, options)


def _task(shown: SimpleNamespace, which: str):
    return getattr(shown, "fixed_task", shown.task) if which == "fixed" else shown.task


def defect(found: Verdict):
    """The first one."""
    return next(each.defect for each in found.cases if each.defect)


def source(shown: SimpleNamespace, which: str) -> list[str]:
    """The lines of a kernel, without their numbers."""
    lines, _ = inspect.getsourcelines(getattr(shown, which).py_func)
    return [line.rstrip("\n") for line in lines]


def said(found) -> str:
    """What a defect says, its files by name; Numba numbers the arrays of a process."""
    text = re.sub(r"(_cudapy_smem)_\d+", r"\1", str(found))
    return re.sub(r"[^\s(]*/(\d\d_\w+\.py)", r"\1", text)


def issue(name: str) -> str:
    repository, _, number = name.partition("#")
    return f"[{name}](https://github.com/{repository}/issues/{number})"


def sanitized() -> list[dict]:
    """What compute-sanitizer said: a row for every exhibit, kernel and tool."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def sanitizer_table() -> str:
    """What the tools said, of the broken and of the fixed kernel of each exhibit."""
    rows = sanitized()
    said = {(row["exhibit"], row["kernel"], row["tool"]): in_cell(row["said"]) for row in rows}
    lines = [
        "| | exhibit | " + " | ".join(f"{tool} | fixed" for tool in TOOLS) + " |",
        "|--:|---" + "|---|---" * len(TOOLS) + "|",
    ]
    for number, path in enumerate(exhibits(), 1):
        cells = [said.get((path.stem, which, tool), NOT_RUN) for tool in TOOLS for which in KERNELS]
        lines.append(f"| {number} | {exhibit(path).title} | {' | '.join(cells)} |")
    ran = {
        f"{row['device']}, driver {row['driver']}, compute-sanitizer {row['sanitizer']},"
        f" {row['date']}, commit {row['commit']}."
        for row in rows
    }
    return "\n".join([*lines, "", *sorted(ran), LOOKS_AT])


def in_cell(said: str) -> str:
    """In Markdown, where two underscores begin bold text; and one error is no plural."""
    said = re.sub(r"\b1 (error|warning)s", r"1 \1", said)
    return re.sub(r"\b__\w+__\b", r"`\g<0>`", said)


def page() -> str:
    """docs/museum.md."""
    rows, sections = [], []
    for number, path in enumerate(exhibits(), 1):
        shown = exhibit(path)
        broken, fixed = (verdict(shown, which) for which in KERNELS)
        first = defect(broken)
        state = "clean" if fixed.passed else ", ".join(fixed.kinds)
        rows.append(
            f"| {number} | {shown.title} | {', '.join(map(issue, shown.ISSUES))} | `{first.kind}` |"
            f" {state} in {fixed.runs} runs |"
        )
        sections.append(_section(number, shown, first))
    table = [
        "| | exhibit | published | the machine | fixed |",
        "|--:|---|---|---|---|",
        *rows,
    ]
    begin, end = MARKERS
    last = ["## What compute-sanitizer says", "", begin, sanitizer_table(), end, ""]
    return "\n".join([HEAD, *table, "", *sections, *last])


def _section(number: int, shown: SimpleNamespace, first) -> str:
    body = "\n".join(source(shown, "broken"))
    text = [
        f"## {number}. {shown.title}",
        f"{', '.join(map(issue, shown.ISSUES))}. *What users saw:* {_prose(shown.SEEN)}",
        f"*What happens:* {_prose(shown.CAUSE)}",
        f"```python\n{body}\n```",
        "The machine:",
        f"```text\n{said(first)}\n```",
        f"*The fix:* {_prose(shown.FIX)}",
        f"```diff\n{fix(shown)}\n```",
    ]
    return "\n\n".join(text) + "\n"


def fix(shown: SimpleNamespace) -> str:
    """What is different in the fixed kernel, with a line around."""
    before, after = (
        [line.replace("def fixed(", "def broken(") for line in source(shown, which)]
        for which in KERNELS
    )
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[3:]
    return "\n".join(" ..." if line.startswith("@@") else line for line in lines)


def _prose(text: str) -> str:
    return " ".join(text.split())


# ---- on a GPU


def launch(path: Path, which: str) -> None:
    """One launch by numba-cuda, of the first case with several of everything."""
    from numba import cuda

    restore_row_stack()
    shown = exhibit(path)
    task = _task(shown, which)
    sizes = {name: size.values()[-1] for name, size in task.sizes.items()}
    given = problem(task, sizes, seed=1)
    arguments = [
        cuda.to_device(value) if getattr(value, "shape", ()) else value
        for value in given.values.values()
    ]
    getattr(shown, which)[given.grid, given.block, 0, given.shared](*arguments)
    cuda.synchronize()
    print("launched", path.stem, which)


def sanitize(tools: list[str], seconds: float, jobs: int, logs: Path | None) -> None:
    """Every kernel under every tool, several side by side: rows to sanitizer.jsonl, one by one, and
    the table to the page."""
    from numba_marlin.execution import driver

    device, sanitizer = driver.describe(0), find_sanitizer()
    version = re.search(
        r"Version (\S+)",
        subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout,
    )
    common = {
        "device": device.name,
        "driver": driver.probe().driver_version,
        "sanitizer": version[1] if version else "of an unknown version",
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }

    def one(path: Path, which: str, tool: str) -> dict:
        program = [sys.executable, __file__, "launch", str(path), which]
        text, took = under(
            tool, sanitizer, program, seconds, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"{path.stem}_{which}_{tool}.log").write_text(text, encoding="utf-8")
        row = {"exhibit": path.stem, "kernel": which, "tool": tool, "said": told(text)}
        return row | {"found": headlines(text), "seconds": round(took, 1)} | common

    asked = [(path, which, tool) for path in exhibits() for tool in tools for which in KERNELS]
    kept = {(row["exhibit"], row["kernel"], row["tool"]): row for row in sanitized()}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, *each) for each in asked]):
            row = done.result()
            kept[row["exhibit"], row["kernel"], row["tool"]] = row
            print(
                f"{row['exhibit']:40} {row['kernel']:7} {row['tool']:10} {row['said']}", flush=True
            )
            # written each time: a visit that is cut short keeps what it has
            lines = [json.dumps(kept[key]) + "\n" for key in sorted(kept)]
            RESULTS.write_text("".join(lines), encoding="utf-8")
    table()


def table() -> None:
    """Into the page, whose other parts stay."""
    replace_between(PAGE, MARKERS, sanitizer_table())


def told(output: str) -> str:
    """What a tool said, in few words."""
    summary = parse_summary(output)
    if "killed after" in output:
        return "no end" if not summary or not sum(summary) else f"no end; {_counts(*summary)}"
    if summary is not None and sum(summary):
        kinds = headlines(output)
        return _counts(*summary) + (f": {'; '.join(kinds)}" if kinds else "")
    if "launched " not in output:
        return "the launch failed"
    return "no summary" if summary is None else "nothing"


def _counts(errors: int, warnings: int) -> str:
    return f"{errors} errors" + (f", {warnings} warnings" if warnings else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("page")
    actions.add_parser("table")
    tools = actions.add_parser("sanitize")
    tools.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    tools.add_argument("--seconds", type=float, default=SECONDS, help="of one launch")
    tools.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    tools.add_argument("--logs", type=Path, help="a folder for the tools' whole output")
    one = actions.add_parser("launch")
    one.add_argument("exhibit", type=Path)
    one.add_argument("kernel", choices=KERNELS)
    args = parser.parse_args()
    if args.action == "page":
        PAGE.write_text(page(), encoding="utf-8")
    elif args.action == "sanitize":
        sanitize(args.tools, args.seconds, args.jobs, args.logs)
    elif args.action == "table":
        table()
    else:
        launch(args.exhibit, args.kernel)


if __name__ == "__main__":
    main()
