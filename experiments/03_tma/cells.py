"""The measured cells: loaders, kernels with their configurations, and shapes. No side effects."""

from dataclasses import dataclass
from itertools import product

from faithful import FAITHFUL
from loader_config import METHODS, LoaderConfig

from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.wgmma.config import WgmmaConfig

GROUP_SIZE = 128
LOADER_SHAPES = ((8192, 8192), (8192, 57344), (33792, 16384))  # k, n
KERNEL_SHAPES = ((8192, 8192), (8192, 57344))
BATCHES = (1, 16, 64, 256, 1024, 4096)
FAITHFUL_BATCHES, FAITHFUL_STAGES = (1, 16, 32, 64, 256, 1024), (3, 4, 6)
X_COLUMNS, X_STAGES = 256, 4  # of loaders that bring x: a stage of 128 of k


@dataclass(frozen=True)
class Amount:
    """How much is measured: the stages of the loaders' rings, the rows of x that they copy, the
    number of rounds, and the length of a graph in microseconds."""

    stages: tuple[int, ...]
    x_batches: tuple[int, ...]
    rounds: int
    target_us: float


QUICK = Amount((2, 4, 8), (16, 64), 5, 1500.0)
FULL = Amount((2, 3, 4, 5, 6, 8, 10), (8, 16, 32, 64), 9, 3000.0)


def loader_configs(amount):
    """Return the loaders' configurations: Marlin's layout in tiles of every width, the relaid
    layout (for which the width does not matter), and both with x in addition."""
    found = [
        LoaderConfig(method, False, columns, stages)
        for method, columns, stages in product(METHODS, (64, 128, 256), amount.stages)
    ]
    found += [
        LoaderConfig(method, True, 128, stages)
        for method, stages in product(METHODS, amount.stages)
    ]
    for batch in amount.x_batches:
        found += [LoaderConfig(method, False, X_COLUMNS, X_STAGES, batch) for method in METHODS]
        found += [LoaderConfig(method, True, X_COLUMNS, X_STAGES, batch) for method in METHODS[1:]]
    return found


def kernel_config(engine, m, n, k):
    """Return the configuration of an engine for a batch. It does not depend on how weights are
    copied."""
    if engine == "ampere":
        # enough tiles of 256 columns for most SMs
        wide = n // 256 * ceil_div(m, 64) >= 99
        return AmpereConfig(min(4, ceil_div(m, 16)), *((16, 4) if wide else (8, 8)))
    if engine == "decode":
        if m <= 8:
            return DecodeConfig(8, 4, 2, 128, 5)
        return (
            DecodeConfig(16, 4, 2, 256, 4, resident=1)
            if m <= 16
            else DecodeConfig(32, 8, 1, 128, 4, resident=1)
        )
    if m <= 16:
        return WgmmaConfig(16, 256, 2, 12)
    return WgmmaConfig(64, 256, 2, 8) if m <= 64 else WgmmaConfig(128, 256, 2, 6)


def faithful_configs(m):
    """-> {(kernel, stages): (kernel, Variant, configuration)} of the faithful kernel, its tiles by
    cp.async, by that aligned, and by TMA, of 256 columns."""
    rows = min(4, ceil_div(m, 16))
    return {
        (name, stages): (name, variant, variant.definition.config_type(rows, 16, 4, stages=stages))
        for name, variant in FAITHFUL.items()
        for stages in FAITHFUL_STAGES
    }
