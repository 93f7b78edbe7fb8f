"""What would Numba's CPU compiler buy the machine, and what would it cost?

Runs of element-wise instructions of a basic block (integer and float32 arithmetic, logic, shifts,
comparisons, selections, conversions between integers, moves) become one function each, which
``numba.njit`` compiles: a loop over warps and lanes with the registers in local variables. All else
stays as it is: loads, stores, barriers, atomics, and warps that come in parts. Kernels are those of
factors.py, and results are compared with NumPy's, as there.

    python experiments/14_machine/compiled.py [--blocks 16 256] [--kernels matmul ...]
    python experiments/14_machine/compiled.py --table      # writes README.md's from compiled.jsonl

A row has the process time of a plain run, of one with such functions, what compiling them took, and
which part of a plain run's time is spent in the instructions that they replace, and in loads,
stores and atomics: were these free, the run would be 1 / (1 - part) times as fast. No check of
registers that nothing has written (``uninitialized-register``) is made in either, since the
functions would not make it.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import numba
from factors import KERNELS, THREADS
from numba.extending import intrinsic
from reading import compiled
from runs import Run, runs_of

from numba_marlin.emulator import Machine
from numba_marlin.emulator.scheduling import scheduler

RESULTS = HERE / "compiled.jsonl"
MEMORY = ("ld", "ldu", "st", "atom", "red")
BEGIN, END = "<!-- compiled: begin -->", "<!-- compiled: end -->"
CHECKS = "strict,uninitialized-register=off,shuffle-from-outside=off"


@intrinsic
def fma(typing, a, b, c):
    """One rounding, as fma.rn.f32."""

    def generate(context, builder, signature, given):
        return builder.fma(*given)

    return numba.float32(numba.float32, numba.float32, numba.float32), generate


class Functions:
    """Of one kernel's runs, kept from launch to launch. ``seconds``: what compiling them took."""

    def __init__(self) -> None:
        self.known: dict[str, object] = {}
        self.seconds = 0.0

    def of(self, run: Run, arrays: tuple):
        text = run.source()
        if text not in self.known:
            start, names = time.process_time(), {"np": np, "fma": fma}
            exec(text, names)
            function = numba.njit(names["run"], error_model="numpy")
            function(np.zeros(0, np.intp), *arrays)
            self.known[text] = function
            self.seconds += time.process_time() - start
        return self.known[text]


def replaced(bind, functions: Functions | None, spent: Counter | None = None):
    """``compile_blocks`` that puts functions into ``coarse``; with ``spent``, plain steps, of which
    it adds up the time of those that functions would replace, and of accesses to memory."""

    def compile_blocks(execution, listener, apart):
        coarse, fine = bind(execution, listener, apart)
        file = execution.registers.arrays
        arrays = tuple(
            file[width] if width in file else np.zeros((1, 1, 32), kind)
            for width, kind in ((1, np.bool_), (32, np.uint32), (64, np.uint64))
        )
        arrays = (arrays[0], arrays[1], arrays[1].view(np.float32), arrays[2])
        for code in coarse.values():
            instructions = execution.kernel.instructions[code.start : code.start + len(code.steps)]
            if spent is not None:
                code.steps = tuple(clocked(*each, spent) for each in sorted_out(code, instructions))
                continue
            steps, at = [], 0
            for run in runs_of(instructions):
                steps += code.steps[at : run.start]
                plain = code.steps[run.start : run.stop]
                steps.append(whole_warps(functions.of(run, arrays), arrays, plain))
                at = run.stop
            code.steps = (*steps, *code.steps[at:])
        return coarse, fine

    return compile_blocks


def whole_warps(function, arrays: tuple, plain: tuple):
    def step(lanes) -> None:
        if lanes.full:
            function(lanes.warps, *arrays)
        else:
            for each in plain:
                each(lanes)

    return step


def sorted_out(code, instructions) -> list[tuple]:
    """(step, "elements", "memory" or "rest") of each instruction of a basic block."""
    elements = {at for run in runs_of(instructions) for at in range(run.start, run.stop)}
    return [
        (step, "elements" if at in elements else "memory" if ins.root in MEMORY else "rest")
        for at, (step, ins) in enumerate(zip(code.steps, instructions))
    ]


def clocked(step, kind: str, spent: Counter):
    def run(lanes) -> None:
        start = time.process_time()
        step(lanes)
        spent[kind] += time.process_time() - start

    return run


def once(name: str, ptx: str, blocks: int, hook) -> tuple[float, int]:
    """(seconds, warp instructions) of one run of a kernel of factors.py."""
    buffers, sizes, wanted = KERNELS[name](blocks, np.random.default_rng(0))
    machine = Machine(ptx, checks=CHECKS)
    machine.kernel(name)
    args = [machine.memory.buffer(array, name=each).address for each, array in buffers.items()]
    side = buffers["c"].shape[0] // 16 if name == "matmul" else 0
    grid, block = ((side, side), (16, 16)) if side else (blocks, THREADS)
    before, scheduler.compile_blocks = scheduler.compile_blocks, hook
    try:
        start = time.process_time()
        result = machine.run(name, grid=grid, block=block, args=[*args, *sizes])
        seconds = time.process_time() - start
    finally:
        scheduler.compile_blocks = before
    for each, value in wanted.items():
        assert np.array_equal(buffers[each], value), f"{name}: {each} is wrong"
    return seconds, result.instructions


def measure(name: str, ptx: str, blocks: int, repeats: int) -> dict:
    bind = scheduler.compile_blocks
    functions, spent, plain, fused, whole = Functions(), Counter(), [], [], 0.0
    once(name, ptx, blocks, replaced(bind, functions))
    for _ in range(repeats):  # in turns: the host is shared
        plain.append(once(name, ptx, blocks, bind))
        fused.append(once(name, ptx, blocks, replaced(bind, functions)))
        whole += once(name, ptx, blocks, replaced(bind, None, spent))[0]
    (seconds, instructions), (with_functions, _) = min(plain), min(fused)
    return {
        "kernel": name,
        "blocks": blocks,
        "warp_instructions": instructions,
        "plain": round(seconds, 5),
        "compiled": round(with_functions, 5),
        "compiling": round(functions.seconds, 2),
        "functions": len(functions.known),
        "elements": round(spent["elements"] / whole, 3),
        "memory": round(spent["memory"] / whole, 3),
        "numba": numba.__version__,
        "numpy": np.__version__,
    }


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| kernel | blocks | warp instructions | plain, ms | compiled, ms | times as fast"
        " | were they free | were loads and stores free too | functions | compiling, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        free = 1 / (1 - row["elements"]), 1 / (1 - row["elements"] - row["memory"])
        lines.append(
            f"| {row['kernel'].replace('_', ' ')} | {row['blocks']:,} "
            f"| {row['warp_instructions']:,} | {1e3 * row['plain']:.3g} "
            f"| {1e3 * row['compiled']:.3g} | {row['plain'] / row['compiled']:.2f} "
            f"| {' | '.join(f'{each:.2f}' for each in free)} | {row['functions']} "
            f"| {row['compiling']:.1f} |"
        )
    return lines


def write_table() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    page = HERE / "README.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    body = "\n".join([BEGIN, *table(rows), END])
    page.write_text(f"{head}{body}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="write README.md's, measure nothing")
    given = parser.parse_args()
    if given.table:
        write_table()
        return
    ptx = compiled((HERE / "ordinary.cu").read_text(encoding="utf-8"))
    rows = []
    for name in given.kernels:
        for blocks in given.blocks:
            rows.append(measure(name, ptx, blocks, given.repeats))
            print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
