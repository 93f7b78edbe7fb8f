"""Compiler-specific support for plain ``@cuda.jit`` kernels. The modules ``numba_cuda`` and
``numba_cuda_mlir`` have the same functions:

- ``type_of(intrinsic)``: the type that an intrinsic has for the compiler
- ``intrinsic_of(snippet)``: an intrinsic with this typing function
- ``literal_required()``: the exception by which a typing function requests literal types, which
  have values, instead of number types
- ``address_intrinsic(name, shared)``: an intrinsic (array, index) -> address: a u32 in the window
  of shared memory, or a generic u64 (which for global memory equals the global address)
"""

from __future__ import annotations

import importlib


def of(compiler: str):
    """Return the module of the compiler with this name."""
    return importlib.import_module(f"{__name__}.{compiler.replace('-', '_')}")
