"""Kernels for activations in 8 bits and quantised weights (W4A8).

``decode_int8`` and ``decode_fp8`` are for few rows, and one kernel with two types of activations,
``few_rows``. So are ``wgmma_int8`` and ``wgmma_fp8``, whose modules lie here: ``kernel`` is what to
read first, ``multiply`` its main loop, to which ``weights`` brings bytes, and of whose sums
``promote`` makes totals, while ``turns`` says which warpgroup multiplies; ``elements`` has what
differs between the types, ``finish`` the end of a tile. ``config`` holds its sizes, ``choose`` says
which of them a problem gets, ``definition`` what others want to know."""

KIND = "activations"  # of the problems that they take (``problems.protocol``)
BUILT_OF = ("decode",)  # of whose verbs ``few_rows`` is made
