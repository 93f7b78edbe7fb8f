"""Quantisation of weights and operands, and dequantisation.

- ``grid``: the scale and zero point for a range of weights; ``rtn``: round to nearest; ``mse``: the
  same, on the grid of least squared error;
- ``gptq``: rounding that minimises the error of the layer's outputs, from the Hessian of its inputs
  (``hessian``). It is the only module here that needs SciPy, and is imported on first use;
- ``operands``: NVFP4, MXFP4 and MXFP8, in float32 arithmetic that kernels reproduce bit for bit;
- ``dequantize``: the numbers that codes, scales and zero points stand for.

Imports ``formats``, NumPy and SciPy only.
"""

from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.quantizers.rtn import quantize

__all__ = ["dequantize", "quantize"]
