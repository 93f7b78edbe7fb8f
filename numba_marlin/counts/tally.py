"""Numbers that add up: what one instruction did, what several did together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from numba_marlin.counts.transactions import SECTOR_BYTES


class Summable:
    """Dataclasses of numbers, mappings of numbers and other Summables; ``a + b`` adds field by
    field, but takes the larger of maxima."""

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
    """Global memory, in one direction. ``requests`` of a warp (or one of a bulk copy's rows),
    ``bytes`` that they want, each byte once a request,

    ``sectors`` (32 bytes) that they touch, ``needed`` sectors those bytes would fill.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    needed: int = 0

    @property
    def coalescing(self) -> float | None:
        """Sectors needed in a hundred touched; None without any."""
        return 100.0 * self.needed / self.sectors if self.sectors else None

    @property
    def traffic(self) -> int:
        """Bytes of the sectors touched."""
        return SECTOR_BYTES * self.sectors


@dataclass(frozen=True)
class SharedTally(Summable):
    """Shared memory: ``requests`` of a warp, ``bytes`` its lanes want (a byte that two want counts
    twice), ``wavefronts``, and ``ideal``: without conflicts."""

    requests: int = 0
    bytes: int = 0
    wavefronts: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal


@dataclass(frozen=True)
class Tally(Summable):
    """What some instructions did, added up.

    ``executed``: warp instructions, also those whose guard holds for no lane; ``classes`` splits
    them. ``copied``: bytes of shared memory that asynchronous copies fill or read, by kind
    (cp.async, bulk, tensor). ``operand_bytes``: shared bytes that wgmma and tcgen05 read by
    descriptor. ``tensor_memory``: bytes of tensor memory that are loaded, stored, and filled with
    scales. ``flops``: operations of tensor cores. ``atomics``: lanes' operations. ``local_bytes``:
    of spills and local arrays. ``registers``: live at most, in words of 32 bits.
    """

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
