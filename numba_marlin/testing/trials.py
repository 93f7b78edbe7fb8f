"""The small problems that every kernel declares for itself (``kernels.language.about.Trial``): what
schedules, broken kernels and mutants are tried on.

    small = trials.SMALLS["ampere"]
    small.wrong(seed=7, races=True)  # elements of C that are wrong: 0
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_marlin import compiler
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.small_floats import encode
from numba_marlin.kernels.registry import find_kernel, names
from numba_marlin.problems import ACTIVATIONS, EXPERTS, OPERANDS, WEIGHTS
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference.activations import kernel_product
from numba_marlin.testing import blocks, exact, experts, launches, operands

exact_problem, exact_blocks = (
    functools.cache(exact.exact_problem),
    functools.cache(blocks.exact_blocks),
)


@dataclass(frozen=True)
class Small:
    """Weights of 4 bits and numbers. shape: m, n, k, group_size; sms: multiprocessors that the grid
    is made for; places: numbers of resident blocks, below all there are, with which the kernel must
    work too; ids: the experts of each token, for a mixture's."""

    kernel: Any
    config: Any
    shape: tuple[int, ...]
    sms: int
    places: tuple[int, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()

    @functools.cached_property
    def problem(self) -> tuple[Callable[[], launches.Prepared], np.ndarray]:
        """(prepares a launch, the result as it must be)"""
        config = self.config
        if getattr(config, "codes", "integer") == "e2m1":
            form = {16: "nvfp4", 32: "mxfp4"}[self.shape[3]]
            problem = exact_blocks(form, *self.shape[:3], seed=1, bias=config.bias)
        else:
            types = (
                {
                    "dtype": config.dtype,
                    "bits": config.bits,
                    "zeros_kind": config.zeros,
                    "bias": config.bias,
                }
                if hasattr(config, "dtype")
                else {}
            )
            problem = exact_problem(*self.shape, seed=1, **types)
        return functools.partial(
            launches.prepare,
            config,
            problem.x,
            problem.weight,
            kernel=self.kernel,
            sms=self.sms,
            bias=problem.bias,
        ), problem.expected

    def run(self, seed=None, edit_ptx=None, races: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(the result, as it must be). seed, edit_ptx, races: of ``launches.on_machine``."""
        prepare, expected = self.problem
        prepared = prepare()
        launches.on_machine(prepared, seed, edit_ptx, races)
        launches.check_locks(prepared.buffers)
        (result,) = prepared.binding.with_role("result")
        return prepared.buffers[result], expected

    def wrong(self, **options) -> int:
        """How many elements of the result are wrong. options: of ``run``."""
        found, expected = self.run(**options)
        return int(np.count_nonzero(found.astype(np.float64) != expected.astype(np.float64)))

    @property
    def ptx(self) -> str:
        return compiler.build(self.kernel, self.config, target=launches.TARGET).ptx

    @property
    def label(self) -> str:
        m, n, k, group_size = self.shape
        groups = "" if group_size == -1 else f", groups of {group_size}"
        return f"m={m} n={n} k={k}{groups}"


@dataclass(frozen=True)
class SmallBlocks(Small):
    """Both operands NVFP4; shape: m, n, k."""

    @functools.cached_property
    def problem(self):
        m, n, k = self.shape
        config = self.config
        if getattr(config, "bias", False):
            product = operands.small_integers(
                m, n, k, seed=1, c_dtype=operands.c_dtype_of(config), bias=True
            )
        else:
            a, b = (
                operands.exact_operand(rows, k, "nvfp4", seed).with_scales("128x4")
                for rows, seed in ((m, 1), (n, 2))
            )
            product = operands.BlockProduct(a, b)
        expected = product.bounds()[0].astype(config.result)
        return functools.partial(operands.prepare, product, config, self.sms), expected

    @property
    def ptx(self) -> str:
        return self.problem[0]().compiled.ptx

    @property
    def label(self) -> str:
        return "m={} n={} k={}".format(*self.shape)


class SmallActivations(Small):
    """x in 8 bits; shape: m, n, k, group_size."""

    @functools.cached_property
    def problem(self):
        config = self.config
        given = exact_problem(
            *self.shape, seed=1, dtype=config.dtype, zeros_kind=config.zeros, bias=config.bias
        )
        x = quantize_rows(given.x) if config.activations == "int8" else small_floats(given.x)
        parts = getattr(config, "parts", 1)
        expected = kernel_product(x, given.weight, given.bias, parts)
        return functools.partial(
            launches.prepare,
            config,
            x,
            given.weight,
            kernel=self.kernel,
            sms=self.sms,
            bias=given.bias,
        ), expected


class SmallExperts(Small):
    """Tokens routed to experts; shape: m, n, k, group_size."""

    @functools.cached_property
    def problem(self):
        _, n, k, _ = self.shape
        given = experts.layer(self.config, self.ids, n, k, seed=1, integers=True)
        expected = given.expected()
        return functools.partial(experts.prepare, given, sms=self.sms), expected

    @property
    def label(self) -> str:
        return f"{super().label}, top {self.config.top_k} of {self.config.experts} experts"


def small_floats(x: np.ndarray) -> QuantizedActivations:
    """Numbers that e4m3 has, with scales of 1: small, so that tensor cores lose nothing of sums."""
    codes = encode(x.astype(np.float32), "e4m3")
    found = QuantizedActivations.of_codes(
        "fp8", codes, np.ones(len(x), np.float32), None, x.dtype.name
    )
    assert np.array_equal(found.dequantized(np.float64), x.astype(np.float64))
    return found


_KINDS = {
    WEIGHTS: Small,
    OPERANDS: SmallBlocks,
    ACTIVATIONS: SmallActivations,
    EXPERTS: SmallExperts,
}


def _small(kernel, trial) -> Small:
    groups = () if trial.group_size is None else (trial.group_size,)
    shape = (*trial.sizes, *groups)
    return _KINDS[kernel.kind](kernel, trial.config, shape, trial.sms, trial.places, trial.ids)


SMALLS = {
    kernel.name + (f", {trial.what}" if trial.what else ""): _small(kernel, trial)
    for kernel in map(find_kernel, names())
    for trial in kernel.about.trials
}
"""{"KERNEL", or "KERNEL, WHAT": the trial that the kernel declares}"""
