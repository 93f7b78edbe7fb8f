"""How many blocks of a kernel a multiprocessor can hold, what limits them, and how many a launch
gives it. Pure numbers.

Theoretical: by the registers, shared memory and warps of a block and the device's ``Limits`` (CUDA
C++ programming guide, "Maximum number of resident blocks per multiprocessor": registers are handed
out a warp at a time, in multiples of 256; every block costs 1 KiB of shared memory beside its own).
Of the launch: a grid of fewer blocks than fit leaves places empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.sizes import BLOCK_SHARED_BYTES, REGISTER_UNIT, Limits


@dataclass(frozen=True)
class Occupancy:
    """blocks, warps: of a multiprocessor; ``limited_by``: "registers", "shared memory", "warps" or
    "blocks"; share: warps of the most there could be. ``launched``: that the grid gives an average
    multiprocessor at a time, in warps. ``each``: blocks by every limit on its own.
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
    limits: Limits, sms: int, threads: int, registers: int | None, shared_bytes: int, blocks: int
) -> Occupancy:
    """Of a grid of ``blocks`` blocks. registers: a thread; None where no assembler was found: they
    then limit nothing. ValueError if not even one block fits."""
    warps = -(-threads // 32)
    each = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "shared memory": limits.shared_bytes // (shared_bytes + BLOCK_SHARED_BYTES),
    }
    if registers:
        of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        each["registers"] = limits.registers // of_warp // warps
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
        resident * warps / limits.warps,
        launched,
        launched / limits.warps,
        each,
    )
