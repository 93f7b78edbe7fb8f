"""What plain ``@cuda.jit`` kernels need of a compiler, one module for each: ``numba_cuda`` and
``numba_cuda_mlir`` with the same functions.

- ``type_of(intrinsic)``: the type that the compiler gives calls of an intrinsic
- ``intrinsic_of(snippet)``: an intrinsic; ``literal_required()``: the exception by which its typing
  asks for the types of literals, which say their values, instead of those of numbers
- ``address_intrinsic(name, shared)``: an intrinsic (array, index) -> address, u32 in the window of
  shared memory, or generic (for global memory the same as global) u64
"""

from __future__ import annotations

import importlib


def of(compiler: str):
    """The module of a compiler, by its name."""
    return importlib.import_module(f"{__name__}.{compiler.replace('-', '_')}")
