"""From a checked problem to its result: one path for every kind of product.

Layers, each of which imports those before it:

- ``driver``: calls of the CUDA driver; ``arrays``: one view of arrays of NumPy, CuPy, torch, Numba,
  and of any library that supports ``__cuda_array_interface__`` or DLPack;
- ``launch``: a compiled kernel on a device, enqueued; ``scratch``: memory for partial sums and
  locks;
- ``plan``: backend, kernel and grid for a problem; ``binding``: the arguments of a launch, by name,
  and nothing about where anything lies;
- ``machine``, ``gpu``, ``reference``: the three backends (PTX machine, CUDA, float64 on the CPU);
- ``product``: from operands to results, whichever backend it is;
- ``residence``, ``packing``: weights brought to devices, packed and unpacked there;
- ``warmup``: compiles ahead what plans will ask for;
- ``readers``, ``repeat``: repeats a product like an earlier one at the cost of its launch.

An array library is used only if one of its arrays was passed in, so none of them is a dependency.
No import touches CUDA.
"""
