"""Benchmarks: kernels timed beside cuBLAS on this GPU, related to the device's ceilings, recorded
and compared.

``shapes`` (models to weights), ``rows`` (measurements as JSON lines), ``summary`` and
``compare`` (medians, spreads, verdicts) and ``tables`` are pure. ``timing`` (CUDA graphs,
interleaved), ``operands`` (random weights, cold L2), ``contenders`` (what is timed), ``ceilings``
and ``clocks`` need a GPU; ``measure`` puts them together, ``tune`` chooses a configuration by
measuring, ``roofline`` draws. Every experiment that times kernels uses this room.

It may import everything below ``api``. torch makes the data and calls cuBLAS, matplotlib draws,
nvidia-ml-py reads clocks: each is imported on first use, and a ``CapabilityMissing`` says what to
install. Importing a module of this room imports none of them, nor numba, nor CUDA.
"""
