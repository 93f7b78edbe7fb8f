"""The rung below the faithful kernel: its configuration is the problem's types."""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics.choice import Description, check_types, config_of_types
from numba_marlin.heuristics.problem import Problem
from numba_marlin.kernels.tiled import TiledConfig

REASON = "tensor cores and shared memory, no pipeline: the rung below, to compare with"


def configurations(problem: Problem, device: Device) -> list:
    return [config_of_types(TiledConfig, problem)]


def described(problem: Problem, config: TiledConfig, device: Device) -> Description:
    return Description(None, (REASON,))


invariant_configurations = configurations
check = check_types
