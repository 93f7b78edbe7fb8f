"""Which configuration was measured to be best here: a file of winners beside the kernel cache,
written by ``bench.tune``, read by ``stored_choice``.

The file, ``tuned.json``, is an object: ``schema`` and ``entries``, one for each problem and device.
m is rounded up to a bucket (``bucket``), and the winner of its largest m stands for all of it. An
entry counts only while the kernels' sources, the device and the driver are what they were when it
was measured; one that does not, is damaged, or names a configuration that no longer exists, is as
good as absent, and so is a file that cannot be read. Writing replaces the file at once, under a
lock, so that processes that tune at the same time keep each other's winners.

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

from numba_marlin.compiler.cache import cache_directory, package_digest
from numba_marlin.hardware.devices import Device
from numba_marlin.kernels import registry

SCHEMA = "numba-marlin/tuned/1"
FILE_NAME = "tuned.json"
# buckets are multiples of 8 up to 64, the batch steps of the kernels; above, four to an octave
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
    # a configuration of another time
    except (KeyError, TypeError, ValueError, ImportError, AttributeError):
        return None


def remember(problem, device: Device, kernel: str, config: object, us: float) -> Path | None:
    """Store a winner. -> the file, or None if no directory can be written (a full disk is no error
    either)."""
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
    """All of the problem, m by its bucket, and the device: a new field of ``Problem`` is part of
    the key by itself."""
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
    """Read once for every change of the file."""
    # here and not above: where nothing was measured, the first product of a process would wait for
    # it in vain
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
    """Exclusive among processes, where the platform has such locks; elsewhere the last writer
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
