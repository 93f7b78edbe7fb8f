"""Triton without a GPU: the host code of a Triton package runs on CPU tensors as it is, compiles
for the target that is asked for, and what it would have launched is kept.

Triton asks its active driver for a target, a stream, a loader and a launcher; this one loads
nothing and launches nothing. Written against Triton 3.9.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
from launches import Launch, Written, parameters_of
from pretend import SHARED_LIMIT, pretended

SCALARS = {f"{sign}{8 * size}": f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)} | {
    "i1": "i1",
    "u1": "u1",
    "fp32": "f4",
}


class _Recorder:
    """Triton's driver interface, as far as compiling and launching go."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.capability, self.launches, self.compiled = capability, [], {}
        self.target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": SHARED_LIMIT[capability],
                "multiprocessor_count": 132,
                "warpSize": 32,
            },
            load_binary=lambda *args: (object(), object(), 0, 0, 1024),
            unload_module=lambda module: None,
        )
        recorder = self

        class Launcher:
            def __init__(self, src, metadata) -> None:
                self.src, self.metadata = src, metadata

            def __call__(self, x, y, z, stream, function, packed, info, enter, leave, *args):
                recorder.launches.append((self, (x, y, z), args))

        self.launcher_cls = Launcher

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.capability  # what is compiled is kept for each device

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0

    def get_device_capability(self, device=0):
        return divmod(self.capability, 10)

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    def get_device_interface(self):
        import torch

        return torch.cpu

    def get_benchmarker(self):
        return lambda call, **others: (call(), [1.0, 1.0, 1.0])[1]

    def clear_cache(self, cache):
        pass

    def get_empty_cache_for_benchmark(self):
        return None


_RECORDERS: dict[int, _Recorder] = {}


@contextmanager
def recording(target: str):
    """Yields the list of launches."""
    import triton

    capability = int(target.removeprefix("sm_"))
    # a kernel that is compiled already goes on using the driver that it was compiled for
    driver = _RECORDERS.setdefault(capability, _Recorder(capability))
    driver.launches.clear()
    original = triton.compiler.CompiledKernel._init_handles

    def remember(self):
        original(self)
        driver.compiled[id(self.metadata)] = self

    with (
        pretended(capability),
        mock.patch.object(triton.compiler.CompiledKernel, "_init_handles", remember),
    ):
        triton.runtime.driver.set_active(driver)
        yield driver.launches
    driver.launches[:] = [
        (driver.compiled[id(launcher.metadata)], launcher.src, grid, args)
        for launcher, grid, args in driver.launches
    ]


def launch_of(recorded, output: str, written: dict[str, np.ndarray] | None = None, **facts):
    """One recorded launch as a Launch. ``written``: arguments that the kernel writes, and what they
    hold before; every other tensor is read-only."""
    kernel, src, grid, args = recorded
    ptx, metadata = kernel.asm["ptx"], kernel.metadata
    names, arguments = src.fn.arg_names, {}
    for name, kind, value in zip(names, src.signature.values(), args):
        if kind == "constexpr":
            continue
        if kind.startswith("*"):
            if value is None:
                arguments[name] = None
            elif name in (written or {}):
                arguments[name] = Written(written[name])
            else:
                arguments[name] = value.numpy() if hasattr(value, "numpy") else value
        else:
            arguments[name] = np.dtype(SCALARS[kind]).type(value)
    for extra in range(parameters_of(ptx, metadata.name) - len(arguments)):
        arguments[f"scratch{extra}"] = None  # global and profile scratch: none asked for
    return Launch(
        ptx,
        metadata.name,
        grid,
        (32 * metadata.num_warps, 1, 1),
        arguments,
        output,
        shared=metadata.shared,
        facts=facts,
    )
