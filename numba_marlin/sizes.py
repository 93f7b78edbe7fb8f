"""What lies between a device's memory and its tensor cores, in bytes and operations a second: for figures, not for choices (``devices`` has what kernels need).

``sizes_of(device)`` looks a device of the table up by its name, "NVIDIA H200" included; None for one that is not in it. Makers' data sheets and architecture
white papers; None where they do not say. ``matrix_flops``: dense, 16-bit factors, fp32 sums, at boost clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.devices import Device

KB, MB, GB = 1024, 1 << 20, 10**9


@dataclass(frozen=True)
class Sizes:
    """Bytes, but ``matrix_flops`` operations/s. ``shared_bytes_per_sm``: most that can be shared memory of its first-level cache, ``l1_bytes_per_sm`` both together."""

    name: str
    memory_bytes: int | None
    l2_bytes: int | None
    l1_bytes_per_sm: int
    shared_bytes_per_sm: int
    register_bytes_per_sm: int
    matrix_flops: float | None
    source: str = "spec"


REGISTERS = 64 * 1024 * 4
SIZES = (
    Sizes("A100", 80 * GB, 40 * MB, 192 * KB, 164 * KB, REGISTERS, 312e12),
    Sizes("A10", 24 * GB, 6 * MB, 128 * KB, 100 * KB, REGISTERS, 125e12),
    Sizes("RTX 3090", 24 * GB, 6 * MB, 128 * KB, 100 * KB, REGISTERS, 71e12),
    Sizes("L40S", 48 * GB, None, 128 * KB, 100 * KB, REGISTERS, 362e12),
    Sizes("RTX 4090", 24 * GB, 72 * MB, 128 * KB, 100 * KB, REGISTERS, 165.2e12),
    Sizes("H100", 80 * GB, 50 * MB, 256 * KB, 228 * KB, REGISTERS, 989.4e12),
    Sizes("H200", 141 * GB, 50 * MB, 256 * KB, 228 * KB, REGISTERS, 989.4e12),
    Sizes("B200", 180 * GB, None, 256 * KB, 228 * KB, REGISTERS, 2250e12),
    Sizes("RTX 5090", 32 * GB, 96 * MB, 128 * KB, 100 * KB, REGISTERS, 209.5e12),
)


def sizes_of(device: Device) -> Sizes | None:
    """The longest name of the table that the device's contains."""
    found = [each for each in SIZES if each.name.lower() in device.name.lower()]
    return max(found, key=lambda each: len(each.name), default=None)
