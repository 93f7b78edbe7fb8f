"""Traces as files: one .npz, arrays compressed, the header as JSON inside; versioned, and opened
without pickles. A file that would take more than MOST_BYTES of memory is refused before it does: a
few megabytes can unpack to as many gigabytes."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from numba_marlin.trace.record import SCHEMA, Trace
from numba_marlin.views.plain import nested_deeper
from numba_marlin.wording import byte_count

HEADER = "header"
MOST_BYTES = 512 << 20  # unpacked, of all arrays; a recorded run has some 10 MiB
MOST_ARRAYS = 1000
DEEPEST = 20  # lists and dicts of the header in each other
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # what np.savez writes


def as_bytes(trace: Trace) -> bytes:
    header = np.frombuffer(json.dumps(trace.header).encode(), np.uint8)
    file = io.BytesIO()
    arrays: dict[str, Any] = {HEADER: header, **trace.arrays}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def save(trace: Trace, path: str | Path) -> None:
    """Write the file completely or not at all."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(as_bytes(trace))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def open_trace(path: str | Path) -> Trace:
    """Raises ValueError, in one line, for a file that cannot be read, or is no trace of this
    version."""
    try:
        arrays = _arrays(path)
        header = json.loads(arrays.pop(HEADER).tobytes())
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}") from error
    except Exception as error:  # a damaged zip makes zipfile and NumPy raise almost anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} is not a trace that `numba-marlin trace --save` wrote ({reason})"
        ) from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else None
        raise ValueError(
            f"{path} has schema {found!r}, this version reads {SCHEMA!r}: record it anew"
        )
    if nested_deeper(header, DEEPEST):
        raise ValueError(f"{path} is no trace: its header is nested more than {DEEPEST} deep")
    return Trace(header, arrays)


def _arrays(path: str | Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_ARRAYS:
            raise ValueError(f"it has {len(entries)} arrays, a trace at most {MOST_ARRAYS}")
        for entry in entries:
            if entry.compress_type not in _METHODS:
                raise ValueError(f"{entry.filename} is compressed by method {entry.compress_type}")
        # zipfile reads no more of an entry than the size that is stated here
        total = sum(entry.file_size for entry in entries)
        if total > MOST_BYTES:
            raise ValueError(
                f"its arrays take {byte_count(total)}, a trace's at most {byte_count(MOST_BYTES)}"
            )
        return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """The array of a .npy file in the archive. Raises ValueError unless it holds exactly as many
    bytes as its header promises, which is looked at before memory is taken."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{entry.filename} is a .npy file of version {version}")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} has Python objects")
        if math.prod(shape) * dtype.itemsize != entry.file_size - file.tell():
            raise ValueError(f"{entry.filename} does not hold as much as its shape {shape} says")
        return np.ndarray(shape, dtype, file.read(), order="F" if fortran else "C")
