"""Runs one case on the PTX machine, with races looked for, and compares with what is expected."""

import json
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from recording import Program

from numba_marlin.emulator import Machine, MachineError
from numba_marlin.emulator.state.global_memory import GlobalMemory

CHECKS = "hardware"  # what is undefined, and works on chips, is a warning
REFUSALS = ("unknown-instruction", "ptx-syntax-error", "limit-exceeded")
MOST_SAID = 400


class TooLong(Exception):
    pass


@contextmanager
def at_most(seconds: int):
    """TooLong after so many seconds of the processor."""

    def stop(number, frame):
        raise TooLong

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def run(case, races: bool) -> tuple[list[np.ndarray], list]:
    """-> (the arrays afterwards, RunResult of each launch)."""
    memory, arrays, results, machines = GlobalMemory(), [], [], {}
    for name, array in case.arrays:
        arrays.append(array.copy())
        memory.buffer(arrays[-1], name)
    for each in case.launches:
        machine = machines.get(each.ptx)
        if machine is None:
            machine = machines[each.ptx] = Machine(
                each.ptx, races=races, checks=CHECKS, memory=memory
            )
        results.append(
            machine.run(
                each.entry,
                grid=each.grid,
                block=each.block,
                shared_bytes=each.shared,
                args=each.args,
                cluster=each.cluster,
            )
        )
    return arrays, results


def compared(case, arrays: list[np.ndarray]) -> dict:
    """The worst error beside its bound, and how many elements are past it."""
    worst, wrong, said = 0.0, 0, ""
    for each in case.expected:
        found = arrays[each.array].reshape(-1)
        if each.value.dtype.kind in "iub" and found.dtype.kind in "iub":
            error = (found != each.value).astype(np.float64)  # to the bit
        else:
            found, value = found.astype(np.float64), each.value.astype(np.float64)
            with np.errstate(all="ignore"):
                error = np.abs(found - value)
            same = (found == value) | (np.isnan(found) & np.isnan(value))
            error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
        past = error > each.bound
        with np.errstate(all="ignore"):
            ratios = np.where(error == 0, 0.0, error / each.bound)
        worst = max(worst, float(ratios.max(initial=0.0)))
        if past.any() and not said:
            place = int(np.argmax(past))
            said = (
                f"{case.arrays[each.array][0]}[{place}] is {arrays[each.array].reshape(-1)[place]},"
                f" expected {each.value[place]:.9g} to {each.bound[place]:.3g}"
            )
        wrong += int(past.sum())
    return {"worst": min(worst, 1e9), "wrong": wrong, "said": said}


def judge(path: Path, limit: int) -> dict:
    case = pickle.loads(path.read_bytes())
    start, row = time.perf_counter(), {"said": ""}
    row["kernels"] = 0 if isinstance(case, Program) else len(case.launches)
    try:
        if isinstance(case, Program):
            row |= program_outcome(case, limit)
        else:
            with at_most(limit):
                row |= outcome(case)
    except TooLong:
        row |= {"outcome": "cut short", "said": f"after {limit} seconds"}
    except Exception as error:
        row |= {"outcome": "error", "said": f"{type(error).__name__}: {error}"}
    row["said"] = clean(row["said"])
    return {
        "toolchain": case.toolchain,
        "case": case.name,
        "target": case.target,
        "version": case.version,
        **row,
        "seconds": round(time.perf_counter() - start, 1),
    }


def program_outcome(program, limit: int) -> dict:
    """Of a whole program, by its own check; judged as in experiment 31."""
    events, code, said = child(program, "on", limit)
    found, why = judged(events, code, said)
    row = {"outcome": found, "said": why}
    if found == "report":
        again, code, said = child(program, "off", limit)
        kind = next(each["kind"] for each in events if each["event"] == "report")
        row |= {"check": kind, "without": judged(again, code, said)[0]}
        events = max(events, again, key=len)
    launches = [each for each in events if each["event"] == "launch"]
    return row | {
        "kernels": len(launches),
        "instructions": sum(each["instructions"] for each in launches),
        "warnings": sorted({warning for each in launches for warning in each["warnings"]}),
    }


def child(program, races: str, limit: int) -> tuple[list[dict], int | None, str]:
    """Events, exit code (None: cut short) and output of a run in a process of its own."""
    folder = Path(program.folder)
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("hopper_program.py")), str(folder)]
    try:
        done = subprocess.run(
            [*command, str(events), races, *program.arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=6 * limit,  # a crowded machine gives a process a fraction of its time
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = None, ""
    found = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    return list(map(json.loads, found)), code, said


def judged(events: list[dict], code: int | None, said: str) -> tuple[str, str]:
    """(outcome, why) of a program's run."""
    stops = [each for each in events if each["event"] in ("refused", "report", "error")]
    if stops and stops[0]["event"] == "refused":
        return "refused", stops[0]["what"]
    if stops:
        refusal = stops[0].get("kind") in REFUSALS
        return "refused" if refusal else stops[0]["event"], stops[0]["said"]
    if code is None:
        return "cut short", ""
    if code or "Passed" not in said:
        return "wrong", " / ".join(said.strip().splitlines()[-3:])
    return "right", ""


def outcome(case) -> dict:
    try:
        arrays, results = run(case, races=True)
    except MachineError as error:
        row = {"outcome": "refused", "check": error.check or error.kind, "said": str(error)}
        if error.kind not in REFUSALS:
            row |= {"outcome": "report", "without": without_races(case)}
        return row
    row = compared(case, arrays)
    return {
        "outcome": "wrong" if row["wrong"] else "right",
        **row,
        "instructions": sum(each.instructions for each in results),
        "warnings": sorted({each.check for result in results for each in result.warnings}),
    }


def without_races(case) -> str:
    """What comes of the case if no races are looked for."""
    try:
        arrays, _ = run(case, races=False)
    except MachineError as error:
        return f"report of {error.check or error.kind}"
    return "wrong" if compared(case, arrays)["wrong"] else "right"


def clean(text: str) -> str:
    """Without folders of this computer, in one line, and not too long."""
    text = " ".join(re.sub(r"(?<!\w)/[^\s:,]*/", "", text).split())
    return text[:MOST_SAID]
