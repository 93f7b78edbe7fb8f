"""``Checkpoint``: a lazy mapping, layer name -> weight, over a ``Source``; ``load_checkpoint``
opens one.

Tensors whose names differ only in the last part form one layer if a stored format
(``formats.files``) has tensors of these names; all other tensors (embeddings, norms, biases) are
``others``. The format follows from names, types and shapes, that is, from the header alone. Only
GPTQ's two versions look alike; ``checkpoint_format`` distinguishes them, in the file's own metadata
or else in the configuration (by default version 1, as in Hugging Face). Opening a checkpoint checks
all layers; CheckpointError names file, tensor and rule.

Looking a weight up reads it. Weights are not cached: looking one up again
reads it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.safetensors_file import Entry
from numba_marlin.checkpoints.source import Source
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.stored import PLAIN, FormatError, Geometry, Outline, StoredFormat
from numba_marlin.wording import did_you_mean

_MANY_WEIGHTS = 1 << 22  # from this number on, compiled loops are worth loading Numba
# only quantised layers have one
_TELLTALE = (
    "qweight",
    "qzeros",
    "weight_packed",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
)
_VALUES = ("weight_shape",)  # tensors whose contents determine the layer's size


def codec_for(weights: int):
    """The codec that packs and unpacks a layer of this number of weights."""
    if weights < _MANY_WEIGHTS:
        return PLAIN
    from numba_marlin.hostloops import Compiled

    return Compiled()


@dataclass(frozen=True)
class Layer:
    """A quantised layer: its format, its geometry, and {the format's tensor name: name in the
    file}."""

    name: str
    form: StoredFormat
    geometry: Geometry
    tensors: dict[str, str]


class _WithValue:
    """A header entry together with the tensor's values, which have been read."""

    def __init__(self, entry, value):
        self.shape, self.dtype, self.value = entry.shape, entry.dtype, value


class _Read(Mapping):
    """A layer's tensors, each read when it is looked up."""

    def __init__(self, source: Source, names: dict[str, str]):
        self.source, self.names = source, names

    def __getitem__(self, last: str) -> np.ndarray:
        return self.source.array(self.names[last])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Checkpoint(Mapping):
    """A lazy mapping, layer name -> QuantizedWeight, PackedWeight or BlockWeight.

    layers: name -> Layer. others: names of tensors that belong to no layer; ``tensor(name)`` reads
    one. source: files and configuration.
    """

    def __init__(self, source: Source, form: str | None = None):
        self.source = source
        self.layers: dict[str, Layer] = {}
        by_prefix: dict[str, dict[str, str]] = {}
        for name in source.entries:
            prefix, _, last = name.rpartition(".")
            by_prefix.setdefault(prefix, {})[last] = name
        forms = list(STORED.values()) if form is None else [find_stored(form)]
        for prefix, tensors in by_prefix.items():
            found = _layer(source, prefix, tensors, forms)
            if found is not None:
                self.layers[prefix] = found
        taken = {name for layer in self.layers.values() for name in layer.tensors.values()}
        self.others = [name for name in source.entries if name not in taken]
        stray = (
            None
            if form is not None
            else next((name for name in self.others if name.rpartition(".")[2] in _TELLTALE), None)
        )
        if stray is not None:
            beside = ", ".join(sorted(by_prefix[stray.rpartition(".")[0]]))
            raise CheckpointError(
                f"{source.file_of(stray).path}: tensor {stray!r} is one of a quantised layer, but"
                f" others of it are missing: there is {beside}"
            )
        if form is not None and not self.layers:
            raise CheckpointError(f"{source.path}: holds no layer of format {form!r}")

    def _layer(self, name: str) -> Layer:
        layer = self.layers.get(name)
        if layer is None:
            raise KeyError(f"no quantised layer {name!r}{did_you_mean(name, self.layers)}")
        return layer

    def outline(self, name: str) -> Outline:
        """What kernels are chosen by, of a layer. Of its data the zero points alone are read, since
        only they say whether the layer is symmetric. ValueError if no kernel multiplies layers of
        its format; CheckpointError if the zero points cannot be read."""
        layer = self._layer(name)
        return layer.form.outline(_Read(self.source, layer.tensors), layer.geometry)

    def bias(self, name: str) -> str | None:
        """The name of the tensor of ``others`` that is a layer's bias; None if it has none."""
        tensor, wanted = f"{name}.bias", (self._layer(name).geometry.n,)
        entry = self.source.entries.get(tensor)
        return tensor if entry is not None and tuple(entry.shape) == wanted else None

    def __getitem__(self, name: str):
        return self._read(name, StoredFormat.read)

    def stored(self, name: str):
        """A layer whose codes stay in the file's words, a StoredWeight: ``numba_marlin.pack`` reads
        them on the device that it packs for. Of formats whose codes are not in int32 words of their
        own (all but GPTQ, AWQ and compressed-tensors' pack-quantized), what looking the layer up
        gives. CheckpointError for impossible values."""
        return self._read(name, StoredFormat.read_stored)

    def _read(self, name: str, read):
        layer = self._layer(name)
        arrays = {last: self.source.array(tensor) for last, tensor in layer.tensors.items()}
        try:
            return read(layer.form, arrays, codec_for(layer.geometry.k * layer.geometry.n))
        except ValueError as error:
            file = self.source.file_of(next(iter(layer.tensors.values()))).path
            raise CheckpointError(f"{file}: layer {name!r}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self.layers

    def tensor(self, name: str) -> np.ndarray:
        """A tensor of ``others``, read-only. It is read each time."""
        return self.source.array(name)

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {self.source.path}: {len(self.layers)} quantised layers,"
            f" {len(self.others)} other tensors>"
        )


