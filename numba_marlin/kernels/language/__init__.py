"""What kernels are written with: their definition, rings of stages, tuples of registers, tile
order."""
