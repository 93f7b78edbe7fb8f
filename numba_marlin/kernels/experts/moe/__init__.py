"""The kernel ``moe``: products of a mixture of experts, ragged over experts in one launch.

``kernel`` is what to read first, after ``kernels.decode``, of which it is a relative: it copies and
multiplies a stage with decode's verbs. Its own are ``schedule`` (which block has what of which
expert), ``load`` (rows of x gathered where they lie) and ``output`` (rows scattered, or gate and up
activated). ``config`` has its sizes, ``choose`` says which of them a problem gets, ``declare`` what
others want to know. Importing this imports no Numba."""

from numba_marlin.kernels.experts.moe.config import MoeConfig
from numba_marlin.kernels.experts.moe.declare import KERNEL

__all__ = ["KERNEL", "MoeConfig"]
