"""The published Marlin, as AutoGPTQ ships its source: source distribution of auto_gptq.

Blocks that share a column hand their sums on in fp16, through C.
"""

import numpy as np
from launches import Launch, Written
from problem import SMS, poisoned
from sources import compiler, entry_of, ptx_of, unpacked
from subject import Subject

SHARED = 96 * 1024


def make(x, weight, target):
    from numba_marlin.formats import marlin

    source = unpacked("auto_gptq") / "autogptq_extension/marlin/marlin_cuda_kernel.cu"
    # the distribution leaves its headers out; this one only declares marlin_cuda
    ptx = ptx_of(source, target, headers={"marlin_cuda_kernel.cuh": ""})
    packed = marlin.pack(weight)
    (m, k), n = x.shape, weight.n
    arguments = {
        "A": x,
        "B": packed.qweight,
        "C": Written(poisoned((m, n))),
        "s": packed.scales,
        "prob_m": np.int32(m),
        "prob_n": np.int32(n),
        "prob_k": np.int32(k),
        "locks": Written(np.zeros(n // 128 * 16, np.int32)),
    }
    entry = entry_of(ptx, "MarlinILi256ELi1ELi8ELi8ELi4ELi8E")  # m <= 16, groups of 128
    return Launch(ptx, entry, (SMS, 1, 1), (256, 1, 1), arguments, "C", SHARED)


def version():
    return f"{unpacked('auto_gptq').name}, {compiler()}"


SUBJECTS = [Subject("marlin", "Marlin", "auto_gptq", "nvcc", make, version, half_roundings=SMS)]
