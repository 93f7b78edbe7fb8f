"""GPTQ's product in Triton (GPTQ-for-LLaMa's, as AutoGPTQ ships it): source distribution of
auto_gptq. Of its configurations the one with the smallest tile, where its tuner would measure.
"""

import importlib
import sys
import types
from importlib.metadata import version as installed

import numpy as np
from launches import Missing
from problem import GROUP, poisoned, stored
from sources import unpacked
from subject import Subject


def make(x, weight, target):
    folder = unpacked("auto_gptq") / "auto_gptq/nn_modules/triton_utils"
    if not folder.is_dir():
        raise Missing(f"{folder.name} is not in the source distribution of auto_gptq")
    import torch
    from triton_launches import launch_of, recording

    # the package itself imports models that no longer exist: these modules are enough
    package = sys.modules.setdefault("gptq_triton_utils", types.ModuleType("gptq_triton_utils"))
    package.__path__ = [str(folder)]
    kernels = importlib.import_module("gptq_triton_utils.kernels")
    tuner = kernels.quant_matmul_248_kernel
    tuner.configs = [
        min(
            tuner.configs,
            key=lambda each: each.kwargs["BLOCK_SIZE_M"] * each.kwargs["BLOCK_SIZE_N"],
        )
    ]
    tensors = {name: torch.from_numpy(each) for name, each in stored("gptq", weight).items()}
    rows = torch.from_numpy(np.arange(weight.k, dtype=np.int32) // GROUP)
    with recording(target) as launches:
        kernels.quant_matmul_248(
            torch.from_numpy(x),
            tensors["qweight"],
            tensors["scales"],
            tensors["qzeros"],
            rows,
            4,
            15,
        )
    return launch_of(launches[-1], "c_ptr", {"c_ptr": poisoned((len(x), weight.n))})


def version():
    return f"{unpacked('auto_gptq').name}, triton {installed('triton')}"


SUBJECTS = [Subject("gptq_triton", "GPTQ (GPTQ-for-LLaMa's)", "auto_gptq", "Triton", make, version)]
