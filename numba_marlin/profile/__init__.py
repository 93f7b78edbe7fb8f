"""What a kernel does with its time and a device with its units: occupancy, sections of time,
traffic, bottlenecks; and what NVML says while it runs.

Two sources. On a GPU: CUDA events, an *instrumented build* of the same kernel (``recorder``) that
says when each warp was where, NVML. Anywhere: the PTX machine's counts and a timing model. Every
figure says which: measured, counted, modelled or spec.

- ``sections``: the parts of a kernel's time, and where in its PTX they begin; ``recorder`` writes
  them down, ``records`` reads them.
- ``on_gpu``: a kernel observed on this machine's GPU; ``on_machine``: on the PTX machine.
  ``samples``: random operands of a problem, bound to a kernel.

May import bench, compiler, counts, emulator, errors, execution, formats, hardware, heuristics,
kernels, layout, problems, quantizers and views. No import of it touches CUDA.
"""
