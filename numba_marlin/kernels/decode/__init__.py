"""The kernel ``decode``: ``kernel`` is what to read first, ``config`` holds its sizes, ``shared``
the map of shared memory, ``choose`` says which sizes a problem gets, ``declare`` what others want
to know.

INT4 without zero points, which is what Marlin has, is ``kernel``, ``config``, ``shared``,
``schedule``, ``load``, ``multiply``, ``fetch``, ``activations``, ``promote``, ``output`` and
``nibble_verbs`` of ``weights``. Only other types need ``fp4``, ``zero_points``, ``byte_verbs``.

Of what kernels share it takes ``language.pipeline`` (mbarriers), ``language.definition`` (checks),
``dequantize.expand`` (integer codes) and ``dequantize.expand_fp4`` (FP4); nothing else of
``dequantize`` but a few constants."""

from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.decode.declare import KERNEL

__all__ = ["KERNEL", "DecodeConfig"]
