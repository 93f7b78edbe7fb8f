"""Other people's tests of CUDA programs under the switch, and its speed beside the old simulator's.

    python experiments/24_on_cpu/run.py tests     # numba-cuda's own, from the installed package
    python experiments/24_on_cpu/run.py package FOLDER/tests/test_gpu_stump.py ...   # a package's
    python experiments/24_on_cpu/run.py speed
    python experiments/24_on_cpu/run.py table     # writes the tables of README.md

numba-cuda's tests want the packages filecheck, psutil and cffi; what they want beside these they
skip. A package's tests are run by pytest where they lie; what they import must be installed.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from numba_marlin.on_cpu.__main__ import LINE

OUTCOMES = ("pass", "skip", "refuse", "report", "fail")
RESULTS, SPEED, PACKAGES = (HERE / f"{name}.jsonl" for name in ("results", "speed", "packages"))
PAGE = HERE / "README.md"
PACKAGES_LIE = sysconfig.get_path("purelib") + os.sep  # on this machine; what is said is for all
WAITING = 8  # a crowded machine gives a process a fraction of its time
SIDES = (("machine, races auto", "auto", ""), ("machine, races off", "off", ""), ("", "off", "1"))


def modules() -> list[str]:
    """Of numba-cuda's tests, those that want a device."""
    folder = Path(importlib.util.find_spec("numba_cuda").origin).parent / "numba/cuda/tests"
    return [
        f"numba.cuda.tests.{path.parent.name}.{path.stem}"
        for room in ("cudadrv", "cudapy", "doc_examples", "nrt")
        for path in sorted((folder / room).glob("test_*.py"))
    ]


def environment(**more: str) -> dict:
    path = os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    return dict(os.environ, PYTHONPATH=path, **more)


def run_module(name: str, limit: float) -> dict:
    """Outcomes of a module's tests; ``cut``: it took more than ``limit`` seconds of the processor,
    or hung: WAITING times as many of the clock."""
    with tempfile.TemporaryDirectory() as folder:
        # programs that the tests start obey the variable, as after --install
        Path(folder, "sitecustomize.py").write_text(LINE, encoding="utf-8")
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join([folder, env["PYTHONPATH"]])
        command = [sys.executable, "-W", "ignore", str(HERE / "one_module.py"), name]
        try:
            done = subprocess.run(
                [*command, str(int(limit))],
                env=env,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=WAITING * limit,
            )
            cut = done.returncode == -signal.SIGXCPU
            text, problem = done.stdout, done.stderr if done.returncode and not cut else ""
        except subprocess.TimeoutExpired as error:
            text, cut, problem = (error.stdout or b"").decode(), True, ""
    tests = []
    for line in text.splitlines():
        try:
            tests.append(json.loads(line))
        except json.JSONDecodeError:  # what a test prints
            continue
    tests = [test for test in tests if isinstance(test, dict) and "outcome" in test]
    found = Counter(test["outcome"] for test in tests)
    if not tests and problem:
        found["fail"] += 1
    return {
        "module": name.removeprefix("numba.cuda.tests."),
        **{outcome: found[outcome] for outcome in OUTCOMES},
        "cut": cut,
        "seconds": round(sum(test["seconds"] for test in tests), 1),
        "said": {
            test["test"].rpartition(name + ".")[2]: test["said"].replace(PACKAGES_LIE, "")[:400]
            for test in tests
            if test["outcome"] in ("refuse", "report", "fail")
        }
        or ({"": problem[-400:]} if problem else {}),
    }


def tests(names: list[str], limit: float, jobs: int) -> None:
    known = {each["module"]: each for each in read(RESULTS)} if RESULTS.exists() else {}
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda name: run_module(name, limit), names):
            known[result["module"]] = result
            print(row(result), flush=True)
            write(RESULTS, sorted(known.values(), key=lambda each: each["module"]))


