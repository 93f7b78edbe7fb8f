"""Linear layers of other projects, of random 4-bit codes, as makers for ``decoder``: (k, n, place)
-> module. Needs torch and, each, what it is a layer of; whatever that raises where it is missing.

torch int4   torch's own ``_weight_int4pack_mm``, the kernel that torchao's int4_weight_only calls
GemLite      gemlite, from PyPI
Marlin CUDA  the original, from the shared library that the variable MARLIN_CUDA names (how to build
             one: experiments/01_faithful/README.md)
"""

from __future__ import annotations

import ctypes
import math
import os

import torch
from sizes import GROUP
from torch import Tensor, nn

CODE_DEVIATION = math.sqrt((16**2 - 1) / 12)  # of codes that are uniform in 0 .. 15


def random_scales(k: int, columns: int, device: str) -> Tensor:
    """[groups, columns] fp32: of which products with random codes are about as large as x."""
    scales = torch.rand((k // GROUP, columns), device=device) + 0.5
    return scales / (CODE_DEVIATION * k**0.5)


class TorchInt4(nn.Module):
    """bfloat16 only, and CUDA."""

    TILES = 8

    def __init__(self, k: int, n: int, place):
        super().__init__()
        tiles = self.TILES
        shape = (n // 8, k // (tiles * 16), 32, tiles // 2)
        self.words = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=place.device)
        scales = random_scales(k, n, place.device)[:, :, None]
        self.scales = torch.cat([scales, torch.zeros_like(scales)], dim=2).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm(x, self.words, GROUP, self.scales)


class GemLite(nn.Module):
    def __init__(self, k: int, n: int, place):
        super().__init__()
        from gemlite.helper import A16Wn

        codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=place.device)
        scales = random_scales(k, n, place.device).t().contiguous().to(place.dtype)
        zeros = torch.full_like(scales, 8)
        made = A16Wn(device=place.device, dtype=place.dtype)
        self.linear = made.from_weights(codes, scales, zeros, 4, GROUP, None)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class MarlinCuda(nn.Module):
    """Codes and scales in the published order, which for random ones is any. float16 only."""

    def __init__(self, k: int, n: int, place):
        super().__init__()
        path = os.environ.get("MARLIN_CUDA")
        if path is None:
            raise FileNotFoundError("MARLIN_CUDA names no shared library")
        self.k, self.n = k, n
        self.function = ctypes.CDLL(path).marlin_peer
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.function.argtypes = [*[pointer] * 4, *[number] * 3, pointer, number, pointer, number]
        shape = (k // 16, 2 * n)
        self.words = torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=place.device)
        self.scales = random_scales(k, n, place.device).half()
        self.locks = torch.zeros(max(1024, n // 8), dtype=torch.int32, device=place.device)

    def forward(self, x: Tensor) -> Tensor:
        y, stream = x.new_empty((len(x), self.n)), torch.cuda.current_stream().cuda_stream
        x, words, scales, locks = (
            each.data_ptr() for each in (x, self.words, self.scales, self.locks)
        )
        size = (len(y), self.n, self.k)
        status = self.function(x, words, y.data_ptr(), scales, *size, locks, GROUP, stream, -1)
        if status:
            raise ValueError(f"the original refuses m={len(y)} n={self.n} k={self.k}: {status}")
        return y


# name in the rows -> maker, type
PEERS = {
    "torch int4": (TorchInt4, torch.bfloat16),
    "GemLite": (GemLite, torch.float16),
    "Marlin CUDA": (MarlinCuda, torch.float16),
}
# the kernel that a row of each names
KERNELS = {
    "torch int4": "_weight_int4pack_mm",
    "GemLite": "gemlite",
    "Marlin CUDA": "marlin_cuda",
}
