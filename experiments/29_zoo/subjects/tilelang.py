"""TileLang's examples of 4-bit products, from its source distribution: x times the plain codes 0 to
15, without scales. TileLang writes CUDA C++, which nvcc compiles; for sm_90 the product has TMA, a
producer and consumers.
"""

import importlib
import importlib.util
import re
import sys
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
from launches import Launch, Missing, TensorMapOf, Written
from problem import poisoned
from sources import compiler, ptx_of, unpacked
from subject import Subject

SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}  # CUtensorMapSwizzle
DTYPES = {0: "uint8", 6: "float16"}  # CUtensorMapDataType


def gemm(m, n, k):
    """The tile and threads that its main() has, and the smallest tile of rows."""
    from tilelang import language as T

    example = importlib.import_module("example_dequant_gemm_fine_grained")
    float16, float32 = T.float16, T.float32
    return example.matmul.get_tir(m, n, k, 16, 64, 64, float16, float16, float32, 3, 128)


def gemv(m, n, k):
    from tilelang import language as T

    example = importlib.import_module("example_dequant_gemv_fp16xint4")
    types = T.float16, T.float16, T.float32  # its main() sums in fp16
    return example.dequantize_gemv.get_tir(m, n, k, *types, fast_decoding=True)


def make(example, x, weight, target):
    if importlib.util.find_spec("tilelang") is None:
        raise Missing("tilelang is not installed")
    folder = unpacked("tilelang") / "examples/dequantize_gemm"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    import tilelang
    from tilelang import language as T
    from tvm.target import Target

    from numba_marlin.layout.tensor_map import TensorMap

    (m, k), n = x.shape, weight.n
    function = example(m, n, k)
    with Target({"kind": "cuda", "arch": target}) as chosen:
        lowered = tilelang.lower(function, target=chosen)
    package = Path(next(iter(importlib.util.find_spec("tilelang").submodule_search_locations)))
    options = ["-I", str(package / "src"), "-I", str(package / "3rdparty/cutlass/include")]
    ptx = ptx_of(lowered.kernel_source, target.replace("90", "90a"), *options)

    codes = weight.codes.T
    packed = np.ascontiguousarray(codes[:, 0::2] | codes[:, 1::2] << 4)
    if example is gemv:  # fast decoding wants the nibbles of a word in another order
        import torch
        from quantize.utils import interleave_weight

        packed = interleave_weight(torch.from_numpy(packed.view(np.int8)), 4, T.float16).numpy()
    arrays = {"A": x, "B": packed, "C": Written(poisoned((m, n)))}
    calls = [
        re.split(r",\s*", call)
        for call in re.findall(r"T\.call_packed\((.*)\)", str(lowered.host_mod))
    ]
    maps = {}
    for _, name, dtype, rank, array, *numbers in [
        call for call in calls if "tensormap_create_tiled" in call[0]
    ]:
        rank, numbers = int(rank), list(map(int, numbers))
        shape, strides, box = (numbers[at * rank : (at + 1) * rank][::-1] for at in range(3))
        swizzle = SWIZZLES[numbers[4 * rank + 1]]
        tensor_map = TensorMap(DTYPES[int(dtype)], shape, strides, box, swizzle)
        maps[name] = TensorMapOf(arrays[array], tensor_map)
    (call,) = [call[1:] for call in calls if call[0] == '"main_kernel"']
    names = [name for name in call if name in arrays or name in maps]
    tags = re.search(r'"tirx.kernel_launch_params": \[(.*?)\]', str(lowered.device_mod))[1]
    tags = [tag.strip('" ') for tag in tags.split(",")]
    sizes = dict(zip(tags, map(int, call[len(names) :])))
    return Launch(
        ptx,
        "main_kernel",
        tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in "xyz"),
        tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz"),
        {name: maps[name] if name in maps else arrays[name] for name in names},
        "C",
        sizes.get("tirx.use_dyn_shared_memory", 0),
    )


def version():
    return f"tilelang {installed('tilelang')}, {compiler()}"


SUBJECTS = [
    Subject(
        f"tilelang_{example.__name__}",
        f"dequantize_{example.__name__} (example)",
        "tilelang",
        "TileLang",
        partial(make, example),
        version,
        m=m,
        plain=True,
    )
    for example, m in ((gemm, 16), (gemv, 1))
]
