"""Proofs about mutants of ``wgmma_fp8`` where it multiplies by codes, with offsets of x."""

import offset_conditions as conditions
from proof import BRANCH, NEVER, Proof

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
)
