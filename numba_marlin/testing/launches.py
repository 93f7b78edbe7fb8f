"""One kernel on one problem on the PTX machine, with every trap set: NaN in the output, in the
partial sums and between the rows of x, guard bands around every buffer, locks zero before and
after.

    prepared = launches.prepare(config, x, weight, sms=3)
    launches.on_machine(prepared, seed=7, races=True)
    prepared.buffers["c"]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin import compiler
from numba_marlin.emulator import Machine
from numba_marlin.execution.binding import Binding, activation_operands, bind, weight_operands
from numba_marlin.execution.machine import host_arrays, set_up
from numba_marlin.formats import BlockWeight, PackedBlocks, PackedWeight, marlin
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.fp4_marlin import Fp4MarlinFormat
from numba_marlin.kernels.registry import kernel_of
from numba_marlin.problems import ActivationsProblem, WeightProblem

TARGET = "sm_90a"


@dataclass(frozen=True)
class Prepared:
    """A launch with every trap set. binding: ``execution.binding``'s; buffers: {parameter: host
    array} of all that the kernel may address."""

    binding: Binding
    buffers: dict[str, np.ndarray]

    @classmethod
    def of(cls, binding: Binding) -> Prepared:
        return cls(binding, host_arrays(binding))

    @property
    def kernel(self):
        return self.binding.definition

    @property
    def config(self):
        return self.binding.config

    @property
    def compiled(self):
        return self.binding.compiled

    @property
    def grid(self):
        return self.binding.grid

    @property
    def sizes(self):
        """m, n, k, a_stride"""
        return self.binding.sizes

    def arguments(self, addresses: dict[str, int], encode: Callable) -> Any:
        """In the kernel's order, of {parameter: address}; encode(TensorMap, address) for parameters
        that are tensor maps."""
        return self.binding.arguments(addresses, encode)


def rows_apart(x: np.ndarray, a_stride: int) -> np.ndarray:
    """x [m, k] as the kernel finds it: rows ``a_stride`` elements apart, NaN between them."""
    wide = np.full((x.shape[0], a_stride), np.nan, x.dtype)
    wide[:, : x.shape[1]] = x
    return wide


def bytes_apart(codes: np.ndarray, a_stride: int) -> np.ndarray:
    """``rows_apart`` of codes in 8 bits: between them the largest there are, NaN in e4m3."""
    wide = np.full((codes.shape[0], a_stride), 0x7F, codes.dtype)
    wide[:, : codes.shape[1]] = codes
    return wide


def prepare(
    config,
    x: np.ndarray | QuantizedActivations,
    weight,
    *,
    kernel=None,
    sms: int = 3,
    compiled_by: str = "numba-cuda",
    target: str = TARGET,
    a_stride: int | None = None,
    bias: np.ndarray | None = None,
) -> Prepared:
    """A launch of a kernel of 4- or 8-bit weights. ``config``: of the kernel, which need not be
    named then. ``x``: [m, k] fp16 or bf16, or
    quantised. ``weight``: a QuantizedWeight or BlockWeight, or a
    packed one where the slow packing of the specification matters. ``kernel``: a KernelDefinition
    that is not registered. ``sms``: multiprocessors that the grid is made for. ``a_stride``:
    elements from a row of x to the next, default k."""
    kernel = kernel or kernel_of(config)
    packed = weight
    if not isinstance(weight, (PackedWeight, PackedBlocks)):
        packed = (
            Fp4MarlinFormat().pack(weight, str(x.dtype))
            if isinstance(weight, BlockWeight)
            else marlin.pack(weight)
        )
    k = packed.k
    if isinstance(x, QuantizedActivations):
        problem = ActivationsProblem.of_quantized(x, packed, bias is not None)
        activations = activation_operands(x)
    else:
        problem = WeightProblem.of(x.shape[0], packed, x.dtype.name, bias is not None)
        activations = {"a": rows_apart(x, a_stride or k)}
    return Prepared.of(
        bind(
            kernel,
            config,
            problem,
            {**activations, **weight_operands(packed), "bias": bias},
            sms=sms,
            compiled=compiler.build(kernel, config, target=target, compiler=compiled_by),
            row_distance=a_stride or k,
        )
    )


@functools.lru_cache(maxsize=32)  # of a few MB each
def machine_of(ptx: str, races: bool) -> Machine:
    """Reading a kernel takes longer than many a run of it. (The kernels have no variables in global
    memory.)"""
    return Machine(ptx, races=races)


def on_machine(
    prepared: Prepared,
    seed=None,
    edit_ptx: Callable[[str], str] | None = None,
    races: bool = False,
):
    """Launch on the PTX machine -> its RunResult; what it wrote is in the buffers. ``seed``,
    ``races``: see Machine. ``edit_ptx``: breaks the compiled kernel before the machine runs it."""
    compiled = prepared.compiled
    machine = machine_of(edit_ptx(compiled.ptx) if edit_ptx else compiled.ptx, races)
    for buffer in machine.memory.buffers:  # of the run before
        machine.memory.release(buffer)
    return machine.run(**launch_on(machine, prepared), seed=seed)


def launch_on(machine: Machine, prepared: Prepared, compiled=None) -> dict[str, Any]:
    """What Machine.run takes, the buffers being in the machine's memory from now on. compiled:
    another build of the kernel than the prepared one."""
    return set_up(
        prepared.binding, machine=machine, compiled=compiled, given=prepared.buffers
    ).launch


def check_locks(buffers: dict[str, np.ndarray]) -> None:
    """AssertionError unless the kernel left every lock and counter zero, as the next launch needs
    them."""
    if "locks" in buffers:
        assert not buffers["locks"].any(), f"locks {buffers['locks']} are not zero after the launch"
