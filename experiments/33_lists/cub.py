"""CUB's primitives: of a block and of a warp, as features of CUDA C++ are run; of a whole device,
as programs whose host code runs too."""

from collections.abc import Iterator
from functools import partial

import cuda_cpp
import device_programs
from features.cub import FEATURES
from judging import Case


def versions(given) -> dict[str, str]:
    return cuda_cpp.versions(given)


def cases(given) -> Iterator[Case]:
    for feature in FEATURES:
        yield Case(feature.group, feature.name, partial(cuda_cpp.run, feature))
    for name in device_programs.PROGRAMS:
        yield Case("device", name, partial(device_programs.run, name))
