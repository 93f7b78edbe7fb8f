"""One process writes a target, from the first byte to the rename, under a name at which nobody can
have planted a link.

``alone`` makes a file and ``owned`` a directory, both under an exclusive lock, which goes with the
rename and ends with the process. What an interrupted process left there is taken over; what is
somebody else's (a link, a directory in place of a file) is refused. ``to_disk`` makes a directory's
names last.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from numba_marlin.checkpoints.errors import CheckpointError

try:
    import fcntl
except ImportError:  # on Windows: a file is its writer's while it is open, a directory nobody's
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ATTEMPTS = 100  # each fails because another process did something in between


def alone(path: Path) -> BinaryIO:
    """A new file, open for writing. BlockingIOError while another process writes it: two writers of
    one file would leave a corrupt one that looks complete."""
    for _ in range(_ATTEMPTS):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        except FileExistsError:
            remove_left(path)
            continue
        if not _owns(descriptor, path):
            os.close(descriptor)
            raise _busy(path)
        return os.fdopen(descriptor, "r+b")
    raise _busy(path)


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """The directory, made if need be, belongs to this process until the block ends, also under
    another name. BlockingIOError while it is another's."""
    descriptor = _taken(directory)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def to_disk(directory: Path) -> None:
    """Wait until the names in a directory are on the disk, where the system can say so."""
    if fcntl is None:  # directories cannot be opened
        return
    with contextlib.suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without it
                raise
        finally:
            os.close(descriptor)


def remove_left(path: Path) -> None:
    """Remove the file that an interrupted process left; nothing if it is gone. BlockingIOError
    while a process writes it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise CheckpointError(f"{path} exists and is no unfinished file: remove it")
        if fcntl is None:  # on Windows what a process has open cannot be removed
            try:
                path.unlink()
            except PermissionError as error:
                raise _busy(path) from error
            return
        descriptor = os.open(path, os.O_RDWR | _NO_LINK | _BINARY)
        try:
            if not _lock(descriptor):
                raise _busy(path)
            if _is(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _taken(directory: Path) -> int | None:
    """A descriptor that holds the lock of the directory; None where there are no locks."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
        try:
            if not stat.S_ISDIR(directory.lstat().st_mode):
                raise CheckpointError(
                    f"{directory} exists and is no unfinished conversion: remove it"
                )
            if fcntl is None:
                return None
            descriptor = os.open(directory, os.O_RDONLY | _NO_LINK)
        except FileNotFoundError:
            continue
        if not _lock(descriptor):
            os.close(descriptor)
            raise _busy(directory)
        if _is(descriptor, directory):
            return descriptor
        os.close(descriptor)  # its owner has renamed it
    raise _busy(directory)


def _owns(descriptor: int, path: Path) -> bool:
    return _lock(descriptor) and _is(descriptor, path)


def _is(descriptor: int, path: Path) -> bool:
    """Whether the name still means what was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # any other error: a file system without locks
        return not isinstance(error, BlockingIOError)
    return True


def _busy(path: Path) -> BlockingIOError:
    return BlockingIOError(
        f"{path} is being written by another process: wait for it, or choose another name"
    )
