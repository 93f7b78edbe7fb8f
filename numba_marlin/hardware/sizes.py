"""What lies between a device's memory and its tensor cores, in bytes and operations a second, and
what a multiprocessor holds at once: for figures, not for choices (``devices`` has what kernels
need).

``sizes_of(device)`` looks a device of the table up by its name, "NVIDIA H200" included; None for
one that is not in it. Makers' data sheets and architecture white papers, and what an H200's driver
says of its L2; None where nobody says. ``matrix_flops``: dense, 16-bit factors, fp32 sums, at boost
clock; ``fp8_flops`` and ``fp4_flops`` the same of block-scaled factors, None where there are no
such tensor cores too.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.devices import Device

KB, MB, GB = 1024, 1 << 20, 10**9


@dataclass(frozen=True)
class Sizes:
    """Bytes, but ``matrix_flops`` operations/s. ``shared_bytes_per_sm``: most that can be shared
    memory of its first-level cache, ``l1_bytes_per_sm`` both together."""

    name: str
    memory_bytes: int | None
    l2_bytes: int | None
    l1_bytes_per_sm: int
    shared_bytes_per_sm: int
    register_bytes_per_sm: int
    matrix_flops: float | None
    source: str = "spec"
    fp8_flops: float | None = None
    fp4_flops: float | None = None


REGISTERS = 64 * 1024 * 4
SIZES = (
    Sizes("A100", 80 * GB, 40 * MB, 192 * KB, 164 * KB, REGISTERS, 312e12),
    Sizes("A10", 24 * GB, 6 * MB, 128 * KB, 100 * KB, REGISTERS, 125e12),
    Sizes("RTX 3090", 24 * GB, 6 * MB, 128 * KB, 100 * KB, REGISTERS, 71e12),
    Sizes("L40S", 48 * GB, None, 128 * KB, 100 * KB, REGISTERS, 362e12),
    Sizes("RTX 4090", 24 * GB, 72 * MB, 128 * KB, 100 * KB, REGISTERS, 165.2e12),
    Sizes("H100", 80 * GB, 50 * MB, 256 * KB, 228 * KB, REGISTERS, 989.4e12),
    Sizes("H200", 141 * GB, 60 * MB, 256 * KB, 228 * KB, REGISTERS, 989.4e12),
    Sizes(
        "B200",
        180 * GB,
        126 * MB,
        256 * KB,
        228 * KB,
        REGISTERS,
        2250e12,
        fp8_flops=4500e12,
        fp4_flops=9000e12,
    ),
    Sizes("RTX 5090", 32 * GB, 96 * MB, 128 * KB, 100 * KB, REGISTERS, 209.5e12, fp4_flops=1676e12),
)


def sizes_of(device: Device) -> Sizes | None:
    """The longest name of the table that the device's contains."""
    found = [each for each in SIZES if each.name.lower() in device.name.lower()]
    return max(found, key=lambda each: len(each.name), default=None)


@dataclass(frozen=True)
class Limits:
    """What a device holds at once, and its peaks: a multiprocessor's warps, blocks, registers (of
    32 bits) and shared memory (bytes), L2 and memory in bytes, ``Sizes.matrix_flops``, and the SM
    clock in MHz that goes with it; None where nobody says. ``source`` as a Device's."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    tensor_flops: float | None = None
    clock_mhz: int | None = None
    source: str = "spec"


# the system's, of every block: CUDA programming guide, "Shared memory" of compute capability 8.x
# and later
BLOCK_SHARED_BYTES = KB
REGISTER_UNIT = 256  # registers are handed out to a warp in multiples of this
# Per compute capability, "Technical specifications" of the same guide: warps, blocks, registers and
# shared memory of a multiprocessor.
_HELD = {
    (8, 0): (64, 32, 65536, 164 * KB),
    (8, 6): (48, 16, 65536, 100 * KB),
    (8, 9): (48, 24, 65536, 100 * KB),
    (9, 0): (64, 32, 65536, 228 * KB),
    (10, 0): (64, 32, 65536, 228 * KB),
    (12, 0): (48, 24, 65536, 100 * KB),
}
_BOOST_MHZ = {
    "A100": 1410,
    "A10": 1695,
    "RTX 3090": 1695,
    "L40S": 2520,
    "RTX 4090": 2520,
    "H100": 1830,
    "H200": 1830,
    "B200": 1965,
    "RTX 5090": 2407,
}


def limits_of(device: Device) -> Limits:
    """By the tables; what hangs on the compute capability alone if the device's name is in none.
    (``execution.driver.limits`` asks a real one.)"""
    nearest = max((each for each in _HELD if each <= device.compute_capability), default=(8, 0))
    sizes = sizes_of(device)
    if sizes is None:
        return Limits(*_HELD[nearest])
    return Limits(
        *_HELD[nearest],
        sizes.l2_bytes,
        sizes.memory_bytes,
        sizes.matrix_flops,
        _BOOST_MHZ.get(sizes.name),
    )
