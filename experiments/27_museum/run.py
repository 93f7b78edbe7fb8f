"""The museum: published defects of GPU kernels, cut down, before the judge.

    python experiments/27_museum/run.py page        # judges every kernel, writes docs/museum.md
    python experiments/27_museum/run.py racecheck   # on a GPU: compute-sanitizer on every kernel
    python experiments/27_museum/run.py launch exhibits/01_guard.py broken   # what that starts

An exhibit is a file of ``exhibits/``: a task of ``numba_marlin.judge`` (``fixed_task``, where the
fix is the host's), the kernels ``broken`` and ``fixed``, and what its page says. ``numba-marlin
judge exhibits/01_guard.py exhibits/01_guard.py --entry broken`` judges one by hand.
"""

from __future__ import annotations

import argparse
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

from sanitizer_output import find_sanitizer, parse_summary

from numba_marlin.judge.judging import Options, judge
from numba_marlin.judge.launching import Kernel
from numba_marlin.judge.task import problem
from numba_marlin.judge.verdict import Verdict
from numba_marlin.on_cpu.compiling import compiled

PAGE = ROOT / "docs" / "museum.md"
RESULTS = HERE / "racecheck.jsonl"
KERNELS = ("broken", "fixed")
OPTIONS = Options(cases=5, schedules=4)
NOT_RUN = "not run: no GPU here"
SECONDS = 60  # of one launch under racecheck
HEAD = """# The museum: published defects, cut down

Made by `python experiments/27_museum/run.py page`; what the machine says is what it said.

Each exhibit is a defect that somebody reported, or mended, in a kernel that people use, cut down to
a kernel of our own that has its mechanism and nothing else; the sources are in
[`experiments/27_museum`](../experiments/27_museum). [The judge](judge.md) looked at each: the
broken one as far as its first defect, the fixed one in all cases and orders of warps, with races
looked for. The columns on the right are for what compute-sanitizer's racecheck shows on an H200.
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


def racechecked() -> dict[tuple[str, str], str]:
    """(exhibit, kernel) -> what racecheck said."""
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {(row["exhibit"], row["kernel"]): row["said"] for row in rows}


def page() -> str:
    """docs/museum.md."""
    rows, sections, checked = [], [], racechecked()
    for number, path in enumerate(exhibits(), 1):
        shown = exhibit(path)
        broken, fixed = (verdict(shown, which) for which in KERNELS)
        first = defect(broken)
        on_gpu = [checked.get((path.stem, which), NOT_RUN) for which in KERNELS]
        state = "clean" if fixed.passed else ", ".join(fixed.kinds)
        rows.append(
            f"| {number} | {shown.title} | {', '.join(map(issue, shown.ISSUES))} | `{first.kind}` |"
            f" {state} in {fixed.runs} runs | {on_gpu[0]} | {on_gpu[1]} |"
        )
        sections.append(_section(number, shown, first))
    table = [
        "| | exhibit | published | the machine | fixed | racecheck | racecheck, fixed |",
        "|--:|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join([HEAD, *table, "", *sections])


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


def racecheck(seconds: float) -> None:
    """Every kernel under compute-sanitizer's racecheck: results to racecheck.jsonl."""
    tool, rows = find_sanitizer(), []
    for path in exhibits():
        for which in KERNELS:
            command = [tool, "--tool", "racecheck", sys.executable, __file__, "launch"]
            try:
                done = subprocess.run(
                    [*command, str(path), which],
                    capture_output=True,
                    text=True,
                    timeout=seconds,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )
                output = done.stdout + done.stderr
                told = _told(parse_summary(output), output)
            except subprocess.TimeoutExpired:
                told = f"no end in {seconds:g} s"
            row = {"exhibit": path.stem, "kernel": which, "said": told}
            rows.append(row | {"date": datetime.date.today().isoformat()})
            print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _told(summary: tuple[int, int] | None, output: str) -> str:
    if "launched " not in output:
        return "the launch failed"
    if summary is None:
        return "no summary"
    errors, warnings = summary
    return f"{errors} errors, {warnings} warnings" if errors or warnings else "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("page")
    actions.add_parser("racecheck").add_argument("--seconds", type=float, default=SECONDS)
    one = actions.add_parser("launch")
    one.add_argument("exhibit", type=Path)
    one.add_argument("kernel", choices=KERNELS)
    args = parser.parse_args()
    if args.action == "page":
        PAGE.write_text(page(), encoding="utf-8")
    elif args.action == "racecheck":
        racecheck(args.seconds)
    else:
        launch(args.exhibit, args.kernel)


if __name__ == "__main__":
    main()
