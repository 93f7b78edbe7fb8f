"""``Checkpoint``: a lazy mapping, layer name -> weight, over a ``Source``; ``load_checkpoint``
opens one.

Tensors whose names differ in the last part only are one layer if they are those of a stored format
(``formats.files``); all others (embeddings, norms, biases) are ``others``. Which format it is
follows from names, types and shapes, the header alone; only GPTQ's two versions look alike, and the
configuration tells them apart (``checkpoint_format``; without a word, version 1, as Hugging Face
has it). All layers are checked when a checkpoint is opened; CheckpointError names file, tensor and
rule.

A weight is read when it is asked for, from memory-mapped files, and is not kept: ask again and it
is read again.
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
from numba_marlin.formats.stored import PLAIN, FormatError, Geometry, StoredFormat

_MANY_WEIGHTS = 1 << 22  # from here on compiled loops pay for loading Numba
# only quantised layers have one
_TELLTALE = (
    "qweight",
    "qzeros",
    "weight_packed",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
)
_VALUES = ("weight_shape",)  # tensors whose contents a format needs to know the layer's size


def codec_for(weights: int):
    """What packs and unpacks a layer of so many weights."""
    if weights < _MANY_WEIGHTS:
        return PLAIN
    from numba_marlin.hostloops import Compiled

    return Compiled()


@dataclass(frozen=True)
class Layer:
    """A quantised layer: its format, its geometry, and tensor names by what the format calls
    them."""

    name: str
    form: StoredFormat
    geometry: Geometry
    tensors: dict[str, str]


class _WithValue:
    """An entry of a header whose few numbers were read already."""

    def __init__(self, entry, value):
        self.shape, self.dtype, self.value = entry.shape, entry.dtype, value


class Checkpoint(Mapping):
    """layer name -> QuantizedWeight, PackedWeight or BlockWeight.

    layers: name -> Layer. others: names of tensors that belong to no layer, for ``tensor(name)``.
    source: files and configuration.
    """

    def __init__(self, source: Source, form: str | None = None):
        self.source = source
        self.layers: dict[str, Layer] = {}
        by_prefix: dict[str, dict[str, str]] = {}
        for name in source.entries:
            prefix, _, last = name.rpartition(".")
            by_prefix.setdefault(prefix, {})[last] = name
        forms = list(STORED.values()) if form is None else [find_stored(form)]
        preferred = _said_format(source.quantization)
        for prefix, tensors in by_prefix.items():
            found = _layer(source, prefix, tensors, forms, preferred)
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

    def __getitem__(self, name: str):
        layer = self.layers[name]
        arrays = {last: self.source.array(tensor) for last, tensor in layer.tensors.items()}
        try:
            return layer.form.read(arrays, codec_for(layer.geometry.k * layer.geometry.n))
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
        """A tensor of ``others``, mapped."""
        return self.source.array(name)

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {self.source.path}: {len(self.layers)} quantised layers,"
            f" {len(self.others)} other tensors>"
        )


def _said_format(quantization: dict) -> str | None:
    """The format that the configuration names, if it is one of ours."""
    for said in (
        quantization.get("checkpoint_format"),
        quantization.get("format"),
        quantization.get("quant_method"),
    ):
        if isinstance(said, str) and said in STORED:
            return said
    return None


def _layer(
    source: Source,
    prefix: str,
    tensors: dict[str, str],
    forms: list[StoredFormat],
    preferred: str | None,
) -> Layer | None:
    """The layer that these tensors are, None if they are none of ours; CheckpointError if they are
    one, but broken."""
    entries = {last: source.file_of(name).entries[name] for last, name in tensors.items()}
    broken: tuple[StoredFormat, FormatError] | None = None
    found: list[Layer] = []
    for form in forms:
        if not set(form.keys) <= set(entries):
            continue
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
    """A .safetensors file, or a directory of them -> lazy mapping, layer name -> weight. format:
    read its layers as this format only.

    Pass a weight to ``nm.dequantize``, or to ``nm.matmul`` if it is a PackedWeight (``nm.pack``
    makes one of a QuantizedWeight). CheckpointError for files that are not what they say.
    """
    return Checkpoint(Source(path), format)
