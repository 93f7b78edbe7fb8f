"""The order in which warps, blocks and copies make progress: a Schedule, which replays exactly.

Hardware promises no order but the one that a program asks for, so every schedule is legal, and a
correct program gives the same bits under all of them.

``order``
    which warps are preferred: none ("any": bundles are chosen, and torn apart, at random), all but
    one warp of each block ("slowest warp"), one block ("one block ahead"), or the blocks from the
    last to the first ("reverse"). A preferred warp runs as long as it makes progress; when nothing
    has changed for a while, others run, or a spinning warp would never see its lock released.
    "in turn": every warp issues at the same rate, blocks from the first to the last; so a warp that
    has little to do per tile, like one that only issues copies, runs ahead of the others as far as
    a ring lets it.
    "lanes apart" prefers none either, tears warps apart into lanes, and lets others run between any
    two accesses to memory. It is slow, and each part of a warp counts its instructions, so no
    number draws it.
``copies``
    when bulk copies land and tcgen05's operations are done: as soon as they are issued ("early"),
    as late as their mbarriers allow ("late": when a thread has asked in vain), or in between
    ("any"). cp.async and wgmma always take effect at their wait, the latest moment there is.
``memory``
    "in order": one access after the other. "weak": loads may give older values, and stores come
    before others, as the memory model of PTX allows (``ordering.weak_memory``, and
    ``late_loads``). It is slow; with "lanes apart" it reaches the most.
``resident_blocks``
    places for blocks, fewer than there are blocks; None for as many.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from numba_marlin.emulator.state.lanes import FULL, WARP, Placement
from numba_marlin.emulator.state.paths import Bundle, Path

OF_WARPS = ("any", "slowest warp", "one block ahead", "reverse", "in turn")
APART = "lanes apart"
ORDERS = (*OF_WARPS, APART)
COPIES = ("any", "late", "early")
WEAK = "weak"
MEMORIES = ("in order", WEAK)
SPLIT_CHANCE = 0.25
# turns without a change of memory after which others than the preferred come to theirs
PATIENCE = 32


@dataclass(frozen=True)
class Schedule:
    seed: int
    order: str = "any"
    copies: str = "any"
    resident_blocks: int | None = None
    memory: str = "in order"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("order", self.order, ORDERS),
            ("copies", self.copies, COPIES),
            ("memory", self.memory, MEMORIES),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")

    @classmethod
    def drawn(cls, seed: int) -> Schedule:
        """Any schedule of whole warps, for a number."""
        chosen = random.Random(seed)
        return cls(seed, chosen.choice(OF_WARPS), chosen.choice(COPIES))

    def random(self) -> random.Random:
        return random.Random(self.seed)


class Chooser:
    """Takes the bundle whose turn it is out of those that are ready, and tears it apart. ``ranks``:
    a rank per resident warp, the lowest goes first; None if no warp is preferred."""

    def __init__(self, schedule: Schedule, chosen: random.Random, placement: Placement) -> None:
        self.order, self.random, self.per_block = schedule.order, chosen, placement.warps_per_block
        self.ranks = self._ranks(placement.slots)
        # in turn: per resident warp the time until which it has issued, in instructions; and now
        self.issued = [0] * (placement.slots * self.per_block) if self.order == "in turn" else []
        self.now = 0
        self.stamp, self.unchanged = -1, 0

    def _ranks(self, slots: int) -> list[int] | None:
        warps = range(slots * self.per_block)
        if self.order == "slowest warp":
            slow = self.random.randrange(self.per_block)
            return [int(warp % self.per_block == slow) for warp in warps]
        if self.order == "one block ahead":
            ahead = self.random.randrange(slots)
            return [int(warp // self.per_block != ahead) for warp in warps]
        return [0 for _ in warps] if self.order == "reverse" else None

    def place(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Blocks ``numbers`` have moved into ``slots``."""
        for slot, number in zip(slots, numbers) if self.order == "reverse" else ():
            self.ranks[slot * self.per_block : (slot + 1) * self.per_block] = [
                -number
            ] * self.per_block

    def spend(self, bundle: Bundle, instructions: int) -> None:
        """Every warp of the bundle has executed so many instructions in its turn."""
        if self.issued:
            for path in bundle.paths:
                # who has waited, or has begun only now, does not catch up
                self.issued[path.warp] = max(self.issued[path.warp], self.now) + instructions

    def pick(self, ready: dict, stamp: int) -> Bundle:
        """One of the bundles ``ready`` (by key), or a part of it, the rest of which stays;
        ``stamp`` grows when anything changes."""
        self.unchanged = self.unchanged + 1 if stamp == self.stamp else 0
        self.stamp = stamp
        if self.issued:
            turn, key = min((self._turn_of(bundle), key) for key, bundle in ready.items())
            self.now = max(self.now, turn)
            return ready.pop(key)
        if self.ranks is not None and self.unchanged <= PATIENCE:
            return self._preferred(ready)
        bundle = ready.pop(self.random.choice(sorted(ready)))
        if self.order == APART and not bundle.gathered:
            return self._lanes(ready, bundle)
        if len(bundle.paths) > 1 and self.random.random() < SPLIT_CHANCE:
            self.random.shuffle(bundle.paths)
            cut = self.random.randrange(1, len(bundle.paths))
            return self._part(ready, bundle, bundle.paths[:cut], bundle.paths[cut:])
        return bundle

    def _turn_of(self, bundle: Bundle) -> int:
        return min(self.issued[path.warp] for path in bundle.paths)

    def _lanes(self, ready: dict, bundle: Bundle) -> Bundle:
        """Some lanes of one of the bundle's warps, or all of them; the rest stays."""
        path = bundle.paths.pop(self.random.randrange(len(bundle.paths)))
        lanes = [lane for lane in range(WARP) if path.mask >> lane & 1]
        count = self.random.choice((1, self.random.randint(1, len(lanes)), len(lanes)))
        mask = sum(1 << lane for lane in self.random.sample(lanes, count))
        rest = list(bundle.paths)
        if mask != path.mask:
            other = Path(path.warp, path.mask & ~mask, path.join)
            left = ready.get((bundle.pc, False, False), Bundle(bundle.pc, [], bundle.round, False))
            left.paths.append(other)
            left.lanes = None
            ready[left.key] = left
        if rest:
            left = ready.get(bundle.key, Bundle(bundle.pc, [], bundle.round, bundle.full))
            left.paths += rest
            left.lanes = None
            ready[left.key] = left
        return Bundle(bundle.pc, [Path(path.warp, mask, path.join)], bundle.round, mask == FULL)

    def _preferred(self, ready: dict) -> Bundle:
        """Those of the lowest rank, at one of the places where they stand."""
        best = min(self.ranks[path.warp] for bundle in ready.values() for path in bundle.paths)
        keys = [
            key
            for key in sorted(ready)
            if any(self.ranks[path.warp] == best for path in ready[key].paths)
        ]
        bundle = ready.pop(self.random.choice(keys))
        mine = [path for path in bundle.paths if self.ranks[path.warp] == best]
        return self._part(
            ready, bundle, mine, [path for path in bundle.paths if self.ranks[path.warp] != best]
        )

    @staticmethod
    def _part(ready: dict, bundle: Bundle, mine: list[Path], rest: list[Path]) -> Bundle:
        """``mine`` of the bundle; the ``rest`` stays. But who has been waited for stays
        together."""
        if not rest or bundle.gathered:
            return bundle
        left = Bundle(bundle.pc, rest, bundle.round, bundle.full)
        ready[left.key] = left
        return Bundle(bundle.pc, mine, bundle.round, bundle.full)


def schedule_of(seed: int | Schedule | None) -> Schedule | None:
    """What ``Machine.run`` takes as its seed: None is the deterministic order, a number one at
    random."""
    return seed if seed is None or isinstance(seed, Schedule) else Schedule(seed)
