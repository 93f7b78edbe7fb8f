"""A judge of other people's kernels: any ``@cuda.jit`` kernel or PTX, against a task, on the PTX
machine. No GPU is needed.

    numba-marlin judge task.py kernel.py
    numba-marlin judge task.py kernel.ptx --entry axpy --json

A task is a Python file: the kernel's arguments, of which shapes, what the result must be in
float64 (``reference``), how far a kernel may be from it (``bound``), and the launch:

    from numba_marlin import judge

    task = judge.Task(
        sizes={"n": judge.Size(1, 1000)},
        arguments=[
            judge.Scalar("a", "float32", 2.5),
            judge.Input("x", "float32", ("n",)),
            judge.Output("y", "float32", ("n",)),
        ],
        reference=lambda a, x: a * x,
        grid=lambda n: -(-n // 128),
        block=128,
    )

A kernel's Python is compiled in a process of its own, and only its PTX comes back: it cannot reach
the judge. That is no sandbox: files and the network are as open to it as to any program.

``task``
    what a task says, read and checked; arrays and expected results of one case.
``cases``
    which sizes are tried: the smallest, the largest, edges, and drawn ones (Hypothesis), which are
    shrunk to the smallest that fails.
``kernels``, ``compiling``, ``processes``
    the kernel's PTX, and the process that compiles Python; how processes are talked to.
``launching``, ``watching``
    one run on the machine, with what it read and wrote.
``judging``, ``explain``
    the checks, and what a failed one says: line, thread, element.
``worker``, ``verdict``
    the process that does all this within a time limit; its JSON (schema numba-marlin/judge/1) and
    page.
"""

from numba_marlin.judge.bounds import sum_bound
from numba_marlin.judge.task import InOut, Input, Output, Scalar, Size, Task, Workspace

__all__ = ["InOut", "Input", "Output", "Scalar", "Size", "Task", "Workspace", "sum_bound"]
