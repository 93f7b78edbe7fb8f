"""What others want to know of the kernel ``tiled``, beside it."""

from dataclasses import dataclass

from numba_marlin.kernels.language.about import About, MachineCost, Trial
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.language.definition import KernelDefinition, Takes, ceil_div
from numba_marlin.kernels.language.plain import ARRAYS, GroupScales, array_shapes, body_of

THREADS = 128


@dataclass(frozen=True)
class TiledConfig(GroupScales):
    """The group size of the weights: nothing else is to be chosen, and the code does not depend on
    it."""


def make(lang, config):
    # imports Numba
    from numba_marlin.kernels.tiled.kernel import tiled

    return body_of(tiled, lang)


KERNEL = KernelDefinition(
    name="tiled",
    summary="shared memory and mma.sync, no pipeline",
    rung=20,
    config_type=TiledConfig,
    parameters=ARRAYS,
    shapes=array_shapes,
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    static_shared_bytes=lambda config: 16 * 72 * 2 + 4 * 128 * 4,
    grid=lambda config, m, n, k, sms: (n // 64, ceil_div(m, 16), 1),
    min_arch="sm_80",
    # n in tiles of 64 columns; group_size of at least 16, not -1: one scale per column stands in
    # another order (see kernel.py). k % 16 and the rest: ``pack``. matmul refuses all else here.
    takes=Takes(group_sizes=GroupScales.TAKEN),
    order_of_sums=lambda config: "one k16 row after the other",
    chooser=ChooseTypes(
        TiledConfig, "tensor cores and shared memory, no pipeline: to compare with"
    ),
    about=About(
        machine_cost=MachineCost(product=0.0219, result=0.89, warp=0.14, step=5.6),
        sections={
            "copy": ("load_tiles",),
            "multiply": ("multiply",),
            "write": ("store",),
        },
        tile=lambda config: (16, 64),
        trials=(Trial(config=TiledConfig(64), sizes=(20, 128, 128), group_size=64, places=(1, 2)),),
    ),
)
