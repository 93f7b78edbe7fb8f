"""Hessians of a model's layers: a mapping, layer -> ``Hessian``, in memory or in a file.

The file is a .safetensors file. A tensor "a.q", float64 [k (k + 1) / 2], is ``Hessian.triangle``:
the sums of x^T x over the inputs x [rows, k] of layer "a.q", upper triangle, row after row. The
metadata's "numba_marlin.hessians" is JSON, a list of ``{"layers": ["a.q", "a.k"], "rows": 4096}``,
one for each tensor, which has the name of the first: layers that share an input share a tensor.

A file is written complete or not at all, on the disk when ``save_hessians`` returns, and never over
another. ``load_hessians`` reads its header; a Hessian is read when it is looked up, in any order,
and the last one is kept. What is in a file of any origin is checked before it is used: anything
that no inputs have is a CheckpointError that names file, layer and rule.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from numba_marlin.checkpoints import CheckpointError
from numba_marlin.checkpoints.owner import to_disk
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile, parse_json
from numba_marlin.checkpoints.safetensors_writer import ShardWriter
from numba_marlin.checkpoints.shards import check_names
from numba_marlin.quantizers.hessian import Hessian
from numba_marlin.wording import byte_count, did_you_mean, html_table

METADATA = "numba_marlin.hessians"


@dataclass(frozen=True)
class Shared:
    """Layers with the same inputs, [rows, k] of them, and what reads (or has) their Hessian."""

    layers: tuple[str, ...]
    k: int
    rows: int
    read: Callable[[], Hessian]


class Hessians(Mapping):
    """layer -> Hessian, as ``calibrate`` and ``load_hessians`` return it. Layers that share an
    input share one Hessian; ``shared`` lists them."""

    def __init__(self, shared: Iterable[Shared], source: Path | None = None):
        self.shared = tuple(shared)
        self.source = source
        """The file that they are read from; None: they are in memory."""
        self._of = {layer: each for each in self.shared for layer in each.layers}
        self._last: tuple[Shared, Hessian] | None = None

    def __getitem__(self, layer: str) -> Hessian:
        each = self._of.get(layer)
        if each is None:
            raise KeyError(f"no Hessian of layer {layer!r}{did_you_mean(layer, self._of)}")
        if self._last is None or self._last[0] is not each:
            self._last = None  # memory of one
            self._last = each, each.read()
        return self._last[1]

    def __contains__(self, layer: object) -> bool:
        return layer in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def k_of(self, layer: str) -> int:
        """Inputs of a layer, without reading its Hessian."""
        return self._of[layer].k

    def rows_of(self, layer: str) -> int:
        """Rows of a layer's inputs, without reading its Hessian."""
        return self._of[layer].rows

    @property
    def nbytes(self) -> int:
        """Bytes of all Hessians in memory."""
        return sum(8 * each.k**2 for each in self.shared)

    def __repr__(self) -> str:
        where = "" if self.source is None else f", in {self.source}"
        layers = f"{len(self)} layer{'s' * (len(self) != 1)}"
        inputs = f"{len(self.shared)} input{'s' * (len(self.shared) != 1)}"
        return f"<Hessians of {layers} with {inputs}, {byte_count(self.nbytes)}{where}>"

    def _repr_html_(self) -> str:
        rows = [(", ".join(each.layers), each.k, f"{each.rows:,}") for each in self.shared]
        return html_table(rows, ("layers with the same inputs", "k", "rows"))


def in_memory(hessians: Mapping[str, Hessian]) -> Hessians:
    """The ``Hessians`` of a mapping: layers that have the same object share it."""
    layers: dict[int, list[str]] = {}
    for layer, each in hessians.items():
        if not isinstance(each, Hessian):
            raise TypeError(f"layer {layer!r} has a {type(each).__name__}, must be a Hessian")
        layers.setdefault(id(each), []).append(layer)
    return Hessians(_kept(tuple(names), hessians[names[0]]) for names in layers.values())


def _kept(layers: tuple[str, ...], hessian: Hessian) -> Shared:
    return Shared(layers, hessian.k, hessian.rows, lambda: hessian)


