"""The kernels: ladders of device programs, one for each kind of problem, one idea a rung.

A kernel is a package: ``kernel`` is its body and what to read first, ``config`` its sizes,
``choose`` which of them a problem gets, ``declare`` the ``KERNEL: KernelDefinition`` with all that
others want to know. Relatives share a folder (``nvfp4``, ``w4a8``); ``language`` and
``dequantize`` are what all of them share, ``hopper`` what two do. ``registry`` finds them by
looking: a new package is a new kernel. ``packing``, ``quantize_activations`` and passes behind a
launch (``experts.sum_experts``), which multiply nothing, are on no ladder.

A body imports ``layout`` (whose maps it consumes) and its neighbours in this room, and nothing else
of the package: no compiler, no numba, no CUDA. What it needs of a compiler it gets as ``lang`` when
it is made (``language.definition``). Only the rungs in plain Numba import Numba and ``ptx``
themselves, when they are compiled. Choosers also know ``problems`` and ``hardware``.
"""
