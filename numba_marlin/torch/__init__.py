"""Quantised weights in torch: operators that torch.compile knows, ``Linear``, and ``quantize_`` for
a whole model. Needs torch: ``pip install 'numba-marlin[torch]'``.

    import numba_marlin.torch as nmt
    nmt.quantize_(model, method="rtn", group_size=128)  # every nn.Linear but the ones in ``skip``
    model.cuda().half()
    model(tokens)

``matmul(x, p)`` is ``numba_marlin.matmul`` as a torch operator: it has a gradient with respect to x
and the bias, and torch.compile, torch.export and CUDA graphs go through it. On the CPU it is the
float64 reference, or, inside ``cpu_backend("emulator")``, the compiled kernel on the PTX machine.

``Experts`` and ``Mixture`` are the layer of a mixture of experts, in one operator.

``from_pretrained``, ``Config`` and ``take_over`` need transformers, which is imported when one of
them is first named.

The module ``vllm`` is a plugin of vLLM, which loads it itself.

Several GPUs, a process each (``torchrun``), after ``torch.distributed.init_process_group()``:

    nmt.parallelize_(model, nmt.LLAMA_PLAN).cuda()  # each rank keeps its part of every layer
"""

import importlib

from numba_marlin.torch.experts import Experts, Mixture
from numba_marlin.torch.linear import Linear
from numba_marlin.torch.operators import cpu_backend, dequantize, matmul
from numba_marlin.torch.parallel import ColumnParallelLinear, RowParallelLinear
from numba_marlin.torch.parallel_experts import ParallelExperts
from numba_marlin.torch.parallelize import LLAMA_PLAN, MIXTURE_PLAN, parallelize_
from numba_marlin.torch.quantize import quantize_

__all__ = [
    "LLAMA_PLAN",
    "MIXTURE_PLAN",
    "ColumnParallelLinear",
    "Experts",
    "Linear",
    "Mixture",
    "ParallelExperts",
    "RowParallelLinear",
    "cpu_backend",
    "dequantize",
    "matmul",
    "parallelize_",
    "quantize_",
]

_OF_TRANSFORMERS = {
    "Config": "transformers",
    "from_pretrained": "transformers",
    "take_over": "takeover",
}


def __getattr__(name: str):
    if name in _OF_TRANSFORMERS:
        try:
            module = importlib.import_module(f"{__name__}.{_OF_TRANSFORMERS[name]}")
        except ModuleNotFoundError as error:
            if error.name != "transformers":
                raise
            needed = "pip install 'numba-marlin[transformers]'"
            raise ImportError(f"numba_marlin.torch.{name} needs transformers: {needed}") from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
