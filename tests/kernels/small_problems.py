"""One small problem for each kernel, in a configuration that other tests compile too: what schedules and broken kernels are tried on.

Each is large enough that everything a kernel does for order's sake matters: rings go round, blocks share tiles, and a block has more than one.
"""
import functools
from dataclasses import dataclass, replace

import numpy as np

from numba_marlin import testing
from numba_marlin.kernels.ampere import KERNEL as AMPERE
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.naive import KERNEL as NAIVE
from numba_marlin.kernels.tiled import KERNEL as TILED
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from tests.kernels.harness import config_for, run_kernel
from tests.kernels.test_decode import PLAIN
from tests.kernels.test_wgmma import ARRANGEMENTS, SMALL


exact_problem = functools.cache(testing.exact_problem)


@dataclass(frozen=True)
class Small:
    """``places``: numbers of resident blocks, below all there are, with which the kernel must work too."""
    kernel: object
    config: object
    shape: tuple  # m, n, k, group_size
    sms: int
    places: tuple = ()

    def run(self, **options):
        """-> (c, expected). options: of harness.run_kernel."""
        config = self.config
        types = {"dtype": config.dtype, "bits": config.bits, "zeros_kind": config.zeros, "bias": config.bias} if hasattr(config, "dtype") else {}
        problem = exact_problem(*self.shape, seed=1, **types)
        run = run_kernel(self.kernel, problem.x, problem.weight, config=config, sms=self.sms, bias=problem.bias, **options)
        return run.c, problem.expected

    def wrong(self, **options):
        """How many elements of C are wrong."""
        c, expected = self.run(**options)
        return int(np.count_nonzero(c.astype(np.float64) != expected.astype(np.float64)))


def of(name, *shape):
    return config_for(name, *shape)


SMALLS = {
    "naive": Small(NAIVE, of("naive", 3, 64, 128, 64), (3, 64, 128, 64), 1, (1, 2)),
    "tiled": Small(TILED, of("tiled", 20, 128, 128, 64), (20, 128, 128, 64), 1, (1, 2)),
    "ampere": Small(AMPERE, of("ampere", 4, 256, 768, 128), (4, 256, 768, 128), 3),
    "ampere, whole slices": Small(AMPERE, of("ampere", 4, 256, 768, 128), (4, 512, 256, 128), 2, (1,)),
    "decode": Small(DECODE, PLAIN, (2, 256, 640, 64), 3, (1, 2)),
    "wgmma": Small(WGMMA, replace(SMALL, group_blocks=4), (20, 128, 192, 64), 3, (1, 2)),
    "wgmma, two parts": Small(WGMMA, replace(ARRANGEMENTS["two parts"], group_blocks=-1), (40, 128, 192, -1), 4, (1, 3)),
    "wgmma, pairs of blocks": Small(WGMMA, replace(ARRANGEMENTS["pairs, two rows of consumers"], group_blocks=-1), (40, 128, 256, -1), 2),
}
