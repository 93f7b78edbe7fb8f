"""One kernel of the zoo. A module of ``subjects`` lists its own in SUBJECTS."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from problem import N


@dataclass(frozen=True)
class Subject:
    """make(x, weight, target) -> launches.Launch, where the package is; version() -> text.
    half_roundings: how often a partial sum is rounded to fp16 on its way, read from the source.
    m, n: rows of x, columns of the weight."""

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


def subjects() -> dict[str, Subject]:
    modules = sorted((Path(__file__).resolve().parent / "subjects").glob("[a-z]*.py"))
    found = [importlib.import_module(f"subjects.{path.stem}").SUBJECTS for path in modules]
    return {each.name: each for group in found for each in group}
