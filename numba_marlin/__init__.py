"""FP16 x INT4 matrix multiplication (Marlin) written in Python with Numba and inline PTX.

    import numba_marlin as nm
    p = nm.pack(nm.quantize(w, group_size=128))  # w [k, n]
    y = nm.matmul(x, p)  # x fp16 [m, k]; on a GPU, or, without one, on the PTX machine

Names are loaded on first use: importing the package imports neither NumPy nor Numba, and never
touches CUDA.
"""

import sys
from os import path as _path

__version__ = "0.1.0"

if not _path.isfile(__file__):
    raise ImportError(
        f"numba_marlin cannot be imported from within an archive ({_path.dirname(__file__)}): it"
        " reads its own sources and data as files; unpack it, or install it with pip"
    )

# public name -> module that defines it
_EXPORTS = {
    "quantize": "api",
    "pack": "api",
    "unpack": "api",
    "shard": "api",
    "merge": "api",
    "concat": "api",
    "dequantize": "quantizers.dequantize",
    "quantize_blocks": "api",
    "quantize_activations": "api",
    "QuantizedActivations": "formats.activations",
    "BlockScaled": "formats.operands",
    "block_scaled_matmul": "api",
    "interleave_gated": "reference.operands",
    "Hessian": "quantizers.hessian",
    "Hessians": "calibration",
    "calibrate": "calibration",
    "save_hessians": "calibration",
    "load_hessians": "calibration",
    "compare_methods": "calibration",
    "MethodComparison": "calibration",
    "matmul": "api",
    "load_experts": "api.loading_experts",
    "route": "api.experts",
    "moe_matmul": "api.experts",
    "moe_mlp": "api.experts",
    "load_checkpoint": "checkpoints",
    "save_checkpoint": "checkpoints",
    "explain": "api",
    "last_run": "api",
    "warmup": "api",
    "Workspace": "execution.scratch",
    "RunInfo": "execution.plan",
    "CapabilityMissing": "errors",
    "CheckpointError": "checkpoints",
    "BlockWeight": "formats",
    "PackedBlocks": "formats",
    "PackedExperts": "formats.experts",
    "PackedWeight": "formats",
    "QuantizedWeight": "formats",
    "Routing": "formats.routing",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name):
    if name not in _EXPORTS:
        # with name and obj Python's traceback proposes the nearest of ``__dir__``
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_EXPORTS})
