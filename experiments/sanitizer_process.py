"""A program under one tool of compute-sanitizer, in a process group of its own.

Several may run side by side: each talks to its program over ports of its own. On a timeout the
program that the sanitizer started ends too.
"""

import itertools
import os
import signal
import subprocess
import time

# a sanitizer talks to its program over one of ten ports: those that run side by side must not share
# them
FIRST_PORT, PORTS, PORTS_EACH = 49152, 800, 20
_turns = itertools.count()


def under(tool, sanitizer, program, seconds, more=(), env=None):
    """(what both said, seconds that it took). ``program``: a command; ``more``: options of the
    tool."""
    command = [
        sanitizer,
        "--tool",
        tool,
        "--report-api-errors",
        "no",
        "--target-processes",
        "application-only",
        "--print-limit",
        "100",
        "--port",
        str(FIRST_PORT + PORTS_EACH * (next(_turns) % PORTS)),
        *more,
        # else a neighbouring allocation hides an overrun
        *(["--padding", "4096"] if tool == "memcheck" else []),
        *program,
    ]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=env,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text = f"{process.communicate()[0]}\nkilled after {seconds} s\n"
    return text, time.perf_counter() - start
