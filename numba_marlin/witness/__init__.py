"""Hardware as witness: what a GPU makes of the instructions of ``ptx/``, beside what the PTX
machine makes of them.

``probe.Probe`` is a kernel in PTX text with its memory, the same for both. ``registers``,
``warps``, ``memory``, ``copies``, ``cooperation``, ``multiplication`` and ``blackwell`` make them
out of the files of ``ptx/``, ``sparse`` without such files; ``catalogue`` lists them all, and the
instructions with no value to compare. ``draws`` makes operands from a seed. ``record`` keeps what
came out, in full where it is small, else as digests of blocks, and compares. Experiment 05 and
``numba-marlin verify --hardware`` are their users. Imports isa, layout, emulator, and, to run on a
GPU, compiler, driver and launch.
"""
