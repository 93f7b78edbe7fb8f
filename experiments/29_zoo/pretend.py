"""torch.cuda says that there is a device, and what is made on it is made on the CPU: for host code
that asks, and then only compiles."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

SHARED_LIMIT = {80: 166912, 90: 232448}  # bytes that a block may have


@contextmanager
def pretended(capability: int):
    """capability: 80 or 90."""
    import torch

    properties = SimpleNamespace(
        name="NVIDIA H200" if capability >= 90 else "NVIDIA A100",
        multi_processor_count=132 if capability >= 90 else 108,
        total_memory=1 << 37,
        major=capability // 10,
        minor=capability % 10,
        shared_memory_per_block_optin=SHARED_LIMIT[capability],
        warp_size=32,
        regs_per_multiprocessor=65536,
        L2_cache_size=50 << 20,
    )
    answers = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_capability": lambda *args: divmod(capability, 10),
        "get_device_properties": lambda *args: properties,
        "get_device_name": lambda *args: properties.name,
        "device": lambda *args: nullcontext(),
        "synchronize": lambda *args: None,
        "current_stream": lambda *args: SimpleNamespace(cuda_stream=0),
    }

    class OnCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    with OnCpu(), mock.patch.multiple(torch.cuda, **answers):
        yield
