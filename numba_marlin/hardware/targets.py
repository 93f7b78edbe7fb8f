"""The targets that kernels are compiled for: names that ptxas takes. Pure data, derived from
``architectures``.

A plain name such as "sm_89" runs on every later minor version of the same major; a name with an "a"
holds the features of one architecture only (wgmma needs sm_90a) and runs nowhere else:
https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-module-directives-target
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from numba_marlin.hardware.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Target:
    """What a kernel is compiled for."""

    name: str
    """As ptxas takes it, "sm_90a"."""

    capability: tuple[int, int]
    """Lowest compute capability that runs it, (major, minor)."""

    specific: bool
    """Whether it is an "a" name, which runs on exactly that capability."""

    cards: str
    """GPUs that have it."""

    def supports(self, arch: str) -> bool:
        """Can code that needs ``arch`` ("sm_80", "sm_90a") be compiled for this target? ValueError
        if ``arch`` is not of that form."""
        match = re.fullmatch(r"sm_(\d+?)(\d)(a?)", arch)
        if not match:
            raise ValueError(f"architecture {arch!r} is not of the form sm_80 or sm_90a")
        needed = int(match[1]), int(match[2])
        return arch == self.name if match[3] else self.capability >= needed


TARGETS: dict[str, Target] = {
    name: Target(name, each.capability, name.endswith("a"), cards)
    for each in ARCHITECTURES
    for name, cards in each.targets
}


def target_named(name: str) -> Target:
    """ValueError, naming the known ones, if there is no such target."""
    try:
        return TARGETS[name]
    except (KeyError, TypeError):
        raise ValueError(f"target={name!r} must be one of {', '.join(TARGETS)}") from None
