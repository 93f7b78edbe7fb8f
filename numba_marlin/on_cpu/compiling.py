"""The PTX that a launch of a kernel would run, without the launch: for who runs it by other means.

The same way as a launch's: numba-cuda compiles, with the kernel's own options and line numbers, and
what it links is joined (``linking``).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from numba_marlin.on_cpu import linking
from numba_marlin.on_cpu.switch import cuda


@dataclass(frozen=True)
class Compiled:
    """``text``: PTX; ``entry``: its kernel; ``name``: of the Python function; ``file``: its source;
    ``parameters``: their names."""

    text: str
    entry: str
    name: str
    file: str
    parameters: tuple[str, ...]


def compiled(kernel, types: tuple[tuple[str, int | None], ...]) -> Compiled:
    """``kernel``: a ``@cuda.jit`` kernel. ``types``: of each parameter (dtype, dimensions of a
    C-contiguous array; None for a number). ImportError without numba-cuda or
    a CUDA toolkit; TypeError for what is no
    kernel; what the compiler raises."""
    with cuda():
        from cuda.pathfinder import DynamicLibNotFoundError
        from numba.cuda import types as numba_types
        from numba.cuda.cudadrv import driver
        from numba.cuda.cudadrv.error import NvvmSupportError

        function = getattr(kernel, "py_func", None)
        if function is None or not hasattr(kernel, "compile"):
            raise TypeError(f"{kernel!r} is no kernel: put @cuda.jit above `def`")
        signature = tuple(
            kind if dimensions is None else numba_types.Array(kind, dimensions, "C")
            for kind, dimensions in (
                (getattr(numba_types, dtype.replace("bool", "boolean")), dimensions)
                for dtype, dimensions in types
            )
        )
        try:
            library = kernel.compile(signature)._codelibrary
        except (DynamicLibNotFoundError, NvvmSupportError) as error:
            said = str(error).partition("\n")[0]
            raise ImportError(f"numba-cuda finds no CUDA toolkit ({said})") from error
        return Compiled(
            linking.ptx_of(library, driver._Linker).rstrip("\0\n") + "\n",
            library._entry_name,
            function.__name__,
            function.__code__.co_filename,
            tuple(inspect.signature(function).parameters),
        )
