"""Small problems and everything that their launches need, with the same bytes on every computer,
for experiments that compare bits or search for races. Imports no CUDA.

A ``Case`` names a kernel, a shape and the data. ``Launch`` contains its host arrays: operands, C
and partial sums filled with NaN, and locks of zero.
"""

import concurrent.futures
import hashlib
import multiprocessing
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from numba_marlin import compiler
from numba_marlin.execution.binding import bind, weight_operands
from numba_marlin.execution.machine import host_arrays
from numba_marlin.formats import find_format, marlin
from numba_marlin.formats.floats import float_type
from numba_marlin.formats.operands import to_weight
from numba_marlin.kernels import registry
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.problems import WEIGHTS, WeightProblem
from numba_marlin.quantizers import quantize
from numba_marlin.quantizers.operands import quantize_blocks

KERNELS = {kernel.name: kernel for kernel in registry.kernels(WEIGHTS)}
DATA = ("gaussian", "spread", "exact")
OUTPUTS = ("c", "partials", "locks")


@dataclass(frozen=True)
class Case:
    """tile: (thread_n_blocks, thread_k_blocks) of the faithful kernel, None for the others; sms:
    multiprocessors that the grid is made for. data: "gaussian" (normal x, a rounded normal weight),
    "spread" (x times powers of two from 2**-8 to 2**8) or "exact" (integers, no rounding anywhere).
    chosen: the configuration of a kernel that has more to choose than that; its types and bias are
    the problem's. padding: elements between the rows of x.
    """

    kernel: str
    m: int
    n: int
    k: int
    group_size: int
    data: str = "gaussian"
    tile: tuple = None
    sms: int = 3
    chosen: object = None
    padding: int = 0

    @property
    def label(self):
        tile = (
            f" tile {16 * self.tile[0]}x{16 * self.tile[1]} blocks {self.sms}" if self.tile else ""
        )
        types = (
            ""
            if self.chosen is None
            else f" {self.dtype}{' bias' if getattr(self.chosen, 'bias', False) else ''}"
        )
        types += " FP4" if self.block_scaled else ""
        return (
            f"{self.kernel} m{self.m} n{self.n} k{self.k} g{self.group_size}{tile}{types}"
            f" {self.data}"
        )

    @property
    def definition(self):
        return KERNELS[self.kernel]

    @property
    def dtype(self):
        return getattr(self.config, "dtype", "float16")

    @property
    def block_scaled(self):
        return getattr(self.config, "codes", "integer") == "e2m1"

    @property
    def config(self):
        if self.chosen is not None:
            return self.chosen
        if self.kernel != "ampere":
            return KERNELS[self.kernel].config_type(self.group_size)
        n_blocks, k_blocks = self.tile
        ragged = bool(self.k % (16 * k_blocks) or self.n % (16 * n_blocks))
        return AmpereConfig(
            min(4, -(-self.m // 16)),
            n_blocks,
            k_blocks,
            -1 if self.group_size == -1 else self.group_size // 16,
            4,
            ragged,
        )

    @property
    def grid(self):
        return KERNELS[self.kernel].grid(self.config, self.m, self.n, self.k, self.sms)

    def build(self, compiled_by, target):
        return compiler.build(
            KERNELS[self.kernel], self.config, target=target, compiler=compiled_by
        )


@dataclass(frozen=True, eq=False)
class Launch:
    case: Case

    @cached_property
    def operands(self):
        """x fp16 [m, k], QuantizedWeight or BlockWeight"""
        case = self.case
        if case.data == "exact":
            return self.exact.x, self.exact.weight
        generator = np.random.default_rng((case.m, case.n, case.k))
        x = generator.standard_normal((case.m, case.k))
        w = (0.05 * generator.standard_normal((case.k, case.n))).astype(np.float32)
        if case.block_scaled:
            weight = to_weight(
                quantize_blocks(
                    np.ascontiguousarray(w.T), {16: "nvfp4", 32: "mxfp4"}[case.group_size]
                )
            )
        else:
            weight = quantize(w, group_size=case.group_size, scale_dtype=case.dtype)
        if case.data == "spread":
            x = np.ldexp(x, generator.integers(-8, 9, x.shape))
        return x.astype(float_type(case.dtype)), weight

    @cached_property
    def exact(self):
        """-> testing.ExactProblem of the configuration's types; of "exact" data only."""
        from numba_marlin import testing  # needs hypothesis

        case, config = self.case, self.case.config
        if case.block_scaled:
            return testing.exact_blocks(
                {16: "nvfp4", 32: "mxfp4"}[case.group_size],
                case.m,
                case.n,
                case.k,
                seed=case.k,
                dtype=case.dtype,
                bias=getattr(config, "bias", False),
            )
        return testing.exact_problem(
            case.m,
            case.n,
            case.k,
            case.group_size,
            seed=case.k,
            dtype=case.dtype,
            bits=getattr(config, "bits", 4),
            zeros_kind=getattr(config, "zeros", None),
            scale_dtype=getattr(config, "scale_dtype", case.dtype),
            bias=getattr(config, "bias", False),
        )

    @cached_property
    def bias(self):
        """[n], or None where the configuration has none."""
        case = self.case
        if case.data == "exact":
            return self.exact.bias
        return (
            np.random.default_rng(case.n).standard_normal(case.n).astype(float_type(case.dtype))
            if getattr(case.config, "bias", False)
            else None
        )

    @cached_property
    def binding(self):
        """Return the launch without a compiled kernel and addresses."""
        case, (x, weight) = self.case, self.operands
        packed = (
            find_format("marlin-fp4").pack(weight, case.dtype)
            if case.block_scaled
            else marlin.pack(weight)
        )
        a = np.full((case.m, case.k + case.padding), np.nan, x.dtype)
        a[:, : case.k] = x
        return bind(
            case.definition,
            case.config,
            WeightProblem.of(case.m, packed, x.dtype.name, self.bias is not None),
            {"a": a, **weight_operands(packed), "bias": self.bias},
            sms=case.sms,
            grid=case.grid,
            row_distance=case.k + case.padding,
        )

    @cached_property
    def buffers(self):
        """{name: array} of all that the kernel may address; a run on the PTX machine writes into
        them."""
        return host_arrays(self.binding)

    @property
    def tensor_maps(self):
        return self.case.definition.tensor_maps(self.case.config, *self.binding.sizes)

    @property
    def sizes(self):
        return self.case.m, self.case.n, self.case.k

    def arguments(self, addresses, encode):
        """What a launch passes, in order, of {name: address}; encode(TensorMap, address) for
        parameters that are tensor maps."""
        return self.binding.arguments(addresses, encode)

    @cached_property
    def digest(self):
        """Return the SHA-256, in hex, of the bytes that the kernel reads."""
        return hashlib.sha256(
            b"".join(self.buffers[name].tobytes() for name in ("a", "b", "scales"))
        ).hexdigest()


def _build(case, compiled_by, target):
    case.build(compiled_by, target)


def warm_cache(cases, compilers, target, jobs=None):
    """Compile everything into the disk cache, in parallel processes."""
    work = {(case.config, by): (case, by, target) for case in cases for by in compilers}
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for future in [pool.submit(_build, *each) for each in work.values()]:
            future.result()
    return len(work)
