"""The small files of a checkpoint's directory: opened without following links, copied beside what
is converted.

A link in a directory that somebody else made can lead to anything that its reader may read, and a
conversion would put that into a directory made to be shared. Links are followed only inside Hugging
Face's download cache, where ``snapshots/REVISION/NAME`` leads to ``../../blobs/HASH``.

A model of sentence-transformers is more than its first module: ``modules.json`` names folders such
as ``1_Pooling``, without whose files the library does not load it. They go along whole.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.checkpoints.owner import to_disk

PLAN = "numba_marlin_conversion.json"
_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".md", ".tiktoken")
_LIMIT = 100_000_000
# What says how the source was quantised is no longer true.
_NOT_COPIED = (
    "config.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    PLAN,
)


def small_files(directory: Path) -> list[Path]:
    """What of a directory goes along with its weights, by its names alone."""
    beside = [
        each
        for each in directory.iterdir()
        if each.suffix in _SUFFIXES
        and not each.name.endswith(".index.json")
        and each.name not in _NOT_COPIED
    ]
    of_modules = [
        each
        for folder in _module_folders(directory)
        for each in folder.iterdir()
        if each.suffix in (*_SUFFIXES, ".safetensors")
    ]
    return sorted(beside + of_modules)


def links_out(directory: Path) -> list[str]:
    """Names of small files that are not copied because they are links out of the directory."""
    return [
        each.relative_to(directory).as_posix()
        for each in small_files(directory)
        if _is_link_out(each)
    ]


def copy_small_files(directory: Path, target: Path) -> None:
    """Copy the small files that are regular files, each until it is on the disk."""
    for each in small_files(directory):
        if _is_link_out(each) or not each.is_file():
            continue
        with open_regular(each) as source:
            if os.fstat(source.fileno()).st_size > _LIMIT:
                continue
            copy = target / each.relative_to(directory)
            copy.parent.mkdir(exist_ok=True)
            with copy.open("xb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
    for folder in _module_folders(directory):
        if (target / folder.name).is_dir():
            to_disk(target / folder.name)


def _module_folders(directory: Path) -> list[Path]:
    """The folders that modules.json names and that lie in the directory itself."""
    try:
        with open_regular(directory / "modules.json") as file:
            stated = json.loads(file.read(_LIMIT))
    except (CheckpointError, ValueError, RecursionError):
        return []
    modules = stated if isinstance(stated, list) else []
    paths = [each.get("path") for each in modules if isinstance(each, dict)]
    return [
        each
        for each in sorted(directory.iterdir())
        if each.name in paths and each.is_dir() and not each.is_symlink()
    ]


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading. CheckpointError for a link out of the directory, and for
    what is no regular file."""
    if _is_link_out(path):
        raise CheckpointError(
            f"{path}: a link out of the directory, which is not followed: put a copy there"
        )
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(os.path.realpath(path), os.O_RDONLY | flags)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: must be a regular file")
    return os.fdopen(descriptor, "rb")


def _is_link_out(path: Path) -> bool:
    if not path.is_symlink():
        return False
    folder = Path(os.path.realpath(path.parent))
    snapshot = folder if folder.parent.name == "snapshots" else folder.parent  # of a module
    cache = snapshot.parent.parent / "blobs"
    return snapshot.parent.name != "snapshots" or Path(os.path.realpath(path)).parent != cache
