"""What others want to know of the kernel ``naive``, beside it."""

from dataclasses import dataclass

from numba_marlin.kernels.language.about import About, MachineCost, Trial
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.language.definition import KernelDefinition, Takes, ceil_div
from numba_marlin.kernels.language.plain import ARRAYS, GroupScales, array_shapes, body_of

THREADS = 128


@dataclass(frozen=True)
class NaiveConfig(GroupScales):
    """The group size of the weights: nothing else is to be chosen, and the code does not depend on
    it."""


def make(lang, config):
    # imports Numba
    from numba_marlin.kernels.naive.kernel import naive

    return body_of(naive, lang)


KERNEL = KernelDefinition(
    name="naive",
    summary="a thread per output",
    rung=10,
    config_type=NaiveConfig,
    parameters=ARRAYS,
    shapes=array_shapes,
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (ceil_div(m * n, THREADS), 1, 1),
    min_arch="sm_80",
    # n in tiles of 64 columns; group_size of at least 16, not -1: one scale per column stands in
    # another order (see kernel.py). k % 16 and the rest: ``pack``. matmul refuses all else here.
    takes=Takes(group_sizes=GroupScales.TAKEN),
    method=lambda config: "sums",
    order_of_sums=lambda config: "one k after the other",
    chooser=ChooseTypes(NaiveConfig, "a thread per output: the simplest rung, to compare with"),
    about=About(
        sections={"multiply": ("code_of",)},
        trials=(Trial(config=NaiveConfig(64), sizes=(3, 64, 128), group_size=64, places=(1, 2)),),
        machine_cost=MachineCost(product=2.46, result=4.9, warp=0.0135, step=2.1),
    ),
)
