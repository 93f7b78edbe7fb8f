"""CUDA C++ feature by feature: kernels of a few lines (``features``), compiled by NVRTC, whose
values NumPy has."""

from collections.abc import Iterator
from functools import partial

import compiling
import numpy as np
from features import FEATURES
from features.feature import Feature
from judging import CHECKS, MOST_INSTRUCTIONS, Case, Found, compared

from numba_marlin.emulator import Listener, Machine, MachineError


def versions(given) -> dict[str, str]:
    return {"NVRTC": compiling.version()}


def cases(given) -> Iterator[Case]:
    for feature in FEATURES:
        yield Case(feature.group, feature.name, partial(run, feature))


def run(feature: Feature) -> Found:
    return launched(feature, compiling.ptx_of(feature.source, *feature.options, arch=feature.arch))


def launched(feature: Feature, text: str) -> Found:
    """``text``: its PTX."""
    machine = Machine(text, races=True, checks=CHECKS)
    got = np.zeros_like(feature.wanted)
    args: list = [
        machine.memory.buffer(feature.given.copy(), "x").address,
        machine.memory.buffer(got, "y").address,
    ]
    args += [feature.value[1]] if feature.value else []
    printed: list[str] = []
    try:
        result = machine.run(
            "k",
            grid=feature.blocks,
            block=feature.threads,
            shared_bytes=feature.shared,
            args=args,
            max_instructions=MOST_INSTRUCTIONS,
            listener=Listener(printed=printed.append),
        )
    except MachineError as error:
        if error.kind != feature.reported:
            raise
        return Found("right", f"stopped as it must be: {error.kind}")
    if feature.reported:
        return Found("wrong", f"not stopped by {feature.reported}", result.instructions)
    if "".join(printed) != feature.printed:
        return Found("wrong", f"printed {''.join(printed)!r}", result.instructions)
    return compared(got, feature.wanted, result, feature.ulps)
