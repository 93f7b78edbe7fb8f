"""How weights get on a grid, and back.

- ``grid``: which scale and zero point a span of weights needs; ``rtn``: round to nearest; ``mse``:
  the same, on the grid of least square error;
- ``gptq``: rounding that looks at the layer's inputs, which ``hessian`` sums up. It is the only
  module here that needs SciPy, and is imported when it is asked for;
- ``block_scaled``: NVFP4, MXFP4 and MXFP8, in float32 arithmetic that kernels repeat bit for bit;
- ``dequantize``: the one meaning of codes, scales and zero points.

Imports ``formats``, NumPy and SciPy only.
"""

from numba_marlin.quantizers.dequantize import dequantize
from numba_marlin.quantizers.rtn import quantize

__all__ = ["dequantize", "quantize"]