def package(files: list[str], races: str, limit: float) -> None:
    """A package's test files, each by pytest with the plugin, into PACKAGES."""
    known = read(PACKAGES) if PACKAGES.exists() else []
    for file in map(Path, files):
        start, cut = time.perf_counter(), False
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += ["-p", "numba_marlin.on_cpu.pytest_plugin", "--cuda-on-cpu"]
            command += ["--cuda-on-cpu-races", races, f"--junitxml={report}", str(file)]
            try:
                subprocess.run(command, env=environment(), cwd=file.parent.parent, timeout=limit)
            except subprocess.TimeoutExpired:
                cut = True
            cases = [] if cut else list(xml.etree.ElementTree.parse(report).iter("testcase"))
        said = [each.get("message", "") for case in cases for each in case if each.tag != "skipped"]
        skipped = sum(each.tag == "skipped" for case in cases for each in case)
        reports = sum("KernelError" in text for text in said)
        row = {
            "file": "/".join(file.parts[-3:]),
            "races": races,
            "pass": len(cases) - skipped - len(said),
            "skip": skipped,
            "report": reports,
            "fail": len(said) - reports,
            "cut": cut,
            "seconds": round(time.perf_counter() - start, 1),
            "said": sorted({text[:300] for text in said}),
        }
        known = [each for each in known if (each["file"], each["races"]) != (row["file"], races)]
        write(PACKAGES, [*known, row])
        known.append(row)


def speed(blocks: list[int]) -> None:
    found = []
    for count in blocks:
        for _, races, old in SIDES:
            done = subprocess.run(
                [sys.executable, str(HERE / "speed.py"), str(count), races],
                env=environment(**({"NUMBA_ENABLE_CUDASIM": old} if old else {})),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found += map(json.loads, done.stdout.splitlines())
            write(SPEED, found)


def write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


def row(result: dict) -> str:
    counts = " | ".join(str(result[outcome] or "") for outcome in OUTCOMES)
    return f"| {result['module']} | {counts} | {'yes' if result['cut'] else ''} |"


def table() -> str:
    """What README.md has between its marks."""
    results, lines = read(RESULTS), [f"| tests of | {' | '.join(OUTCOMES)} | cut short |"]
    lines.append("|---|" + (len(OUTCOMES) + 1) * "---|")
    total = {outcome: sum(each[outcome] for each in results) for outcome in OUTCOMES}
    lines.append(row({"module": f"{len(results)} modules", **total, "cut": False}))
    lines += [row(each) for each in results if each["cut"] or any(map(each.get, OUTCOMES[2:]))]
    lines += ["", "| tests of a package | races | pass | skip | report | fail | cut short |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in read(PACKAGES):
        counts = " | ".join(str(each[name] or "") for name in ("pass", "skip", "report", "fail"))
        cut = "yes" if each["cut"] else ""
        lines.append(f"| {each['file']} | {each['races']} | {counts} | {cut} |")
    by_case: dict = {}
    for each in read(SPEED):
        by_case.setdefault((each["case"], each["blocks"]), {})[each["on"]] = each["seconds"]
    lines += ["", "| kernel | blocks | races auto | races off | the old simulator |"]
    lines.append("|---|---|---|---|---|")
    for (case, blocks), on in by_case.items():
        times = [
            on.get(side) for side in ("machine, races auto", "machine, races off", "simulator")
        ]
        cells = " | ".join("" if time is None else f"{1e3 * time:.3g} ms" for time in times)
        lines.append(f"| {case} | {blocks} | {cells} |")
    return "\n".join(lines)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_page() -> None:
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table: begin -->\n")
    end = rest[rest.index("<!-- table: end -->") :]
    PAGE.write_text(f"{head}{begin}{table()}\n{end}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tests", "package", "speed", "table"))
    parser.add_argument("names", nargs="*", help="modules (default: all), files, numbers of blocks")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds of the processor a module"
    )
    parser.add_argument("--jobs", type=int, default=1, help="modules at a time")
    parser.add_argument(
        "--races", choices=("auto", "on", "off"), default="auto", help="of a package"
    )
    given = parser.parse_args()
    if given.what == "tests":
        prefix = "numba.cuda.tests."
        tests([prefix + name for name in given.names] or modules(), given.limit, given.jobs)
    elif given.what == "package":
        package(given.names, given.races, given.limit)
    elif given.what == "speed":
        speed([int(name) for name in given.names] or [1, 16, 64])
    else:
        write_page()
