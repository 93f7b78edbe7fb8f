"""Processes of their own for other people's Python: what they answer, and when they are ended.

What a process says is JSON objects, one a line; nothing it prints is taken for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

MOST_BYTES = 64 << 20  # of what a process says
MOST_MEMORY = 16 << 30  # addresses of a process that runs other people's Python


class TooSlow(RuntimeError):
    """A process did not end in time."""


def talk(
    command: Sequence[str],
    asked: str,
    seconds: float,
    heard: Callable[[dict], object] = lambda said: None,
    group: bool = False,
) -> dict:
    """Run ``command`` with ``asked`` on its standard input. It answers with JSON objects, a line
    each: ``heard`` gets them all, and the last is returned. TooSlow if it says nothing for
    ``seconds``. ``group``: it, and what it starts, are a process group, which is ended with it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=group,
    )
    lines: queue.Queue = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    last: dict = {}
    try:
        with contextlib.suppress(OSError):  # it has ended already
            with process.stdin as given:  # type: ignore[union-attr]
                given.write(asked.encode())
        while True:
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                raise TooSlow(f"nothing was heard for {seconds:g} seconds") from None
            if line is None:
                return last
            said = _object(line)
            if said:
                heard(said)
            last = said or last
    finally:
        _end(process, group)


def _read(stream, lines: queue.Queue) -> None:
    """Lines up to the end, or until they are too many."""
    total = 0
    for line in stream:
        total += len(line)
        if total > MOST_BYTES:
            break
        lines.put(line)
    lines.put(None)


def _object(line: bytes) -> dict:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _end(process: subprocess.Popen, group: bool) -> None:
    if group and hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def answering() -> Callable[[dict], None]:
    """In a process that ``talk`` started: a function that answers. From now on nothing else that it
    or its libraries print reaches standard output. Its memory is limited."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)

    def say(what: dict) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    return say
