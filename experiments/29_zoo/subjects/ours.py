"""Ours, by both compilers of Numba: the kernel's own first candidate for an H200."""

from functools import partial
from importlib.metadata import version as installed

import numpy as np
from launches import Launch, TensorMapOf, Written
from problem import SMS
from subject import Subject

KERNELS = ("ampere", "decode", "wgmma")


def make(kernel, compiled_by, x, weight, target):
    from numba_marlin import heuristics
    from numba_marlin.execution.binding import RESULT
    from numba_marlin.formats import marlin
    from numba_marlin.hardware.devices import device
    from numba_marlin.heuristics.candidates import find_kernel
    from numba_marlin.problems import WeightProblem
    from numba_marlin.testing.launches import prepare

    packed = marlin.pack(weight)
    problem = WeightProblem.of(len(x), packed, x.dtype.name, False)
    candidates = heuristics.rank(problem, device("h200"))
    config = next(each.config for each in candidates if each.kernel == kernel)
    prepared = prepare(
        config,
        x,
        packed,
        kernel=find_kernel(kernel),
        sms=SMS,
        compiled_by=compiled_by,
        target=target,
    )
    binding, compiled = prepared.binding, prepared.compiled
    addresses = {name: index + 1 << 40 for index, name in enumerate(prepared.buffers)}
    by_address = {address: name for name, address in addresses.items()}
    (output,) = binding.with_role(RESULT)
    arguments = {}
    values = prepared.arguments(addresses, lambda tensor_map, address: (tensor_map, address))
    for (name, kind), value in zip(compiled.parameters, values):
        if kind == "tensormap":
            tensor_map, address = value
            of = by_address[address]
            arguments[name] = TensorMapOf(prepared.buffers[of], tensor_map, of in binding.written)
            output = name if of == output else output
        elif value in by_address:
            array = prepared.buffers[by_address[value]]
            arguments[name] = Written(array) if name in binding.written else array
        else:
            arguments[name] = np.dtype({"i32": "i4", "u64": "u8"}[kind]).type(value)
    cluster = binding.definition.cluster(config)
    return Launch(
        compiled.ptx,
        compiled.entry,
        binding.grid,
        (compiled.threads, 1, 1),
        arguments,
        output,
        compiled.shared_bytes,
        (cluster, 1, 1) if cluster > 1 else None,
    )


def version(compiled_by):
    return f"{compiled_by} {installed(compiled_by)}"


SUBJECTS = [
    Subject(
        f"ours_{kernel}_{compiled_by.replace('-', '_')}",
        kernel,
        "numba_marlin",
        compiled_by,
        partial(make, kernel, compiled_by),
        partial(version, compiled_by),
        targets=("sm_90a",),
    )
    for kernel in KERNELS
    for compiled_by in ("numba-cuda", "numba-cuda-mlir")
]
