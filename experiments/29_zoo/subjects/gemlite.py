"""GemLite's kernels (Triton), which its heuristic chooses by m: the first for one row, the split
one for 16, the last for 64; each in its default configuration."""

from functools import partial
from importlib.metadata import version as installed

import numpy as np
from problem import GROUP, poisoned
from subject import Subject

FORMS = {"GEMV_REVSPLITK": 1, "GEMV_SPLITK": 1, "GEMM_SPLITK": 16, "GEMM": 64}


def make(form, x, weight, target):
    import torch
    from triton_launches import launch_of, recording

    with recording(target) as launches:
        from gemlite.core import DType, GemLiteLinearTriton
        from gemlite.triton_kernels.config import set_autotune

        set_autotune("default")
        layer = GemLiteLinearTriton(
            4,
            group_size=GROUP,
            in_features=weight.k,
            out_features=weight.n,
            input_dtype=DType.FP16,
            output_dtype=DType.FP16,
        )
        scales = torch.from_numpy(np.ascontiguousarray(weight.scales.T))
        layer.pack(
            torch.from_numpy(np.ascontiguousarray(weight.codes.T)),
            scales.reshape(-1, 1),
            torch.full((scales.numel(), 1), 8, dtype=torch.float16),
            None,
        )
        launches.clear()
        layer.forward_manual(torch.from_numpy(x), form)
    shape = len(x), weight.n
    parts = "GEMM" != form  # they are added to zeros
    before = np.zeros(shape, np.float16) if parts else poisoned(shape)
    return launch_of(launches[-1], "c_ptr", {"c_ptr": before})


def version():
    return f"gemlite {installed('gemlite')}, triton {installed('triton')}"


SUBJECTS = [
    Subject(
        f"gemlite_{form.lower()}",
        f"GemLite {form}",
        "gemlite",
        "Triton",
        partial(make, form),
        version,
        half_roundings=8,
        m=m,
    )
    for form, m in FORMS.items()
]
