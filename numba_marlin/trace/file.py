"""Traces as files: one .npz, arrays compressed, the header as JSON inside; versioned, and opened
without pickles."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from numba_marlin.trace.record import SCHEMA, Trace

HEADER = "header"


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
    """Raises ValueError, in one line, for a file that is no trace or of another version."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
    except FileNotFoundError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        OSError,
        EOFError,
        RecursionError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} is not a trace that `numba-marlin trace --save` wrote ({reason})"
        ) from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else None
        raise ValueError(
            f"{path} has schema {found!r}, this version reads {SCHEMA!r}: record it anew"
        )
    return Trace(header, arrays)
