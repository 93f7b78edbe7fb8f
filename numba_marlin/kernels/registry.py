"""Which kernels there are: found by looking, listed nowhere.

A kernel is a package with a module ``declare``, or a single module, that exports ``KERNEL:
KernelDefinition`` under its own name. It lies in this folder, or, with its relatives, in a
*family*: a package whose ``KIND`` says which kind of problem its kernels take (``problems.KINDS``;
those in this folder take weights). Folders without either (``language``, ``dequantize``) are what
kernels share. A *pass* behind their launches (``KernelDefinition.behind``) is a single module that
exports ``PASS`` in the same way: it is found by name, and on no ladder.

Reading the folders imports nothing but families' ``__init__``; a kernel's modules are imported when
it is asked for, and those of a kind when all of that kind are: a product with a weight loads no
kernel of two block-scaled operands.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.problems.protocol import KINDS, WEIGHTS
from numba_marlin.wording import did_you_mean

_PACKAGE = __name__.rpartition(".")[0]
_DECLARATION = "declare"


@functools.cache
def _families() -> tuple[tuple[str, str], ...]:
    """(package, kind of its kernels' problems) of this folder and of the families in it."""
    found = [(_PACKAGE, WEIGHTS)]
    for folder, each in _entries(_PACKAGE):
        if any((folder / each).glob(f"*/{_DECLARATION}.py")):
            package = f"{_PACKAGE}.{each}"
            found.append((package, importlib.import_module(package).KIND))
    return tuple(found)


@functools.cache
def _modules(package: str) -> dict[str, str]:
    """Name of a kernel in ``package`` -> module that exports KERNEL."""
    found = {}
    for folder, each in _entries(package):
        name, suffix = os.path.splitext(each)
        if (folder / each / f"{_DECLARATION}.py").exists():
            found[each] = f"{package}.{each}.{_DECLARATION}"
        elif suffix == ".py" and _exports(folder / each, "KERNEL"):
            found[name] = f"{package}.{name}"
    return found


def _exports(module: Path, name: str) -> bool:
    return f"\n{name} = " in module.read_text(encoding="utf-8")


@functools.cache
def _passes() -> dict[str, str]:
    """Name of a pass -> module that exports PASS."""
    return {
        Path(each).stem: f"{package}.{Path(each).stem}"
        for package, _ in _families()
        for folder, each in _entries(package)
        if each.endswith(".py") and _exports(folder / each, "PASS")
    }


def _entries(package: str) -> list[tuple[Path, str]]:
    """(folder, name) of what lies in the folders of a package."""
    folders = map(Path, importlib.import_module(package).__path__)
    return [(folder, each) for folder in folders for each in sorted(os.listdir(folder))]


def _module_of(name: str) -> str | None:
    found = (_modules(package).get(name) for package, _ in _families())
    return next(filter(None, found), None)


def is_kernel(name: str) -> bool:
    """Whether a kernel is called so; imports none."""
    return _module_of(name) is not None


def find_kernel(name: str) -> KernelDefinition:
    """The kernel called ``name``; ValueError lists those there are."""
    module = _module_of(name)
    if module is None:
        raise ValueError(
            f"kernel={name!r} must be one of {', '.join(names())}{did_you_mean(name, names())}"
        )
    return importlib.import_module(module).KERNEL


def find_definition(name: str) -> KernelDefinition:
    """The kernel or pass called ``name``; ValueError as ``find_kernel``."""
    module = _passes().get(name)
    return find_kernel(name) if module is None else importlib.import_module(module).PASS


@functools.cache
def kernels(kind: str) -> tuple[KernelDefinition, ...]:
    """Those that take problems of ``kind``, in the order of their ladder, simplest first."""
    packages = [package for package, each in _families() if each == kind]
    found = [find_kernel(name) for package in packages for name in _modules(package)]
    return tuple(sorted(found, key=lambda kernel: kernel.rung))


def names(*kinds: str) -> tuple[str, ...]:
    """Of the kernels of these kinds (default: all), each in the order of its ladder."""
    return tuple(kernel.name for kind in kinds or KINDS for kernel in kernels(kind))


def kernel_of(config: object) -> KernelDefinition:
    """The kernel that ``config`` configures; TypeError lists the types there are. (A kernel's
    configuration may be a subclass of another's.)"""
    declared = {kernel.config_type: kernel for kind in KINDS for kernel in kernels(kind)}
    for base in type(config).__mro__:
        if base in declared:
            return declared[base]
    wanted = ", ".join(find_kernel(name).config_type.__name__ for name in names())
    raise TypeError(f"config is a {type(config).__name__}, must be one of {wanted}")
