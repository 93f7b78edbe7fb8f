"""Weights, tensors and devices of the tests of several processes."""

from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

import numba_marlin as nm
from numba_marlin.execution.residence import tensor_of
from numba_marlin.formats.floats import float_type, round_to

K, N = 192, 144  # of two and of three ranks: parts of 96 and 64 rows, of 72 and 48 columns
KINDS = ("int4", "int8", "zeros", "ordered", "nvfp4", "mxfp4")


def weight(kind="int4", k=K, n=N, seed=5):
    w = np.random.default_rng(seed).standard_normal((k, n), np.float32)
    if kind in ("nvfp4", "mxfp4"):
        return nm.pack(nm.quantize(w, format=kind))
    bits, symmetric = (8 if kind == "int8" else 4), kind != "zeros"
    q = nm.quantize(w, bits=bits, group_size=32, symmetric=symmetric)
    if kind == "ordered":
        q = replace(q, permutation=np.random.default_rng(1).permutation(k).astype(np.int32))
    return nm.pack(q)


def small_integers(k=K, n=N, seed=0):
    """A weight whose products with small integers are exact in every order of sums."""
    codes = np.random.default_rng(seed).integers(0, 16, (k, n), np.uint8)
    ones = np.ones((k // 32, n), np.float16)
    return nm.pack(nm.QuantizedWeight(codes, ones, group_size=32))


def tensor(*shape, dtype=torch.float16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*shape, dtype=torch.float16, seed=0):
    found = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return found.to(dtype)


def product(x, *weights, bias=None):
    """x times the weights side by side, plus the bias, in float64, rounded once."""
    w = np.concatenate([nm.dequantize(each, "float64") for each in weights], 1)
    y = numbers(x.double()) @ w + (0 if bias is None else numbers(bias.double()))
    if x.dtype == torch.float64:
        return torch.from_numpy(y)
    return tensor_of(round_to(y, float_type(str(x.dtype).removeprefix("torch."))))


def here(thing):
    """On this rank's device."""
    return thing.cuda() if dist.get_backend() == "nccl" else thing


def numbers(tensor):
    return tensor.detach().cpu().numpy()


def rank():
    return dist.get_rank()
