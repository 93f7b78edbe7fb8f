"""One row per compute capability: limits of an SM and of a block, and the targets that run there.

``architecture_of((9, 0))`` gives the row of a device; ``ARCHITECTURES`` lists them all. The named
ones (``HOPPER`` ...) are for kernels that are written for one architecture. Sources:

- sizes: CUDA C++ programming guide, "Technical specifications per compute capability",
  https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
- targets and tensor-core instructions: PTX ISA, "Target ISA notes" of each instruction,
  https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-module-directives-target
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES

KB = 1024


@dataclass(frozen=True)
class Architecture:
    """Properties of all GPUs of one compute capability. Sizes in bytes."""

    capability: tuple[int, int]
    """Compute capability, (major, minor)."""

    warps_per_sm: int
    """Warps that an SM holds at once."""

    blocks_per_sm: int
    """Blocks that an SM holds at once."""

    registers_per_sm: int
    """32-bit registers of an SM."""

    l1_bytes_per_sm: int
    """First-level cache and shared memory of an SM together."""

    shared_bytes_per_sm: int
    """The largest part of ``l1_bytes_per_sm`` that can be shared memory."""

    targets: tuple[tuple[str, str], ...]
    """(name as ptxas takes it, GPUs that run it)."""

    matrix_instructions: tuple[str, ...]
    """Families of tensor-core instructions that these kernels may use."""

    source: str = "spec"
    """"spec": the programming guide's table; "measured": reported by a driver."""

    @property
    def shared_bytes_per_block(self) -> int:
        """Dynamic shared memory that a block may opt in to."""
        return self.shared_bytes_per_sm - SYSTEM_SHARED_BYTES

    @property
    def register_bytes_per_sm(self) -> int:
        return 4 * self.registers_per_sm


AMPERE = Architecture(
    capability=(8, 0),
    warps_per_sm=64,
    blocks_per_sm=32,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=192 * KB,
    shared_bytes_per_sm=164 * KB,
    targets=(("sm_80", "A100, A30"),),
    matrix_instructions=("mma.sync",),
)
AMPERE_GA10X = Architecture(
    capability=(8, 6),
    warps_per_sm=48,
    blocks_per_sm=16,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=128 * KB,
    shared_bytes_per_sm=100 * KB,
    targets=(("sm_86", "A10, A40, RTX 30"),),
    matrix_instructions=("mma.sync",),
)
ADA = Architecture(
    capability=(8, 9),
    warps_per_sm=48,
    blocks_per_sm=24,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=128 * KB,
    shared_bytes_per_sm=100 * KB,
    targets=(("sm_89", "L4, L40, RTX 40"),),
    matrix_instructions=("mma.sync",),
)
HOPPER = Architecture(
    capability=(9, 0),
    warps_per_sm=64,
    blocks_per_sm=32,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=256 * KB,
    shared_bytes_per_sm=228 * KB,
    targets=(("sm_90a", "H100, H200"),),
    matrix_instructions=("mma.sync", "wgmma"),
)
BLACKWELL = Architecture(
    capability=(10, 0),
    warps_per_sm=64,
    blocks_per_sm=32,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=256 * KB,
    shared_bytes_per_sm=228 * KB,
    targets=(("sm_100", "B200"), ("sm_100a", "B200, with its tensor memory")),
    matrix_instructions=("mma.sync", "tcgen05"),
)
BLACKWELL_SM120 = Architecture(
    capability=(12, 0),
    warps_per_sm=48,
    blocks_per_sm=24,
    registers_per_sm=64 * KB,
    l1_bytes_per_sm=128 * KB,
    shared_bytes_per_sm=100 * KB,
    targets=(
        ("sm_120", "RTX 50, RTX PRO Blackwell"),
        ("sm_120a", "RTX 50, RTX PRO Blackwell, with block-scaled mma"),
    ),
    matrix_instructions=("mma.sync", "mma.sync.block_scale"),
)

ARCHITECTURES = (AMPERE, AMPERE_GA10X, ADA, HOPPER, BLACKWELL, BLACKWELL_SM120)


def architecture_of(capability: tuple[int, int]) -> Architecture:
    """The row of this compute capability, or of the nearest lower one that has a row; sm_80's
    below all of them."""
    return max(
        (each for each in ARCHITECTURES if each.capability <= capability),
        key=lambda each: each.capability,
        default=AMPERE,
    )
