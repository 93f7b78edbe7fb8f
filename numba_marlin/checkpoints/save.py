"""``save_checkpoint`` and ``convert``: weights of any format to a checkpoint of one, tensor by
tensor.

What is written stands beside the target under another name (``TARGET.partial``) until it is
complete; then it is renamed, all at once. So a target that exists is finished. ``convert`` of an
interrupted conversion goes on where the last finished shard ended, if source, format and options
are the same; an error (a broken source, a loss that was not allowed) leaves nothing. Memory: one
layer at a time, in its packed form, as codes, and packed anew.

A target that ends in .safetensors is one file (not resumed), with the configuration in its
metadata; any other is a directory: shards of at most ``shard_bytes`` (more if a single layer is
larger), an index if there are several, ``config.json`` with ``quantization_config``, and the
source's small files (tokenizers and the like).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numba_marlin
from numba_marlin.checkpoints.checkpoint import codec_for, load_checkpoint
from numba_marlin.checkpoints.configuration import FACTS, quantization_of
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.safetensors_file import SafetensorsFile
from numba_marlin.checkpoints.safetensors_writer import WRITING, ShardWriter, alone
from numba_marlin.checkpoints.shards import check_names, into_shards, shard_names, write_json
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, QuantizedWeight
from numba_marlin.formats.changes import LossError
from numba_marlin.formats.files import find_stored
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.formats.stored import StoredFormat

PARTIAL = ".partial"
PLAN = "numba_marlin_conversion.json"
SHARD_BYTES = 5_000_000_000
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".md", ".tiktoken")
_COMPANION_LIMIT = 100_000_000
Progress = Callable[[int, int, str], None]


def save_checkpoint(
    path: Path | str,
    weights: Mapping,
    format: str = "marlin",
    *,
    others: Mapping | None = None,
    config: dict | None = None,
    allow_loss: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Path:
    """Write ``weights``, layer name -> weight of any kind, as a checkpoint of one format; -> its
    path.

    Weights are asked for one by one, each once, and not kept: the mapping may make or read them
    then (``Checkpoint`` does). others: more tensors, name -> array. config: what goes to
    config.json beside quantization_config. progress(done, total, name) counts layers and tensors. A
    weight that the format cannot hold without loss is a LossError (``allow_loss=True`` goes on),
    any other mistake a ValueError; nothing is left then.
    """
    others = {} if others is None else others
    check_names(weights=weights, others=others)
    if not shard_bytes >= 1:
        raise ValueError(f"shard_bytes={shard_bytes!r} must be at least 1")
    items = {("layer", name): 1 for name in weights} | {("tensor", name): 1 for name in others}

    def add(writer: ShardWriter, name: str, report) -> None:
        writer.add(name, others[name])
        report(1)

    return _Job(
        Path(path),
        find_stored(format),
        allow_loss,
        weights,
        config or {},
        progress,
        items,
        add,
        None,
    ).run(shard_bytes)


def convert(
    source: Path | str,
    target: Path | str,
    format: str,
    *,
    source_format: str | None = None,
    allow_loss: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Path:
    """The checkpoint at ``source`` in another format at ``target``; -> its path. See the module's
    docstring; errors as in ``save_checkpoint``."""
    checkpoint, target = load_checkpoint(source, source_format), Path(target)
    if not checkpoint.layers:
        raise CheckpointError(
            f"{source}: holds no quantised layer of a known format (`numba-marlin inspect` says"
            " what it holds)"
        )
    entries = checkpoint.source.entries
    sizes = {
        ("layer", name): sum(entries[each].nbytes for each in layer.tensors.values())
        for name, layer in checkpoint.layers.items()
    }
    sizes |= {("tensor", name): entries[name].nbytes for name in checkpoint.others}
    stamps = [
        (str(file.path.resolve()), file.size, file.path.stat().st_mtime_ns)
        for file in checkpoint.source.files.values()
    ]
    plan = hashlib.sha256(
        json.dumps(
            [numba_marlin.__version__, stamps, format, source_format, allow_loss, shard_bytes]
        ).encode()
    ).hexdigest()

    def copy(writer: ShardWriter, name: str, report) -> None:
        writer.copy(name, checkpoint.source.file_of(name).path, entries[name], report)

    job = _Job(
        target,
        find_stored(format),
        allow_loss,
        checkpoint,
        checkpoint.source.config,
        progress,
        sizes,
        copy,
        plan,
    )
    return job.run(
        shard_bytes, checkpoint.source.directory if checkpoint.source.path.is_dir() else None
    )


class _Job:
    """One checkpoint being written. ``sizes``: ("layer" | "tensor", name) -> its part of the
    progress, in the order to be written.

    plan: what an interrupted run must have in common with this one; then sizes are bytes and say
    beforehand which item goes to which shard. None: shards are filled until they are full.
    """

    def __init__(
        self,
        target: Path,
        form: StoredFormat,
        allow_loss: bool,
        layers: Mapping,
        config: dict,
        progress,
        sizes: dict,
        copy,
        plan: str | None,
    ):
        self.target, self.form, self.allow_loss, self.layers, self.config = (
            target,
            form,
            allow_loss,
            layers,
            config,
        )
        self.sizes, self.copy, self.plan = sizes, copy, plan
        self.partial = target.with_name(target.name + PARTIAL)
        # a converted layer that the shard before had no room for
        self.held: tuple[str, dict, dict] | None = None
        self.done, self.total, self.progress = 0, sum(sizes.values()), progress
        self._check_free()
        if not target.parent.is_dir():
            raise CheckpointError(f"{target}: there is no directory {target.parent}")

    def _check_free(self) -> None:
        if self.target.exists():
            raise CheckpointError(
                f"{self.target} exists: a checkpoint is never written over; remove it or choose"
                " another name"
            )

    def run(self, shard_bytes: int, companions: Path | None = None) -> Path:
        """Write everything; after an error nothing of it is left, after an interruption what a next
        run can use."""
        single = self.target.suffix == ".safetensors"
        if self.partial.exists() and (single or not (self.partial / PLAN).is_file()):
            if self.partial.is_dir() or not single:
                raise CheckpointError(
                    f"{self.partial} exists and is no unfinished conversion: remove it"
                )
            self.partial.unlink()
        try:
            self._file() if single else self._directory(shard_bytes, companions)
        except (KeyboardInterrupt, OSError):  # a full disk is an interruption too
            raise
        except BaseException:
            (
                shutil.rmtree(self.partial)
                if self.partial.is_dir()
                else self.partial.unlink(missing_ok=True)
            )
            raise
        return self.target

    def _file(self) -> None:
        self._shard(self.partial, list(self.sizes))
        self._check_free()
        os.replace(self.partial, self.target)

    def _directory(self, shard_bytes: int, companions: Path | None) -> None:
        plan = self.partial / PLAN
        if self.partial.exists() and (
            self.plan is None or plan.read_text(encoding="utf-8") != self.plan
        ):
            shutil.rmtree(self.partial)
        self.partial.mkdir(exist_ok=True)
        plan.write_text(self.plan or "", encoding="utf-8")
        for left in self.partial.glob("*" + WRITING):
            alone(left).close()
            left.unlink()
        names = self._filled(shard_bytes) if self.plan is None else self._planned(shard_bytes)
        files = {name: SafetensorsFile(self.partial / name) for name in names}
        if len(names) > 1:
            weight_map = {tensor: name for name, file in files.items() for tensor in file.entries}
            total = sum(entry.nbytes for file in files.values() for entry in file.entries.values())
            write_json(
                self.partial / "model.safetensors.index.json",
                {"metadata": {"total_size": total}, "weight_map": weight_map},
            )
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        quantization = quantization_of(
            [json.loads(file.metadata[FACTS]) for file in files.values()], self.form.name
        )
        write_json(
            self.partial / "config.json",
            config | ({"quantization_config": quantization} if quantization else {}),
        )
        for each in sorted(companions.iterdir()) if companions is not None else []:
            fits = (
                each.is_file()
                and each.suffix in _COMPANIONS
                and each.stat().st_size <= _COMPANION_LIMIT
            )
            if (
                fits
                and not each.name.endswith(".index.json")
                and each.name
                not in (
                    "config.json",
                    "quantize_config.json",
                    "hf_quant_config.json",
                    PLAN,
                )
            ):
                shutil.copyfile(each, self.partial / each.name)
        self._check_free()
        plan.unlink()
        os.replace(self.partial, self.target)

    def _planned(self, shard_bytes: int) -> list[str]:
        """Write the shards that are not there yet -> the names of all."""
        shards = into_shards(self.sizes, shard_bytes)
        names = shard_names(len(shards))
        for name, items in zip(names, shards):
            if (self.partial / name).exists():
                self._advance(sum(self.sizes[item] for item in items), name)
            else:
                self._shard(self.partial / name, items)
        return names

    def _filled(self, shard_bytes: int) -> list[str]:
        """Write shard after shard, each until it is full, and name them when it is known how many
        there are."""
        items = list(self.sizes)
        parts: list[Path] = []
        while items or self.held or not parts:
            parts.append(self.partial / f"part-{len(parts):05d}.safetensors")
            items = items[self._shard(parts[-1], items, shard_bytes) :]
        names = shard_names(len(parts))
        for part, name in zip(parts, names):
            os.replace(part, self.partial / name)
        return names

    def _shard(self, path: Path, items: list, limit: int | None = None) -> int:
        """One file, complete, under its name -> how many of the items were taken: all, or those
        that fit in ``limit`` bytes and one that is held back."""
        layers = [name for kind, name in items if kind == "layer"] + (
            [] if self.held is None else [self.held[0]]
        )
        names = [
            f"{name}.{last}" for name in layers for last in (*self.form.keys, *self.form.optional)
        ]
        writer = ShardWriter(path, names + [name for kind, name in items if kind == "tensor"])
        facts: dict = {"layers": [], "others": []}
        taken = 0
        try:
            if self.held is not None:
                facts["layers"].append(self._add(writer, *self.held))
                self.held = None
            for kind, name in items:
                if limit is not None and writer.position >= limit:
                    break
                taken += 1
                if kind == "tensor":
                    self.copy(writer, name, lambda nbytes, name=name: self._advance(nbytes, name))
                    facts["others"].append(name)
                    continue
                layer = self._converted(name)
                if (
                    limit is not None
                    and writer.position
                    and writer.position + sum(each.nbytes for each in layer[1].values()) > limit
                ):
                    self.held = layer
                    break
                facts["layers"].append(self._add(writer, *layer))
            facts["others"].sort()
            metadata = {
                "format": "pt",
                "producer": f"numba_marlin {numba_marlin.__version__}",
                FACTS: json.dumps(facts),
            }
            if facts["layers"]:
                metadata["quantization_config"] = json.dumps(
                    quantization_of([facts], self.form.name)
                )
            writer.finish(metadata)
            return taken
        except BaseException:
            writer.abandon()
            raise

    def _converted(self, name: str) -> tuple[str, dict, dict]:
        """A layer: its name, its tensors, and what the configuration will say about it."""
        weight = self.layers[name]
        if not isinstance(weight, (QuantizedWeight, PackedWeight, BlockWeight, PackedBlocks)):
            hint = (
                ": numba_marlin.formats.operands.to_weight converts it"
                if isinstance(weight, BlockScaled)
                else ""
            )
            raise TypeError(
                f"layer {name!r} is a {type(weight).__name__}, must be a QuantizedWeight, a"
                f" BlockWeight, or one of them packed{hint}"
            )
        try:
            tensors = self.form.write(weight, codec_for(weight.k * weight.n), self.allow_loss)
        except LossError as error:
            raise error.about(f"layer {name!r}") from error
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from error
        geometry = self.form.check(tensors)
        facts = {
            "bits": geometry.bits,
            "group": geometry.group,
            "columns": geometry.columns,
            "symmetric": getattr(weight, "zeros", None) is None,
            "permuted": getattr(weight, "permutation", None) is not None,
        }
        return name, tensors, facts

    def _add(self, writer: ShardWriter, name: str, tensors: dict, facts: dict) -> dict:
        """Write a converted layer -> its facts."""
        for last, array in tensors.items():
            writer.add(
                f"{name}.{last}" if name else last,
                array,
                self.form.codes_of.get(last) if array.dtype == "uint8" else None,
            )
        self._advance(self.sizes["layer", name], name)
        return facts

    def _advance(self, nbytes: int, what: str) -> None:
        self.done = min(self.total, self.done + nbytes)
        if self.progress is not None:
            self.progress(self.done, self.total, what)
