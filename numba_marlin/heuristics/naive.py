"""The simplest rung: its configuration is the problem's types."""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics.choice import Description, check_types, config_of_types
from numba_marlin.heuristics.problem import Problem
from numba_marlin.kernels.naive import NaiveConfig

REASON = "a thread an output: the simplest rung, to compare with"


def configurations(problem: Problem, device: Device) -> list:
    return [config_of_types(NaiveConfig, problem)]


def described(problem: Problem, config: NaiveConfig, device: Device) -> Description:
    return Description(None, (REASON,))


invariant_configurations = configurations
check = check_types
