"""Profiles of a kernel: occupancy, time per section, traffic, bottlenecks, and NVML's readings
while it runs.

There are two sources. On a GPU: CUDA events, an *instrumented build* of the same kernel
(``recorder``) that records the section of each warp over time, and NVML. Anywhere: the PTX
machine's counts and a timing model. Every figure states its source: measured, counted, modelled or
spec.

- ``sections``: the parts of a kernel's time, and where in its PTX they begin; ``recorder`` writes
  them down, ``records`` reads them.
- ``on_gpu``: a kernel observed on this computer's GPU; ``on_machine``: on the PTX machine.
  ``samples``: random operands of a problem, bound to a kernel.

May import bench, compiler, counts, emulator, errors, execution, formats, hardware, heuristics,
kernels, layout, problems, quantizers and views. No import of it touches CUDA.
"""
