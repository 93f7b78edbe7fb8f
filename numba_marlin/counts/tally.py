"""Tallies: counts of one instruction, which can be added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from numba_marlin.counts.transactions import SECTOR_BYTES


class Summable:
    """Base of dataclasses of numbers, mappings of numbers and other Summables; ``a + b`` adds field
    by field, and takes the larger of two maxima."""

    MAXIMA: tuple[str, ...] = ()

    def __add__(self, other):
        def both(name):
            a, b = getattr(self, name), getattr(other, name)
            if isinstance(a, Mapping):
                return dict(Counter(a) + Counter(b))
            return max(a, b) if name in self.MAXIMA else a + b

        return type(self)(**{each.name: both(each.name) for each in fields(self)})


@dataclass(frozen=True)
class GlobalTally(Summable):
    """Global memory traffic in one direction. ``requests``: by warps (or one per row of a bulk
    copy); ``bytes``: requested, each byte once per request;

    ``sectors``: (32 bytes) touched; ``needed``: the sectors that these bytes would fill.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    needed: int = 0

    @property
    def coalescing(self) -> float | None:
        """Sectors needed in per cent of those touched; None without any."""
        return 100.0 * self.needed / self.sectors if self.sectors else None

    @property
    def traffic(self) -> int:
        """Bytes of the sectors touched."""
        return SECTOR_BYTES * self.sectors


@dataclass(frozen=True)
class SharedTally(Summable):
    """Shared memory traffic: ``requests`` by warps; ``bytes`` requested by lanes (a byte requested
    by two lanes counts twice); ``wavefronts``; ``ideal``: wavefronts without bank conflicts."""

    requests: int = 0
    bytes: int = 0
    wavefronts: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal


@dataclass(frozen=True)
class Tally(Summable):
    """Counts of a set of instructions.

    ``executed``: warp instructions, including those whose guard holds for no lane; ``classes``
    splits them. ``copied``: bytes of shared memory that asynchronous copies fill or read, by kind
    (cp.async, bulk, tensor). ``operand_bytes``: shared bytes that wgmma and tcgen05 read by
    descriptor. ``tensor_memory``: bytes of tensor memory that are loaded, stored, and filled with
    scales. ``flops``: operations of tensor cores. ``atomics``: operations of lanes.
    ``local_bytes``: of spills and local arrays. ``registers``: largest number live, in 32-bit
    words."""

    MAXIMA = ("registers",)

    executed: int = 0
    classes: Mapping[str, int] = field(default_factory=dict)
    reads: GlobalTally = GlobalTally()
    writes: GlobalTally = GlobalTally()
    shared: SharedTally = SharedTally()
    copied: Mapping[str, int] = field(default_factory=dict)
    operand_bytes: int = 0
    tensor_memory: Mapping[str, int] = field(default_factory=dict)
    atomics: int = 0
    local_bytes: int = 0
    flops: int = 0
    registers: int = 0
