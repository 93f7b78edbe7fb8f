"""What the Hopper kernels of the transposed product share (``wgmma`` and those of ``w4a8``),
whatever they multiply: where things lie in shared memory (``shared``), the producer (``load``), the
order of tiles (``schedule``), tiles that blocks share (``parts``), and what becomes of a tile's
accumulators (``columns``, ``output``). No kernel lies here."""
