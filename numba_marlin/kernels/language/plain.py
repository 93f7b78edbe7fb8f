"""Plain kernels: files that anybody can read, copy and launch, as bodies of a KernelDefinition.

Such a file imports ``cuda`` from Numba, decorates with ``@cuda.jit``, and is imported only when its
kernel is compiled. ``body_of`` makes the body that ``KernelDefinition.make`` returns: the same
code, over the ``cuda`` module of whichever compiler is to build it.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import ClassVar

_CUDA_MODULES = ("numba.cuda", "numba_cuda_mlir.cuda")

ARRAYS = (
    ("a", "float16[:, ::1]"),
    ("b", "int32[:, ::1]"),
    ("scales", "float16[:, ::1]"),
    ("c", "float16[:, ::1]"),
)
"""Parameters of the plain rungs: x [m, k], qweight [k/16, 2n], scales [groups, n], y [m, n]."""


@dataclass(frozen=True)
class GroupScales:
    """The configuration of a kernel that finds its sizes in its arrays."""

    #: What the plain rungs take: they have no per-column scales, whose order is another one.
    TAKEN: ClassVar[tuple[int, ...]] = (16, 32, 64, 128, 256)

    #: Weights along k that share a scale.
    group_size: int = 128

    def __post_init__(self):
        if self.group_size < 16 or self.group_size % 16:
            raise ValueError(f"group_size={self.group_size} must be a positive multiple of 16")


def array_shapes(config, m: int, n: int, k: int) -> dict[str, tuple[int, int]]:
    """Of ``ARRAYS``."""
    return {
        "a": (m, k),
        "b": (k // 16, 2 * n),
        "scales": (k // config.group_size, n),
        "c": (m, n),
    }


def body_of(kernel, lang):
    """The function under ``@cuda.jit``, in the language ``lang``: its ``cuda`` is the compiler's,
    and the device functions that it names are lang's, always inlined."""
    return _Translation(lang).function(kernel.py_func)


class _Translation:
    def __init__(self, lang):
        self.lang, self.scopes, self.made = lang, {}, {}

    def function(self, function):
        scope = self.scope(function.__globals__)
        for name in function.__code__.co_names:
            if name in scope:
                scope[name] = self.value(function.__globals__[name])
        translated = types.FunctionType(
            function.__code__,
            scope,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        translated.__doc__, translated.__module__ = function.__doc__, function.__module__
        return translated

    def scope(self, names):
        """A copy of a module's names, one for each module."""
        if id(names) not in self.scopes:
            self.scopes[id(names)] = dict(names)
        return self.scopes[id(names)]

    def value(self, value):
        if isinstance(value, types.ModuleType) and value.__name__ in _CUDA_MODULES:
            return self.lang.cuda
        if not hasattr(value, "py_func"):
            return value
        if value not in self.made:
            self.made[value] = self.lang.device(self.function(value.py_func))
        return self.made[value]
