"""What others want to know of the kernel ``buffered``, beside it."""

from dataclasses import dataclass
from typing import ClassVar

from numba_marlin.kernels.language.about import About, MachineCost, Stages, Trial
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.language.definition import KernelDefinition, Takes, ceil_div
from numba_marlin.kernels.language.plain import ARRAYS, GroupScales, array_shapes, body_of

THREADS = 128
X_BYTES, W_BYTES = 16 * 72 * 2, 4 * 128 * 4  # of a stage: a tile of x, one of the weights


@dataclass(frozen=True)
class BufferedConfig(GroupScales):
    """The group size of the weights: nothing else is to be chosen, and the code does not depend on
    it."""

    stages: ClassVar[int] = 2


def make(lang, config):
    # imports Numba
    from numba_marlin.kernels.buffered.kernel import buffered

    return body_of(buffered, lang)


def stages(config: BufferedConfig) -> Stages:
    """Both tiles of x, then both of the weights. Two are written into the kernel; static shared
    memory (48 KiB at most) would have room for eleven of 4352 bytes."""
    return [
        [
            (X_BYTES * stage, X_BYTES * (stage + 1)),
            (2 * X_BYTES + W_BYTES * stage, 2 * X_BYTES + W_BYTES * (stage + 1)),
        ]
        for stage in range(config.stages)
    ]


KERNEL = KernelDefinition(
    name="buffered",
    summary="shared memory, mma.sync and a double buffer",
    rung=30,
    config_type=BufferedConfig,
    parameters=ARRAYS,
    shapes=array_shapes,
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    static_shared_bytes=lambda config: 2 * (X_BYTES + W_BYTES),
    grid=lambda config, m, n, k, sms: (n // 64, ceil_div(m, 16), 1),
    min_arch="sm_80",
    # n in tiles of 64 columns; group_size of at least 16, not -1: one scale per column stands in
    # another order (see kernel.py). k % 16 and the rest: ``pack``. matmul refuses all else here.
    takes=Takes(group_sizes=GroupScales.TAKEN),
    order_of_sums=lambda config: "one k16 row after the other",
    chooser=ChooseTypes(BufferedConfig, "a double buffer of tiles: to compare with"),
    about=About(
        machine_cost=MachineCost(product=0.0243, result=0.96, warp=0.14, step=5.4),
        sections={"copy": ("fetch",), "multiply": ("multiply",), "write": ("store",)},
        tile=lambda config: (16, 64),
        stages=stages,
        trials=(
            Trial(config=BufferedConfig(16), sizes=(20, 128, 208), group_size=16, places=(1, 2)),
        ),
    ),
)
