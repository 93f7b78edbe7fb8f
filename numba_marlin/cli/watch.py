"""``numba-marlin watch``: a GPU's state, live: utilisation, memory, clocks, power, temperature,
tensor cores. It watches alone, beside a command, or beside products that it runs itself."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HELP = "monitor a GPU: utilisation, clocks, power, tensor cores, kernels"
RANDOM = "the operands of its own products"
EXAMPLES = """  numba-marlin watch                                        until Ctrl-C
  numba-marlin watch --hz 10 --seconds 30 --out run.json
  numba-marlin watch --m 16 --n 8192 --k 8192               and multiply meanwhile
  numba-marlin watch -- numba-marlin bench --m 1,16         while a command runs"""
SLOWEST, FASTEST = 1.0, 10.0
SECONDS_OF_JSON = 5.0  # duration with --json if nothing else limits it
KEPT = 600  # samples on the curves
# a line of the log of loaded kernels (``execution.launch``); registers None without an assembler
_LOADED = re.compile(
    r"[0-9]+ (?P<name>[!-~]{1,200}) (?P<target>\w+) (?P<registers>[0-9]{1,9}|None)"
    r" (?P<threads>[0-9]{1,9}) (?P<shared>[0-9]{1,9}) (?P<resident>[0-9]{1,9})\n"
)


def add_arguments(parser) -> None:
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="run this, monitor until it ends"
    )
    parser.add_argument(
        "--hz",
        type=float,
        default=2.0,
        metavar="F",
        help=f"samples per second, {SLOWEST:g} to {FASTEST:g} (default 2)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"stop after this time (default: Ctrl-C; with --json {SECONDS_OF_JSON:g})",
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="I", help="number of the GPU (default 0)"
    )
    parser.add_argument(
        "--m",
        type=int,
        metavar="M",
        help="with --n and --k: this process multiplies M x K by K x N meanwhile",
    )
    parser.add_argument("--n", type=int, metavar="N")
    parser.add_argument("--k", type=int, metavar="K")


def execute(args, report) -> bool:
    from numba_marlin.api.reports import problem_of
    from numba_marlin.profile.sources.device_state import Monitor

    if not SLOWEST <= args.hz <= FASTEST:
        raise ValueError(f"--hz {args.hz:g} must be from {SLOWEST:g} to {FASTEST:g}")
    if args.seconds is not None and not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds:g} must not be negative")
    sizes = (args.m, args.n, args.k)
    if any(size is not None for size in sizes) and None in sizes:
        raise ValueError("--m, --n and --k go together: the product to run meanwhile")
    if args.m is not None and args.command:
        raise ValueError(
            "--m, --n, --k and a COMMAND exclude each other: either is the work to be monitored"
        )
    if args.device < 0:
        raise ValueError(f"--device {args.device} must not be negative")
    if args.m is not None:
        problem_of(*sizes)  # refuses what no kernel multiplies
    if args.command and shutil.which(args.command[0]) is None:
        raise ValueError(f"cannot run {args.command[0]}: no such command")
    monitor = Monitor(args.device)
    seconds = (
        SECONDS_OF_JSON
        if args.seconds is None and report.as_json and not args.command
        else args.seconds
    )
    work = (
        Products(*sizes, args.seed)
        if args.m is not None
        else Command(args.command)
        if args.command
        else Nothing()
    )
    states: list = []
    try:
        with work, screen(report) as show:
            taken = _look(
                monitor,
                work,
                1 / args.hz,
                seconds,
                states,
                show,
                keep_all=report.as_json or args.out is not None,
            )
    finally:
        monitor.close()
    if not states:  # interrupted before the first sample
        raise KeyboardInterrupt
    kernels = work.kernels()
    report.data = {
        "device": monitor.name,
        "samples": [state.to_dict() for state in states],
        "missing": monitor.missing,
        "kernels": [list(each) for each in kernels],
        **({"command": args.command, "returncode": work.returncode} if args.command else {}),
    }
    report.row(
        "watched",
        f"{monitor.name}: {taken} samples in {states[-1].seconds:.1f} s"
        + ("" if work.returncode in (None, 0) else f"; the command ended with {work.returncode}"),
    )
    for name, how, launches in kernels:
        report.row("kernel", f"{name}: {how}" + (f", {launches} launches" if launches else ""))
    return work.returncode in (None, 0)


def _look(
    monitor, work, period: float, seconds: float | None, states: list, show, keep_all: bool
) -> int:
    """Sample until the end and return the number of samples, of which ``states`` has the last KEPT,
    or all."""
    from numba_marlin.profile.pages import device_page

    taken = 0
    # what works beside it may have taken a while to begin
    start = due = monitor.start = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            states.append(monitor.sample())
            taken += 1
            if not keep_all:
                del states[:-KEPT]
            show(
                device_page.page(
                    monitor.name, states[-KEPT:], monitor.missing, work.kernels(), work.note()
                ),
                states[-1],
            )
            due += period
            ended = work.ended()
            if ended or (seconds is not None and due - start > seconds):
                break
            time.sleep(max(0.0, due - time.monotonic()))
    return taken


@contextlib.contextmanager
def screen(report):
    """Return show(page, state). It redraws a terminal, prints a line per sample elsewhere, and
    shows nothing with --json."""
    from numba_marlin.cli import pages
    from numba_marlin.cli.report import columns

    if report.as_json:
        yield lambda page, state: None
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        from numba_marlin.views import text

        with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda page, state: live.update(
                Text.from_ansi(
                    text.render(page, columns(), pages.takes_colour(), pages.takes_unicode())
                ),
                refresh=True,
            )
    else:
        yield lambda page, state: print(line_of(state), flush=True)


def line_of(state) -> str:
    values, parts = state.values, [f"{state.seconds:6.1f} s"]
    shown = (
        ("gpu", "gpu {:3.0f}%"),
        ("tensor", "tensor {:3.0f}%"),
        ("dram", "dram {:3.0f}%"),
        ("sm_mhz", "{:4d} MHz"),
        ("power_w", "{:4.0f} W"),
        ("temperature_c", "{:2d} C"),
    )
    parts += [form.format(values[name]) for name, form in shown if name in values]
    if "memory_used" in values:
        parts.append(f"{values['memory_used'] / 2**30:.1f} GiB")
    return "  ".join(parts) + (
        f"  held back: {', '.join(state.throttle)}" if state.throttle else ""
    )


class Nothing:
    """What runs while the device is watched: here nothing that this process started."""

    returncode: int | None = None

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def ended(self) -> bool:
        return False

    def kernels(self) -> list[tuple[str, str, str]]:
        """(name, how it was launched, launches if they are counted)"""
        return []

    def note(self) -> str:
        return ""


class Command(Nothing):
    """A process. The kernels that it loads are those that it lists in a file
    (``launch.KERNEL_LOG``)."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments

    def __enter__(self):
        from numba_marlin.execution.launch import KERNEL_LOG

        handle, self.log = tempfile.mkstemp(prefix="numba_marlin_kernels_")
        os.close(handle)
        try:  # its stdout would tear the screen
            self.process = subprocess.Popen(
                self.arguments, env={**os.environ, KERNEL_LOG: self.log}, stdout=subprocess.DEVNULL
            )
        except OSError as error:
            os.unlink(self.log)
            raise ValueError(f"cannot run {self.arguments[0]}: {error.strerror}") from error
        return self

    def __exit__(self, *error) -> None:
        self.returncode = self.process.poll()
        if self.returncode is None:
            self.process.terminate()
            self.process.wait()
        self._kernels = self.kernels()
        os.unlink(self.log)

    def ended(self) -> bool:
        self.returncode = self.process.poll()
        return self.returncode is not None

    def kernels(self) -> list[tuple[str, str, str]]:
        if not os.path.exists(self.log):
            return self._kernels
        found: dict[tuple[str, str], None] = {}
        with open(self.log, encoding="utf-8", errors="backslashreplace") as file:
            for line in file:
                # the child may be writing, and its children may write something else
                if (kernel := _LOADED.fullmatch(line)) is not None:
                    found[
                        kernel["name"],
                        f"{kernel['target']}, {kernel['threads']} threads, {kernel['registers']}"
                        f" registers, {int(kernel['shared']) / 1024:g} KiB shared,"
                        f" {kernel['resident']} blocks fit",
                    ] = None
        return [(name, how, "") for name, how in found]

    def note(self) -> str:
        return f"while {' '.join(self.arguments)} runs (pid {self.process.pid})"


