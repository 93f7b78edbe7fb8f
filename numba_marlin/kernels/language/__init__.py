"""What kernels are written with: their definition, how they are chosen, rings of stages, tuples of
registers, tile order."""
