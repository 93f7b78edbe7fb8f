"""On and off: what of numba-cuda is replaced, and when.

numba-cuda reaches a GPU through few names: ``Driver.__getattr__`` for the driver's functions, and
what its modules ``cudadrv.driver``, ``cudadrv.devicearray`` and ``dispatcher`` import of cuda.core.
These are replaced (``patches``); numba-cuda's own code does all the rest. Line numbers are always
compiled, since messages need them; they change no code.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

VARIABLE = "NUMBA_CUDA_ON_CPU"
RACES = {"auto": None, "on": True, "off": False}
PATCHED_LAST = "numba.cuda.dispatcher"  # imports the other module that is patched
_lock = threading.RLock()
_depth = 0
_patches: AbstractContextManager | None = None


@dataclass(frozen=True)
class Options:
    """``races``: look for accesses that nothing orders: True, False, or None for where the records
    of that stay small."""

    races: bool | None = None

    @classmethod
    def from_text(cls, text: str) -> Options:
        """Of the environment variable: "1", or "races=on" (off, auto)."""
        races = None
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            if name == "races" and value in RACES:
                races = RACES[value]
            elif word != "1":
                raise ValueError(
                    f"{VARIABLE}={text!r} must be 1, or races=on, races=off or races=auto"
                )
        return cls(races)

    def as_text(self) -> str:
        return "races=" + next(word for word, races in RACES.items() if races is self.races)


@contextmanager
def cuda(races: bool | None = None) -> Iterator[None]:
    """Within, ``numba.cuda`` has one device, which is the PTX machine, for all threads. ``races``:
    as in Options; of contexts within each other the outermost one's count.

    Device arrays live as long as the context; kernels may be launched again in a later one. Raises
    ImportError if numba-cuda is not installed.
    """
    _enter(Options(races))
    try:
        yield
    finally:
        _leave()


def _enter(options: Options) -> None:
    global _depth, _patches
    from numba_marlin.on_cpu.patches import patched

    with _lock:
        if _depth == 0:
            _patches = patched(options)
            _patches.__enter__()
        _depth += 1


def _leave() -> None:
    global _depth, _patches
    with _lock:
        _depth -= 1
        if _depth == 0 and _patches is not None:
            _patches.__exit__(None, None, None)
            _patches = None


def is_on() -> bool:
    """Is it on, or will it be as soon as numba-cuda is imported?"""
    return _depth > 0 or any(isinstance(finder, _WhenImported) for finder in sys.meta_path)


def start(options: Options) -> None:
    """Switch on for the rest of the process, now if numba-cuda is imported, else when it is."""
    os.environ[VARIABLE] = options.as_text()  # for processes that this one starts
    if PATCHED_LAST in sys.modules:
        _enter(options)
    else:
        sys.meta_path.insert(0, _WhenImported(options))


def start_if_asked() -> None:
    """What the interpreter does at its start where ``--install`` was called."""
    text = os.environ.get(VARIABLE, "")
    if text not in ("", "0"):
        start(Options.from_text(text))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Switches on behind the import of the last module that is patched."""

    def __init__(self, options: Options) -> None:
        self.options, self.busy = options, False

    def find_spec(self, name, path=None, target=None):
        if name != PATCHED_LAST or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return None
        loader, execute, finder = spec.loader, spec.loader.exec_module, self

        def exec_module(module):
            execute(module)
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
                _enter(finder.options)

        loader.exec_module = exec_module
        return spec
