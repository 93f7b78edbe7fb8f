"""Kernels for two block-scaled operands (NVFP4, MXFP4, MXFP8), a package each.

``choice`` is what their choosers share.
"""

KIND = "operands"  # of the problems that they take (``problems.protocol``)
