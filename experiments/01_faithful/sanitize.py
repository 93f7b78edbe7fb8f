"""The kernels under compute-sanitizer: memcheck, racecheck, initcheck and synccheck, on small problems, and on a planted error each.

    python experiments/01_faithful/sanitize.py all       # on a GPU: every tool in turn, verdicts to sanitizer.json
    python experiments/01_faithful/sanitize.py report    # table into README.md
    compute-sanitizer --tool racecheck --report-api-errors no python experiments/01_faithful/sanitize.py run    # one tool by hand

A launch is raw addresses and nothing else: no framework's allocator that rounds sizes up. Every buffer is exactly as long as the kernel may think; C and the
partial sums are never initialised, so that initcheck sees a block that reads a sum before it was left there. "0 errors" is worth something only if the
tool can see these kernels: so each is also shown one that has the error it looks for, and must find it.
Errors of API calls are not counted: the CUDA bindings look for entry points that a driver need not have.
"""
import argparse
import dataclasses
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from agree_report import write_section
from problems import HERE, Case, Launch, warm_cache
from run import commit_name, versions

from numba_marlin import compiler, driver, reference
from numba_marlin.compiler.assemble import assemble
from numba_marlin.compiler.targets import target_named

BEGIN, END = "<!-- sanitizer:begin -->", "<!-- sanitizer:end -->"
WIDE, DEEP = (16, 4), (8, 8)
CASES = (  # m, n, k, group size
    Case("naive", 3, 64, 64, 32), Case("naive", 2, 64, 48, -1),
    Case("tiled", 17, 64, 80, -1), Case("tiled", 5, 128, 64, 32),
    Case("ampere", 1, 64, 64, 32, tile=DEEP, sms=2),  # one tile, half empty
    Case("ampere", 5, 192, 208, -1, tile=WIDE, sms=3),  # tails of n and k
    Case("ampere", 16, 256, 512, 128, tile=DEEP, sms=3),  # a block with parts of two slices, slices shared by two blocks
    Case("ampere", 20, 320, 320, 64, tile=WIDE, sms=4),
    Case("ampere", 40, 256, 512, 128, tile=WIDE, sms=3),  # two tiles of k to a group
    Case("ampere", 64, 256, 512, -1, tile=WIDE, sms=5),  # a slice shared by five blocks
    Case("ampere", 150, 256, 256, 32, tile=WIDE, sms=3),  # several row tiles, the last one short
)
PLANT_IN = Case("tiled", 17, 64, 128, 32)
HALF_A_BARRIER = ("{ .reg .pred %planted; .reg .b32 %odd; mov.u32 %odd, %tid.x; and.b32 %odd, %odd, 1; setp.eq.u32 %planted, %odd, 0; @%planted bar.sync 0; }")
PLANTED = {
    "memcheck": "C one row too short", "racecheck": "no barriers", "initcheck": "weights never copied", "synccheck": "odd threads skip a barrier",
}
TOOLS = tuple(PLANTED)
BARRIER = re.compile(r"(?:bar|barrier)\.(?:cta\.)?sync(?:\.aligned)?\s+0\s*;")
TIMEOUT_SECONDS = 180


# ---- inside the sanitizer -----------------------------------------------------------------------------------------------------------------

def broken(compiled, tool):
    """The kernel without what keeps racecheck or synccheck silent."""
    edited = BARRIER.sub("", compiled.ptx) if tool == "racecheck" else BARRIER.sub(HALF_A_BARRIER, compiled.ptx, count=1)
    if edited == compiled.ptx:
        raise SystemExit("found no barrier to break")
    cubin, _ = assemble(edited, target_named(compiled.target))
    return dataclasses.replace(compiled, ptx=edited, cubin=cubin)


def run_case(case, compiled, plant=None):
    """Launch once; -> the report of ``reference.check``."""
    from numba_marlin.launch import launcher
    launch, arrays = Launch(case), {}
    for name, array in launch.buffers.items():
        if name in ("a", "b", "scales") and not (plant == "initcheck" and name == "b"):
            arrays[name] = driver.DeviceArray.from_host(array)
        else:
            short = plant == "memcheck" and name == "c"
            arrays[name] = driver.DeviceArray((array.shape[0] - short, *array.shape[1:]), array.dtype)
        if name == "locks":
            arrays[name].fill_words(0)
    launcher(compiled)(case.grid, (*(array.address for array in arrays.values()), *launch.sizes))
    driver.synchronize(0)
    if plant:
        return None
    if "locks" in arrays and arrays["locks"].to_host().any():
        raise SystemExit(f"{case.label}: locks are not zero")
    return reference.check(arrays["c"].to_host(), *launch.operands)


def run(args):
    target = driver.describe(0).target
    if args.plant:
        compiled = PLANT_IN.build(args.compilers[0], target)
        run_case(PLANT_IN, broken(compiled, args.plant) if args.plant in ("racecheck", "synccheck") else compiled, plant=args.plant)
        return 0
    for case in CASES:
        for by in args.compilers:
            report = run_case(case, case.build(by, target))
            if not report.ok:
                raise SystemExit(f"{case.label}, {by}: {report}")
    print(f"right results of {len(CASES) * len(args.compilers)} launches", flush=True)
    return 0


# ---- around it -------------------------------------------------------------------------------------------------------------------------------

