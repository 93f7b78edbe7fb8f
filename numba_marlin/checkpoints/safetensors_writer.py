"""``ShardWriter``: writes a .safetensors file front to back, tensor by tensor; the contents need
not be known in advance.

Space for the header is reserved at the front and filled at the end (padded with spaces, as the
format allows). Until then the first eight bytes are zero, so that no reader accepts the unfinished
file, and it has another name: ``finish`` flushes it to disk and renames it. Tensors whose size is
not a multiple of 8 bytes are written last, largest elements first, so that every tensor is
aligned to its type.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from numba_marlin.checkpoints.owner import PARTIAL, alone
from numba_marlin.checkpoints.safetensors_file import (
    DTYPES,
    HEADER_LIMIT,
    METADATA,
    NAMES,
    SafetensorsFile,
)

_LONGEST_ENTRY = 200  # bytes of a header entry besides the name


def room_of(name: str) -> int:
    """Bytes of a header that a name may need: its entry, and lists in the metadata that have it,
    JSON in a string of JSON."""
    return _LONGEST_ENTRY + 4 * len(json.dumps(json.dumps(name)))


class ShardWriter:
    """target: the final name of the file. names: all tensors that may be written; space for their
    header entries, and ``metadata`` bytes more, is reserved.

    written: name -> (type in the header, shape) of what was written so far.
    """

    def __init__(self, target: Path, names: list[str], metadata: int = 0):
        self.target, self.partial = target, target.with_name(target.name + PARTIAL)
        room = 2048 + metadata + sum(map(room_of, names))
        self.begin = -(-room // 4096) * 4096
        if self.begin - 8 > HEADER_LIMIT:
            raise ValueError(
                f"{target}: {len(names)} tensors need a header of {self.begin} bytes, must be at"
                f" most {HEADER_LIMIT}"
            )
        self.header: dict[str, dict] = {}
        self.written: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.late: list[tuple[str, str, tuple[int, ...], bytes]] = []
        self.file = alone(self.partial)
        self.file.seek(self.begin)
        self.position = 0

    def add(self, name: str, array: np.ndarray, code: str | None = None) -> None:
        """Write a tensor. code: its type in the header; default: that of the array."""
        if not isinstance(array, np.ndarray) or array.dtype.name not in NAMES and code is None:
            kind = (
                f"of {array.dtype}"
                if isinstance(array, np.ndarray)
                else f"a {type(array).__name__}"
            )
            raise TypeError(
                f"tensor {name!r} is {kind}, must be a numpy.ndarray of {', '.join(NAMES)}"
            )
        code = NAMES[array.dtype.name] if code is None else code
        self.written[name] = code, array.shape
        if array.nbytes % 8 or not array.shape:
            self.late.append((name, code, array.shape, bytes(_bytes(array))))
            return
        self._describe(name, code, array.shape, array.nbytes)
        self.file.write(_bytes(array))

    def copy(self, source: SafetensorsFile, name: str, progress=None) -> None:
        """Copy a tensor from another file, a few megabytes at a time."""
        entry = source.entries[name]
        self.written[name] = entry.code, entry.shape
        late = []
        if not entry.nbytes % 8:
            self._describe(name, entry.code, entry.shape, entry.nbytes)
        for chunk in source.chunks(name):
            late.append(chunk) if entry.nbytes % 8 else self.file.write(chunk)
            if progress is not None:
                progress(len(chunk))
        if entry.nbytes % 8:
            self.late.append((name, entry.code, entry.shape, b"".join(late)))

    def _describe(self, name: str, code: str, shape: tuple[int, ...], nbytes: int) -> None:
        if name in self.header:
            raise ValueError(f"{self.target}: tensor {name!r} must be written once")
        self.header[name] = {
            "dtype": code,
            "shape": list(shape),
            "data_offsets": [self.position, self.position + nbytes],
        }
        self.position += nbytes

    def finish(
        self, metadata: dict[str, str], check: Callable[[], None] | None = None
    ) -> dict[str, int]:
        """Write the header, flush the file to disk and rename it. check: called before the rename.
        Returns {tensor: bytes}, for an index."""
        for name, code, shape, data in sorted(self.late, key=lambda each: -DTYPES[each[1]][0]):
            self._describe(name, code, shape, len(data))
            self.file.write(data)
        text = json.dumps({METADATA: metadata, **self.header}, separators=(",", ":")).encode()
        if len(text) > self.begin - 8:
            raise ValueError(
                f"{self.target}: the header of {len(text)} bytes must fit in {self.begin - 8}"
            )
        self.file.seek(8)
        self.file.write(text.ljust(self.begin - 8))
        self.file.seek(0)
        self.file.write((self.begin - 8).to_bytes(8, "little"))
        self.file.flush()
        os.fsync(self.file.fileno())
        if check is not None:
            check()
        # a copy of the descriptor holds the lock until the old name is gone
        lock = os.dup(self.file.fileno()) if os.name == "posix" else None
        self.file.close()
        try:
            os.replace(self.partial, self.target)
        finally:
            if lock is not None:
                os.close(lock)
        return {
            name: each["data_offsets"][1] - each["data_offsets"][0]
            for name, each in self.header.items()
        }

    def abandon(self) -> None:
        """Close and remove what was written."""
        self.file.close()
        self.partial.unlink(missing_ok=True)


def _bytes(array: np.ndarray) -> memoryview:
    """The elements in C order, little-endian."""
    array = np.ascontiguousarray(array)
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8).data
