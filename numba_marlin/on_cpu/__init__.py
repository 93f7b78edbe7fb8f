"""Programs that use ``numba.cuda`` or ``numba_cuda_mlir.cuda`` run on the PTX machine instead of a
GPU, unchanged.

    NUMBA_CUDA_ON_CPU=1 python program.py          # after: python -m numba_marlin.on_cpu --install
    python -m numba_marlin.on_cpu program.py
    with numba_marlin.on_cpu.cuda(): ...
    pytest --cuda-on-cpu

The compiler, numba-cuda or numba-cuda-mlir, compiles as it does for a GPU of compute capability
9.0; its own code allocates, copies, counts references and launches. Only what it calls the driver
for is done here, on host memory, and kernels run from their PTX by ``emulator.Machine``, which
reports what a GPU may hide: accesses out of bounds, races, deadlocks.

The room is called after what it does: CUDA, on the CPU. It knows both compilers, the machine and
nothing else: no quantisation, layout or kernel of this package. Importing it imports neither Numba
nor the machine.

``switch``
    on and off, and when.
``driver``, ``memory``
    the driver's functions; allocations and copies.
``nvrtc``, ``linking``, ``modules``
    from a compiled kernel to PTX that the machine reads; modules, kernels and their attributes.
``views``, ``launching``, ``faults``
    arrays on their way; one launch; what went wrong, in words of the Python program.
``layer``, ``patches``, ``mlir``
    the names themselves: of what both compilers have, of numba-cuda, of numba-cuda-mlir.
``pytest_plugin``, ``__main__``
    the options of pytest and of the command line.
"""

from numba_marlin.on_cpu.switch import Options, cuda

__all__ = ["Options", "cuda"]