def random_weight(random, n: int, k: int):
    """A random PackedWeight of any size that a layout can hold, in groups of 128, or with one scale
    per column where groups of 128 do not fit."""
    import numpy as np

    from numba_marlin.formats import PackedWeight
    from numba_marlin.formats.marlin import check_problem, packed_columns

    group_size = 128 if k % 128 == 0 and k > 128 else -1
    check_problem(k, n, group_size)
    columns = packed_columns(n)
    words = random.integers(-(2**31), 2**31, (k // 16, 2 * columns), dtype=np.int64).astype(
        np.int32
    )
    scales = random.uniform(
        0.001, 0.01, (k // group_size if group_size > 0 else 1, columns)
    ).astype(np.float16)
    return PackedWeight("marlin", words, scales, 4, group_size, k, n)


class Products(Nothing):
    """One product with random weights, repeated in a thread of this process."""

    BURST = 50  # launches between two waits, so that it can be stopped

    def __init__(self, m: int, n: int, k: int, seed: int) -> None:
        import numpy as np

        from numba_marlin import api
        from numba_marlin.execution import driver

        random = np.random.default_rng(seed)
        self.weight = random_weight(random, n, k)
        self.x = driver.DeviceArray.from_host(random.standard_normal((m, k)).astype(np.float16), 0)
        self.c = driver.DeviceArray((m, n), np.float16, 0)
        _, self.info = api.matmul(self.x, self.weight, "cuda", self.c, return_info=True)
        self.launches, self.stop, self.thread = (
            0,
            threading.Event(),
            threading.Thread(target=self._work, daemon=True),
        )
        self.error: Exception | None = None

    def _work(self) -> None:
        from numba_marlin import api
        from numba_marlin.execution import driver

        try:
            while not self.stop.is_set():
                for _ in range(self.BURST):
                    api.matmul(self.x, self.weight, "cuda", self.c)
                driver.synchronize(0)
                self.launches += self.BURST
        except Exception as error:  # reported when its result is read
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error) -> None:
        self.stop.set()
        self.thread.join()

    def ended(self) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def kernels(self) -> list[tuple[str, str, str]]:
        candidate = self.info.candidate
        return [
            (
                candidate.kernel,
                f"grid {' x '.join(map(str, candidate.grid))}, {candidate.threads} threads",
                f"{self.launches:,}",
            )
        ]

    def note(self) -> str:
        problem = self.info.problem
        return (
            f"while this process multiplies {problem.m} x {problem.k} by {problem.k} x {problem.n}"
        )
