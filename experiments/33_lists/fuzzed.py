"""Arithmetic and divergent flow against gcc: ``c_programs`` as kernels on the machine, by NVRTC,
and as functions of a thread by g++, called for one thread after the other. Every bit of a variable
is compared; NaNs count as one.
"""

import ctypes
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import c_programs
import compiling
import numpy as np
from judging import CHECKS, MOST_INSTRUCTIONS, Case, Found, compared, judged

from numba_marlin.emulator import Machine

KERNELS, BATCH = 120, 20
THREADS, BLOCKS = 64, 2
GCC = ("g++", "-O1", "-fwrapv", "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC", "-w")


def versions(given) -> dict[str, str]:
    done = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    return {"NVRTC": compiling.version(), "g++": done.stdout.strip()}


def cases(given) -> Iterator[Case]:
    for kind in c_programs.KINDS:
        yield Case("", kind, partial(run, kind, KERNELS))


def run(kind: str, count: int) -> Found:
    """``count`` kernels of a kind."""
    counts, said, instructions = Counter(), [], 0
    for first in range(0, count, BATCH):
        seeds = range(first, min(count, first + BATCH))
        source = c_programs.text(kind, seeds)
        words = given(seeds)
        wanted = by_gcc(source, seeds, words)
        machine = Machine(compiling.ptx_of(source, "-fmad=false"), races=True, checks=CHECKS)
        for seed in seeds:
            found = judged(partial(one, machine, f"k{seed}", words[seed], wanted[seed]))
            counts[found.outcome] += 1
            instructions += found.instructions
            said += [] if found.outcome == "right" else [f"k{seed} {found.outcome}: {found.said}"]
    worst = "right" if counts["right"] == count else said[0].split()[1].rstrip(":")
    return Found(worst, "; ".join(said), instructions, outcomes=dict(counts))


def given(seeds: range) -> dict[int, np.ndarray]:
    shape = THREADS * BLOCKS, c_programs.VALUES
    found = {}
    for seed in seeds:
        numbers = np.random.default_rng(seed)
        words = numbers.integers(0, 1 << 32, shape, np.uint32)
        few = numbers.choice(np.array([0, 1, 1 << 31, 0xFFFFFFFF, 0x7F800001], np.uint32), shape)
        found[seed] = np.where(numbers.random(shape) < 0.15, few, words)
    return found


def one(machine: Machine, name: str, words: np.ndarray, wanted: np.ndarray) -> Found:
    got = np.zeros_like(wanted)
    buffers = [machine.memory.buffer(words, "x"), machine.memory.buffer(got, "y")]
    args = [each.address for each in buffers]
    result = machine.run(
        name, grid=BLOCKS, block=THREADS, args=args, max_instructions=MOST_INSTRUCTIONS
    )
    for each in buffers:
        machine.memory.release(each)
    return compared(got, wanted, result)


def by_gcc(source: str, seeds: range, words: dict) -> dict[int, np.ndarray]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder, "case.cc"), Path(folder, "case.so")
        code.write_text(source, encoding="utf-8")
        subprocess.run([*GCC, "-o", str(library), str(code)], check=True)
        loaded = ctypes.CDLL(str(library))
        for seed in seeds:
            found[seed] = np.zeros(words[seed].shape, np.uint64)
            places = words[seed].ctypes.data, found[seed].ctypes.data
            for thread in range(THREADS * BLOCKS):
                loaded[f"k{seed}"](*map(ctypes.c_void_p, places), ctypes.c_int(thread))
    return found
