"""One kernel of the zoo. A module of ``subjects`` lists its own in SUBJECTS."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from problem import N, operands


@dataclass(frozen=True)
class Subject:
    """make(x, weight, target) -> launches.Launch, where the package is; version() -> text.
    half_roundings: how often a partial sum is rounded to fp16 on its way, read from the source.
    m, n: rows of x, columns of the weight. plain: the weight is its codes 0 to 15, no scales."""

    name: str
    kernel: str
    package: str
    compiler: str
    make: Callable
    version: Callable
    targets: tuple[str, ...] = ("sm_80", "sm_90")
    half_roundings: int = 0
    m: int = 16
    n: int = N
    plain: bool = False

    def operands(self, data: str):
        """x and the weight, of a kind of problem.DATA."""
        x, weight = operands(data, self.m, self.n)
        if self.plain:
            ones, none = np.ones_like(weight.scales), np.zeros(weight.scales.shape, np.uint8)
            weight = replace(weight, scales=ones, zeros=none)
        return x, weight


def subjects() -> dict[str, Subject]:
    modules = sorted((Path(__file__).resolve().parent / "subjects").glob("[a-z]*.py"))
    found = [importlib.import_module(f"subjects.{path.stem}").SUBJECTS for path in modules]
    return {each.name: each for group in found for each in group}
