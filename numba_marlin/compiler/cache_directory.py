"""Where compiled kernels are kept: NUMBA_MARLIN_CACHE, else the platform's cache directory, else,
if that cannot be used, a private directory among the temporary files.

What is loaded from there runs on the GPU. So a directory is used only if nobody else can have
written to it, or put it there: it belongs to this user, no group and no others may write to it, no
directory above it is open to everybody (but for sticky ones such as /tmp, where nobody can rename
what is another's), and links that lead to it are this user's or the administrator's. Else one
line of the log ("numba_marlin", WARNING) says why it is not used. Windows gives every user a
directory of his own; there nothing is checked.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path

_ADMINISTRATOR = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path | None:
    """Return an existing, writable directory of this user's own. Returns None if there is none;
    kernels are then compiled in every process."""
    for candidate in _candidates():
        if str(candidate).startswith("~"):
            if candidate == Path(os.environ.get("NUMBA_MARLIN_CACHE", "")):
                _say(f"NUMBA_MARLIN_CACHE={candidate} is not used: there is no such user")
            continue
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            doubt = _doubt(candidate)
        except OSError:
            continue
        if doubt is not None:
            _say(f"compiled kernels are not kept in {candidate}: {doubt}")
        elif os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    return None


def read_own(path: Path) -> bytes:
    """Return the contents of a file. Raises PermissionError if it belongs to somebody else or
    others may write to it."""
    with open(path, "rb") as file:
        if hasattr(os, "getuid"):
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
                raise PermissionError(f"{path} may have been written by another user")
        return file.read()


def _candidates():
    if os.environ.get("NUMBA_MARLIN_CACHE"):
        yield Path(os.path.expanduser(os.environ["NUMBA_MARLIN_CACHE"]))
    elif os.name == "nt":
        yield Path(
            os.environ.get("LOCALAPPDATA") or _for_temporary_files(), "numba_marlin", "cache"
        )
    elif os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"], "numba_marlin")
    else:
        caches = ("Library", "Caches") if sys.platform == "darwin" else (".cache",)
        yield Path(os.path.expanduser("~"), *caches, "numba_marlin")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(_for_temporary_files(), f"numba_marlin_{user}")


def _for_temporary_files():
    import tempfile  # slow to import, and seldom needed

    return tempfile.gettempdir()


def _doubt(directory: Path) -> str | None:
    """Say why others can have written to ``directory`` or put it there; None if they cannot."""
    if not hasattr(os, "getuid"):
        return None
    user = os.getuid()
    named = directory.absolute()
    for each in (named, *named.parents):
        status = os.lstat(each)
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (user, _ADMINISTRATOR):
            return f"{each} is a link of another user"
    real = Path(os.path.realpath(named))
    status = os.stat(real)
    if status.st_uid != user:
        return f"it is another user's (number {status.st_uid}), whose code would run on the GPU"
    if status.st_mode & _OTHERS_WRITE:
        return (
            f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}), and their code"
            f" would run on the GPU; `chmod go-w {directory}` helps"
        )
    for each in real.parents:
        mode = stat.S_IMODE(os.stat(each).st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return (
                f"others may replace it, as {each} is open to all (mode {mode:04o}, not sticky);"
                f" `chmod o-w {each}` helps"
            )
    return None


@cache
def _say(line: str) -> None:
    """Log a line, once in a process."""
    import logging

    logging.getLogger("numba_marlin").warning(line)
