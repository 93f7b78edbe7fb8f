"""The kernel ``ampere``: ``kernel`` is what to read first, then ``schedule`` (which block does
what), ``load`` (copies to shared memory), ``output`` (the epilogue) and ``config`` (sizes, shared
memory). ``choose`` says which sizes a problem gets, ``declare`` what others want to know. Of what
kernels share, the kernel uses ``dequantize.verbs`` only; ``compiler.language`` says what ``lang``
is, and ``ptx/NAME.ptx`` which operands ``lang.ptx.NAME`` takes, in which order."""

from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.ampere.declare import KERNEL

__all__ = ["KERNEL", "AmpereConfig"]
