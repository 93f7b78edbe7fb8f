"""Compiles a kernel in a configuration for a target to PTX and cubin, without a GPU or a driver; a
disk cache loads compiled kernels in milliseconds.

    from numba_marlin.compiler import build
    compiled = build(KERNEL, config, target="sm_90a", compiler="numba-cuda")

Only this package depends on the internals of a compiler. Its back ends, ``numba_cuda`` and
``numba_cuda_mlir``, have the same two functions: ``language()``, the kernel language, and
``to_ptx(...)``. It may import ``isa`` and ``kernels.language``. It imports numba only when a kernel
is compiled.
"""

from numba_marlin.compiler.builder import COMPILERS, available_compilers, build, load
from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.compiler.errors import AssemblyError, MissingCompiler
from numba_marlin.compiler.resources import Resources
from numba_marlin.hardware.targets import TARGETS, Target

__all__ = [
    "COMPILERS",
    "TARGETS",
    "AssemblyError",
    "CompiledKernel",
    "MissingCompiler",
    "Resources",
    "Target",
    "available_compilers",
    "build",
    "load",
]
