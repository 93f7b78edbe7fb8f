"""From a checked problem to its result: one way for every kind of product.

Floors, each of which imports those before it:

- ``driver``: the CUDA driver's calls; ``arrays``: NumPy, CuPy, torch, Numba, and whatever speaks
  ``__cuda_array_interface__`` or DLPack, as kernels see them;
- ``launch``: a compiled kernel on a device, enqueued; ``scratch``: memory for partial sums and
  locks;
- ``plan``: what would run where, and why; ``binding``: what a kernel is told of in a launch, by
  name, and nothing about where anything lies;
- ``machine``, ``gpu``, ``reference``: a launch on the PTX machine, on a GPU, and the product
  without a kernel;
- ``product``: from operands to results, whichever of these it is;
- ``readers``, ``repeat``: a product like one before, for the price of its launch.

A library of arrays is only ever touched when an object of it was passed in, so none of them is a
dependency. No import touches CUDA.
"""
