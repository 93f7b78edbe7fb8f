"""What a launch is made of, and the folder that holds it: ``kernel.ptx``, its arrays as .npy and
``launch.json``, whose arguments are those of ``numba-marlin machine run --args``, but for tensor
maps: these are the fields of a ``numba_marlin.layout.tensor_map.TensorMap``, of any strides.

The folder is written where another package is installed, and read where numba_marlin is.
"""

import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


class Missing(Exception):
    """A package, or a file of it, that is not there; the text is the reason in the table."""


class Written:
    """An argument: an array that the kernel writes, or reads and writes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


@dataclass(frozen=True)
class TensorMapOf:
    """An argument: a tensor map (numba_marlin.layout.tensor_map) of an array."""

    array: np.ndarray
    map: Any
    written: bool = False


@dataclass
class Launch:
    """arguments: {name: value} in order; a value is an array (read only), Written, a NumPy scalar,
    bytes (of a structure), or None (a null pointer). output: the name of the argument with the
    result, [m, n] or [parts, m, n] whose parts the host adds."""

    ptx: str
    entry: str
    grid: tuple
    block: tuple
    arguments: dict
    output: str
    shared: int = 0
    cluster: tuple | None = None
    facts: dict = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.ptx").write_text(self.ptx, encoding="utf-8")
        words = [self._word(folder, *each) for each in self.arguments.items()]
        held = {
            "entry": self.entry,
            "grid": list(map(int, self.grid)),
            "block": list(map(int, self.block)),
            "shared": int(self.shared),
            "cluster": None if self.cluster is None else list(map(int, self.cluster)),
            "arguments": words,
            "output": self.output,
            **self.facts,
        }
        (folder / "launch.json").write_text(json.dumps(held, indent=1), encoding="utf-8")

    @staticmethod
    def _word(folder: Path, name: str, value) -> str | dict:
        if value is None:
            return f"{name}=null"
        if isinstance(value, bytes):
            return f"{name}=hex:{value.hex()}"
        if isinstance(value, TensorMapOf):
            np.save(folder / f"{name}.npy", value.array)
            return {"name": name, "written": value.written, **asdict(value.map)}
        if isinstance(value, Written | np.ndarray):
            written = isinstance(value, Written)
            array = value.array if written else value
            np.save(folder / f"{name}.npy", array)
            return f"{name}={'inout' if written else 'in'}:{name}.npy"
        kind = value.dtype
        return f"{name}={kind.kind}{8 * kind.itemsize}:{value.item()}"


def parameters_of(ptx: str, entry: str) -> int:
    """How many parameters the entry of the text has."""
    head = ptx.split(f".entry {entry}", 1)[1].split(")", 1)[0]
    return head.count(".param")


@contextmanager
def inside(folder: Path):
    """The paths of a launch's arguments are relative to its folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
