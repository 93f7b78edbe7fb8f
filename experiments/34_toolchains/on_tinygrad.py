"""tinygrad: tensor expressions of our own. Its device for CUDA gets an allocator that keeps arrays
and a program that keeps launches; all else is its own: schedules, fused kernels, both renderers
(CUDA C++ that NVRTC compiles, and PTX). Written against tinygrad 0.14.
"""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
from recording import poisoned

TARGETS = {"sm_80 CUDA": "CUDA:CUDA:sm_80", "sm_90 CUDA": "CUDA:CUDA:sm_90"}
TARGETS |= {"sm_80 PTX": "CUDA:PTX:sm_80", "sm_90 PTX": "CUDA:PTX:sm_90"}


def version() -> str:
    return f"tinygrad {installed('tinygrad')}, nvrtc {installed('nvidia-cuda-nvrtc')}"


def found_toolkit() -> None:
    """tinygrad looks for NVRTC and its headers by these."""
    for folder in sys.path:
        for library in Path(folder or ".").glob("nvidia/cu*/lib/libnvrtc.so.*"):
            os.environ.setdefault("NVRTC_PATH", str(library))
            os.environ.setdefault("CUDA_PATH", str(library.parent.parent))


class Recorder:
    """The case that the device records to now."""

    case = None
    arrays: dict = {}  # address -> array, of the case


def device_class():
    from tinygrad.device import Allocator, Compiled, Program
    from tinygrad.renderer.cstyle import CUDARenderer
    from tinygrad.renderer.ptx import PTXRenderer

    class KeptArrays(Allocator):
        def _alloc(self, size, options):
            array = poisoned(size, np.uint8)
            address = Recorder.case.put(array)
            Recorder.arrays[address] = array
            return address

        def _copyin(self, to, source):
            Recorder.arrays[to][:] = np.frombuffer(source, np.uint8)

        def _offset(self, buffer, size, offset):
            return buffer + offset

    class KeptLaunches(Program):
        def __init__(self, device, made, smem=0):
            self.made, self.smem = made, smem

        def __call__(self, *args, global_size=(1, 1, 1), local_size=(1, 1, 1), vals=(), **others):
            text = self.made.lib.decode()
            Recorder.case.launch(
                text, self.made.name, global_size, local_size, [*args, *vals], shared=self.smem
            )

    class CUDADevice(Compiled):
        def __init__(self, device):
            renderers = [CUDARenderer, PTXRenderer]
            super().__init__(device, KeptArrays(self), renderers, KeptLaunches, arch="sm_90")

    return CUDADevice


def cases():
    found_toolkit()
    os.environ["NO_MEMORY_PLANNER"] = "1"
    from tinygrad.runtime import ops_cuda

    ops_cuda.CUDADevice = device_class()
    import tinygrad_cases

    for name, function in tinygrad_cases.CASES:
        for target, device in TARGETS.items():
            yield name, target, lambda case, f=function, d=device: fill(case, f, d)


def fill(case, function, device: str) -> None:
    from tinygrad import Tensor
    from tinygrad.helpers import Context

    Recorder.case, Recorder.arrays = case, {}
    with Context(DEV=device, BEAM=0):
        Tensor.manual_seed(34)
        result, value, allowed = function(Tensor, np.random.default_rng(34))
        result = result.contiguous().realize()
        array = Recorder.arrays[result.uop.base.realized._buf]
    # the device keeps bytes; the result's are of the type that the tensor has
    from tinygrad.dtype import _to_np_dtype

    number = next(index for index, known in enumerate(case.arrays) if known[1] is array)
    typed = array.view(_to_np_dtype(result.dtype))
    case.arrays[number] = "result", typed
    case.expect(typed, value, allowed)
