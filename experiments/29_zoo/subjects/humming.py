"""Humming's kernel, with the configuration of its own heuristics: package humming-kernels.

Its weight is packed by its own kernel, which runs on the PTX machine, too.
"""

import dataclasses
import importlib.util
import os
import re
from importlib.metadata import version as installed
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
from launches import Launch, Missing, TensorMapOf, Written
from pretend import SHARED_LIMIT, pretended
from problem import GROUP, SMS, poisoned
from sources import compiler, ptx_of
from subject import Subject

OPTIONS = ("--expt-extended-lambda", "-diag-suppress", "161,174,177,940,1444")
TOPS, GBPS = 312.0, 2039.0  # an A100's: they decide where the heuristics change their tiles


def compiled(kernel, folder: Path, target: str) -> str:
    """The PTX of what a HummingKernel has written; it names the instance itself."""
    named = f"\nauto named = reinterpret_cast<void*>(&{kernel.kernel_expr});\n"
    return ptx_of(
        kernel.code + named, target.replace("90", "90a"), "-I", str(folder / "include"), *OPTIONS
    )


def constant(ptx: str, name: str) -> int:
    return int(re.search(rf"\.u32 {name} = (\d+)", ptx)[1])


def maps(kernel, arrays: dict, ptx: str) -> dict:
    """Tensor maps of the arguments for which the kernel takes one, as its launcher makes them:
    csrc/launcher/tensor.h."""
    from numba_marlin.layout.tensor_map import TensorMap

    (block_m, block_n, block_k), k_rows = kernel.block_shape, 16
    (m, k), (rows, words) = arrays["a"].shape, arrays["b"].shape
    groups, n = arrays["bs"].shape
    lines, columns = (constant(ptx, f"OUTPUT_TILE_{name}") for name in ("ROWS", "COLUMNS"))
    slabs = words // k_rows, k_rows
    found = {
        "a": TensorMap("float16", (m, k), (2 * k, 2), (block_m, 64), 128),
        "b": TensorMap(
            "int32",
            (rows, *slabs),
            (4 * words, 4 * k_rows, 4),
            (block_k // k_rows, block_n * 4 // 32, k_rows),
        ),
        "c": TensorMap(
            "float16", (n // 64, m, 64), (128, 2 * n, 2), (columns // 64, lines, 64), 128
        ),
        "bs": TensorMap(
            "float16",
            (groups, n // 16, 16),
            (2 * n, 32, 2),
            (-(-block_k // GROUP), block_n // 16, 16),
        ),
    }
    return {name: each for name, each in found.items() if getattr(kernel, f"use_tma_{name}")}


def entry_in(ptx: str) -> str:
    (entry,) = re.findall(r"\.entry (\w+)", ptx)
    return entry


def repacked(
    kernel_type, folder: Path, target: str, inputs, weight_bits, activation_bits, **others
):
    """ops.repack_weight, on the machine."""
    import torch

    from numba_marlin.emulator import Machine

    names = {each.name for each in dataclasses.fields(kernel_type)}
    chosen = {name: value for name, value in others.items() if name in names}
    kernel = kernel_type(weight_bits=weight_bits, activation_bits=activation_bits, **chosen)
    machine = Machine(compiled(kernel, folder, target))
    _, n, words = inputs.shape
    k = words * 32 // weight_bits
    rows = 256 // activation_bits
    out = np.zeros((1, k // rows, n * rows * weight_bits // 32), np.int32)
    source = np.ascontiguousarray(inputs.numpy())
    buffers = [machine.memory.buffer(array).address for array in (source, out)]
    grid, mode = (-(-n // 64), -(-k // 64), 1), others["interleave_mode"]
    machine.run(None, grid, 32, args=[*buffers, 0, n, k, n, k, mode])
    return torch.from_numpy(out)


def make(x, weight, target):
    if importlib.util.find_spec("humming") is None:
        raise Missing("humming-kernels is not installed")
    os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
    os.environ["HUMMING_COMPILER"] = "nvcc"
    import torch

    capability = int(target.removeprefix("sm_"))
    with pretended(capability):
        import humming.device
        import humming.kernel.humming as written
        from humming import dtypes, ops
        from humming.jit.runtime import KernelRuntime
        from humming.kernel.repack_weight import RepackWeightKernel
        from humming.schema import HummingWeightSchema
        from humming.transform import prepare_layer_config, transform_humming_tensors
        from humming.tune import get_heuristics_config

        device = SimpleNamespace(
            index=0,
            name="NVIDIA H200" if capability >= 90 else "NVIDIA A100",
            is_ppu=False,
            sm_count=SMS,
            sm_version=capability,
            sm_major=capability // 10,
            max_threads_per_block=1024,
            max_smem_size=SHARED_LIMIT[capability],
            max_registers_per_sm=65536,
            tensorcore_tops={"float16": TOPS},
            memory_bandwidth_gbps=GBPS,
        )
        known = humming.device.DeviceInfo._instances.setdefault(
            0, object.__new__(humming.device.DeviceInfo)
        )
        known._index, known._value = 0, device
        humming.device.current_device._value = device
        KernelRuntime._instances.clear()
        folder = Path(humming.device.__file__).parent
        patches = (
            mock.patch.object(KernelRuntime, "prepare", lambda self: None),
            mock.patch.object(written.HummingKernel, "register_kernel", lambda self: None),
            mock.patch("humming.config.config._cuda_compiler_version", lambda *args: (13, 0)),
            mock.patch.object(written, "_cuda_compiler_version", lambda *args: (13, 0)),
            mock.patch.object(
                ops,
                "repack_weight",
                lambda **given: repacked(RepackWeightKernel, folder, target, **given),
            ),
        )
        for patch in patches:
            patch.start()
        try:
            schema = HummingWeightSchema(b_dtype=dtypes.uint4, weight_scale_group_size=GROUP)
            layer = prepare_layer_config(
                weight.n, weight.k, schema, torch_dtype=torch.float16, device=0
            )
            shifts = np.arange(0, 32, 4, dtype=np.uint32)
            words = weight.codes.T.reshape(weight.n, -1, 8).astype(np.uint32) << shifts
            tensors = {
                "weight": torch.from_numpy(words.sum(axis=-1, dtype=np.uint32).view(np.int32)),
                "weight_scale": torch.from_numpy(np.ascontiguousarray(weight.scales.T)),
            }
            tensors = transform_humming_tensors(layer, tensors)
            tuning = dict(get_heuristics_config(layer, shape_m=len(x), device=0))
            tuning.pop("num_sms", None)
            fields = {each.name: getattr(layer, each.name) for each in dataclasses.fields(layer)}
            kernel = written.HummingKernel(**fields, **tuning)
        finally:
            for patch in patches:
                patch.stop()
    ptx = compiled(kernel, folder, target)
    arrays = {
        "a": x,
        "b": tensors["weight"].numpy(),
        "c": Written(poisoned((len(x), weight.n))),
        "bs": tensors["weight_scale"].numpy(),
    }
    for name, tensor_map in maps(kernel, arrays, ptx).items():
        array, written_to = arrays[name], name == "c"
        arrays[name] = TensorMapOf(array.array if written_to else array, tensor_map, written_to)
    arguments = {
        **{name: arrays[name] for name in "abc"},
        "as": None,
        "as2": None,
        "bs": arrays["bs"],
        **dict.fromkeys(("bzp", "bias", "bs2", "sorted_ids", "expert_ids", "num_tokens_padded")),
        **dict.fromkeys(("expert_layout", "tensor_maps")),
        "locks": Written(np.zeros(2048, np.int32)),
        "shape_m": np.uint32(len(x)),
        "top_k": np.uint32(1),
        "int64_layout": np.uint8(0),
    }
    shared = constant(ptx, "SMEM_SIZE")
    blocks = kernel.num_ctas_per_sm * SMS
    return Launch(
        ptx, entry_in(ptx), (blocks, 1, 1), (kernel.num_threads, 1, 1), arguments, "c", shared
    )


def version():
    return f"humming-kernels {installed('humming-kernels')}, {compiler()}"


SUBJECTS = [
    Subject(
        f"humming_m{m}", "Humming", "humming-kernels", "nvcc", make, version, half_roundings=4, m=m
    )
    for m in (16, 64)
]
