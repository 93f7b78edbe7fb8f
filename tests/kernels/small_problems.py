"""One small problem for each kernel, in a configuration that other tests compile too: what
schedules and broken kernels are tried on.

Each is large enough that everything a kernel does for order's sake matters: rings go round, blocks
share tiles, and a block has more than one.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np

from numba_marlin import compiler, testing
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.buffered import KERNEL as BUFFERED
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.general import KERNEL as GENERAL
from numba_marlin.kernels.naive import KERNEL as NAIVE
from numba_marlin.kernels.nvfp4.block_decode import KERNEL as BLOCK_DECODE
from numba_marlin.kernels.nvfp4.block_scaled import KERNEL as BLOCK_SCALED
from numba_marlin.kernels.tiled import KERNEL as TILED
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from tests.kernels import blackwell, block_problems
from tests.kernels.configurations import ARRANGEMENTS, FEW_ROWS, ONE_WORD
from tests.kernels.configurations import DECODE as PLAIN
from tests.kernels.configurations import WGMMA as SMALL
from tests.kernels.harness import config_for, on_machine, run_kernel

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
        if self.kernel.name in ("block_scaled", "block_decode"):
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


def of(name, *shape):
    return config_for(name, *shape)


SMALLS = {
    "general": Small(GENERAL, of("general", 3, 64, 128, 64), (3, 64, 128, 64), 1, (1, 2)),
    "naive": Small(NAIVE, of("naive", 3, 64, 128, 64), (3, 64, 128, 64), 1, (1, 2)),
    "tiled": Small(TILED, of("tiled", 20, 128, 128, 64), (20, 128, 128, 64), 1, (1, 2)),
    "buffered": Small(BUFFERED, of("buffered", 20, 128, 208, 16), (20, 128, 208, 16), 1, (1, 2)),
    "ampere": Small(AMPERE, of("ampere", 4, 256, 768, 128), (4, 256, 768, 128), 3),
    "ampere, whole slices": Small(
        AMPERE, of("ampere", 4, 256, 768, 128), (4, 512, 256, 128), 2, (1,)
    ),
    "decode": Small(DECODE, PLAIN, (2, 256, 640, 64), 3, (1, 2)),
    "wgmma": Small(WGMMA, replace(SMALL, group_blocks=4), (20, 128, 192, 64), 3, (1, 2)),
    "wgmma, two parts": Small(
        WGMMA, replace(ARRANGEMENTS["two parts"], group_blocks=-1), (40, 128, 192, -1), 4, (1, 3)
    ),
    "wgmma, pairs of blocks": Small(
        WGMMA,
        replace(ARRANGEMENTS["pairs, two rows of consumers"], group_blocks=-1),
        (40, 128, 256, -1),
        2,
    ),
    "decode, NVFP4": Small(DECODE, FEW_ROWS, (2, 256, 640, 16), 3, (1, 2)),
    "wgmma, MXFP4": Small(WGMMA, replace(ONE_WORD, group_blocks=2), (20, 128, 192, 32), 3, (1, 2)),
    "block_scaled": SmallBlocks(BLOCK_SCALED, block_problems.SMALL, (100, 136, 96), 2, (1,)),
    "block_scaled, one block": SmallBlocks(BLOCK_SCALED, block_problems.SMALL, (100, 72, 160), 1),
    "block_decode": SmallBlocks(
        BLOCK_DECODE,
        replace(block_problems.FEW_ROWS, result="float32", source=False),
        (9, 136, 1312),
        1,
    ),
    "tcgen05": SmallBlocks(
        blackwell.TCGEN05, blackwell.USUAL[blackwell.TCGEN05], (150, 136, 288), 2, (1,)
    ),
    "block_mma": SmallBlocks(
        blackwell.BLOCK_MMA, blackwell.USUAL[blackwell.BLOCK_MMA], (20, 24, 1056), 1
    ),
}
