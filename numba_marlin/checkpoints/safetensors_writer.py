"""``ShardWriter``: a .safetensors file written front to back, tensor by tensor, without knowing beforehand what will be in it.

Room for the header is kept at the front and filled with it at the end (padded with spaces, as the format allows). Until then the first eight bytes are
zero, so no reader takes the file for a finished one, and it has another name: ``finish`` brings it to disk and renames it. Tensors whose size is no
multiple of 8 bytes wait until the end, largest elements first, so that every tensor is aligned to its type.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from numba_marlin.checkpoints.safetensors_file import DTYPES, HEADER_LIMIT, METADATA, NAMES, Entry

WRITING = ".writing"
_CHUNK = 16 << 20
_LONGEST_ENTRY = 200  # bytes of a header entry besides the name


class ShardWriter:
    """target: the file's name in the end. names: those of all tensors that may be written; room for their header is kept."""

    def __init__(self, target: Path, names: list[str]):
        self.target, self.partial = target, target.with_name(target.name + WRITING)
        room = 1024 + sum(len(json.dumps(name)) + _LONGEST_ENTRY for name in names)
        self.begin = -(-room // 4096) * 4096
        if self.begin - 8 > HEADER_LIMIT:
            raise ValueError(f"{target}: {len(names)} tensors need a header of {self.begin} bytes, must be at most {HEADER_LIMIT}")
        self.header: dict[str, dict] = {}
        self.late: list[tuple[str, str, tuple[int, ...], bytes]] = []
        self.file = self.partial.open("wb")
        self.file.seek(self.begin)
        self.position = 0

    def add(self, name: str, array: np.ndarray, code: str | None = None) -> None:
        """Write a tensor; code: its type in the header, if the array's own type does not say it."""
        code = NAMES[array.dtype.name] if code is None else code
        if array.nbytes % 8 or not array.shape:
            self.late.append((name, code, array.shape, bytes(_bytes(array))))
            return
        self._describe(name, code, array.shape, array.nbytes)
        self.file.write(_bytes(array))

    def copy(self, name: str, source: Path, entry: Entry, progress=None) -> None:
        """Write a tensor as it stands in another file, a few megabytes at a time."""
        if entry.nbytes % 8:
            with source.open("rb") as file:
                file.seek(entry.begin)
                self.late.append((name, entry.code, entry.shape, file.read(entry.nbytes)))
            if progress is not None:
                progress(entry.nbytes)
            return
        self._describe(name, entry.code, entry.shape, entry.nbytes)
        with source.open("rb") as file:
            file.seek(entry.begin)
            left = entry.nbytes
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise OSError(f"{source}: became shorter while it was copied")
                self.file.write(chunk)
                left -= len(chunk)
                if progress is not None:
                    progress(len(chunk))

    def _describe(self, name: str, code: str, shape: tuple[int, ...], nbytes: int) -> None:
        if name in self.header:
            raise ValueError(f"{self.target}: tensor {name!r} must be written once")
        self.header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [self.position, self.position + nbytes]}
        self.position += nbytes

    def finish(self, metadata: dict[str, str]) -> dict[str, int]:
        """Write the header, bring the file to disk and give it its name -> tensor: bytes, for an index."""
        for name, code, shape, data in sorted(self.late, key=lambda each: -DTYPES[each[1]][0]):
            self._describe(name, code, shape, len(data))
            self.file.write(data)
        text = json.dumps({METADATA: metadata, **self.header}, separators=(",", ":")).encode()
        if len(text) > self.begin - 8:
            raise ValueError(f"{self.target}: the header of {len(text)} bytes must fit in {self.begin - 8}")
        self.file.seek(8)
        self.file.write(text.ljust(self.begin - 8))
        self.file.seek(0)
        self.file.write((self.begin - 8).to_bytes(8, "little"))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.partial, self.target)
        return {name: each["data_offsets"][1] - each["data_offsets"][0] for name, each in self.header.items()}

    def abandon(self) -> None:
        """Close and remove what was written."""
        self.file.close()
        self.partial.unlink(missing_ok=True)


def _bytes(array: np.ndarray) -> memoryview:
    """The elements in order, little-endian."""
    array = np.ascontiguousarray(array)
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8).data
