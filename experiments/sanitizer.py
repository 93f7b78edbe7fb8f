"""Kernels under compute-sanitizer's four tools, on small problems, and on planted errors that the
tools should find: what ``sanitize.py`` of several experiments share.

    python experiments/NN_question/sanitize.py all       # on a GPU: every tool in turn, verdicts to
                                                         sanitizer.json
    python experiments/NN_question/sanitize.py report    # table into README.md
    compute-sanitizer --tool racecheck --report-api-errors no python
        experiments/NN_question/sanitize.py run --cases 0,3    # one tool by hand

A launch passes raw addresses, without a framework's allocator, which would round sizes up. Every
buffer is exactly as long as the kernel may assume. C and the partial sums are not initialised, so
that initcheck reports a block that reads a sum before it is written. (C is initialised if a tensor
copy stores it, because initcheck does not see such stores.) "0 errors" means something only if the
tool can see errors in these kernels. Therefore each tool also runs kernels with a planted error of
the kind that it detects. If it misses one that it must find (``Plant.must``), its verdict is not
clean; what else it finds or misses shows its limits. Errors of API calls are not counted, because
the CUDA bindings look up entry points that a driver need not have.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import sanitizer_process
from problems import Case, Launch, warm_cache
from sanitizer_output import (
    MARKERS,
    add_up,
    find_sanitizer,
    is_asynchronous,
    is_clean,
    opcodes_of,
    parse_summary,
    races,
    section,
)

from numba_marlin import reference
from numba_marlin.bench.environment import commit, versions
from numba_marlin.bench.tables import replace_between
from numba_marlin.compiler.assemble import assemble
from numba_marlin.execution import driver
from numba_marlin.execution.binding import LOCKS, OPERAND, RESULT
from numba_marlin.execution.machine import host_arrays
from numba_marlin.hardware.targets import target_named

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
NAN_WORD = 0x7FFF7FFF  # two of float16 or of bfloat16
CASES_SECONDS, PLANT_SECONDS = 180, 40


@dataclass(frozen=True)
class Plant:
    """An error for ``tool`` to find in a launch of ``case``: a buffer that lacks its last row
    (``short``), one that is never written (``missing``), or a kernel whose PTX was edited. must:
    the tool is known to look for it, and in the way that the kernel does it.
    """

    tool: str
    what: str
    case: Case
    short: str = None
    missing: str = None
    edit: Callable[[str], str] = None
    must: bool = True


@dataclass(frozen=True)
class Suite:
    """script: what to start under the tools; batches: indexes of the cases that share a process;
    more: options of a tool beside the usual ones. run_case: of cases that are not ``problems.Case``
    but have a label, a config, a kernel's name and ``build``: (case, compiled, plant) -> whether
    the result is right.
    """

    script: Path
    cases: tuple
    plants: tuple
    batches: tuple
    compilers: tuple
    more: dict = field(default_factory=dict)
    run_case: Callable = None

    @property
    def record(self):
        return self.script.parent / "sanitizer.json"


def edited(compiled, edit):
    ptx = edit(compiled.ptx)
    if ptx == compiled.ptx:
        raise SystemExit(f"found nothing to break in {compiled.kernel}")
    return dataclasses.replace(
        compiled, ptx=ptx, cubin=assemble(ptx, target_named(compiled.target))[0]
    )


def launched(binding, plant=None):
    """Launch once. -> {name: host array} of the results; None for a planted error."""
    from numba_marlin.execution import gpu

    maps = binding.definition.tensor_maps(binding.config, *binding.sizes)
    copied, arrays = {source for source, _ in maps.values()}, {}
    for name, array in host_arrays(binding).items():
        buffer, short = binding.buffers[name], bool(plant and plant.short == name)
        if buffer.role == OPERAND and not (plant and name in (plant.short, plant.missing)):
            arrays[name] = driver.DeviceArray.from_host(array)
            continue
        arrays[name] = driver.DeviceArray((array.shape[0] - short, *array.shape[1:]), array.dtype)
        if buffer.zero or short:
            arrays[name].fill_words(0)
        elif buffer.role == RESULT and name in copied:
            arrays[name].fill_words(NAN_WORD)
    addresses = {name: array.address for name, array in arrays.items()}
    gpu.loaded(binding, 0)(binding.grid, gpu.arguments(binding, addresses, 0))
    driver.synchronize(0)
    if plant:
        return None
    for name in binding.with_role(LOCKS):
        if arrays[name].to_host().any():
            raise SystemExit(f"{binding.definition.name}: locks are not zero")
    return {name: arrays[name].to_host() for name in binding.with_role(RESULT)}


def run_case(case, compiled, plant=None):
    """Launch once. Returns the report of ``reference.check``; None for a planted error."""
    launch = Launch(case)
    results = launched(dataclasses.replace(launch.binding, compiled=compiled), plant)
    if plant:
        return None
    return reference.check(
        results["c"], *launch.operands, launch.bias, method=case.definition.method(case.config)
    )


def run(suite, args):
    target, run_one = driver.describe(0).target, suite.run_case or run_case
    if args.plant is not None:
        plant = suite.plants[args.plant]
        compiled = plant.case.build(args.compilers[0], target)
        run_one(plant.case, edited(compiled, plant.edit) if plant.edit else compiled, plant)
        return 0
    for index in args.cases:
        case = suite.cases[index]
        for by in args.compilers:
            report = run_one(case, case.build(by, target))
            if not getattr(report, "ok", report):
                raise SystemExit(f"{case.label}, {by}: {report}")
    print(f"right results of {len(args.cases) * len(args.compilers)} launches", flush=True)
    return 0


def under(suite, tool, sanitizer, args, what, seconds):
    """Run ``run`` with the options ``what`` under a tool. Returns (its whole output, seconds)."""
    program = [
        sys.executable,
        str(suite.script),
        "run",
        "--compilers",
        ",".join(args.compilers),
        *what,
    ]
    return sanitizer_process.under(tool, sanitizer, program, seconds, suite.more.get(tool, ()))


def judge_batch(suite, tool, sanitizer, args, number, target):
    """-> {"errors", "warnings", "aside", "launches", "races"} of one process; errors is None where
    the tool or the program did not reach its end."""
    batch = suite.batches[number]
    text, seconds = under(
        suite, tool, sanitizer, args, ["--cases", ",".join(map(str, batch))], CASES_SECONDS
    )
    launches, summary = re.search(r"right results of (\d+) launches", text), parse_summary(text)
    keep_log(args, f"{tool}_{number}", text)
    row = {
        "errors": None,
        "warnings": None,
        "aside": 0,
        "launches": int(launches[1]) if launches else 0,
        "races": {},
        "seconds": seconds,
    }
    if summary and launches:
        configurations = {suite.cases[index].config for index in batch}
        alone = (
            tool == "racecheck" and sum(summary) and len(configurations) * len(args.compilers) == 1
        )
        found = (
            races(text, opcodes_of(suite.cases[batch[0]].build(args.compilers[0], target).cubin))
            if alone
            else []
        )
        for level, ends in found:
            row["races"][f"{level}: {' and '.join(ends)}"] = (
                row["races"].get(f"{level}: {' and '.join(ends)}", 0) + 1
            )
        aside = [
            sum(level == each and is_asynchronous(ends) for level, ends in found)
            for each in ("Error", "Warning")
        ]
        row |= {
            "errors": summary[0] - aside[0],
            "warnings": summary[1] - aside[1],
            "aside": sum(aside),
        }
    if row["errors"] != 0 or row["warnings"]:
        print(
            f"{tool}, {'; '.join(suite.cases[index].label for index in batch)}:\n{text[-4000:]}",
            flush=True,
        )
    return row


def judge_plant(suite, tool, sanitizer, args, number):
    plant = suite.plants[number]
    text, _ = under(suite, tool, sanitizer, args, ["--plant", str(number)], PLANT_SECONDS)
    keep_log(args, f"{tool}_planted_{number}", text)
    summary = parse_summary(text)
    found = (
        sum(summary)
        if summary
        else len(
            re.findall(
                r"(?m)^=+ (?:Error|Warning|Invalid|Barrier error|Uninitialized|Warpgroup MMA)", text
            )
        )
    )
    if plant.must and not found:
        print(f"{tool} did not see the planted error ({plant.what}):\n{text[-2500:]}", flush=True)
    return {
        "what": plant.what,
        "kernel": plant.case.kernel,
        "must": plant.must,
        "found": found,
        "ended": "killed after" not in text,
    }


def keep_log(args, name, text):
    if args.logs:
        args.logs.mkdir(parents=True, exist_ok=True)
        args.logs.joinpath(f"{name}.log").write_text(text, encoding="utf-8")


def said_of(tool, row):
    planted = ", ".join(
        f"{each['kernel']}: {each['what']}: {each['found'] or 'not seen'}"
        for each in row["planted"]
    )
    return (
        f"{tool:10} {row['errors']} errors, {row['warnings']} warnings, {row['aside']} set aside in"
        f" {row['launches']} launches, {row['seconds']:.0f} s; planted: {planted}"
    )


def run_all(suite, args):
    device, sanitizer = driver.describe(0), args.sanitizer or find_sanitizer()
    start = time.perf_counter()
    warm_cache(
        (*suite.cases, *(plant.case for plant in suite.plants)), args.compilers, device.target
    )
    print(f"kernels built in {time.perf_counter() - start:.0f} s; {sanitizer}", flush=True)
    version = re.search(
        r"Version (\S+)",
        subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout,
    )
    record = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "device": device.name,
        "driver": driver.probe().driver_version,
        "versions": {**versions(), "compute-sanitizer": version[1] if version else "unknown"},
        "compilers": list(args.compilers),
        "problems": [case.label for case in suite.cases],
        "tools": {},
    }
    rows = record["tools"]
    # a tool after the other, each recorded as it is done: a visit to a GPU may end early
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for tool in args.tools:
            batches = [
                pool.submit(judge_batch, suite, tool, sanitizer, args, number, device.target)
                for number in range(len(suite.batches))
            ]
            plants = [
                pool.submit(judge_plant, suite, tool, sanitizer, args, number)
                for number, plant in enumerate(suite.plants)
                if plant.tool == tool
            ]
            row = rows[tool] = add_up([each.result() for each in batches])
            row["planted"] = [each.result() for each in plants]
            print(said_of(tool, row), flush=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0 if all(is_clean(row) for row in rows.values()) else 1


def report(suite, args):
    text = section(json.loads(args.out.read_text(encoding="utf-8")))
    replace_between(suite.script.parent / "README.md", MARKERS, text)
    print(text)
    return 0


def main(suite, argv=None):
    def numbers(text):
        return tuple(map(int, text.split(",")))

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "all", "report"))
    parser.add_argument(
        "--compilers",
        type=lambda text: text.split(","),
        default=suite.compilers,
        help=f"comma separated (default: {','.join(suite.compilers)})",
    )
    parser.add_argument(
        "--tools",
        type=lambda text: text.split(","),
        default=TOOLS,
        help=f"comma separated (default: {','.join(TOOLS)})",
    )
    parser.add_argument(
        "--cases",
        type=numbers,
        default=tuple(range(len(suite.cases))),
        help="run: numbers of the cases, comma separated (default: all)",
    )
    parser.add_argument("--plant", type=int, help="run: only the planted error of that number")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="all: processes side by side (default: one a core)",
    )
    parser.add_argument("--sanitizer", help="path of compute-sanitizer (default: found)")
    parser.add_argument("--logs", type=Path, help="all: folder for the tools' whole output")
    parser.add_argument("--out", type=Path, default=suite.record)
    args = parser.parse_args(argv)
    return {"run": run, "all": run_all, "report": report}[args.command](suite, args)
