"""``Job``: a checkpoint being written, shard by shard, under another name until it is complete."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import numba_marlin
from numba_marlin.checkpoints import skipped
from numba_marlin.checkpoints.checkpoint import codec_for
from numba_marlin.checkpoints.companions import PLAN, copy_small_files
from numba_marlin.checkpoints.configuration import FACTS, quantization_of, without_quantization
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.owner import PARTIAL, owned, remove_left, to_disk
from numba_marlin.checkpoints.safetensors_file import DTYPES, SafetensorsFile
from numba_marlin.checkpoints.safetensors_writer import ShardWriter, room_of
from numba_marlin.checkpoints.shards import into_shards, shard_names, write_json
from numba_marlin.checkpoints.source import check_neighbours
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, QuantizedWeight
from numba_marlin.formats.changes import LossError
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.formats.stored import StoredFormat

Progress = Callable[[int, int, str], None]


class Job:
    """One checkpoint being written. ``sizes``: ("layer" | "tensor", name) -> its share of the
    progress, in the order of writing.

    excepted: modules that the source's configuration leaves in float (``skipped.said``).
    plan: what an interrupted run must have in common with this one. With a plan, sizes are bytes
    and determine in advance which item goes to which shard; without one, shards are filled in turn.
    """

    def __init__(
        self,
        target: Path,
        form: StoredFormat,
        allow_loss: bool,
        layers: Mapping,
        config: dict,
        excepted: list[str],
        progress: Progress | None,
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
        self.excepted, self.sizes, self.copy, self.plan = excepted, sizes, copy, plan
        self.single = target.suffix == ".safetensors"
        self.partial = target.with_name(target.name + PARTIAL)
        # a converted layer that did not fit in the previous shard
        self.held: tuple[str, dict, dict] | None = None
        self.done, self.total, self.progress = 0, sum(sizes.values()), progress
        self._check_free()
        if not target.parent.is_dir():
            raise CheckpointError(f"{target}: there is no directory {target.parent}")
        if self.single:
            check_neighbours(target, form.name)

    def _check_free(self) -> None:
        if os.path.lexists(self.target):
            raise CheckpointError(
                f"{self.target} exists: a checkpoint is never overwritten; remove it or choose"
                " another name"
            )

    def run(self, shard_bytes: int, companions: Path | None = None) -> Path:
        """Write everything. An error leaves nothing behind; an interruption leaves the finished
        shards for the next run."""
        if self.single:
            self._shard(self.target, list(self.sizes), check=self._check_free)
        else:
            with owned(self.partial):
                self._check_ours()
                try:
                    self._check_free()
                    self._directory(shard_bytes, companions)
                except (KeyboardInterrupt, OSError):  # a full disk is an interruption too
                    raise
                except BaseException:
                    shutil.rmtree(self.partial)
                    raise
        return self.target

    def _check_ours(self) -> None:
        """CheckpointError unless the directory is empty or an interrupted run's."""
        left = list(self.partial.iterdir())
        for each in left:
            files = all(stat.S_ISREG(file.lstat().st_mode) for file in _files_of(each))
            if not files or not (self.partial / PLAN).exists():
                raise CheckpointError(
                    f"{self.partial} exists and is no unfinished conversion ({each.name}): remove"
                    " it"
                )

    def _directory(self, shard_bytes: int, companions: Path | None) -> None:
        self._keep_finished(shard_bytes)
        names = self._filled(shard_bytes) if self.plan is None else self._planned(shard_bytes)
        files = {name: SafetensorsFile(self.partial / name) for name in names}
        if len(names) > 1:
            weight_map = {tensor: name for name, file in files.items() for tensor in file.entries}
            total = sum(entry.nbytes for file in files.values() for entry in file.entries.values())
            write_json(
                self.partial / "model.safetensors.index.json",
                {"metadata": {"total_size": total}, "weight_map": weight_map},
            )
        config = without_quantization(self.config)
        quantization = self._quantization(
            [json.loads(file.metadata[FACTS]) for file in files.values()]
        )
        write_json(
            self.partial / "config.json",
            config | ({"quantization_config": quantization} if quantization else {}),
        )
        if companions is not None:
            copy_small_files(companions, self.partial)
        to_disk(self.partial)
        self._check_free()
        os.replace(self.partial, self.target)
        to_disk(self.target.parent)
        # The last thing: without a plan an unfinished conversion is not recognised.
        (self.target / PLAN).unlink()

    def _keep_finished(self, shard_bytes: int) -> None:
        """Remove what an interrupted run left, but for the shards of this plan, and write the
        plan."""
        plan, kept = self.partial / PLAN, set()
        if self.plan is not None and plan.exists():
            if plan.read_bytes() == self.plan.encode():
                kept = {PLAN, *shard_names(len(into_shards(self.sizes, shard_bytes)))}
        for each in self.partial.iterdir():
            if each.name not in kept:
                for left in _files_of(each):
                    remove_left(left)
                if each.is_dir():
                    each.rmdir()
        if not plan.exists():
            with plan.open("x", encoding="utf-8") as file:
                file.write(self.plan or "")
                file.flush()
                os.fsync(file.fileno())

    def _planned(self, shard_bytes: int) -> list[str]:
        """Write the missing shards and return the names of all."""
        shards = into_shards(self.sizes, shard_bytes)
        names = shard_names(len(shards))
        for name, items in zip(names, shards):
            if (self.partial / name).exists():
                self._advance(sum(self.sizes[item] for item in items), name)
            else:
                self._shard(self.partial / name, items)
        return names

    def _filled(self, shard_bytes: int) -> list[str]:
        """Fill shard after shard, and rename them once their number is known."""
        items = list(self.sizes)
        parts: list[Path] = []
        while items or self.held or not parts:
            parts.append(self.partial / f"part-{len(parts):05d}.safetensors")
            items = items[self._shard(parts[-1], items, shard_bytes) :]
        names = shard_names(len(parts))
        for part, name in zip(parts, names):
            os.replace(part, self.partial / name)
        return names

    def _shard(self, path: Path, items: list, limit: int | None = None, check=None) -> int:
        """Write one complete file and return the number of items taken: all, or those that fit in
        ``limit`` bytes and one that is held back for the next shard. check: called before the file
        gets its name."""
        layers = [name for kind, name in items if kind == "layer"] + (
            [] if self.held is None else [self.held[0]]
        )
        names = [
            f"{name}.{last}" for name in layers for last in (*self.form.keys, *self.form.optional)
        ]
        names += [name for kind, name in items if kind == "tensor"]
        writer = ShardWriter(path, names, sum(map(room_of, self.excepted)))
        facts: dict = {"layers": [], "floats": []}
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
            facts["floats"] = sorted(
                name.removesuffix(".weight")
                for name, (code, shape) in writer.written.items()
                if skipped.is_left_in_float(name, shape, DTYPES[code][1])
            )
            metadata = {
                "format": "pt",
                "producer": f"numba_marlin {numba_marlin.__version__}",
                FACTS: json.dumps(facts),
            }
            if facts["layers"]:
                metadata["quantization_config"] = json.dumps(self._quantization([facts]))
            writer.finish(metadata, check)
            to_disk(path.parent)
            return taken
        except BaseException:
            writer.abandon()
            raise

    def _quantization(self, facts: list[dict]) -> dict:
        return quantization_of(facts, self.form.name, self.excepted)

    def _converted(self, name: str) -> tuple[str, dict, dict]:
        """Convert a layer: (its name, its tensors, its facts for the configuration)."""
        return name, *layer_tensors(self.form, name, self.layers[name], self.allow_loss)

    def _add(self, writer: ShardWriter, name: str, tensors: dict, facts: dict) -> dict:
        """Write a converted layer and return its facts."""
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


def layer_tensors(
    form: StoredFormat, name: str, weight, allow_loss: bool = False
) -> tuple[dict, dict]:
    """(the tensors of a layer in a format, by their names without the layer's; what
    ``configuration.quantization_of`` wants to know of it). Errors name the layer."""
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
    if isinstance(weight, (PackedWeight, PackedBlocks)):
        weight = weight.to("cpu")
    try:
        tensors = form.write(weight, codec_for(weight.k * weight.n), allow_loss)
    except LossError as error:
        raise error.about(f"layer {name!r}") from error
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error
    geometry = form.check(tensors)
    return tensors, {
        "name": name,
        "bits": geometry.bits,
        "group": geometry.group,
        "columns": geometry.columns,
        "symmetric": getattr(weight, "zeros", None) is None,
        "permuted": getattr(weight, "permutation", None) is not None,
    }


def _files_of(path: Path) -> list[Path]:
    """What a companion's folder holds; of anything else, itself."""
    return list(path.iterdir()) if stat.S_ISDIR(path.lstat().st_mode) else [path]
