"""``python -m numba_marlin.judge.compiling``: import a kernel's file and say its PTX.

Reads one JSON object, {"path", "entry", "types"}, and answers with {"text", "entry", "name",
"parameters"}, or with {"error"}, or {"missing"} where there is no numba-cuda (``processes.talk``).
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

from numba_marlin.judge.processes import answering
from numba_marlin.wording import did_you_mean


def main() -> None:
    asked = json.loads(sys.stdin.read())
    say = answering()
    try:
        import numba_cuda  # noqa: F401
    except ImportError as error:
        say({"missing": f"pip install 'numba-marlin[cu13]' ({error})"})
        return
    try:
        say(_compiled(asked["path"], asked["entry"], asked["types"]))
    except BaseException as error:  # whatever the file raises: SystemExit too
        say({"error": in_words(error)})


def _compiled(path: str, entry: str | None, types) -> dict:
    from numba_marlin.on_cpu.compiling import compiled

    sys.path.insert(0, str(Path(path).resolve().parent))
    kernel = _chosen(runpy.run_path(path), entry)
    count = len(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount])
    if count != len(types):
        raise TypeError(
            f"{kernel.py_func.__name__} has {count} parameters, the task passes {len(types)}"
        )
    made = compiled(kernel, tuple((dtype, dimensions) for dtype, dimensions in types))
    return {
        "text": made.text,
        "entry": made.entry,
        "name": made.name,
        "parameters": made.parameters,
    }


def _chosen(found: dict, entry: str | None):
    """The kernel named ``entry``, or the only one."""
    kernels = {
        name: each
        for name, each in found.items()
        if hasattr(each, "py_func")
        and hasattr(each, "compile")
        and not getattr(each, "targetoptions", {}).get("device")
    }
    if entry is not None:
        if entry not in kernels:
            raise ValueError(
                f"there is no kernel {entry!r}, but {', '.join(kernels) or 'none'}"
                f"{did_you_mean(entry, kernels)}"
            )
        return kernels[entry]
    if len(kernels) != 1:
        names = ", ".join(kernels)
        raise ValueError(
            f"it has {len(kernels)} kernels ({names}): choose one with --entry"
            if kernels
            else "it has no kernel: put @cuda.jit above `def`"
        )
    return next(iter(kernels.values()))


def in_words(error: BaseException) -> str:
    """The lines of a message that say something; Numba's have many."""
    text = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("Failed in", "During:"))][:4]
    place = re.search(r'File "[^"]*", line (\d+)', text)
    if place:
        kept.append(f"line {place[1]}")
    if "NRT" in text or "allocate" in text:
        kept.insert(0, "a kernel makes no arrays: no whole-array arithmetic, one element a thread")
    return f"{type(error).__name__}: " + "\n  ".join(kept or ["(no message)"])


if __name__ == "__main__":
    main()
