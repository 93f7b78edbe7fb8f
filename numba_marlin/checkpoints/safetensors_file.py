"""One .safetensors file: the header is validated first, tensors are read one at a time.

The format (https://github.com/huggingface/safetensors): 8 bytes, the length of the header,
little-endian; the header, a JSON object of UTF-8, name -> {"dtype", "shape", "data_offsets":
[begin, end]} and perhaps "__metadata__": {str: str}; then the data, little-endian, which the
offsets cover without gaps or overlaps. ``SafetensorsFile(path)`` raises CheckpointError, naming
file, tensor and rule, for anything else: a file that is shorter or longer than its header says, a
name twice, shapes that do not give the bytes, a header above HEADER_LIMIT (100 MB, the library's
limit as well). Allocations are bounded by the size of the actual header. Zip files and
pickles, which PyTorch writes, are recognised and never loaded.

Tensors are read, not mapped: a mapped file that is rewritten changes weights that are in use, and
one that is cut off ends the process. A file that is no longer the one whose header was checked, by
inode, size and times, raises CheckpointError.

The header is parsed here because the library does not expose byte ranges, needs ml_dtypes for
bfloat16, and accepts duplicate names (the last one wins).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from numba_marlin.checkpoints.errors import CheckpointError
from numba_marlin.errors import CapabilityMissing
from numba_marlin.formats.floats import float_type

HEADER_LIMIT = 100_000_000
_CHUNK = 16 << 20
METADATA = "__metadata__"
# Name in the header -> (bytes of an element, name of the NumPy or ml_dtypes type)
DTYPES = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "U16": (2, "uint16"),
    "I16": (2, "int16"),
    "U32": (4, "uint32"),
    "I32": (4, "int32"),
    "U64": (8, "uint64"),
    "I64": (8, "int64"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "F32": (4, "float32"),
    "F64": (8, "float64"),
    "C64": (8, "complex64"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "F8_E8M0": (1, "float8_e8m0fnu"),
}
NAMES = {numpy_name: name for name, (_, numpy_name) in DTYPES.items()}
_MAGIC = {
    b"PK\x03\x04": "a zip file, as PyTorch writes them",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"GGUF": "a GGUF file",
}


@dataclass(frozen=True)
class TypeName:
    """A type known only by its name."""

    name: str


@dataclass(frozen=True)
class Entry:
    """A tensor as the header describes it; ``begin``, ``end``: bytes of the file. It has ``shape``
    and ``dtype.name`` as arrays do."""

    name: str
    code: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> TypeName:
        return TypeName(DTYPES[self.code][1])

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is written to or replaced: inode, size, times in ns."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def parse_json(text: bytes, where: str) -> object:
    """Parse UTF-8 JSON. CheckpointError for invalid JSON and for duplicate names in an object."""

    def pairs(items):
        result = dict(items)
        if len(result) != len(items):
            [(name, _)] = Counter(name for name, _ in items).most_common(1)
            raise CheckpointError(f"{where}: {name!r} must stand there once")
        return result

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: not JSON of UTF-8 ({str(error).splitlines()[0]})"
        ) from error


class SafetensorsFile:
    """``entries``: name -> Entry, in the order of the data. ``metadata``: str -> str.
    ``array(name)`` reads one tensor. ``stamp``: what tells the file from a changed one."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            raise CheckpointError(f"{self.path}: must be a regular file")
        try:
            with self.path.open("rb") as file:
                self.stamp = stamp_of(os.fstat(file.fileno()))
                size = file.seek(0, 2)
                file.seek(0)
                header, self.data_begin = _header(self.path, file, size)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror or error}") from error
        self.size = size
        self.metadata = _metadata(self.path, header.pop(METADATA, None))
        entries = [
            _entry(self.path, name, fields, self.data_begin) for name, fields in header.items()
        ]
        entries.sort(key=lambda each: (each.begin, each.end))
        position = self.data_begin
        for each in entries:
            if each.begin != position:
                what = (
                    "overlaps the tensor before it"
                    if each.begin < position
                    else "leaves a gap before it"
                )
                raise CheckpointError(
                    f"{self.path}: tensor {each.name!r} {what}: data_offsets must follow on each"
                    " other"
                )
            position = each.end
        if position != size:
            what = "cut off" if position > size else "longer than its header says"
            raise CheckpointError(
                f"{self.path}: {what}: {size} bytes, must be {position} by its header"
            )
        self.entries = {each.name: each for each in entries}

    def array(self, name: str) -> np.ndarray:
        """The tensor, read-only. 8-bit floats are returned as their codes, uint8."""
        entry = self.entries[name]
        numpy_name = entry.dtype.name
        if numpy_name.startswith("float8"):
            numpy_name = "uint8"
        try:
            dtype = (
                float_type(numpy_name).newbyteorder("<")
                if numpy_name != "bfloat16"
                else float_type("bfloat16")
            )
        except ImportError as error:
            raise CapabilityMissing(f"{self.path}: tensor {name!r}: {error}") from error
        raw = np.empty(entry.nbytes, np.uint8)
        with self._unchanged() as file:
            file.seek(entry.begin)
            if file.readinto(raw.data) != entry.nbytes:
                raise self._changed()
        raw.flags.writeable = False
        return raw.view(dtype).reshape(entry.shape)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, a few megabytes at a time."""
        entry = self.entries[name]
        with self._unchanged() as file:
            file.seek(entry.begin)
            for left in range(entry.nbytes, 0, -_CHUNK):
                chunk = file.read(min(left, _CHUNK))
                if len(chunk) != min(left, _CHUNK):
                    raise self._changed()
                yield chunk

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[BufferedReader]:
        """The file, open; CheckpointError unless it stays as it was when its header was checked."""
        try:
            with self.path.open("rb") as file:
                self._check(file)
                yield file
                self._check(file)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror or error}") from error

    def _check(self, file: BufferedReader) -> None:
        if stamp_of(os.fstat(file.fileno())) != self.stamp:
            raise self._changed()

    def _changed(self) -> CheckpointError:
        return CheckpointError(f"{self.path}: has changed since it was opened: open it again")


def _header(path: Path, file, size: int) -> tuple[dict, int]:
    first = file.read(8)
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            raise CheckpointError(
                f"{path}: {what}, must be a .safetensors file; it is not loaded (a pickle can run"
                " code): save the model with safetensors"
            )
    if len(first) < 8:
        raise CheckpointError(f"{path}: {size} bytes are too few for a .safetensors file")
    length = int.from_bytes(first, "little")
    if length > HEADER_LIMIT or length > size - 8:
        raise CheckpointError(
            f"{path}: not a .safetensors file, or cut off: a header of {length} bytes must fit in"
            f" the file ({size} bytes) and in {HEADER_LIMIT}"
        )
    text = file.read(length)
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: not a .safetensors file: the header must begin with '{{'")
    header = parse_json(text, str(path))
    assert isinstance(header, dict)  # it begins with a brace
    return header, 8 + length


def _metadata(path: Path, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise CheckpointError(f"{path}: {METADATA} must map strings to strings")
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _entry(path: Path, name: str, fields: object, data_begin: int) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: must have dtype, shape and data_offsets, and nothing else")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(f"{where}: dtype {code!r} must be one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(_is_size(each) for each in shape):
        raise CheckpointError(f"{where}: shape {str(shape)[:80]} must be at most 32 sizes")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_size(each) for each in offsets)
    ):
        raise CheckpointError(f"{where}: data_offsets {str(offsets)[:80]} must be [begin, end]")
    nbytes = DTYPES[code][0]
    for each in shape:
        nbytes *= each
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{where}: data_offsets {offsets} must span the {nbytes} bytes of {code} {shape}"[:400]
        )
    return Entry(name, code, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])
