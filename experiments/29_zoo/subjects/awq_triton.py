"""AWQ's gemm in Triton (vLLM's, as AutoAWQ ships it): package autoawq.

It sums in fp16: tl.dot is asked for fp16 results, and the parts are added by fp16 atomics.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
from launches import Missing
from problem import K, stored
from subject import Subject

SPLITS = 4


def make(x, weight, target):
    import torch
    from triton_launches import launch_of, recording

    package = importlib.util.find_spec("awq")
    if package is None:
        raise Missing("autoawq is not installed")
    # the package's __init__ imports models that no longer exist: the kernel's module is enough
    path = Path(next(iter(package.submodule_search_locations))) / "modules/triton/gemm.py"
    spec = importlib.util.spec_from_file_location("awq_triton_gemm", path)
    module = sys.modules["awq_triton_gemm"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensors = {name: torch.from_numpy(each) for name, each in stored("awq", weight).items()}
    with recording(target) as launches:
        module.awq_gemm_triton(
            torch.from_numpy(x), tensors["qweight"], tensors["scales"], tensors["qzeros"], SPLITS
        )
    # it adds its parts to zeros
    return launch_of(launches[0], "c_ptr", {"c_ptr": np.zeros((len(x), weight.n), np.float16)})


def version():
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        own = f"autoawq {installed('autoawq')}"
    except PackageNotFoundError:
        own = "autoawq"
    return f"{own}, triton {installed('triton')}"


SUBJECTS = [
    Subject(
        "awq_triton",
        "AWQ gemm (vLLM's)",
        "autoawq",
        "Triton",
        make,
        version,
        half_roundings=K // 16 + SPLITS,
    )
]
