"""Autotuning results: a file of measured winners beside the kernel cache, written by ``bench.tune``
and read by ``stored_choice``.

The file, ``tuned.json``, is an object with ``schema`` and ``entries``, one entry per problem and
device. m is rounded up to a bucket (``bucket``); the winner at the largest m of a bucket is used
for the whole bucket. An entry is valid only if the kernels' sources, the device and the driver are
those of the measurement. Entries that are invalid, damaged, or name a configuration that no longer
exists are ignored, and so is a file that cannot be read. Writing replaces the file atomically,
under a lock, so that processes that tune at the same time keep each other's winners.

Nothing here touches CUDA: only a real device (``Device.source`` "measured") has winners, and it
names its driver.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from numba_marlin.compiler.cache import package_digest
from numba_marlin.compiler.cache_directory import cache_directory
from numba_marlin.hardware.devices import Device
from numba_marlin.kernels import registry

SCHEMA = "numba-marlin/tuned/1"
FILE_NAME = "tuned.json"
# buckets: multiples of 8 up to 64, the batch steps of the kernels; above, four per octave
STEP, FINE = 8, 64


@dataclass(frozen=True)
class Choice:
    """A winner: kernel, configuration, microseconds when measured (at the bucket's largest m), and
    the date."""

    kernel: str
    config: object
    us: float
    date: str

    def to_dict(self) -> dict:
        return asdict(self)


def bucket(m: int) -> int:
    """The largest m that shares a winner with ``m``: 8, 16 .. 64, 80, 96, 112, 128, 160 ..."""
    if m < 1:
        raise ValueError(f"m={m} must be at least 1")
    if m <= FINE:
        return -(-m // STEP) * STEP
    step = 1 << ((m - 1).bit_length() - 3)  # a quarter of the power of two below m
    return -(-m // step) * step


def stored_choice(problem, device: Device) -> Choice | None:
    """The winner for ``problem`` (heuristics.Problem) on ``device``, or None if none was measured
    with these kernels and this driver."""
    if device.source != "measured":
        return None
    directory = cache_directory()
    entry = (
        None if directory is None else _entries(directory / FILE_NAME).get(_key(problem, device))
    )
    if (
        not isinstance(entry, dict)
        or entry.get("sources") != sources_digest()
        or entry.get("driver") != device.driver
    ):
        return None
    try:
        return Choice(
            entry["kernel"],
            _config(entry["kernel"], entry["config"]),
            float(entry["us"]),
            str(entry["date"]),
        )
    # a configuration of another version
    except (KeyError, TypeError, ValueError, ImportError, AttributeError):
        return None


def remember(problem, device: Device, kernel: str, config: object, us: float) -> Path | None:
    """Store a winner and return the file; None if no directory is writable or the disk is full."""
    directory = cache_directory()
    if directory is None:
        return None
    entry = {
        "kernel": kernel,
        "config": asdict(config),
        "us": us,
        "sources": sources_digest(),
        "driver": device.driver,
        "date": datetime.date.today().isoformat(),
    }
    path = directory / FILE_NAME
    try:
        with _lock(directory):
            _replace(
                path, {"schema": SCHEMA, "entries": _entries(path) | {_key(problem, device): entry}}
            )
    except OSError:
        return None
    return path


def forget() -> None:
    """Delete all winners."""
    directory = cache_directory()
    if directory is not None:
        with contextlib.suppress(FileNotFoundError):
            (directory / FILE_NAME).unlink()


@functools.cache
def sources_digest() -> str:
    """SHA-256 in hex of everything in this package that a compiled kernel depends on."""
    return package_digest()


def _key(problem, device: Device) -> str:
    """The key of an entry: all fields of the problem, with m's bucket, and the device. New fields
    of ``Problem`` become part of the key automatically."""
    fields = asdict(problem) | {"m": bucket(problem.m)}
    where = f"{device.name}, {device.sms} SMs, {device.arch}"
    return f"{', '.join(f'{name}={value}' for name, value in fields.items())} on {where}"


def _config(kernel: str, fields: dict) -> object:
    if not kernel.isidentifier():
        raise ValueError(f"kernel={kernel!r} must be an identifier")
    return registry.find_kernel(kernel).config_type(**fields)


def _entries(path: Path) -> dict:
    try:
        status = os.stat(path)
    except OSError:
        return {}
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read(path: Path, modified: int, size: int) -> dict:
    """The entries of the file; cached until the file changes."""
    # imported here: if nothing was measured, the first product of a process need not wait for it
    import json

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = (
        isinstance(data, dict)
        and data.get("schema") == SCHEMA
        and isinstance(data.get("entries"), dict)
    )
    return data["entries"] if known else {}


@contextlib.contextmanager
def _lock(directory: Path):
    """An exclusive lock among processes if the platform has file locks; elsewhere the last writer
    wins."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(directory / f".{FILE_NAME}.lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, data: dict) -> None:
    import json
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
