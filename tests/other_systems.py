"""Makes this interpreter look like one on another system, or one without some packages, as far as
Linux can: for programs of ``tests/test_other_systems.py`` in an interpreter of their own.

``hide(names)`` makes imports of these packages fail. ``become(system)``, "win32" or "darwin", takes
away the modules and the names of ``os`` and ``signal`` that Python has not got there. On "win32"
files are as they are there: one that is open (or mapped) can be neither renamed nor removed, nor
can a directory with such a file in it, and no directory can be opened.

What stays Linux's: paths, the C library, speed, and modules of the standard library and of the
requirements that are loaded before.
"""

import errno
import importlib
import os
import shutil
import signal
import sys

NO_COMPILER = {"numba", "numba_cuda", "numba_cuda_mlir", "llvmlite", "cuda", "nvidia", "torch"}
# Loaded before: they ask for the system while they are loaded.
_BEFORE = (
    "argparse concurrent.futures ctypes dataclasses importlib.metadata importlib.resources"
    " inspect json logging multiprocessing numpy.random pathlib platform rich.console rich.table"
    " safetensors scipy.linalg shutil subprocess tempfile zipfile"
).split()
_POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
_NOT_ON_WINDOWS = (
    "O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC chown chroot fchmod fchown fork forkpty"
    " getegid geteuid getgid getgroups getloadavg getpgid getuid killpg lchown mkfifo mknod nice"
    " posix_fallocate pread preadv pwrite readv register_at_fork sched_getaffinity"
    " sched_setaffinity sendfile setsid statvfs sync sysconf uname wait4 writev"
).split()
_NOT_ON_MACOS = "posix_fallocate sched_getaffinity sched_setaffinity".split()
_SIGNALS_NOT_ON_WINDOWS = "SIGALRM SIGBUS SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 alarm".split()


def hide(names):
    """As if the packages were not installed."""
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        del sys.modules[name]
    sys.meta_path[:] = [_Without(finder, set(names)) for finder in sys.meta_path]


class _Without:
    """A finder of modules that does not find some of them."""

    def __init__(self, finder, names):
        self.finder, self.names = finder, names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


def become(system):
    for name in _BEFORE:
        importlib.import_module(name)
    sys.platform = system
    if system == "darwin":
        sys.platform = "linux"
        importlib.import_module("ctypes.util")  # on macOS it needs a module that Debian leaves out
        sys.platform = system
        _without(os, _NOT_ON_MACOS)
        return
    os.name = "nt"
    for name in ("pathlib", "pathlib._local"):  # paths stay Linux's
        if name in sys.modules:
            sys.modules[name].os = _Posix()
    shutil._use_fd_functions = False
    hide(_POSIX_MODULES)
    _without(os, _NOT_ON_WINDOWS)
    _without(signal, _SIGNALS_NOT_ON_WINDOWS)
    for name in ("rename", "replace", "unlink", "remove", "rmdir"):
        setattr(os, name, _refused_while_open(getattr(os, name)))
    os.open = _no_directories(os.open)


class _Posix:
    name = "posix"

    def __getattr__(self, name):
        return getattr(os, name)


def _without(module, names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def _refused_while_open(function):
    def guarded(path, *others, **options):
        whole = os.path.realpath(path)
        for each in _in_use():
            if each == whole or each.startswith(whole + os.sep):
                raise PermissionError(
                    errno.EACCES, "the file is being used by another process", each
                )
        return function(path, *others, **options)

    return guarded


def _in_use():
    """Paths of this process's open and mapped files."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # that of the listing
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        yield from {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line}


def _no_directories(function):
    def guarded(path, *others, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return function(path, *others, **options)

    return guarded
