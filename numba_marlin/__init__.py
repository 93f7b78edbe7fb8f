"""FP16 x INT4 matrix multiplication (Marlin) written in Python with Numba and inline PTX.

    import numba_marlin as nm
    p = nm.pack(nm.quantize(w, group_size=128))     # w [k, n]
    y = nm.matmul(x, p)                             # x fp16 [m, k]; on a GPU, or on the PTX machine
                                                    without one

Names are loaded on first use: importing the package imports neither NumPy nor Numba, and never
touches CUDA.
"""

import sys
import types

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS = {
    "quantize": "api",
    "pack": "api",
    "unpack": "api",
    "dequantize": "quantize.dequantize",
    "quantize_blocks": "api",
    "BlockScaled": "formats.block_scaled",
    "block_scaled_matmul": "block_scaled",
    "interleave_gated": "block_scaled",
    "Hessian": "quantize.hessian",
    "matmul": "api",
    "load_checkpoint": "checkpoints",
    "save_checkpoint": "checkpoints",
    "explain": "api",
    "last_run": "api",
    "Workspace": "backends",
    "RunInfo": "backends",
    "CapabilityMissing": "errors",
    "CheckpointError": "checkpoints",
    "BlockWeight": "formats",
    "PackedBlocks": "formats",
    "PackedWeight": "formats",
    "QuantizedWeight": "formats",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS})


class _Package(types.ModuleType):
    """Keeps ``numba_marlin.quantize`` the public function: importing the room of that name would
    bind the module here.

    ``from numba_marlin.quantize import rtn`` and the like still reach the room.
    """

    def __setattr__(self, name, value):
        if not (name in _EXPORTS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
