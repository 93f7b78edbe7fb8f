"""Runs a Python program with the PTX machine for a GPU.

python -m numba_marlin.on_cpu program.py arguments
python -m numba_marlin.on_cpu -m module arguments
python -m numba_marlin.on_cpu --install
"""

import argparse
import os
import runpy
import sys
import sysconfig
from pathlib import Path

from numba_marlin.on_cpu.switch import RACES, VARIABLE, Options, start

LINE = (
    f"import os; os.environ.get({VARIABLE!r}) and"
    " __import__('numba_marlin.on_cpu.switch', fromlist=['*']).start_if_asked()\n"
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m numba_marlin.on_cpu",
        description=(
            "Run a program that uses numba.cuda (numba-cuda) or numba_cuda_mlir.cuda on the CPU:"
            " kernels are compiled to PTX as for a GPU of compute capability 9.0, and the PTX"
            " machine executes them."
        ),
        epilog=(
            f"After --install, {VARIABLE}=1 does the same for any program that this Python runs,"
            f" and {VARIABLE}=races=off without looking for races."
        ),
    )
    parser.add_argument(
        "--races",
        choices=sorted(RACES),
        default="auto",
        help="look for accesses that nothing orders (auto: where the records for it stay small)",
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help=f"have this Python obey {VARIABLE} at its start: one line in its site-packages",
    )
    parser.add_argument("--uninstall", action="store_true", help="take that line out")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs="?", help="a Python file, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    given = parser.parse_args(arguments)
    if given.install or given.uninstall:
        return install(remove=given.uninstall)
    if given.program is None:
        parser.error("which program?")
    start(Options(RACES[given.races]))
    sys.argv = [given.program, *given.arguments]
    if given.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(given.program).resolve().parent))
        runpy.run_path(given.program, run_name="__main__")
    return 0


def install(remove: bool, folder: str | None = None) -> int:
    path = Path(folder or sysconfig.get_path("purelib"), "numba_marlin_on_cpu.pth")
    if remove:
        path.unlink(missing_ok=True)
        print(f"removed {path}")
    else:
        path.write_text(LINE, encoding="utf-8")
        print(f"wrote {path}: {VARIABLE}=1 now switches on in every program of {sys.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
