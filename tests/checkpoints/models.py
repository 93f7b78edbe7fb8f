"""Small models for tests of checkpoints: layers of every kind, and tensors beside them."""

import json
import struct

import numpy as np

from numba_marlin import testing


def small_model(layers=3, zeros_kind=None, bits=4, k=128, n=64, group=32):
    """layer name -> QuantizedWeight"""
    return {
        f"model.layers.{number}.mlp.up_proj": testing.make_quantized(
            "uniform", "ordinary", k, n, group, number, bits=bits, zeros_kind=zeros_kind
        )
        for number in range(layers)
    }


OTHERS = {
    "model.norm.weight": np.linspace(0, 1, 64).astype(np.float16),
    "model.layers.0.mlp.up_proj.bias": np.arange(64, dtype=np.float32),
    "odd": np.arange(5, dtype=np.uint8),
    "alone": np.array(3, np.float32),
    "lm_head.weight": np.ones((3, 7), np.float64),
    "none": np.zeros((0, 4), np.float16),
}


def file_bytes(header, data=b"", length=None):
    """A .safetensors file with this header (a dict, or the bytes of one)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def same_weight(left, right):
    """Whether two QuantizedWeights or PackedWeights have the same bits."""
    names = [
        name
        for name in ("codes", "qweight", "scales", "zeros", "permutation")
        if hasattr(left, name)
    ]
    return type(left) is type(right) and all(
        (getattr(left, name) is None) == (getattr(right, name) is None)
        and (
            getattr(left, name) is None
            or getattr(left, name).tobytes() == getattr(right, name).tobytes()
        )
        for name in names
    )
