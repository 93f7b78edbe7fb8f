"""Which kernels there are: found by looking, listed nowhere.

A kernel is a package with a module ``declare``, or a single module, that exports ``KERNEL:
KernelDefinition`` under its own name. It lies in this folder, or, with its relatives, in a
*family*: a package whose ``KIND`` says which kind of problem its kernels take (``problems.KINDS``;
those in this folder take weights). Folders without either (``language``, ``dequantize``) are what
kernels share.

Reading the folders imports nothing; a kernel's modules are imported when it is asked for, and those
of a kind when all of that kind are: a product with a weight loads no kernel of two block-scaled
operands.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.problems.protocol import KINDS, WEIGHTS

_FOLDER = Path(__file__).parent
_PACKAGE = __name__.rpartition(".")[0]
_DECLARATION = "declare"


@functools.cache
def _modules() -> dict[str, str]:
    """Name -> module that exports KERNEL."""
    return {name: module for package, _ in _families() for name, module in _found_in(package)}


@functools.cache
def _families() -> tuple[tuple[str, str], ...]:
    """(package, kind of its kernels' problems) of this folder and of the families in it."""
    found = [(_PACKAGE, WEIGHTS)]
    for each in sorted(os.listdir(_FOLDER)):
        if (_FOLDER / each).is_dir() and any((_FOLDER / each).glob(f"*/{_DECLARATION}.py")):
            package = f"{_PACKAGE}.{each}"
            found.append((package, importlib.import_module(package).KIND))
    return tuple(found)


def _found_in(package: str) -> list[tuple[str, str]]:
    folder = _FOLDER.joinpath(*package.removeprefix(_PACKAGE).split("."))
    found = []
    for each in sorted(os.listdir(folder)):
        if (folder / each / f"{_DECLARATION}.py").exists():
            found.append((each, f"{package}.{each}.{_DECLARATION}"))
    if package == _PACKAGE:  # a family's other modules are what its kernels share
        found += [
            (name, f"{package}.{name}")
            for name, suffix in map(os.path.splitext, sorted(os.listdir(folder)))
            if suffix == ".py" and "\nKERNEL = " in (folder / f"{name}.py").read_text("utf-8")
        ]
    return found


def find_kernel(name: str) -> KernelDefinition:
    """The kernel called ``name``; ValueError lists those there are."""
    if name not in _modules():
        raise ValueError(f"kernel={name!r} must be one of {', '.join(names())}")
    return importlib.import_module(_modules()[name]).KERNEL


@functools.cache
def kernels(kind: str) -> tuple[KernelDefinition, ...]:
    """Those that take problems of ``kind``, in the order of their ladder, simplest first."""
    packages = [package for package, each in _families() if each == kind]
    found = [find_kernel(name) for package in packages for name, _ in _found_in(package)]
    return tuple(sorted(found, key=lambda kernel: kernel.rung))


def names(*kinds: str) -> tuple[str, ...]:
    """Of the kernels of these kinds (default: all), each in the order of its ladder."""
    return tuple(kernel.name for kind in kinds or KINDS for kernel in kernels(kind))


def kernel_of(config: object) -> KernelDefinition:
    """The kernel that ``config`` configures; TypeError lists the types there are."""
    for kind in KINDS:
        for kernel in kernels(kind):
            if isinstance(config, kernel.config_type):
                return kernel
    wanted = ", ".join(find_kernel(name).config_type.__name__ for name in names())
    raise TypeError(f"config is a {type(config).__name__}, must be one of {wanted}")