def save_hessians(path: Path | str, hessians: Mapping[str, Hessian]) -> Path:
    """Write the Hessians of some layers to a file and return its path.

    path: a name that ends in .safetensors; it must not exist. hessians: layer -> Hessian, with at
    least one row each. ``Hessians`` are read one at a time.

    Raises CheckpointError if the target exists, ValueError or TypeError for what cannot be written;
    after an error nothing is left behind.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} must end in .safetensors")
    check_names(hessians=hessians)
    found = hessians if isinstance(hessians, Hessians) else in_memory(hessians)
    if not found:
        raise ValueError(f"{path}: there are no Hessians to write")
    for each in found.shared:
        if not each.rows:
            raise ValueError(f"layer {each.layers[0]!r}: the Hessian holds no rows: add inputs")

    def check_free() -> None:
        if os.path.lexists(path):
            raise CheckpointError(f"{path} exists: remove it or choose another name")

    check_free()
    if not path.parent.is_dir():
        raise CheckpointError(f"{path}: there is no directory {path.parent}")
    said = json.dumps([{"layers": list(each.layers), "rows": each.rows} for each in found.shared])
    names = [each.layers[0] for each in found.shared]
    writer = ShardWriter(path, names, len(json.dumps(said)))
    try:
        for each in found.shared:
            writer.add(each.layers[0], each.read().triangle())
        writer.finish({METADATA: said}, check_free)
    except BaseException:
        writer.abandon()
        raise
    to_disk(path.parent)
    return path


def load_hessians(path: Path | str) -> Hessians:
    """The Hessians in a file that ``save_hessians`` wrote; each is read when it is looked up.
    CheckpointError, now or then, for a file that is damaged, of another kind, or has changed."""
    file = SafetensorsFile(path)
    if METADATA not in file.metadata:
        raise CheckpointError(
            f"{file.path}: holds no Hessians: nm.save_hessians or `numba-marlin quantize --calib"
            " ... --hessians FILE` writes such a file"
        )
    where = f"{file.path}: {METADATA}"
    listed = parse_json(file.metadata[METADATA].encode("utf-8", "surrogatepass"), where)
    if not isinstance(listed, list) or not listed:
        raise CheckpointError(f"{where}: must be a list of what layers share a Hessian")
    shared = [_shared(file, where, each) for each in listed]
    [(layer, times)] = Counter(name for each in shared for name in each.layers).most_common(1)
    if times > 1:
        raise CheckpointError(f"{where}: layer {layer!r} must stand there once")
    unnamed = file.entries.keys() - {each.layers[0] for each in shared}
    if unnamed:
        raise CheckpointError(f"{where}: must name tensor {min(unnamed)!r}, which is in the file")
    return Hessians(shared, file.path)


def _shared(file: SafetensorsFile, where: str, said: object) -> Shared:
    layers, rows = (
        (said["layers"], said["rows"])
        if isinstance(said, dict) and said.keys() == {"layers", "rows"}
        else (None, None)
    )
    if not isinstance(layers, list) or not layers or not all(isinstance(x, str) for x in layers):
        raise CheckpointError(
            f"{where}: {str(said)[:80]} must have layers, a list of names, and rows"
        )
    name = layers[0]
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows < 2**63:
        raise CheckpointError(f"{where}: layer {name!r}: rows={str(rows)[:80]} must be 1 or more")
    entry = file.entries.get(name)
    if entry is None:
        raise CheckpointError(f"{where}: layer {name!r}: there is no such tensor in the file")
    k = (math.isqrt(8 * math.prod(entry.shape) + 1) - 1) // 2
    if entry.code != "F64" or entry.shape != (k * (k + 1) // 2,) or not k:
        raise CheckpointError(
            f"{file.path}: tensor {name!r}: {entry.code} {list(entry.shape)} must be F64"
            " [k (k + 1) / 2], the upper triangle of a Hessian"
        )

    def read() -> Hessian:
        try:
            return Hessian.of_triangle(k, file.array(name), rows)
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{file.path}: layer {name!r}: {error}") from error

    return Shared(tuple(layers), k, rows, read)
