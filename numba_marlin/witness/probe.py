"""``Probe``: a kernel as PTX text, with the memory it starts from. It runs on the PTX machine or on
a GPU and leaves its buffers as results.

A kernel has the entry ``probe``; its parameters are the addresses of the buffers, in order (%p0,
%p1, ... in the body), then the tensor maps (%map0, ..., generic addresses). %t is the thread, %c
the block, %g the thread in the grid; %s the shared address of the dynamic shared memory.
``Snippets.put`` writes ptx/NAME.ptx with operands in place and remembers the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from numba_marlin.isa import load_instructions

TARGET = "sm_90a"
RESIDENT_THREADS = 1 << 17  # on the machine at once: bounds its memory


@cache
def instructions() -> dict:
    return load_instructions()


@dataclass(frozen=True)
class Result:
    """How a buffer is compared: ``floats`` "float16", "bfloat16", "float32" or None says what NaN
    looks like in its 16 or 32-bit elements."""

    floats: str | None = None


@dataclass(frozen=True)
class Probe:
    """covers: names of instructions of which this probe compares the results, as ptx/ or, if it has
    no file of them, PTX calls them; uses: those it only executes. buffers: () -> {name: array},
    made anew for every run, a few of them results: {name: Result}. maps: ((name of the buffer,
    TensorMap), ...). note: what the ISA leaves open, for the record. lanes: executions of the
    instruction by a lane. refused: name of the MachineError with which the machine ends it; a GPU
    ends it with an error too. target: what the text is for; no other GPU runs it.
    """

    name: str
    covers: tuple[str, ...]
    text: str
    buffers: Callable[[], dict[str, np.ndarray]]
    results: dict[str, Result]
    grid: int
    block: int
    lanes: int
    shared_bytes: int = 0
    cluster: int = 1
    maps: tuple = ()
    uses: tuple[str, ...] = ()
    note: str = ""
    refused: str = ""
    target: str = TARGET

    def runs_on(self, arch: str) -> bool:
        """``arch``: of a GPU, "sm_90"."""
        return self.target.rstrip("a") == arch


@dataclass
class Snippets:
    """Collects which files of ptx/ a text is made of."""

    names: list = field(default_factory=list)

    def put(self, name: str, *operands, **immediates: int) -> str:
        """ptx/NAME.ptx with ``operands``, outputs first; a vector is a tuple or list; an operand in
        place is given once."""
        instruction = instructions()[name].resolved(**immediates)
        template, _ = instruction.assembly(**immediates)
        flat = [
            text
            for operand in operands
            for text in (operand if isinstance(operand, (tuple, list)) else (operand,))
        ]
        if instruction.tied:
            flat = flat[: instruction.outputs[0].width] + flat
        expected = sum(operand.width for operand in instruction.outputs + instruction.inputs)
        if len(flat) != expected:
            raise ValueError(f"ptx/{name}.ptx takes {expected} registers, got {len(flat)}: {flat}")
        if name not in self.names:
            self.names.append(name)
        return re.sub(r"\$(\d+)", lambda match: flat[int(match[1])], template) + "\n"


def frame(
    body: str,
    block: int,
    buffers: int,
    maps: int = 0,
    registers: str = "",
    cluster: int = 1,
    target: str = TARGET,
) -> str:
    """A module with the one entry ``probe`` around ``body``."""
    parameters = [f".param .u64 probe_{i}" for i in range(buffers)] + [
        f".param .align 64 .b8 probe_map{i}[128]" for i in range(maps)
    ]
    loads = "".join(f"ld.param.u64 %p{i}, [probe_{i}];\n" for i in range(buffers))
    loads += "".join(
        f"mov.b64 %map{i}, probe_map{i}; cvta.param.u64 %map{i}, %map{i};\n" for i in range(maps)
    )
    declared = f".maxntid {block}, 1, 1\n" + (
        f".reqnctapercluster {cluster}, 1, 1\n" if cluster > 1 else ""
    )
    return f""".version {"8.4" if target == TARGET else "8.7"}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 dynamic_shared[];
.visible .entry probe({", ".join(parameters)})
{declared}{{
.reg .pred %q<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<64>;
.reg .f32 %f<16>;
.reg .b64 %p<{max(buffers, 1)}>;
.reg .b64 %map<{max(maps, 1)}>;
.reg .b32 %t, %c, %g, %s, %n;
{registers}
{loads}mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %g, %c, %n, %t; \
mov.u32 %s, dynamic_shared;
{body}
ret;
}}
"""


def run_on_machine(probe: Probe, buffers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Its results, some of ``buffers`` (``probe.buffers()``, changed in place), after a run on the
    PTX machine. MachineError if that catches the probe at something."""
    from numba_marlin.emulator import Machine

    machine = Machine(probe.text)
    addresses = {
        name: machine.memory.buffer(array, name=name).address for name, array in buffers.items()
    }
    encoded = [tensor_map.encode(addresses[name]) for name, tensor_map in probe.maps]
    resident = max(probe.cluster, RESIDENT_THREADS // probe.block)
    machine.run(
        "probe",
        grid=probe.grid,
        block=probe.block,
        shared_bytes=probe.shared_bytes,
        args=[*addresses.values(), *encoded],
        cluster=probe.cluster,
        resident_blocks=resident,
    )
    return {name: buffers[name] for name in probe.results}


def run_on_hardware(
    probe: Probe, buffers: dict[str, np.ndarray], ordinal: int = 0
) -> dict[str, np.ndarray]:
    """Its results after a run on a GPU; ``buffers`` stay as they are. CapabilityMissing without
    one; DriverError if it fails there."""
    from numba_marlin.execution import driver, map_encoding
    from numba_marlin.execution.launch import Launcher

    launcher = Launcher(assembled(probe, tuple(buffers)), ordinal, cluster=probe.cluster)
    there = {name: driver.DeviceArray.from_host(array, ordinal) for name, array in buffers.items()}
    encoded = [
        map_encoding.encode_tensor_map(tensor_map, there[name].address, ordinal)
        for name, tensor_map in probe.maps
    ]
    launcher((probe.grid,), (*(array.address for array in there.values()), *encoded))
    driver.synchronize(ordinal)
    return {name: there[name].to_host() for name in probe.results}


@cache
def machine_code(text: str, target: str = TARGET):
    """-> (cubin, Resources). ValueError for an asynchronous copy that the assembler makes an
    illegal instruction of (compiler.gates)."""
    from numba_marlin.compiler.assemble import assemble, disassemble
    from numba_marlin.compiler.gates import refused_copies
    from numba_marlin.hardware.targets import target_named

    cubin, resources = assemble(text, target_named(target))
    if "cp.async.cg" in text and "cache_hint" in text and refused_copies(disassemble(cubin) or ""):
        raise ValueError(
            "an asynchronous copy keeps a shared-memory address in a uniform register beside its"
            " policy, which Hopper refuses: keep it per thread"
        )
    return cubin, resources


def assembled(probe: Probe, names: tuple[str, ...]):
    """The probe, whose buffers have these names, as a CompiledKernel."""
    from numba_marlin.compiler import CompiledKernel

    cubin, resources = machine_code(probe.text, probe.target)
    parameters = tuple((name, "u64") for name in names) + tuple(
        (f"map{i}", "tensormap") for i in range(len(probe.maps))
    )
    return CompiledKernel(
        kernel=probe.name,
        config=None,
        target=probe.target,
        compiler="none",
        ptx=probe.text,
        entry="probe",
        parameters=parameters,
        threads=probe.block,
        shared_bytes=probe.shared_bytes,
        cubin=cubin,
        resources=resources,
        key="",
        versions={},
    )
