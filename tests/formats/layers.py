"""Layers of every stored format, made at random: any words for packed codes, values that can be for
the rest."""

import numpy as np
import pytest

from numba_marlin.formats.files import STORED
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.gptq import PERMUTATION


def random_layer(form, geometry, seed):
    """name -> tensor: a valid layer of this geometry."""
    rng = np.random.default_rng(seed)
    specs = form.specs(geometry)
    order = rng.permutation(geometry.k).astype(np.int32)
    tensors = {}
    for name, spec in specs.items():
        if spec.packing is not None:
            words = rng.integers(
                0, 256, (*spec.shape, np.dtype(spec.packing.word).itemsize), dtype=np.uint8
            )
            if geometry.bits == 8 and spec.packing.word == "uint8":
                words[words & 127 == 127] = 0  # codes of e4m3 that are no number
            tensors[name] = words.view(spec.packing.word)[..., 0]
        elif name == PERMUTATION:
            tensors[name] = order
        elif name.endswith("g_idx"):
            ascending = (np.arange(geometry.k) // (geometry.k // geometry.groups)).astype(np.int32)
            tensors[name] = ascending if PERMUTATION in specs else ascending[np.argsort(order)]
        elif name == "weight_shape":
            tensors[name] = np.array([geometry.n, geometry.k], np.int64)
        elif geometry.scale_dtype in ("e4m3", "e8m0") and "uint8" in spec.dtypes:
            tensors[name] = rng.integers(0, 127, spec.shape, dtype=np.uint8)  # no NaN
        elif geometry.scale_dtype in spec.dtypes:
            tensors[name] = rng.uniform(-1, 1, spec.shape).astype(float_type(geometry.scale_dtype))
        else:  # a number beside the scales
            tensors[name] = np.asarray(rng.uniform(0.5, 2, spec.shape), spec.dtypes[0])
    return tensors


def place_bits(packing, codes, bits):
    """The packed tensor by the closed form alone, one bit at a time, and the addresses of all bits
    in it."""
    k, n = codes.shape
    shape = packing.shape(k, n, bits)
    word_bits = 8 * np.dtype(packing.word).itemsize
    k_index, n_index, bit = (each.ravel() for each in np.indices((k, n, bits)))
    row, column, bit_of_word = packing.place(k_index, n_index, bit, bits)
    addresses = (row * shape[1] + column) * word_bits + bit_of_word
    flat = np.zeros(shape[0] * shape[1] * word_bits, np.uint8)
    flat[addresses] = codes[k_index, n_index] >> bit.astype(np.uint8) & 1
    little = np.packbits(flat, bitorder="little").view(np.dtype(packing.word).newbyteorder("<"))
    return little.astype(packing.word).reshape(shape), addresses


def same_layer(left, right):
    return set(left) == set(right) and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


CASES = [
    pytest.param(form, geometry, id=f"{form.name}-{number}")
    for form in STORED.values()
    for number, geometry in enumerate(form.test_geometries)
]
INTEGER = [form for form in STORED.values() if form.holds != "BlockWeight"]
