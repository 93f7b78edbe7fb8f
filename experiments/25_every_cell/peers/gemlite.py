"""GemLite (PyPI: gemlite), Triton kernels, as a peer of ``bench``: fp16 or bf16 x INT4 or INT8.

It tunes itself at the first launch of a shape with an m, unless it has a file for this GPU.
"""

from importlib.metadata import PackageNotFoundError, version

import torch

try:
    __version__ = version("gemlite")
except PackageNotFoundError:  # unpacked into a folder of PYTHONPATH
    __version__ = "unknown"


def gemlite(weight):
    from gemlite.helper import A16Wn

    zeros = weight.zeros
    if zeros is None:
        zeros = torch.full_like(weight.scales, 2 ** (weight.bits - 1))
    linear = A16Wn(device="cuda", dtype=weight.dtype).from_weights(
        weight.codes.T.contiguous(),
        weight.scales.T.contiguous(),
        zeros.T.contiguous().to(weight.dtype),
        weight.bits,
        weight.group_size,
        weight.bias,
    )
    return lambda x, out: linear(x)
