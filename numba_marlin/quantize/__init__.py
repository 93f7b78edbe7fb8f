"""How weights get on a grid, and back: round-to-nearest quantisation and the one meaning of dequantisation.

Imports ``formats`` and NumPy only.
"""

from numba_marlin.quantize.dequantize import dequantize
from numba_marlin.quantize.rtn import quantize

__all__ = ["dequantize", "quantize"]
