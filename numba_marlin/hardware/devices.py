"""One row per GPU: number of SMs, memory, peak rates, and the source of each figure.

``device("H200")`` looks a row up (ValueError, listing the known ones, for an unknown name).
``SPECIFICATIONS`` are the rows; ``MODEL`` is the small device that the PTX machine models.
``Device.source`` is ``spec`` (published figures, cited in ``Device.references``), ``measured``
(reported by a driver, ``execution.driver.describe``) or ``model``. Properties of the compute
capability are in ``architectures``, reached as ``Device.architecture``. Nothing here
imports CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from numba_marlin.hardware.architectures import Architecture, architecture_of
from numba_marlin.hardware.targets import TARGETS, target_named
from numba_marlin.wording import did_you_mean

MB, GB = 1 << 20, 10**9


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of GPU, or one GPU. Optional figures are None where no source has them."""

    name: str
    """Its name in data sheets and in the driver."""

    sms: int
    """Streaming multiprocessors (SMs)."""

    compute_capability: tuple[int, int]
    """(major, minor)."""

    source: str
    """"spec", "measured" or "model"."""

    bandwidth_bytes: float | None = None
    """Peak rate of the memory, bytes/s."""

    memory_bytes: int | None = None
    """Size of the memory."""

    l2_bytes: int | None = None
    """Size of the second-level cache."""

    clock_mhz: int | None = None
    """SM clock at boost."""

    matrix_flops: float | None = None
    """Peak of the tensor cores: operations/s, dense, 16-bit factors, fp32 accumulators, at boost
    clock; a multiply-add is two operations."""

    fp8_flops: float | None = None
    """The same for block-scaled 8-bit operands, None if the tensor cores have none."""

    fp4_flops: float | None = None
    """The same for block-scaled 4-bit operands, None if the tensor cores have none."""

    driver: str | None = None
    """Version of the driver that reported it; None in the table."""

    references: tuple[tuple[str, str], ...] = field(default=(), hash=False)
    """((figures, separated by spaces; their source), ...)."""

    limits: Architecture | None = field(default=None, hash=False)
    """The SM properties that a driver reported; None: those of the table for the compute
    capability."""

    @property
    def architecture(self) -> Architecture:
        """Limits of an SM and of a block."""
        return self.limits or architecture_of(self.compute_capability)

    @property
    def shared_bytes_per_block(self) -> int:
        """Dynamic shared memory that a block may opt in to."""
        return self.architecture.shared_bytes_per_block

    @property
    def target(self) -> str:
        """The compile target whose machine code this device runs; ValueError before sm_80, which
        has no cp.async and no m16n8k16."""
        return target_of(self.compute_capability)

    @property
    def arch(self) -> str:
        """The compute capability as PTX spells it, "sm_90"."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"

    def runs(self, arch: str) -> bool:
        """Whether code that needs ``arch`` can be compiled for this device."""
        return target_named(self.target).supports(arch)

    def peak_flops(self, bits: int) -> float | None:
        """Peak of the tensor cores, operations/s, for operands of 16, 8 or 4 bits."""
        return {16: self.matrix_flops, 8: self.fp8_flops, 4: self.fp4_flops}[bits]

    def reference_of(self, figure: str) -> str | None:
        """The source of the figure of that name; None if none is recorded."""
        return next((where for names, where in self.references if figure in names.split()), None)

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
    """The newest target that a device of this compute capability runs.

    Machine code runs on the same major version from its minor version on. A major version without
    a target gets ``sm_80``, whose PTX the driver compiles (``execution.launch``). ValueError below
    8.0.
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


_A100_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100_PAPER = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
    "nvidia-ampere-architecture-whitepaper.pdf"
)
_A10_SHEET = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
)
_GA102_PAPER = (
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
_L40S_SHEET = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_ADA_PAPER = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
)
_H100_PAPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
_H200_SHEET = "https://www.nvidia.com/en-us/data-center/h200/"
_H200_DRIVER = "measured: what the driver of an H200 says (experiments/10_profile)"
_B200_SHEET = "https://www.nvidia.com/en-us/data-center/hgx/"
_RTX_BLACKWELL_PAPER = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_REPORTED = "reported by owners of the GPU, in no document of its maker; not measured here"