def _stated(source: Source, prefix: str, tensors: dict[str, str]) -> str | None:
    """The format that the layer's files say they are of."""
    said = {file: source.format_of(file) for file in map(source.file_of, tensors.values())}
    if len(set(said.values())) > 1:
        raise CheckpointError(
            f"{source.path}: layer {prefix!r} lies in files that say different formats: "
            + ", ".join(f"{file.path.name} {form or 'none'}" for file, form in said.items())
        )
    return next(iter(said.values()))


def _layer(
    source: Source,
    prefix: str,
    tensors: dict[str, str],
    forms: list[StoredFormat],
) -> Layer | None:
    """The layer that these tensors form, or None if they match no format. CheckpointError if they
    match one but break its specification, or if their files say different formats."""
    entries = {last: source.file_of(name).entries[name] for last, name in tensors.items()}
    forms = [form for form in forms if set(form.keys) <= set(entries)]
    if not forms:
        return None
    preferred = _stated(source, prefix, tensors)
    broken: tuple[StoredFormat, FormatError] | None = None
    found: list[Layer] = []
    for form in forms:
        mine: dict[str, Entry | _WithValue] = {
            last: entry
            for last, entry in entries.items()
            if last in (*form.keys, *form.optional, *form.ignored)
        }
        for last in set(mine) & set(_VALUES):
            small = np.prod(entries[last].shape, dtype=float) <= 8
            values = source.array(tensors[last]).tolist() if small else []
            mine[last] = _WithValue(entries[last], values)
        try:
            found.append(
                Layer(prefix, form, form.check(mine), {last: tensors[last] for last in mine})
            )
        except FormatError as error:
            if form.claims(mine) and (broken is None or form.name == preferred):
                broken = form, error
    if found:
        return max(found, key=lambda each: (len(each.tensors), each.form.name == preferred))
    if broken:
        form, why = broken
        file = source.file_of(tensors[form.keys[0]]).path
        raise CheckpointError(f"{file}: layer {prefix!r}: {why}") from why
    return None


def load_checkpoint(path: Path | str, format: str | None = None) -> Checkpoint:
    """Open a checkpoint: a .safetensors file, or a directory of them as Hugging Face lays them out.

    format: the only format in which to look for layers, a name of ``formats.files.STORED``;
    default: all of them.

    Returns a Checkpoint, a lazy mapping from layer name to QuantizedWeight, PackedWeight or
    BlockWeight. ``nm.dequantize`` takes each of them, ``nm.matmul`` takes packed weights
    (``nm.pack``). Raises CheckpointError, naming file, tensor and rule, for files that break their
    specification, and ValueError for an unknown format.
    """
    return Checkpoint(Source(path), format)
