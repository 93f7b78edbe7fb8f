"""Contenders, which can be timed: a candidate of the heuristics, cuBLAS, or the original CUDA
Marlin from a shared library. Needs torch.

Each is a ``Contender``: ``launch(index)`` enqueues one product on torch's current stream, reading
copy ``index`` of weights and scales (cyclically), and writes ``output``. It keeps its buffers
alive. Launches of one contender share a workspace, so they must follow each other on one stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numba_marlin import compiler as compiler_room
from numba_marlin.bench.operands import Batch, Weights
from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.execution import driver, gpu
from numba_marlin.execution.binding import Buffer, bind
from numba_marlin.execution.plan import target_for
from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics import Candidate, Problem, find_kernel
from numba_marlin.kernels.language.definition import KernelDefinition

KINDS_OF_THE_ORIGINAL = {
    "dtype": "float16",
    "bits": 4,
    "zeros": None,
    "scale_dtype": "float16",
    "bias": False,
    "codes": "integer",
}


@dataclass(frozen=True, eq=False)
class Contender:
    """``copies``: number of copies of the weights; ``locks``: a tensor that is zero between
    launches, or None; ``options``: launch options ("cluster", "dependent"); ``fields``: the fields
    of its rows that say what it is, if it is no candidate; ``returned``: the tensor that the
    latest launch made in place of writing ``output``, if it did."""

    name: str
    launch: Callable[[int], None]
    output: Any
    copies: int
    candidate: Candidate | None = None
    compiled: Any = None
    locks: Any = None
    options: dict = field(default_factory=dict)
    fields: dict = field(default_factory=dict)
    returned: list = field(default_factory=list)

    @property
    def result(self):
        """The tensor that the latest launch wrote."""
        return self.returned[0] if self.returned else self.output


def candidate_of(
    definition: KernelDefinition, config: object, problem: Problem, device: Device
) -> Candidate:
    """A candidate that the heuristics do not rank: an experiment's kernel or configuration."""
    definition.check_config(config)
    grid = tuple(definition.grid(config, problem.m, problem.n, problem.k, device.sms))
    return Candidate(
        definition.name,
        config,
        grid,
        definition.threads(config),
        definition.shared_bytes(config),
        (),
    )


def _stream() -> int:
    return torch_on_gpu().cuda.current_stream().cuda_stream


def cublas(weights: Weights, batch: Batch) -> Contender:
    """``torch.matmul`` with the 16-bit weights; ``torch.addmm`` if there is a bias."""
    torch = torch_on_gpu()
    x, dense, bias, output = batch.x, weights.dense, weights.bias, empty_output(weights, batch)

    def enqueue(index: int) -> None:
        if bias is None:
            torch.matmul(x, dense[index % len(dense)], out=output)
        else:
            torch.addmm(bias, x, dense[index % len(dense)], out=output)

    return Contender("cublas", enqueue, output, len(dense))


def kernel(
    problem: Problem,
    candidate: Candidate,
    weights: Weights,
    batch: Batch,
    compiler: str = "numba-cuda",
    definition: KernelDefinition | None = None,
    compiled=None,
    more: tuple[tuple, ...] = ((),),
    overlap: bool = True,
) -> Contender:
    """A Contender of ``candidate``, for this package's kernel of that name or for ``definition``.
    compiled: use this build; more: arguments after the kernel's own, one tuple per launch,
    cyclically; overlap: False disables programmatic dependent launch. CapabilityMissing if its
    blocks wait for each other and do not all fit on the device.
    """
    torch = torch_on_gpu()
    ordinal = torch.cuda.current_device()
    device = driver.describe(ordinal)
    definition, config = definition or find_kernel(candidate.kernel), candidate.config
    compiled = compiled or compiler_room.build(
        definition, config, target=target_for(definition, device), compiler=compiler
    )
    copies = weights.copies
    given = {
        name: each for name, each in {**weights.fixed, **batch.fixed}.items() if each is not None
    }
    binding = bind(
        definition,
        config,
        problem,
        {**given, **copies[0]},
        sms=device.sms,
        compiled=compiled,
        grid=candidate.grid,
        scaling=batch.scaling,
    )
    enqueue = gpu.loaded(binding, ordinal, overlap)
    made = {
        name: _tensor(torch, buffer)
        for name, buffer in binding.buffers.items()
        if name not in given and name not in copies[0]
    }
    addresses = {name: each.data_ptr() for name, each in {**given, **made}.items()}
    prepared = [
        gpu.arguments(
            binding,
            addresses | {name: each.data_ptr() for name, each in copy.items()},
            ordinal,
        )
        for copy in copies
    ]

    def run(index: int, keep=(given, made, copies)) -> None:
        enqueue(binding.grid, prepared[index % len(prepared)] + more[index % len(more)], _stream())

    options = definition.launch_options(config)
    options["dependent"] = options["dependent"] and overlap
    output = made[next(iter(problem.result_shapes))]
    return Contender(
        candidate.kernel,
        run,
        output,
        len(prepared),
        candidate,
        compiled,
        made.get("locks"),
        options,
    )


def _tensor(torch, buffer: Buffer):
    """A tensor for a result or for scratch memory, or with the contents of the buffer."""
    if buffer.array is not None:
        return torch.from_numpy(buffer.array).cuda()
    kind = getattr(torch, buffer.dtype)
    make = torch.zeros if buffer.zero else torch.empty
    return make(buffer.shape, dtype=kind, device="cuda")


def marlin_cuda(path: str | Path, weights: Weights, batch: Batch) -> Contender:
    """The original CUDA Marlin from a shared library with ``int marlin_peer(A, B, C, s, m, n, k,
    workspace, groupsize, stream, sms)``; how to build one: experiments/01_faithful/README.md."""
    torch = torch_on_gpu()
    try:
        function = ctypes.CDLL(str(path)).marlin_peer
    except (OSError, AttributeError) as error:
        raise ValueError(f"peer library {path}: {error}") from error
    function.argtypes = (
        [ctypes.c_void_p] * 4
        + [ctypes.c_int] * 3
        + [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    )
    problem = weights.problem
    if not set(KINDS_OF_THE_ORIGINAL.items()) <= {
        (name, getattr(problem, name)) for name in KINDS_OF_THE_ORIGINAL
    }:
        raise ValueError(f"the CUDA original takes {KINDS_OF_THE_ORIGINAL}, not {problem}")
    m, n, k = batch.x.shape[0], problem.n, problem.k
    output = empty_output(weights, batch)
    workspace = torch.zeros(max(1024, n // 128 * 16), dtype=torch.int32, device="cuda")

    def run(index: int) -> None:
        packed = weights.packed[index % len(weights.packed)]
        status = function(
            batch.x.data_ptr(),
            packed.data_ptr(),
            output.data_ptr(),
            weights.scales.data_ptr(),
            m,
            n,
            k,
            workspace.data_ptr(),
            problem.group_size,
            _stream(),
            -1,
        )
        if status:
            raise ValueError(f"the CUDA original refuses m={m} n={n} k={k}: {status}")

    return Contender("marlin_cuda", run, output, len(weights.packed), fields={"compiler": "nvcc"})


def empty_output(weights: Weights, batch: Batch):
    """A tensor [m, n] for a result, of x's dtype."""
    return torch_on_gpu().empty(
        (batch.x.shape[0], weights.problem.n), dtype=batch.x.dtype, device="cuda"
    )
