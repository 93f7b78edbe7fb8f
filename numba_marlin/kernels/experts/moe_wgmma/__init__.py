"""The kernel ``moe_wgmma``: products of a mixture of experts for many tokens, ragged over experts
in one launch.

``kernel`` is what to read first, after ``kernels.wgmma``, of which it is a relative: its main loop,
weights and reduction between blocks are that kernel's verbs. Its own are ``schedule`` (which tile
has which expert's rows), ``load`` (rows of x gathered into a swizzled stage) and ``output`` (rows
scattered, rounded or not, or gate and up activated). ``config`` has its sizes, ``choose`` says
which of them a problem gets, ``declare`` what others want to know. Importing this imports no
Numba."""

from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.experts.moe_wgmma.declare import KERNEL

__all__ = ["KERNEL", "MoeWgmmaConfig"]
