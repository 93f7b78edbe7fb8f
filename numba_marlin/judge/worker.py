"""``python -m numba_marlin.judge.worker``: load a task, compile a kernel, judge.

Reads one JSON object, {"task", "kernel", "entry", "options"}; answers with {"doing"} before each
step, {"case"} behind each case, and at last {"verdict"}, or {"error", "code"} (``processes.talk``).
``judged`` is the other end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numba_marlin.errors import CapabilityMissing
from numba_marlin.judge.processes import TooSlow, answering, talk
from numba_marlin.judge.verdict import LOOKED_FOR

STARTING, COMPILING = "starting", "compiling the kernel"
IMPORTING, RUNNING = "importing the task", "running case"
CAPABILITY, BAD_INPUT = "capability", "bad input"
GRACE = 1.5  # times --seconds: a step that takes longer is ended


def judged(
    task: str, kernel: str, entry: str | None, options, heard: Callable[[str], object]
) -> dict[str, Any]:
    """The plain data of a verdict, found by a process of its own. ``heard``: is told each step.
    ValueError for what cannot be judged, CapabilityMissing for what this machine lacks."""
    asked = {"task": task, "kernel": kernel, "entry": entry, "options": asdict(options)}
    doing, cases = STARTING, []

    def hear(said: dict) -> None:
        nonlocal doing
        if "doing" in said:
            doing = said["doing"]
            heard(doing)
        if "case" in said:
            cases.append(said["case"])

    try:
        last = talk(
            [sys.executable, "-m", "numba_marlin.judge.worker"],
            json.dumps(asked),
            GRACE * options.seconds,
            hear,
            group=True,
        )
    except TooSlow:
        return _too_slow(task, kernel, doing, cases, options.seconds)
    if "verdict" in last:
        return last["verdict"]
    if last.get("code") == CAPABILITY:
        raise CapabilityMissing(last["error"])
    if "error" in last:
        raise ValueError(last["error"])
    raise ValueError(f"{task} ended the judging process while {doing}")


def _too_slow(task: str, kernel: str, doing: str, cases: list, seconds: float) -> dict[str, Any]:
    """A verdict on a kernel that takes too long; ValueError if it is the task that does."""
    said = f"{doing} did not end within {GRACE * seconds:g} seconds (--seconds {seconds:g})"
    if not doing.startswith(RUNNING):
        raise ValueError(f"{task}: {said}")
    from numba_marlin.judge.explain import Defect

    defect = Defect("time-limit", "it takes too long, or never ends", said).as_dict()
    kinds = dict.fromkeys([each["defect"]["kind"] for each in cases if each["defect"]])
    return {
        "task": task,
        "kernel": kernel,
        "passed": False,
        "complete": False,
        "kinds": [*kinds, "time-limit"],
        "cases": cases,
        "defects": [defect],
        "runs": 0,
        "instructions": 0,
        "looked_for": list(LOOKED_FOR),
    }


def main() -> None:
    asked = json.loads(sys.stdin.read())
    say = answering()
    try:
        say({"verdict": _judge(asked, say)})
    except CapabilityMissing as error:
        say({"error": str(error), "code": CAPABILITY})
    except TooSlow as error:
        said = f"{asked['kernel']}: importing and compiling it: {error}"
        say({"error": said, "code": BAD_INPUT})
    except BaseException as error:  # SystemExit of a task's function too
        say({"error": _said(error, asked), "code": _code(error)})


def _judge(asked: dict, say: Callable[[dict], None]) -> dict[str, Any]:
    from numba_marlin.judge import kernels, task
    from numba_marlin.judge.judging import Judge, Options

    options = Options(**asked["options"])
    say({"doing": IMPORTING})
    sys.path.insert(0, str(Path(asked["task"]).resolve().parent))
    wanted = task.load(asked["task"])
    say({"doing": COMPILING})
    kernel = kernels.load(asked["kernel"], asked["entry"], wanted.types, options.seconds)
    judge = Judge(
        wanted,
        kernel,
        options,
        tell=lambda what: say({"doing": what}),
        done=lambda case: say({"case": case.as_dict()}),
    )
    return judge.verdict().as_dict() | {"task": wanted.title or Path(asked["task"]).name}


def _code(error: BaseException) -> str:
    from numba_marlin.emulator.errors import UnknownInstruction

    return CAPABILITY if isinstance(error, UnknownInstruction) else BAD_INPUT


def _said(error: BaseException, asked: dict) -> str:
    from numba_marlin.emulator.errors import MachineError

    if isinstance(error, MachineError):
        return f"{asked['kernel']}: {error}"
    if isinstance(error, (ValueError, OSError)):
        return str(error)
    return f"{asked['task']}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
