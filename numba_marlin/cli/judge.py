"""``numba-marlin judge``: somebody's kernel against a task, on the PTX machine.

Exit codes: 0 the kernel is right, 1 it is not, 2 the task or the kernel cannot be read, 3 a
compiler, Hypothesis or an instruction of the machine is missing.
"""

from __future__ import annotations

from pathlib import Path

HELP = "is a kernel right? any @cuda.jit kernel or PTX against a task, without a GPU"
RANDOM = "the drawn sizes, the inputs and the orders of warps"
EXAMPLES = """\
  numba-marlin judge task.py kernel.py
  numba-marlin judge task.py kernel.ptx --entry axpy --json
  numba-marlin judge task.py kernel.py --cases 100 --html verdict.html
  numba-marlin judge task.py kernel.py --schedules 20 --seed 7"""


def add_arguments(parser) -> None:
    from numba_marlin.cli.pages import add_page_arguments, add_view_argument

    parser.add_argument("task", metavar="TASK.py", help="a Python file with a judge.Task")
    parser.add_argument("kernel", metavar="KERNEL", help="a .py file with a kernel, or a .ptx file")
    parser.add_argument("--entry", metavar="NAME", help="the kernel (default: the only one)")
    parser.add_argument(
        "--cases", type=int, default=10, metavar="N", help="drawn cases, after the edges (10)"
    )
    parser.add_argument(
        "--schedules",
        type=int,
        default=3,
        metavar="N",
        help="orders of warps for each case, beside the usual one (default 3)",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=100_000,
        metavar="N",
        help="instructions of a warp, on the mean, after which a run is given up (default 100000)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="after which no new case begins, and half as long again a step is ended (300)",
    )
    add_page_arguments(parser)
    add_view_argument(parser)


def execute(args, report) -> bool:
    from numba_marlin.cli.pages import check_page_arguments, show, viewed
    from numba_marlin.cli.progress import bar
    from numba_marlin.judge.judging import Options
    from numba_marlin.judge.verdict import page
    from numba_marlin.judge.worker import RUNNING, judged

    check_page_arguments(args)
    options = Options(args.cases, args.schedules, args.budget, args.seconds, args.seed)
    for path, suffixes in ((args.task, (".py",)), (args.kernel, (".py", ".ptx"))):
        if Path(path).suffix not in suffixes:
            raise ValueError(f"{path} must be a {' or '.join(suffixes)} file")
        if not Path(path).is_file():
            there = Path(path).exists()
            raise ValueError(f"{path}: {'is not a regular file' if there else 'no such file'}")
    with bar(f"judging {Path(args.kernel).name}", "cases") as advance:
        tried = 0

        def heard(doing: str) -> None:
            nonlocal tried
            tried += doing.startswith(RUNNING)
            advance(tried, None, doing)

        found = judged(args.task, args.kernel, args.entry, options, heard)
    shown = viewed(page(found), args)
    report.data = dict(found)
    show(shown, args, report, failed=not found["passed"])
    return found["passed"]
