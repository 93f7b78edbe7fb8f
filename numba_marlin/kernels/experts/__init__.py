"""Kernels for mixtures of experts, a package each: products that are ragged over experts, in one
launch. ``about`` is what their declarations share."""

KIND = "experts"  # of the problems that they take (``problems.protocol``)
BUILT_OF = ("decode", "wgmma")  # kernels for one weight, of whose verbs they are made
