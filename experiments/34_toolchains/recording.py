"""A case: arrays in device memory, launches over them, and what must be there afterwards.

``make`` fills a Case where a toolchain is installed, and pickles it; ``measure`` runs it where
NumPy is. Buffers lie where the machine will put them again, so that a launch's arguments are final
bytes: pointers, structures with pointers in them, tensor maps.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from numba_marlin.emulator.state.global_memory import GlobalMemory

ROUNDOFF = 2.0**-23  # of an fp32 addition, whichever way it rounds


class Missing(Exception):
    """What a case needs is not here; the text is the reason in the table."""


@dataclass(frozen=True)
class Launch:
    """``args``: one per parameter, as ``Machine.run`` takes them."""

    ptx: str
    entry: str
    grid: tuple
    block: tuple
    args: list
    shared: int = 0
    cluster: tuple | None = None


@dataclass(frozen=True)
class Expected:
    """Of an array, by its number, each element within ``bound`` of ``value`` (float64)."""

    array: int
    value: np.ndarray
    bound: np.ndarray


@dataclass
class Case:
    toolchain: str
    name: str
    target: str
    version: str = ""
    arrays: list = field(default_factory=list)  # (name, array as it is before the first launch)
    launches: list = field(default_factory=list)
    expected: list = field(default_factory=list)
    memory: GlobalMemory | None = field(default_factory=GlobalMemory)

    def put(self, array: np.ndarray, name: str | None = None) -> int:
        """The address of the array in device memory; of one that is there already, the same."""
        for known, buffer in zip(self.arrays, self.memory.buffers):
            if known[1] is array:
                return buffer.address
        name = name or f"array{len(self.arrays)}"
        self.arrays.append((name, array))
        return self.memory.buffer(array, name).address

    def launch(self, *args, **kwargs) -> None:
        self.launches.append(Launch(*args, **kwargs))

    def expect(self, array: np.ndarray, value, bound=0.0) -> None:
        (number,) = [index for index, known in enumerate(self.arrays) if known[1] is array]
        value = np.asarray(value)
        if value.dtype.kind not in "iub":
            value = value.astype(np.float64)
        if value.size != array.size:
            raise ValueError(f"{value.shape} is expected of an array of {array.shape}")
        bound = np.broadcast_to(np.asarray(bound, np.float64), value.shape)
        self.expected.append(Expected(number, value.reshape(-1), bound.reshape(-1)))

    def write(self, folder: Path) -> None:
        self.memory = None
        keep(self, folder)


@dataclass(frozen=True)
class Program:
    """Host code and all: what was built of it is in ``folder``."""

    toolchain: str
    name: str
    target: str
    version: str
    folder: str
    arguments: tuple

    def write(self, folder: Path) -> None:
        keep(self, folder)


def keep(case, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.+-]+", "_", f"{case.target} {case.name}")
    (folder / f"{name}.case").write_bytes(pickle.dumps(case))


def bound(value, out, relative: float = 0.0, sums: int = 0, of=0.0) -> np.ndarray:
    """A bound of the error of ``value`` [any shape] when it is stored as type ``out``: rounded once
    there; a ``relative`` error before; fp32 sums of ``sums`` terms of magnitudes ``of``, in any
    order."""
    import ml_dtypes

    value, out = np.abs(np.asarray(value, np.float64)), np.dtype(out)
    if out.kind in "iub":
        return value * relative + sums * ROUNDOFF * np.asarray(of, np.float64)
    info = ml_dtypes.finfo(out)
    rounded = value * float(info.eps) + float(info.smallest_subnormal)
    return rounded + value * relative + sums * ROUNDOFF * np.asarray(of, np.float64)


def poisoned(shape, dtype) -> np.ndarray:
    """An array of which every element that is not written is seen: NaN, or a large number."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iub":
        return np.full(shape, 0x5A, np.uint8).repeat(dtype.itemsize, -1).view(dtype)
    return np.full(shape, np.nan).astype(dtype)
