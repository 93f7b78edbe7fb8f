"""Kernels for activations in 8 bits and quantised weights (W4A8), a package each."""

KIND = "activations"  # of the problems that they take (``problems.protocol``)
