"""The Blackwell kernel's configuration for a problem: the default tiles. Nobody has timed any."""

from __future__ import annotations

import math

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.nvfp4 import choice
from numba_marlin.kernels.nvfp4.tcgen05.config import TILE_M, Tcgen05Config
from numba_marlin.problems import BlockProblem

check = choice.check


def configurations(problem: BlockProblem, device: Device) -> list[Tcgen05Config]:
    return [Tcgen05Config(**choice.wanted(Tcgen05Config, problem))]


def invariant_configurations(problem: BlockProblem, device: Device) -> list[Tcgen05Config]:
    return []


def described(problem: BlockProblem, config: Tcgen05Config, device: Device) -> Description:
    blocks = math.prod(config.grid(problem.m, problem.n, device.sms))
    return choice.described(problem, (TILE_M, config.tile_n), blocks)