SPECIFICATIONS = (
    Device(
        name="A100",
        sms=108,
        compute_capability=(8, 0),
        source="spec",
        bandwidth_bytes=2.039e12,
        memory_bytes=80 * GB,
        l2_bytes=40 * MB,
        clock_mhz=1410,
        matrix_flops=312e12,
        references=(
            ("bandwidth_bytes memory_bytes matrix_flops", _A100_SHEET),
            ("sms l2_bytes clock_mhz", _A100_PAPER),
        ),
    ),
    Device(
        name="A10",
        sms=72,
        compute_capability=(8, 6),
        source="spec",
        bandwidth_bytes=0.600e12,
        memory_bytes=24 * GB,
        l2_bytes=6 * MB,
        clock_mhz=1695,
        matrix_flops=125e12,
        references=(
            ("bandwidth_bytes memory_bytes matrix_flops", _A10_SHEET),
            ("sms l2_bytes clock_mhz", _GA102_PAPER),
        ),
    ),
    Device(
        name="RTX 3090",
        sms=82,
        compute_capability=(8, 6),
        source="spec",
        bandwidth_bytes=0.936e12,
        memory_bytes=24 * GB,
        l2_bytes=6 * MB,
        clock_mhz=1695,
        matrix_flops=71e12,
        references=(
            ("sms bandwidth_bytes memory_bytes l2_bytes clock_mhz matrix_flops", _GA102_PAPER),
        ),
    ),
    Device(
        name="L40S",
        sms=142,
        compute_capability=(8, 9),
        source="spec",
        bandwidth_bytes=0.864e12,
        memory_bytes=48 * GB,
        clock_mhz=2520,
        matrix_flops=362e12,
        references=(
            ("sms bandwidth_bytes memory_bytes matrix_flops", _L40S_SHEET),
            ("clock_mhz", _REPORTED),
        ),
    ),
    Device(
        name="RTX 4090",
        sms=128,
        compute_capability=(8, 9),
        source="spec",
        bandwidth_bytes=1.008e12,
        memory_bytes=24 * GB,
        l2_bytes=72 * MB,
        clock_mhz=2520,
        matrix_flops=165.2e12,
        references=(
            ("sms bandwidth_bytes memory_bytes l2_bytes clock_mhz matrix_flops", _ADA_PAPER),
        ),
    ),
    Device(
        name="H100",
        sms=132,
        compute_capability=(9, 0),
        source="spec",
        bandwidth_bytes=3.35e12,
        memory_bytes=80 * GB,
        l2_bytes=50 * MB,
        clock_mhz=1830,
        matrix_flops=989.4e12,
        references=(
            ("sms bandwidth_bytes memory_bytes l2_bytes clock_mhz matrix_flops", _H100_PAPER),
        ),
    ),
    Device(
        name="H200",
        sms=132,
        compute_capability=(9, 0),
        source="spec",
        bandwidth_bytes=4.8e12,
        memory_bytes=141 * GB,
        l2_bytes=60 * MB,
        clock_mhz=1830,
        matrix_flops=989.4e12,
        references=(
            ("bandwidth_bytes memory_bytes matrix_flops", _H200_SHEET),
            ("sms clock_mhz", _H100_PAPER),
            ("l2_bytes", _H200_DRIVER),
        ),
    ),
    Device(
        name="B200",
        sms=148,
        compute_capability=(10, 0),
        source="spec",
        bandwidth_bytes=7.7e12,
        memory_bytes=180 * GB,
        l2_bytes=126 * MB,
        clock_mhz=1965,
        matrix_flops=2250e12,
        fp8_flops=4500e12,
        fp4_flops=9000e12,
        references=(
            ("bandwidth_bytes memory_bytes matrix_flops fp8_flops fp4_flops", _B200_SHEET),
            ("sms l2_bytes clock_mhz", _REPORTED),
        ),
    ),
    Device(
        name="RTX 5090",
        sms=170,
        compute_capability=(12, 0),
        source="spec",
        bandwidth_bytes=1.792e12,
        memory_bytes=32 * GB,
        l2_bytes=96 * MB,
        clock_mhz=2407,
        matrix_flops=209.5e12,
        fp4_flops=1676e12,
        references=(
            (
                "sms bandwidth_bytes memory_bytes l2_bytes clock_mhz matrix_flops fp4_flops",
                _RTX_BLACKWELL_PAPER,
            ),
        ),
    ),
)

# The device that the PTX machine models: few SMs, so that a run is quick and stream-K stripes still
# cross column boundaries. It runs the PTX of a Hopper, so that code tested without a GPU is exactly
# what an H200 runs.
MODEL = Device(name="PTX machine", sms=4, compute_capability=(9, 0), source="model")


def names() -> tuple[str, ...]:
    """The names that ``device`` accepts."""
    return tuple(each.name for each in SPECIFICATIONS) + ("model",)


def device(name: str) -> Device:
    """The specified device called ``name`` (case, spaces and dashes do not matter), or
    ``model``."""

    def plain(text: str) -> str:
        return text.lower().replace(" ", "").replace("-", "")

    known = {plain(each.name): each for each in SPECIFICATIONS} | {"model": MODEL}
    if plain(name) not in known:
        raise ValueError(
            f"device={name!r} is not one of {', '.join(names())}{did_you_mean(name, names())}"
        )
    return known[plain(name)]


def specified(name: str) -> Device | None:
    """The row of a GPU that its driver calls ``name`` ("NVIDIA H200"): the longest name that is
    part of it; None if there is none."""
    found = [each for each in SPECIFICATIONS if each.name.lower() in name.lower()]
    return max(found, key=lambda each: len(each.name), default=None)
