"""How many blocks of a kernel an SM can hold, what limits them, and how many a launch gives it.
These are calculations only.

Theoretical occupancy follows from the registers, shared memory and warps of a block and from what
an SM of the device has (CUDA C++ programming guide, "Maximum number of resident blocks per
multiprocessor": registers are allocated per warp, in multiples of WARP_REGISTER_UNIT; every block
costs SYSTEM_SHARED_BYTES of shared memory beside its own).
The occupancy of a launch is lower if its grid has fewer blocks than fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.architectures import Architecture
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES, WARP_LANES, WARP_REGISTER_UNIT


@dataclass(frozen=True)
class Occupancy:
    """blocks, warps: per SM; ``limited_by``: "registers", "shared memory", "warps" or
    "blocks"; share: the warps' share of the most that an SM can hold. ``launched``: the warps that
    the grid gives an average SM at a time. ``each``: the blocks that every limit alone allows.
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
    """The occupancy of a grid of ``blocks`` blocks. registers: per thread; None if no assembler was
    found, and then they limit nothing. Raises ValueError if not even one block fits."""
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
