"""The GPU architectures that kernels are compiled for. Pure data.

A plain name such as "sm_89" runs on every later minor version of the same major; a name with an "a"
holds the features of one architecture only (wgmma needs sm_90a) and runs nowhere else:
https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-module-directives-target
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """name as ptxas takes it; capability (major, minor); specific: True for an "a" name; cards:
    where it is met."""

    name: str
    capability: tuple[int, int]
    specific: bool
    cards: str

    def supports(self, arch: str) -> bool:
        """Can code that needs ``arch`` be compiled for this target?"""
        match = re.fullmatch(r"sm_(\d+?)(\d)(a?)", arch)
        if not match:
            raise ValueError(f"architecture {arch!r} is not of the form sm_80 or sm_90a")
        needed = int(match[1]), int(match[2])
        return arch == self.name if match[3] else self.capability >= needed


def _target(name, cards):
    match = re.fullmatch(r"sm_(\d+?)(\d)(a?)", name)
    return name, Target(name, (int(match[1]), int(match[2])), bool(match[3]), cards)


TARGETS: dict[str, Target] = dict(
    [
        _target("sm_80", "A100, A30"),
        _target("sm_86", "A10, A40, RTX 30"),
        _target("sm_89", "L4, L40, RTX 40"),
        _target("sm_90a", "H100, H200"),
        _target("sm_100", "B200"),
        _target("sm_100a", "B200, with its tensor memory"),
        _target("sm_120", "RTX 50, RTX PRO Blackwell"),
        _target("sm_120a", "RTX 50, RTX PRO Blackwell, with block-scaled mma"),
    ]
)


def target_named(name: str) -> Target:
    """ValueError, naming the known ones, if there is no such target."""
    try:
        return TARGETS[name]
    except (KeyError, TypeError):
        raise ValueError(f"target={name!r} must be one of {', '.join(TARGETS)}") from None
