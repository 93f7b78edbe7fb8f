"""Kernel + configuration + target -> PTX -> cubin, on any machine: no GPU, no driver. And back from
a disk cache in milliseconds.

    from numba_marlin.compiler import build
    compiled = build(KERNEL, config, target="sm_90a", compiler="numba-cuda")

The only room that knows the insides of a compiler: ``numba_cuda`` and ``numba_cuda_mlir`` stand
side by side with the same two functions, ``language()`` (what kernels are written in) and
``to_ptx(...)``. It may import ``isa`` and ``kernels.definition``; numba is imported when something
is compiled.
"""

from numba_marlin.compiler.builder import COMPILERS, available_compilers, build
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
]
