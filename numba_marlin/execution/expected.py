"""What a product will take, before it begins: seconds and bytes, and on the PTX machine warp
instructions. Orders of magnitude, for a bar and for refusing in time what would take hours.

``launch(problem, candidate)`` -> ``Expected`` of a launch on the machine, from the cost that its
kernel declares (``MachineCost``). ``whole(problem, plan)`` adds what ``numba-marlin run`` does
around it: quantising, packing, checking.

Expected over found, measured on the six problems of ``tests/cli/test_estimate.py`` and two cores
with little else to do:

    kernel        m    n     k     instructions          seconds
    decode        16   2048  2048  1.27 (of 297,080)     1.7 (of 0.8)
    wgmma         200  768   2048  1.01 (of 374,052)     1.1 (of 2.8)
    ampere        64   1536  1024  1.02 (of 244,204)     0.5 (of 0.8)
    tiled         40   2048  1024  1.00 (of 2,290,048)   0.7 (of 0.6)
    block_scaled  100  1024  768   1.08 (of 213,478)     0.7 (of 0.7)
    block_decode  4    2048  2048  1.02 (of 382,976)     0.6 (of 0.5)

Codes of 8 bits with decode take 2.5 times the instructions that are expected. On cores that six
others share, seconds are five times as many. Memory of ``run``: 0.8 to 1.4 times what it took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numba_marlin.execution.plan import Plan
from numba_marlin.heuristics import Candidate
from numba_marlin.kernels.registry import find_kernel

# Seconds of two cores: per weight, to draw, quantise and pack it and to look at the error; per
# multiplication of the float64 product, to compare with.
WEIGHT_SECONDS, PRODUCT_SECONDS = 4e-7, 1.5e-10
# With x in 8 bits, also per multiplication: the bounds of its error, which are of every part of k.
BOUND_SECONDS = {"int8": 3e-9, "fp8": 8e-9}
# Bytes: of Python and NumPy, and of a compiler; per weight, while it is quantised, and more of them
# while the machine has them; per element of the activations and of the result; per warp on the
# machine; per element of a result whose error has such bounds.
BASE_BYTES, COMPILER_BYTES = 64 << 20, 280 << 20
WEIGHT_BYTES, MACHINE_WEIGHT_BYTES, ELEMENT_BYTES, WARP_BYTES = 20, 4, 28, 32 << 10
BOUND_BYTES = {"int8": 50, "fp8": 300}
# With a listener: times as long, and bytes per instruction that all resident warps execute.
LISTENING, RECORD_BYTES = 5, 14_000


@dataclass(frozen=True)
class Expected:
    """seconds: of wall time; nbytes: of memory at once; instructions: warp instructions of the PTX
    machine, 0 if it is not used."""

    seconds: float
    nbytes: int
    instructions: float = 0


def launch(problem: Any, candidate: Candidate) -> Expected:
    """What a launch of ``candidate`` takes on the PTX machine."""
    about = find_kernel(candidate.kernel).about
    warps = _warps(candidate)
    count = about.instructions(candidate.config, problem.m, problem.n, problem.k)
    nbytes = MACHINE_WEIGHT_BYTES * problem.weights + WARP_BYTES * warps
    return Expected(about.machine_cost.seconds(count, warps), COMPILER_BYTES + nbytes, count)


def _warps(candidate: Candidate) -> int:
    """Of the grid, all of which are resident."""
    return math.prod(candidate.grid) * -(-candidate.threads // 32)


def recorded(problem: Any, candidate: Candidate, runs: int = 1) -> Expected:
    """What quantising takes, and as many launches on the PTX machine, each with a listener that
    records what it hears (``trace``, ``profile``)."""
    found, weights = launch(problem, candidate), problem.weights
    nbytes = BASE_BYTES + WEIGHT_BYTES * weights + found.nbytes
    return Expected(
        WEIGHT_SECONDS * weights + LISTENING * runs * found.seconds,
        nbytes + int(RECORD_BYTES * found.instructions / _warps(candidate)),
        runs * found.instructions,
    )


def whole(problem: Any, plan: Plan) -> Expected:
    """What ``numba-marlin run`` takes; without compiling, which takes seconds once."""
    weights, products = problem.weights, problem.flops / 2
    seconds = WEIGHT_SECONDS * weights + PRODUCT_SECONDS * products
    nbytes = BASE_BYTES + WEIGHT_BYTES * weights
    nbytes += ELEMENT_BYTES * problem.m * (problem.n + problem.k)
    in_8_bits = getattr(problem, "activations", None)
    if in_8_bits is not None:
        seconds += BOUND_SECONDS[in_8_bits] * products
        nbytes += BOUND_BYTES[in_8_bits] * problem.flops // (2 * problem.k)
    if plan.backend != "emulator":
        # the reference is the product a second time
        more = PRODUCT_SECONDS * products if plan.backend == "reference" else 0
        return Expected(seconds + more, nbytes)
    on_machine = launch(problem, plan.candidate)
    return Expected(
        seconds + on_machine.seconds, nbytes + on_machine.nbytes, on_machine.instructions
    )
