"""In which order warps, blocks and copies make progress: a Schedule, replayed exactly by the same one.

Hardware promises no order but the one that a program asks for, so every schedule is legal, and a right program gives the same bits under all
of them. ``order`` says who is preferred: nobody ("any": bundles are chosen, and torn apart, at random), all but one warp of each block ("slowest warp"), one block
("one block ahead"), or the blocks from the last to the first ("reverse"). Whoever is preferred runs as long as he gets anywhere: when nothing has changed for a while,
somebody else is let on, for otherwise who spins would wait for ever. ``copies`` says when bulk copies land: as soon as they are issued ("early"), as
late as their mbarriers allow ("late"), or in between ("any"). (cp.async and wgmma always take effect at their wait: the latest moment there is.)
``resident_blocks``: places for blocks, fewer than there are blocks; None for as many.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ORDERS = ("any", "slowest warp", "one block ahead", "reverse")
COPIES = ("any", "late", "early")
PATIENCE = 32  # turns without a change of memory after which others than the preferred come to theirs


@dataclass(frozen=True)
class Schedule:
    seed: int
    order: str = "any"
    copies: str = "any"
    resident_blocks: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (("order", self.order, ORDERS), ("copies", self.copies, COPIES)):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")

    @classmethod
    def drawn(cls, seed: int) -> "Schedule":
        """Any schedule, for a number."""
        chosen = random.Random(seed)
        return cls(seed, chosen.choice(ORDERS), chosen.choice(COPIES))

    def random(self) -> random.Random:
        return random.Random(self.seed)

    def ranks(self, chosen: random.Random, slots: int, warps_per_block: int) -> list[int] | None:
        """For each resident warp who comes before whom, the lowest first; None if nobody does."""
        warps = range(slots * warps_per_block)
        if self.order == "slowest warp":
            slow = chosen.randrange(warps_per_block)
            return [int(warp % warps_per_block == slow) for warp in warps]
        if self.order == "one block ahead":
            ahead = chosen.randrange(slots)
            return [int(warp // warps_per_block != ahead) for warp in warps]
        return [0 for _ in warps] if self.order == "reverse" else None

    def placed(self, ranks: list[int] | None, slot: int, number: int, warps_per_block: int) -> None:
        """Block ``number`` has moved into ``slot``."""
        if self.order == "reverse":
            ranks[slot * warps_per_block : (slot + 1) * warps_per_block] = [-number] * warps_per_block


def schedule_of(seed: "int | Schedule | None") -> Schedule | None:
    """What ``Machine.run`` takes as its seed: None is the deterministic order, a number one at random."""
    return seed if seed is None or isinstance(seed, Schedule) else Schedule(seed)
