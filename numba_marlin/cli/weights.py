"""Reading one weight matrix from a file that may be of any origin: ``.npy`` or ``.safetensors``.

``load(path, tensor, transpose)`` -> ``Weight``: ``values`` float [k, n] and where it came from.
Raises ValueError, in one line, for a file that is missing, damaged, of another kind, or holds no
such matrix. Pickles are never loaded. bfloat16 becomes float32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

_SAFETENSORS_DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "BF16": np.uint16}
_NAMES_SHOWN = 20


@dataclass(frozen=True, eq=False)
class Weight:
    values: np.ndarray
    source: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape


@dataclass(frozen=True, eq=False)
class Drawn:
    """A weight like ``Weight``, normal, whose values are drawn when they are first asked for: its
    shape is looked at before there is memory for it."""

    shape: tuple[int, int]
    source: str
    random: np.random.Generator

    @cached_property
    def values(self) -> np.ndarray:
        return self.random.standard_normal(self.shape, dtype=np.float32)


def load(
    path: str, tensor: str | None = None, transpose: bool = False, option: str = "--input"
) -> Weight:
    """``transpose``: the file holds [n, k], as torch.nn.Linear does. option: what messages call the
    file."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(
            f"{option} {path}: {'is not a regular file' if file.exists() else 'no such file'}"
        )
    if file.suffix not in (".npy", ".safetensors"):
        raise ValueError(f"{option} {path} must be a .npy or .safetensors file")
    if file.suffix == ".npy":
        if tensor is not None:
            raise ValueError(f"--tensor {tensor} is for .safetensors files; {path} holds one array")
        values, source = load_array(file, option), str(path)
    else:
        values, source = _load_safetensors(file, tensor)
    if values.ndim != 2:
        raise ValueError(f"{source}: shape {values.shape} must have 2 dimensions")
    if values.size == 0:
        raise ValueError(f"{source}: shape {values.shape} must not be empty")
    return Weight(
        values.T if transpose else values, f"{source}, transposed" if transpose else source
    )


def weight_of(args, random: np.random.Generator) -> Weight | Drawn:
    """The weight [k, n] that the arguments describe: of a file, or random."""
    from numba_marlin.cli.run import DEFAULT_K, DEFAULT_N

    if args.input is None:
        for name in ("tensor", "transpose"):
            if getattr(args, name):
                raise ValueError(f"--{name} needs --input")
        k, n = DEFAULT_K if args.k is None else args.k, DEFAULT_N if args.n is None else args.n
        if k < 1 or n < 1:
            raise ValueError(f"--k {k} and --n {n} must be positive")
        return Drawn((k, n), f"random, seed {args.seed}", random)
    if args.n is not None or args.k is not None:
        raise ValueError("--n and --k describe a random weight; with --input the file decides")
    return load(args.input, args.tensor, args.transpose)


def layer(path: str, name: str | None = None, transpose: bool = False):
    """Return (weight, where it came from) of a quantised layer of a checkpoint, a .safetensors file
    or a directory: the layer called ``name``, the one that has a tensor of this name, or the only
    one. None if nothing quantised is stored, or if ``name`` names something else. Raises ValueError
    for a choice that does not exist.
    """
    from numba_marlin.checkpoints import CheckpointError, load_checkpoint

    if not Path(path).is_dir() and Path(path).suffix != ".safetensors":
        return None
    try:
        found = load_checkpoint(path)
    except CheckpointError:
        if Path(path).is_dir():
            raise
        return None  # ``load`` says what is wrong with it
    names = sorted(found.layers)
    if not names or name in found.others:
        return None
    if name is None and (len(names) > 1 or found.others):
        raise ValueError(
            f"--input {path} holds {len(names)} quantised layer{'s' * (len(names) > 1)}; choose one"
            f" with --tensor: {_listed(names)}"
        )
    chosen = (
        names[0]
        if name is None
        else next(
            (
                each.name
                for each in found.layers.values()
                if name == each.name or name in each.tensors.values()
            ),
            None,
        )
    )
    if chosen is None:
        raise ValueError(
            f"--tensor {name} is not in {path}; its quantised layers: {_listed(names)}"
        )
    if transpose:
        raise ValueError(
            f"--transpose is for plain matrices: the format of {chosen}"
            f" ({found.layers[chosen].form.name}) says which way it lies"
        )
    return found[chosen], f"{path}: {chosen}, {found.layers[chosen].form.name}"


def load_array(file: Path, option: str) -> np.ndarray:
    """Return the array of a .npy file, memory-mapped. A ValueError names ``option`` and the
    file."""
    if not file.is_file():
        raise ValueError(
            f"{option} {file}: {'is not a regular file' if file.exists() else 'no such file'}"
        )
    try:
        # Mapped, a header that promises more than the file holds is an error and not an allocation.
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # a hostile header makes NumPy raise almost anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{option} {file}: not a .npy array of numbers ({reason})") from error


def _load_safetensors(file: Path, tensor: str | None) -> tuple[np.ndarray, str]:
    from safetensors import SafetensorError, safe_open

    try:
        # checks the whole header: names, types, offsets
        with safe_open(str(file), framework="numpy") as opened:
            names = sorted(opened.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"--input {file}: not a .safetensors file ({error})") from error
    header, start = _safetensors_header(file)
    matrices = [name for name in names if len(header[name]["shape"]) == 2]
    if tensor is None:
        if len(matrices) != 1:
            raise ValueError(
                f"--input {file} holds {len(matrices)} matrices; choose one with --tensor:"
                f" {_listed(matrices)}"
            )
        tensor = matrices[0]
    if tensor not in header:
        raise ValueError(f"--tensor {tensor} is not in {file}; it holds: {_listed(names)}")
    entry, source = header[tensor], f"{file}:{tensor}"
    if entry["dtype"] not in _SAFETENSORS_DTYPES:
        raise ValueError(
            f"{source}: dtype {entry['dtype']} must be one of {', '.join(_SAFETENSORS_DTYPES)}"
        )
    shape = tuple(entry["shape"])
    if 0 in shape:
        raise ValueError(f"{source}: shape {shape} must not be empty")
    begin = start + entry["data_offsets"][0]
    # Mapped here and not by the library, which needs ml_dtypes to hand out bfloat16.
    values = np.memmap(
        file,
        dtype=np.dtype(_SAFETENSORS_DTYPES[entry["dtype"]]).newbyteorder("<"),
        mode="r",
        offset=begin,
        shape=shape,
    )
    if entry["dtype"] == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values, source


def _safetensors_header(file: Path) -> tuple[dict, int]:
    """Return (name -> dtype, shape, data_offsets; where the data begin) of a file that safe_open
    has accepted."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    return shown + (f", and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
