"""The small problems that every kernel declares for itself (``kernels.language.about.Trial``), in
configurations that other tests compile too: what schedules and broken kernels are tried on.
"""

import functools
from dataclasses import dataclass

import numpy as np

from numba_marlin import compiler, testing
from numba_marlin.kernels.registry import find_kernel, names
from numba_marlin.problems import WEIGHTS
from tests.kernels import blackwell, block_problems
from tests.kernels.harness import on_machine, run_kernel

exact_problem, exact_blocks = (
    functools.cache(testing.exact_problem),
    functools.cache(testing.exact_blocks),
)


@dataclass(frozen=True)
class Small:
    """Weights of 4 bits and numbers. ``places``: numbers of resident blocks, below all there are,
    with which the kernel must work too."""

    kernel: object
    config: object
    shape: tuple  # m, n, k, group_size
    sms: int
    places: tuple = ()

    def run(self, **options):
        """-> (c, expected). options: of harness.run_kernel."""
        config = self.config
        if getattr(config, "codes", "integer") == "e2m1":
            problem = exact_blocks(
                {16: "nvfp4", 32: "mxfp4"}[self.shape[3]], *self.shape[:3], seed=1, bias=config.bias
            )
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
        run = run_kernel(
            self.kernel,
            problem.x,
            problem.weight,
            config=config,
            sms=self.sms,
            bias=problem.bias,
            **options,
        )
        return run.c, problem.expected

    def wrong(self, **options):
        """How many elements of C are wrong."""
        c, expected = self.run(**options)
        return int(np.count_nonzero(c.astype(np.float64) != expected.astype(np.float64)))

    @property
    def ptx(self):
        return compiler.build(self.kernel, self.config, target="sm_90a").ptx

    @property
    def label(self):
        m, n, k, group_size = self.shape
        return (
            f"m={m} n={n} k={k}, groups of {group_size}"
            if group_size != -1
            else f"m={m} n={n} k={k}"
        )


@dataclass(frozen=True)
class SmallBlocks(Small):
    """Both operands NVFP4; shape: m, n, k."""

    @functools.cached_property
    def problem(self):
        """-> (prepare(), D as it must be)"""
        m, n, k = self.shape
        if ("factors", "u64") in self.kernel.parameters:  # it has an epilogue
            problem = block_problems.small_integers(
                m,
                n,
                k,
                seed=1,
                c_dtype=self.config.result if self.config.source else None,
                bias=True,
            )
            return (
                functools.partial(block_problems.prepare, problem, self.config, self.sms),
                problem.bounds()[0],
            )
        a, b = blackwell.exact_operand(m, k, "nvfp4", 1), blackwell.exact_operand(n, k, "nvfp4", 2)
        return functools.partial(
            blackwell.prepare, self.kernel, a, b, config=self.config, sms=self.sms
        ), (blackwell.values(a) @ blackwell.values(b).T).astype(self.config.result)

    def run(self, seed=None, edit_ptx=None, races=False):
        prepare, expected = self.problem
        prepared = prepare()
        on_machine(prepared, seed, edit_ptx, races)
        assert not prepared.buffers.get("locks", np.zeros(1)).any(), (
            "the counter is not zero after the launch"
        )
        return prepared.buffers["d"], expected

    @property
    def ptx(self):
        return self.problem[0]().compiled.ptx

    @property
    def label(self):
        return "m={} n={} k={}".format(*self.shape)


def small(kernel, trial):
    made, more = (Small, (trial.group_size,)) if kernel.kind == WEIGHTS else (SmallBlocks, ())
    return made(kernel, trial.config, (*trial.sizes, *more), trial.sms, trial.places)


# "KERNEL", or "KERNEL, WHAT" -> the trial that the kernel declares
SMALLS = {
    kernel.name + (f", {trial.what}" if trial.what else ""): small(kernel, trial)
    for kernel in map(find_kernel, names())
    for trial in kernel.about.trials
}
