"""Kernels for mixtures of experts, a package each: products that are ragged over experts, in one
launch."""
