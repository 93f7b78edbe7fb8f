"""Kernels for two block-scaled operands (NVFP4, MXFP4, MXFP8), a package each."""
