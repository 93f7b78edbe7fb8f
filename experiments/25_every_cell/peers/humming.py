"""Humming (PyPI: humming-kernels) as a peer of ``bench``: fp16 or bf16 x INT4 or INT8, symmetric;
``humming_int8`` and ``humming_fp8`` quantise x to 8 bits first, a scale per row.

Its heuristics choose the configurations for all m at the first launch of a shape, when they are
compiled, in parallel, with NVRTC; the results stay in HUMMING_CACHE_DIR.
"""

import copy
import functools
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("humming-kernels")
except PackageNotFoundError:  # unpacked into a folder of PYTHONPATH
    pass


@functools.lru_cache(maxsize=1)
def layer_of(weight, activations=None):
    """activations: a type of 8 bits that x is quantised to."""
    from humming.layer import HummingLayer
    from humming.ops.weight import pack_weight

    if weight.zeros is not None or weight.bias is not None:
        raise ValueError("this peer takes symmetric weights without a bias")
    groups = weight.group_size if weight.group_size < weight.k else 0
    layer = HummingLayer(
        shape_n=weight.n,
        shape_k=weight.k,
        weight_config={"dtype": f"uint{weight.bits}", "group_size": groups},
        input_config={"dtype": activations} if activations else None,
        torch_dtype=weight.dtype,
        pad_n_to_multiple=64,
    ).cuda()
    codes = weight.codes.T.contiguous().int()
    scales = weight.scales.T.contiguous().to(weight.dtype)
    layer.load_from_tensors({"weight": pack_weight(codes, weight.bits), "weight_scale": scales})
    layer.transform()
    return layer


def launch_of(weight, activations=None):
    layer = copy.deepcopy(layer_of(weight, activations))
    return lambda x, out: layer(x, outputs=out)


def humming(weight):
    return launch_of(weight)


def humming_int8(weight):
    return launch_of(weight, "int8")


def humming_fp8(weight):
    return launch_of(weight, "float8e4m3")
