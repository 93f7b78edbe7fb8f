"""A kernel on the PTX machine, counted: all of a small problem, or as many multiprocessors' share
of a large one as can be run in seconds.

``observe(problem, chosen, device)`` -> ``Counted``. A large problem is cut to ``part``: fewer
columns for fewer multiprocessors (then fewer rows), so that a block does what it would do in the
whole; counts of the part times ``factor`` are those of the whole, but for rounding of tiles.
``factor`` is 1 where all of it ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from numba_marlin import compiler, counts
from numba_marlin.emulator import Machine
from numba_marlin.emulator.state.listener import Listener
from numba_marlin.formats import PackedWeight
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.marlin import packed_columns
from numba_marlin.formats.small_floats import decode
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import Candidate, candidate, find_kernel
from numba_marlin.problems import OPERANDS, Problem, WeightProblem
from numba_marlin.profile.instrument import recorder, records, sections
from numba_marlin.profile.sources import access
from numba_marlin.profile.sources.block_launch import BlockLaunch, random_operands
from numba_marlin.profile.sources.words import Layer

WORK = 7e5  # warp instructions that are run, about: some seconds
# warp instructions per multiplication of kernels that declare nothing else, with whole tiles of 16
# rows
TENSOR_COST = 0.012
CAPACITY = 1016


@dataclass(frozen=True, eq=False)
class Counted:
    """A launch, or a part of it, run on the PTX machine."""

    #: What is profiled.
    problem: Problem
    #: The part of it that ran.
    part: Problem
    #: Times ``part`` is in the problem.
    factor: float
    #: SMs that the machine played.
    sms: int
    grid: tuple
    candidate: Candidate
    compiled: object
    instrumented: recorder.Instrumented
    #: Of ``part``.
    counts: counts.Counts
    #: Of every pc.
    sections: tuple[str, ...]
    #: Of the instrumented build, in the machine's warp instructions, not in time.
    recording: records.Recording
    #: What was multiplied; None for two operands.
    weight: PackedWeight | None
    #: Parsed.
    kernel: object
    #: Its first memory accesses (``access``).
    first: list
    #: One word of the weight taken apart (``words``), None where the format has no such thing.
    word: dict | None

    @property
    def whole(self) -> bool:
        return self.factor == 1


def observe(
    problem: Problem,
    chosen: Candidate,
    device: Device,
    compiled=None,
    seed: int = 0,
    work: float = WORK,
) -> Counted:
    """``compiled``: the kernel with line numbers, where it is there already. ValueError for a
    kernel that the machine cannot run (it needs line numbers: numba-cuda)."""
    definition, block_scaled = find_kernel(chosen.kernel), problem.kind == OPERANDS
    compiled = compiled or compiler.build(
        definition,
        chosen.config,
        target=definition.min_arch if block_scaled else device.target,
        line_info=True,
    )
    part, sms = cut(problem, chosen, device, work)
    if block_scaled:
        random = np.random.default_rng(seed)
        launch = BlockLaunch(
            candidate(part, replace(device, sms=sms), chosen.kernel, chosen.config),
            part,
            compiled,
            *random_operands(part, random),
            random,
        )
    else:
        launch = _Launch(definition, chosen.config, compiled, part, sms, seed)
    counting, arguments = launch.on(Machine(compiled.ptx), ())
    _, found = counts.count(counting, compiled.entry, args=arguments, **launch.shape)
    instrumented = recorder.instrument(compiled, CAPACITY, machine_code=False)
    buffer = np.zeros(
        instrumented.nbytes(math.prod(launch.grid)) + instrumented.slot_bytes, np.uint8
    )
    machine = Machine(instrumented.compiled.ptx)
    start = machine.memory.buffer(buffer, name=recorder.PARAMETER, readonly=False).address
    pad = -start % instrumented.slot_bytes
    machine, arguments = launch.on(machine, (start + pad,))
    first = access.FirstAccesses("%nmr_to")
    listener = Listener(access=first, request=first)
    machine.run(compiled.entry, args=arguments, listener=listener, **launch.shape)
    recording = records.align([records.raw(buffer[pad:], instrumented, math.prod(launch.grid))])[0]
    factor = (problem.m * problem.n) / (part.m * part.n)
    of_pc = sections.sections(counting.module, counting.kernel(compiled.entry))
    return Counted(
        problem,
        part,
        factor,
        sms,
        launch.grid,
        chosen,
        compiled,
        instrumented,
        found,
        tuple(of_pc),
        recording,
        launch.weight,
        counting.kernel(compiled.entry),
        first.found,
        word_of_rows(launch.b) if block_scaled else word_of(launch.weight),
    )


def word_of(weight: PackedWeight) -> dict | None:
    """The first word of the weight, bit by bit."""
    if weight.n != weight.n_packed or weight.zeros_kind == "float16":
        return None
    zeros = {} if weight.zeros is None else {"qzeros": weight.zeros}
    return (
        Layer(
            find_stored("vllm-marlin"),
            {"qweight": weight.qweight, "scales": weight.scales, **zeros},
        )
        .word("qweight", 0, 0)
        .to_dict()
    )


def word_of_rows(operand) -> dict:
    """The same of a matrix whose codes lie side by side, a ``formats.BlockScaled``: its first row's
    first word."""
    form, codes = operand.form, operand.codes()[0]
    scale = float(decode(operand.plain_scales()[0, :1], form.scale_grid)[0]) * operand.global_scale
    found = []
    for number in range(32 // form.bits):
        code, low = int(codes[number]), number * form.bits
        found.append(
            {
                "low": low,
                "high": low + form.bits - 1,
                "code": code,
                "k": number,
                "n": 0,
                "zero": 0.0,
                "scale": scale,
                "value": float(decode(codes[number : number + 1], form.element)[0]) * scale,
            }
        )
    value = int(operand.data[0, :4].copy().view(np.uint32)[0])
    return {
        "value": value,
        "bits": 32,
        "hex": f"{value:#010x}",
        "codes": found,
        "element": form.element,
    }


def cut(
    problem: Problem, candidate: Candidate, device: Device, work: float = WORK
) -> tuple[Problem, int]:
    """(the problem, or a part of it that is little enough, multiprocessors that would have it)"""

    def cost(m: int, n: int) -> float:
        rate = find_kernel(candidate.kernel).about.machine_cost
        return (rate * m if rate else TENSOR_COST * -(-m // 16) * 16) * n * problem.k

    if cost(problem.m, problem.n) <= work:
        return problem, device.sms
    tiles = candidate.figures.get("tiles", {})
    columns = -(-problem.n // tiles["n"]) if "n" in tiles else 64
    rows = -(-problem.m // tiles["m"]) if "m" in tiles else 16
    columns = -(-columns // 64) * 64
    for sms in (8, 4, 2, 1):
        n = min(problem.n, max(columns, round(problem.n * sms / device.sms / columns) * columns))
        if cost(problem.m, n) <= work or sms == 1:
            break
    m = problem.m
    while m > rows and cost(m, n) > work:
        m = max(rows, m // 2)
    share = m * n / (problem.m * problem.n)
    return replace(problem, m=m, n=n), max(1, round(device.sms * share))


class _Launch:
    """Random operands of a problem, and how its kernel is launched on the machine."""

    def __init__(
        self, definition, config, compiled, problem: WeightProblem, sms: int, seed: int
    ) -> None:
        self.definition, self.config, self.compiled, self.problem, self.sms = (
            definition,
            config,
            compiled,
            problem,
            sms,
        )
        random = np.random.default_rng(seed)
        self.weight = random_weight(problem, random)
        self.x = random.standard_normal((problem.m, problem.k)).astype(float_type(problem.dtype))
        self.bias = (
            random.standard_normal(problem.n).astype(float_type(problem.dtype))
            if problem.bias
            else None
        )
        self.grid = tuple(definition.grid(config, problem.m, problem.n, problem.k, sms))
        cluster = definition.cluster(config)
        self.shape = {
            "grid": self.grid,
            "block": compiled.threads,
            "shared_bytes": compiled.shared_bytes,
            **({"cluster": cluster} if cluster > 1 else {}),
        }

    def on(self, machine: Machine, more: tuple) -> tuple[Machine, tuple]:
        """The machine with all buffers, and the kernel's arguments."""
        problem = self.problem
        partials, locks = self.definition.workspace_bytes(
            self.config, problem.m, problem.n, problem.k, self.sms
        ) or (0, 0)
        readable = {
            "a": self.x,
            "b": self.weight.qweight,
            "scales": self.weight.scales,
            "zeros": self.weight.zeros,
            "bias": self.bias,
        }
        written = {"c": np.zeros((problem.m, problem.n), self.x.dtype)}
        if partials or locks:
            written |= {
                "partials": np.zeros(max(4, partials // 4), np.float32),
                "locks": np.zeros(max(1, locks // 4), np.int32),
            }
        addresses = {
            name: machine.memory.buffer(array, name=name, readonly=True).address
            for name, array in readable.items()
            if array is not None
        }
        addresses |= {
            name: machine.memory.buffer(array, name=name, readonly=False).address
            for name, array in written.items()
        }
        arguments = self.definition.arguments(
            self.config,
            addresses,
            problem.m,
            problem.n,
            problem.k,
            problem.k,
            lambda tensor_map, address: tensor_map.encode(address),
        )
        return machine, (*arguments, *more)


def random_weight(problem: WeightProblem, random: np.random.Generator) -> PackedWeight:
    """Random codes, scales and zero points in Marlin's order."""
    columns, groups = packed_columns(problem.n), problem.groups
    words = random.integers(
        -(2**31), 2**31, (problem.k // 16, columns * problem.bits // 2), dtype=np.int64
    ).astype(np.int32)
    scales = random.uniform(0.002, 0.02, (groups, columns)).astype(float_type(problem.scale_dtype))
    zeros = None
    if problem.zeros == "integer":
        zeros = random.integers(
            -(2**31), 2**31, (groups, columns * problem.bits // 32), dtype=np.int64
        ).astype(np.int32)
    elif problem.zeros == "float16":
        zeros = random.uniform(0, 15, (groups, columns)).astype(np.float16)
    return PackedWeight(
        "marlin", words, scales, problem.bits, problem.group_size, problem.k, problem.n, zeros
    )
