"""Profiles of a kernel: occupancy, time per section, traffic, bottlenecks, and NVML's readings
while it runs.

Figures come from two kinds of sources. On a GPU these are CUDA events, an *instrumented build* of
the same kernel (``recorder``) that records the section of each warp over time, and NVML. Elsewhere
they are the PTX machine's counts and a timing model. Every figure states its source: measured,
counted, modelled or spec.

- ``sections``: the parts of a kernel's time, and where in its PTX they begin; ``recorder`` records
  them, ``records`` reads them.
- ``on_gpu`` observes a kernel on this computer's GPU, ``on_machine`` on the PTX machine.
  ``samples`` makes random operands of a problem, bound to a kernel.

May import bench, compiler, counts, emulator, errors, execution, formats, hardware, heuristics,
kernels, layout, problems, quantizers and views. No import of it touches CUDA.
"""
