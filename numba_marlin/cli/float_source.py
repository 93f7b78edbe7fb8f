"""What ``numba-marlin quantize`` and ``methods`` read: float matrices, and the tensors beside them.
All are read when they are looked up, so that memory holds one at a time."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from numba_marlin.checkpoints.source import Source
from numba_marlin.cli.orientation import NK, orientations
from numba_marlin.cli.weights import load

# The last part of the name of a table that tokens or positions are looked up in: embed_tokens,
# word_embeddings, wte; not embed_out, which is GPT-NeoX's output layer.
_TABLES = r"\w*embed(ding)?s?(_tokens|_positions|_in)?|wte|wpe|shared|relative_attention_bias"
_EMBEDDING = re.compile(rf"(^|\.)({_TABLES})(\.weight)?$")


class Tensors(Mapping):
    """{name: array}. ``read(name)`` makes it when it is looked up: nothing is kept."""

    def __init__(self, names, read):
        self.names, self.read = dict.fromkeys(names), read

    def __iter__(self):
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str):
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)


@dataclass(frozen=True)
class Floats:
    """What is quantised, and what is copied.

    layers: name -> float matrix [k, n]. shapes: name -> (k, n). others: name -> tensor that is
    copied. config: contents of config.json. directory: where the small files lie that go along.
    """

    layers: Mapping
    shapes: dict[str, tuple[int, int]]
    others: Mapping = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    directory: Path | None = None


def float_source(args, report) -> Floats:
    if Path(args.source).suffix == ".npy":
        if args.tensor:
            raise ValueError(f"--tensor is for .safetensors files; {args.source} holds one array")
        values = load(args.source, transpose=bool(args.transpose), option="SRC").values
        return Floats({"weight": values}, {"weight": values.shape})

    source = Source(args.source)
    matrices = [
        name
        for name, entry in source.entries.items()
        if len(entry.shape) == 2
        and entry.dtype.name in ("float16", "bfloat16", "float32", "float64")
    ]
    if args.tensor is None:
        if len(matrices) != 1:
            raise ValueError(
                f"{args.source} contains {len(matrices)} matrices of floats; choose with --tensor"
                f" PATTERN from {', '.join(matrices[:20]) or 'none'}"
            )
        chosen = matrices
    else:
        chosen = [
            name
            for name in matrices
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.tensor)
        ]
        for pattern in args.tensor:
            if not fnmatch.filter(matrices, pattern):
                raise ValueError(
                    f"--tensor {pattern}: no matrix of floats in {args.source} matches; it contains"
                    f" {', '.join(matrices[:20]) or 'none'}"
                )
        chosen = _without_embeddings(args, report, chosen)
    tensors = {name.removesuffix(".weight"): name for name in chosen}
    if len(tensors) < len(chosen):
        raise ValueError(
            f"{args.source}: two of the chosen tensors would become one layer:"
            f" {', '.join(sorted(chosen))}"
        )
    floats8 = [
        name
        for name, entry in source.entries.items()
        if name not in chosen and entry.code.startswith("F8")
    ]
    if floats8:
        raise ValueError(
            f"{args.source}: tensor {floats8[0]!r} has 8-bit floats: this checkpoint is already"
            " quantised (`numba-marlin convert` reads such checkpoints)"
        )
    entries = source.entries
    lie = orientations(chosen, entries, source.config, args.transpose)
    found = {layer: lie[name] for layer, name in tensors.items()}
    _say(report, found)

    def matrix(layer: str):
        array = source.array(tensors[layer])
        return array.T if found[layer].stored == NK else array

    return Floats(
        Tensors(tensors, matrix),
        {
            layer: entries[name].shape[:: -1 if found[layer].stored == NK else 1]
            for layer, name in tensors.items()
        },
        Tensors([name for name in entries if name not in chosen], source.array),
        source.config,
        source.directory if source.path.is_dir() else None,
    )


def _without_embeddings(args, report, chosen: list[str]) -> list[str]:
    """Leave out what is an embedding by its name, unless that is what --tensor says in full.

    Loaders look embeddings up in float, and make linear modules only quantised ones: they would
    find no weight, and go on with random numbers."""
    tables = [name for name in chosen if _EMBEDDING.search(name) and name not in args.tensor]
    if not tables:
        return chosen
    report.data["embeddings"] = tables
    listed = ", ".join(tables)
    if len(tables) == len(chosen):
        raise ValueError(
            f"--tensor {' '.join(args.tensor)} matches embeddings only, which loaders read in"
            f" float: {listed}; say a name in full to quantise it"
        )
    report.row(
        "float",
        f"left as they are, being embeddings by their names, which loaders read in float: {listed};"
        " say a name in full to quantise it",
    )
    return [name for name in chosen if name not in tables]


def _say(report, found: dict) -> None:
    """Which way the matrices lie: one row for all of which the same thing says it."""
    for each, number in Counter(found.values()).items():
        what = "1 matrix" if number == 1 else f"{number} matrices"
        report.row("stored", f"{what} as {each.stored}: {each.because}")
    report.data["stored"] = {
        layer: {"as": each.stored, "because": each.because} for layer, each in found.items()
    }
