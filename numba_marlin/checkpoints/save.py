"""``save_checkpoint`` and ``convert``: write weights of any format as a checkpoint of one format,
tensor by tensor.

Output is written beside the target as ``TARGET.partial`` and renamed when it is complete, so a
target that exists is complete. Repeating an interrupted ``convert`` continues after the last
finished shard, if the source's files and configuration, format and options are the same, and starts
anew otherwise. A target has one writer at a time (BlockingIOError), from beginning to end. An error
(a broken source, a loss that is not allowed) leaves nothing behind. Memory: one layer at a time, in
its packed form, as codes, and packed again.

A target that ends in .safetensors is one file (not resumed), with the configuration in its
metadata; any other is a directory: shards of at most ``shard_bytes`` (more if a single layer is
larger), an index if there are several, ``config.json`` with ``quantization_config``, and the
source's small files (``companions``: tokenizers and the like, not links). When a function returns,
all of it is on the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numba_marlin
from numba_marlin.checkpoints import skipped
from numba_marlin.checkpoints.checkpoint import load_checkpoint
from numba_marlin.checkpoints.companions import small_files
from numba_marlin.checkpoints.configuration import stated_quantization
from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.job import Job, Progress
from numba_marlin.checkpoints.safetensors_file import stamp_of
from numba_marlin.checkpoints.safetensors_writer import ShardWriter
from numba_marlin.checkpoints.shards import check_names
from numba_marlin.formats.files import find_stored

SHARD_BYTES = 5_000_000_000


def save_checkpoint(
    path: Path | str,
    weights: Mapping,
    format: str = "marlin",
    *,
    others: Mapping | None = None,
    config: dict | None = None,
    companions: Path | str | None = None,
    allow_loss: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Path:
    """Write a checkpoint of one format and return its path.

    path: a name that ends in .safetensors for one file, else a directory of shards; it must not
        exist.
    weights: mapping, layer name -> QuantizedWeight, BlockWeight, or one of them packed. Each is
        looked up once and not kept, so the mapping may read or compute them lazily (``Checkpoint``
        does).
    format: a name of ``formats.files.STORED``.
    others: further tensors, name -> NumPy array.
    config: contents of config.json. Of its quantization_config the modules that it leaves in float
        are kept; the rest is written anew.
    companions: a directory whose small files (tokenizers and the like) go into the new directory.
    allow_loss: go ahead where the format cannot hold a weight exactly.
    shard_bytes: largest size of a shard, unless a single layer is larger.
    progress: called as progress(done, total, name), counting layers and tensors.

    Raises LossError for a weight that the format cannot hold exactly, CheckpointError if the target
    exists, TypeError or ValueError for other mistakes. After an error nothing is left behind.
    """
    others, config = {} if others is None else others, config or {}
    check_names(weights=weights, others=others)
    if not shard_bytes >= 1:
        raise ValueError(f"shard_bytes={shard_bytes!r} must be at least 1")
    items = {("layer", name): 1 for name in weights} | {("tensor", name): 1 for name in others}

    def add(writer: ShardWriter, name: str, report) -> None:
        writer.add(name, others[name])
        report(1)

    return Job(
        Path(path),
        find_stored(format),
        allow_loss,
        weights,
        config,
        skipped.said(stated_quantization(config)),
        progress,
        items,
        add,
        None,
    ).run(shard_bytes, None if companions is None else Path(companions))


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
    """Convert the checkpoint at ``source`` to ``format`` and write it to ``target``; returns the
    path. source_format: the only format in which to look for layers; default: all. progress counts
    bytes. Otherwise as in ``save_checkpoint``; the module's docstring explains how to resume."""
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
    beside = checkpoint.source.directory
    small = small_files(beside) if checkpoint.source.path.is_dir() else []
    same = [
        numba_marlin.__version__,
        [file.stamp for file in checkpoint.source.files.values()],
        [checkpoint.source.config, checkpoint.source.beside],
        [(str(each.relative_to(beside)), *stamp_of(each.lstat())) for each in small],
        [format, source_format, allow_loss, shard_bytes],
    ]
    plan = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()

    def copy(writer: ShardWriter, name: str, report) -> None:
        writer.copy(checkpoint.source.file_of(name), name, report)

    job = Job(
        target,
        find_stored(format),
        allow_loss,
        checkpoint,
        checkpoint.source.config,
        checkpoint.source.excepted,
        progress,
        sizes,
        copy,
        plan,
    )
    return job.run(
        shard_bytes, checkpoint.source.directory if checkpoint.source.path.is_dir() else None
    )
