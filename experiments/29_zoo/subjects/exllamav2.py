"""ExLlamaV2's kernel for GPTQ weights, from the sources in its package.

Products are summed in fp16 throughout, and the parts of k by fp16 atomics.
"""

import importlib.util
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
from launches import Launch, Missing, Written
from problem import GROUP, K, poisoned, stored
from sources import compiler, entry_of, ptx_of
from subject import Subject

ROWS, PART = 4, 128  # rows of a block, and its part of k


def shuffled(qweight: np.ndarray) -> np.ndarray:
    """Words of eight codes with the even ones in the lower half, as its loader stores them."""
    words = qweight.view(np.uint32)
    codes = [words >> np.uint32(4 * index) & np.uint32(15) for index in range(8)]
    order = codes[0::2] + codes[1::2]
    return sum(code << np.uint32(4 * place) for place, code in enumerate(order)).view(np.int32)


def make(x, weight, target):
    found = importlib.util.find_spec("exllamav2")
    if found is None:
        raise Missing("exllamav2 is not installed")
    folder = Path(next(iter(found.submodule_search_locations))) / "exllamav2_ext/cuda"
    # of torch only the name of a header is wanted
    ptx = ptx_of(
        folder / "comp_units/unit_gptq_1.cu", target, headers={"ATen/cuda/CUDAContext.h": ""}
    )
    tensors = stored("gptq", weight)
    (m, k), n = x.shape, weight.n
    arguments = {
        "a": x,
        "b_q_weight": shuffled(tensors["qweight"]),
        "b_gptq_qzeros": tensors["qzeros"],
        "b_gptq_scales": tensors["scales"],
        "c": Written(poisoned((m, n))),
        "size_m": np.int32(m),
        "size_n": np.int32(n),
        "size_k": np.int32(k),
        "groups": np.int32(k // GROUP),
        "groupsize": np.int32(GROUP),
        "b_q_perm": None,
        "rows_4": np.int32(k),
        "clear": np.int8(1),  # as ext_gemm calls it: the kernel zeroes c
        "r_weights": None,
        "r_weights_stride": np.int32(0),
    }
    entry = entry_of(ptx, "gemm_half_q_half_gptq_kernel", f"ILi{ROWS}ELb0ELb0E")
    grid = -(-n // (4 * PART)), -(-m // ROWS), -(-k // PART)
    return Launch(ptx, entry, grid, (PART, 1, 1), arguments, "c")


def version():
    return f"exllamav2 {installed('exllamav2')}, {compiler()}"


SUBJECTS = [
    Subject(
        f"exllamav2_gptq_n{n}",
        "ExLlamaV2 GPTQ",
        "exllamav2",
        "nvcc",
        make,
        version,
        half_roundings=K // 2 + K // PART,
        n=n,
    )
    for n in (256, 512)  # with 256, half of a block's threads have no column and return
]