def find_sanitizer():
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [shutil.which("compute-sanitizer"), *(os.path.join(root, "bin", "compute-sanitizer") for root in roots if root)]
    found = next((path for path in candidates if path and os.access(path, os.X_OK)), None)
    if found is None:
        raise SystemExit("compute-sanitizer is not on PATH nor in CUDA_HOME; it comes with the CUDA toolkit")
    return found


def parse_summary(text):
    """(errors, warnings) of a tool's last words; None where it said none."""
    race = re.search(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)", text)
    if race:
        return int(race[1]), int(race[2])
    error = re.search(r"ERROR SUMMARY: (\d+) errors?", text)
    return (int(error[1]), 0) if error else None


def under(tool, sanitizer, args, plant=False):
    """Run ``run`` under a tool -> (its whole output, seconds)."""
    command = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--target-processes", "application-only", "--print-limit", "20",
               *(["--padding", "4096"] if tool == "memcheck" else []),  # else a neighbouring allocation hides an overrun
               sys.executable, str(Path(__file__).resolve()), "run", "--compilers", ",".join(args.compilers), *(["--plant", tool] if plant else [])]
    start = time.perf_counter()
    # A group of its own: on a timeout the program that the sanitizer started must end too.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        text, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text = f"{process.communicate()[0]}\nkilled after {TIMEOUT_SECONDS} s\n"
    return text, time.perf_counter() - start


def verdict(tool, sanitizer, args):
    text, seconds = under(tool, sanitizer, args)
    launches = re.search(r"right results of (\d+) launches", text)
    summary = parse_summary(text)
    row = {"errors": summary[0] if summary else None, "warnings": summary[1] if summary else None, "launches": int(launches[1]) if launches else 0, "seconds": round(seconds, 1)}
    if not (summary and launches) or sum(summary):
        print(text[-6000:])
    planted, planted_seconds = under(tool, sanitizer, args, plant=True)
    found = parse_summary(planted)
    row["planted"], row["planted_found"] = PLANTED[tool], sum(found) if found else 0
    if not row["planted_found"]:
        print(f"{tool} did not see the planted error ({PLANTED[tool]}):\n{planted[-2500:]}")
    if args.logs:
        args.logs.mkdir(parents=True, exist_ok=True)
        args.logs.joinpath(f"{tool}.log").write_text(text, encoding="utf-8")
        args.logs.joinpath(f"{tool}_planted.log").write_text(planted, encoding="utf-8")
    print(f"{tool:10} {row['errors']} errors, {row['warnings']} warnings in {row['launches']} launches, {seconds:.0f} s; planted ({PLANTED[tool]}): "
          f"{row['planted_found']} found, {planted_seconds:.0f} s", flush=True)
    return row


def run_all(args):
    device, sanitizer = driver.describe(0), args.sanitizer or find_sanitizer()
    start = time.perf_counter()
    warm_cache((*CASES, PLANT_IN), args.compilers, device.target)
    print(f"kernels built in {time.perf_counter() - start:.0f} s; {sanitizer}", flush=True)
    version = re.search(r"Version (\S+)", subprocess.run([sanitizer, "--version"], capture_output=True, text=True).stdout)
    record = {
        "date": datetime.date.today().isoformat(), "commit": commit_name(), "device": device.name, "driver": driver.probe().driver_version,
        "versions": {**versions(), "compute-sanitizer": version[1] if version else "unknown"}, "compilers": list(args.compilers),
        "problems": [case.label for case in CASES], "tools": {tool: verdict(tool, sanitizer, args) for tool in args.tools},
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(is_clean(row) for row in record["tools"].values()) else 1


def is_clean(row):
    return row["errors"] == 0 and row["warnings"] == 0 and row["launches"] > 0


def report(args):
    record = json.loads(args.out.read_text(encoding="utf-8"))
    stated = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [f"{record['device']}, CUDA {record['driver']}, {record['date']}, commit {record['commit']}; {stated}; kernels from {' and '.join(record['compilers'])}.", "",
             "| tool | launches | errors | warnings | the same tool on a planted error | |", "|---|---|---|---|---|---|"]
    for tool, row in record["tools"].items():
        found = f"{row['planted']}: {row['planted_found']} found" if row["planted_found"] else f"{row['planted']}: **not found**"
        lines.append(f"| {tool} | {row['launches']} | {row['errors']} | {row['warnings']} | {found} | {'clean' if is_clean(row) else '**not clean**'} |")
    lines += ["", f"Problems: {'; '.join(record['problems'])}."]
    write_section(HERE / "README.md", BEGIN, END, "\n".join(lines))
    print("\n".join(lines))
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "all", "report"))
    parser.add_argument("--compilers", type=lambda text: text.split(","), default=compiler.available_compilers(), help="comma separated (default: all that are installed)")
    parser.add_argument("--tools", type=lambda text: text.split(","), default=TOOLS, help=f"comma separated (default: {','.join(TOOLS)})")
    parser.add_argument("--plant", choices=TOOLS, help="run: only the kernel with the error that this tool looks for")
    parser.add_argument("--sanitizer", help="path of compute-sanitizer (default: found)")
    parser.add_argument("--logs", type=Path, help="all: folder for the tools' whole output")
    parser.add_argument("--out", type=Path, default=HERE / "sanitizer.json")
    args = parser.parse_args(argv)
    return {"run": run, "all": run_all, "report": report}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
