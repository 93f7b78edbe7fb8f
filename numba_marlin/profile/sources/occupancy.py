"""How many blocks of a kernel an SM can hold, what limits them, and how many a launch
gives it. Pure numbers.

Theoretical: by the registers, shared memory and warps of a block and what the device's SMs hold
(CUDA C++ programming guide, "Maximum number of resident blocks per multiprocessor": registers are
handed out a warp at a time, in multiples of WARP_REGISTER_UNIT; every block costs
SYSTEM_SHARED_BYTES of shared memory beside its own).
Of the launch: a grid of fewer blocks than fit leaves places empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.architectures import Architecture
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES, WARP_LANES, WARP_REGISTER_UNIT


@dataclass(frozen=True)
class Occupancy:
    """blocks, warps: per SM; ``limited_by``: "registers", "shared memory", "warps" or
    "blocks"; share: warps of the most there could be. ``launched``: that the grid gives an average
    SM at a time, in warps. ``each``: blocks by every limit on its own.
    """

    blocks: int
    warps: int
    limited_by: str
    share: float
    launched_warps: float
    launched_share: float
    each: dict

    def to_dict(self) -> dict:
        return {
            name: getattr(self, name)
            for name in (
                "blocks",
                "warps",
                "limited_by",
                "share",
                "launched_warps",
                "launched_share",
                "each",
            )
        }


def occupancy(
    sm: Architecture, sms: int, threads: int, registers: int | None, shared_bytes: int, blocks: int
) -> Occupancy:
    """Of a grid of ``blocks`` blocks. registers: per thread; None where no assembler was found:
    they then limit nothing. ValueError if not even one block fits."""
    warps = -(-threads // WARP_LANES)
    each = {
        "warps": sm.warps_per_sm // warps,
        "blocks": sm.blocks_per_sm,
        "shared memory": sm.shared_bytes_per_sm // (shared_bytes + SYSTEM_SHARED_BYTES),
    }
    if registers:
        units = -(-registers * WARP_LANES // WARP_REGISTER_UNIT)
        each["registers"] = sm.registers_per_sm // (units * WARP_REGISTER_UNIT) // warps
    limited_by = min(each, key=lambda name: each[name])
    resident = each[limited_by]
    if not resident:
        raise ValueError(
            f"a block of {threads} threads, {registers} registers each, and {shared_bytes} bytes of"
            f" shared memory does not fit: {limited_by}"
        )
    launched = min(resident * sms, blocks) * warps / sms
    return Occupancy(
        resident,
        resident * warps,
        limited_by,
        resident * warps / sm.warps_per_sm,
        launched,
        launched / sm.warps_per_sm,
        each,
    )
