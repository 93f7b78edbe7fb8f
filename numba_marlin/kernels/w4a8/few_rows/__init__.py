"""The kernel of ``decode_int8`` and ``decode_fp8``: few rows of 8-bit activations. ``kernel`` is
what to read first, ``int8`` the main loop of the one (of the other it is ``kernels.decode``'s),
``finish`` the last scales, ``definition`` what others want to know; the rest is
``kernels.decode``."""
