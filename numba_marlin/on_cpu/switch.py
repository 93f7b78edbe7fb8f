"""On and off: what of numba-cuda and numba-cuda-mlir is replaced, and when.

numba-cuda reaches a GPU through few names: ``Driver.__getattr__`` for the driver's functions, and
what its modules ``cudadrv.driver``, ``cudadrv.devicearray`` and ``dispatcher`` import of cuda.core.
These are replaced (``layer``, ``patches``); numba-cuda's own code does all the rest.
numba-cuda-mlir has the same layer, and launches in another way (``mlir``). Line numbers are always
compiled, since messages need them; they change no code.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

VARIABLE = "NUMBA_CUDA_ON_CPU"
RACES = {"auto": None, "on": True, "off": False}
_lock = threading.RLock()
_depth = 0
_on = ExitStack()
"""Of what is replaced now."""


@dataclass(frozen=True)
class Compiler:
    """``package``: as it is installed; ``last``: the module of it behind whose import its names are
    replaced; ``patches``: the module that replaces them."""

    package: str
    last: str
    patches: str


COMPILERS = (
    # imports the other module that is patched
    Compiler("numba_cuda", "numba.cuda.dispatcher", "numba_marlin.on_cpu.patches"),
    Compiler("numba_cuda_mlir", "numba_cuda_mlir.cuda", "numba_marlin.on_cpu.mlir"),
)


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
    """Within, ``numba.cuda`` and ``numba_cuda_mlir.cuda`` have one device for all threads, which is
    the PTX machine. ``races``: as in Options; of contexts within each other the outermost one's
    count.

    Device arrays live as long as the context; kernels may be launched again in a later one. Raises
    ImportError if neither compiler is installed.
    """
    if not any(importlib.util.find_spec(each.package) for each in COMPILERS):
        raise ImportError("neither numba-cuda nor numba-cuda-mlir is installed")
    _enter(Options(races))
    try:
        yield
    finally:
        _leave()


def _enter(options: Options) -> None:
    """What is imported is patched now, and what is not as soon as it is."""
    global _depth
    with _lock:
        if _depth == 0:
            try:
                for each in COMPILERS:
                    if each.last in sys.modules:
                        _patch(each, options)
                    else:
                        finder = _WhenImported(each, options)
                        sys.meta_path.insert(0, finder)
                        _on.callback(finder.remove)
            except BaseException:
                _on.close()
                raise
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _on.close()


def _patch(compiler: Compiler, options: Options) -> None:
    _on.enter_context(importlib.import_module(compiler.patches).patched(options))


def is_on() -> bool:
    """Is it on, or will it be as soon as a compiler is imported?"""
    return _depth > 0


def start(options: Options) -> None:
    """Switch on for the rest of the process."""
    os.environ[VARIABLE] = options.as_text()  # for processes that this one starts
    _enter(options)


def start_if_asked() -> None:
    """What the interpreter does at its start where ``--install`` was called."""
    text = os.environ.get(VARIABLE, "")
    if text not in ("", "0"):
        start(Options.from_text(text))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Switches on behind the import of the last module that is patched."""

    def __init__(self, compiler: Compiler, options: Options) -> None:
        self.compiler, self.options, self.busy = compiler, options, False

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        if name != self.compiler.last or self.busy:
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
            with _lock:
                if finder in sys.meta_path:
                    finder.remove()
                    _patch(finder.compiler, finder.options)

        loader.exec_module = exec_module
        return spec
