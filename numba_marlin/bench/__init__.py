"""How fast, on this GPU, now: kernels timed beside cuBLAS, held against what the device can do,
written down and compared.

``shapes`` (models to weights), ``rows`` (what a measurement says, JSON lines), ``summary`` and
``compare`` (medians, spreads, verdicts) and ``tables`` are pure. ``timing`` (CUDA graphs,
interleaved), ``operands`` (random weights, cold L2), ``contenders`` (what is timed), ``ceilings``
and ``clocks`` need a GPU; ``measure`` puts them together, ``tune`` chooses a configuration by
measuring, ``roofline`` draws. Every experiment that times kernels does it with this room.

It may import everything below ``api``. torch makes the data and cuBLAS' products, matplotlib draws,
nvidia-ml-py reads clocks: each is imported when it is needed, and a ``CapabilityMissing`` says what
to install. Importing a module of this room imports none of them, nor numba, nor CUDA.
"""
