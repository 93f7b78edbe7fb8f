"""Valid names of a checkpoint's tensors and files, and the distribution of tensors to files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from numba_marlin.checkpoints.safetensors_file import METADATA


def check_names(**mappings: Mapping) -> None:
    """TypeError or ValueError unless every name of the mappings is a valid tensor name."""
    for what, mapping in mappings.items():
        if not isinstance(mapping, Mapping):
            held = "weight" if what == "weights" else "array"
            raise TypeError(
                f"{what} is a {type(mapping).__name__}, must be a mapping: name -> {held}"
            )
        for name in mapping:
            if not isinstance(name, str):
                raise TypeError(f"{what}: name {name!r} is a {type(name).__name__}, must be a str")
            if name == METADATA:
                reason = "a file has its metadata there"
            elif not _is_utf8(name):
                reason = "it cannot be written in UTF-8"
            else:
                continue
            raise ValueError(f"{what}: {name!r} cannot be the name of a tensor: {reason}")


def _is_utf8(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def shard_names(number: int) -> list[str]:
    """Hugging Face's file names for this number of shards."""
    return (
        ["model.safetensors"]
        if number == 1
        else [f"model-{each:05d}-of-{number:05d}.safetensors" for each in range(1, number + 1)]
    )


def into_shards(sizes: dict, shard_bytes: int) -> list[list]:
    """Cut the items into runs of at most ``shard_bytes``, with at least one item in each."""
    shards: list[list] = [[]]
    filled = 0
    for item, nbytes in sizes.items():
        if shards[-1] and filled + nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(item)
        filled += nbytes
    return shards


def write_json(path: Path, value: dict) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
