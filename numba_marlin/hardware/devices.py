"""What the kernels need to know about a device, as plain numbers, each with its source.

``Device.source`` says where the numbers come from: ``spec`` (the maker's data sheet), ``measured``
(asked of the driver of this machine) or ``model`` (the small device that the PTX machine plays).
Nothing here imports CUDA; ``execution.driver`` fills a ``Device`` from a real one.
``device("H200")`` looks one up; an unknown name raises a ValueError that lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.hardware.targets import TARGETS, target_named


@dataclass(frozen=True)
class Device:
    """One kind of GPU. Sizes in bytes; ``bandwidth_bytes`` in bytes/s, None where nobody measured
    or specified it; ``driver``: the version of the driver that described it, None of a table."""

    name: str
    sms: int
    compute_capability: tuple[int, int]
    shared_bytes_per_block: int
    bandwidth_bytes: float | None
    source: str
    driver: str | None = None

    @property
    def target(self) -> str:
        """The compile target whose machine code this device runs; ValueError before sm_80 (no
        cp.async, no m16n8k16)."""
        return target_of(self.compute_capability)

    @property
    def arch(self) -> str:
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    def runs(self, arch: str) -> bool:
        """Whether code that needs ``arch`` can be compiled for this device."""
        return target_named(self.target).supports(arch)

    def to_dict(self) -> dict:
        return {
            "name": self.name,
            "sms": self.sms,
            "arch": self.arch,
            "target": self.target,
            "shared_bytes_per_block": self.shared_bytes_per_block,
            "bandwidth_bytes": self.bandwidth_bytes,
            "source": self.source,
        }


def target_of(compute_capability: tuple[int, int]) -> str:
    """The newest target a device of this compute capability runs.

    Machine code runs on the same major version from its minor version on. A major version that is
    no target gets ``sm_80``, whose PTX the driver compiles (``execution.launch``).
    """
    major, minor = compute_capability
    if (major, minor) < (8, 0):
        raise ValueError(
            f"compute capability {major}.{minor} is below 8.0: no cp.async and no mma.m16n8k16"
        )
    fitting = [name for name in TARGETS if runs_machine_code(name, compute_capability)]
    return max(fitting, key=lambda name: TARGETS[name].capability, default="sm_80")


def runs_machine_code(target: str, compute_capability: tuple[int, int]) -> bool:
    """Whether the cubin of ``target`` runs on the device; that of an "a" target runs on exactly its
    capability."""
    wanted = target_named(target)
    if wanted.specific:
        return compute_capability == wanted.capability
    return (
        compute_capability[0] == wanted.capability[0]
        and compute_capability[1] >= wanted.capability[1]
    )


KB = 1024

# Shared memory a block may opt in to: CUDA programming guide, technical specifications per compute
# capability. SM counts and memory bandwidths: the makers' data sheets.
SPECIFICATIONS = (
    Device("A100", 108, (8, 0), 163 * KB, 2.039e12, "spec"),
    Device("A10", 72, (8, 6), 99 * KB, 0.600e12, "spec"),
    Device("RTX 3090", 82, (8, 6), 99 * KB, 0.936e12, "spec"),
    Device("L40S", 142, (8, 9), 99 * KB, 0.864e12, "spec"),
    Device("RTX 4090", 128, (8, 9), 99 * KB, 1.008e12, "spec"),
    Device("H100", 132, (9, 0), 227 * KB, 3.35e12, "spec"),
    Device("H200", 132, (9, 0), 227 * KB, 4.8e12, "spec"),
    Device("B200", 148, (10, 0), 227 * KB, 7.7e12, "spec"),
    Device("RTX 5090", 170, (12, 0), 99 * KB, 1.792e12, "spec"),
)

# What the PTX machine plays: so few SMs that a run is quick and stripes still cross column
# boundaries. It takes the PTX of a Hopper, so that what runs without a GPU is word for word what an
# H200 gets.
MODEL = Device("PTX machine", 4, (9, 0), 227 * KB, None, "model")


def names() -> tuple[str, ...]:
    return tuple(each.name for each in SPECIFICATIONS) + ("model",)


def device(name: str) -> Device:
    """The specified device called ``name`` (case, spaces and dashes do not matter), or
    ``model``."""

    def plain(text: str) -> str:
        return text.lower().replace(" ", "").replace("-", "")

    known = {plain(each.name): each for each in SPECIFICATIONS} | {"model": MODEL}
    if plain(name) not in known:
        raise ValueError(f"device={name!r} is not one of {', '.join(names())}")
    return known[plain(name)]
