"""Proofs about mutants of ``wgmma_fp8`` where it multiplies by codes, with offsets of x."""

import offset_conditions as conditions
from proof import BRANCH, NEVER, TURNED, Proof

OFFSET_PROOFS = (
    Proof(
        "a stage of offsets",
        ("wgmma_fp8",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_stage_of_offsets,
        "k is positive: of a tile's offsets there is a stage.",
    ),
    Proof(
        "two steps at least",
        ("wgmma_fp8",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.two_steps_of_groups,
        "of one group of 128 there is one scale per column: where there are groups, k has two steps"
        " of 128.",
    ),
    Proof(
        "the offsets were waited for",
        ("wgmma_fp8",),
        ("wait",),
        ("deleted",),
        r"griddepcontrol\.wait",
        conditions.waits_for_offsets,
        "the producer copies a tile's offsets behind its own wait for the kernel before; consumers"
        " have waited for these when they come to the scales of rows, and to C.",
    ),
    Proof(
        "whoever of the warp gives it back",
        ("wgmma_fp8",),
        BRANCH,
        (TURNED,),
        "bra",
        conditions.other_lanes_arrive,
        "only products read offsets, those of all four warps together: the first warp that has"
        " waited for them knows that the stage is free. 31 lanes of each of four warps arrive where"
        " 4 arrivals are a phase: 31 phases, an odd number, as one is. All have arrived before the"
        " next products of the warpgroup are done, so before the producer, which has filled the"
        " stage again, asks for it once more.",
    ),
)
