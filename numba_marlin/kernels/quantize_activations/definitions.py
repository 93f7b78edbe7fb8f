"""How the kernels of ``rows`` are made and launched, configured by types and groups: ``QUANTIZE``,
and ``WITH_OFFSETS`` for those that have an array more; ``definition_of`` says which.

They are KernelDefinitions, so that they are compiled, cached and launched as all kernels are, but
no product is theirs: the registry does not have them, and of a problem's sizes n is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_marlin.kernels.language.about import About, MachineCost
from numba_marlin.kernels.language.definition import KernelDefinition, ceil_div
from numba_marlin.kernels.language.plain import body_of
from numba_marlin.layout.offsets import has_offsets, offset_shape

UNIT = 16  # numbers that a thread takes at a time
MOST_THREADS, LEAST_THREADS = 1024, 128
UNITS_OF_A_THREAD = 4  # at most, where threads allow it
FEW_BLOCKS = 264  # two an SM of an H200: with no more, what a block takes is what all take
KINDS = {"int8": "sm_80", "fp8": "sm_89"}  # of codes, and the least target
EARLY = "sm_90"  # the least target with programmatic dependent launch


@dataclass(frozen=True)
class RowTypes:
    """What the activations and the caller say, and how many threads a block has."""

    #: Of the codes: "int8" or "fp8".
    kind: str = "int8"
    #: Of x: "float16" or "bfloat16".
    dtype: str = "float16"
    #: Numbers along k that share a scale, a multiple of 16; None for all of a row.
    group_size: int | None = None
    #: Of a block, which has a row or a group of it.
    threads: int = 256
    #: The product behind it may start, and load weights, before this has ended: from sm_90 on.
    early: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(KINDS)}")
        if self.dtype not in ("float16", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r} must be float16 or bfloat16")

        if self.threads % 32 or not 32 <= self.threads <= MOST_THREADS:
            raise ValueError(
                f"threads={self.threads} must be a multiple of 32, at most {MOST_THREADS}"
            )

    def for_rows(self, m: int, k: int) -> RowTypes:
        """With as many threads as m rows of k numbers want: all that a block can have where blocks
        are few; else a power of two that leaves two to four units to each, so that a block is short
        and the rows of a multiprocessor's blocks fit into L1, where they are read again. No more
        than have something to do."""
        groups = self.groups(k)
        units = k // groups // UNIT
        most = MOST_THREADS
        if m * groups > FEW_BLOCKS:
            wanted = ceil_div(units, UNITS_OF_A_THREAD)
            most = min(MOST_THREADS, max(LEAST_THREADS, 1 << (wanted - 1).bit_length()))
        return replace(self, threads=min(most, 32 * ceil_div(units, 32)))

    @property
    def offsets(self) -> bool:
        """Whether they are written too."""
        return has_offsets(self.kind, self.group_size)

    def groups(self, k: int) -> int:
        return 1 if self.group_size is None else k // self.group_size


def _make(lang, config):
    # imports Numba
    from numba_marlin.kernels.quantize_activations import rows

    brain = config.dtype == "bfloat16"
    if config.offsets:
        return body_of(rows.kernel_with_offsets(brain, config.early), lang)
    return body_of(rows.kernel_of(brain, config.kind == "fp8", config.early), lang)


def shapes(config: RowTypes, m: int, n: int, k: int) -> dict[str, tuple[int, int]]:
    """Of the arrays: two numbers of x, four codes, and two offsets, to a word."""
    found = {"x": (m, k // 2), "codes": (m, k // 4), "scales": (m, config.groups(k))}
    if not config.offsets:
        return found
    m, parts, length = offset_shape(m, k, config.dtype)
    return found | {"offsets": (m * parts, length // 2)}


QUANTIZE = KernelDefinition(
    name="quantize_activations",
    summary="activations to 8 bits with a scale per row or group",
    config_type=RowTypes,
    parameters=(
        ("x", "int32[:, ::1]"),
        ("codes", "int32[:, ::1]"),
        ("scales", "float32[:, ::1]"),
    ),
    shapes=shapes,
    make=_make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: 0,
    static_shared_bytes=lambda config: 4 * MOST_THREADS // 32,
    grid=lambda config, m, n, k, sms: (m, config.groups(k), 1),
    about=About(machine_cost=MachineCost(weight=0.5, warp=0.14)),
)

WITH_OFFSETS = replace(
    QUANTIZE,
    name="quantize_activations_with_offsets",
    summary="activations to e4m3 with a scale per row, and offsets of groups",
    parameters=(*QUANTIZE.parameters, ("offsets", "int32[:, ::1]")),
)


def definition_of(config: RowTypes) -> KernelDefinition:
    return WITH_OFFSETS if config.offsets else QUANTIZE
