"""Why some mutants change nothing: the registry of proofs.

A proof names the kernels, kinds, changes and opcodes that it speaks of, gives its reason in words,
and has a condition on configuration and PTX (``shapes`` and the modules of conditions) that is
checked for every mutant it is claimed for: a mutant is equivalent only where the condition is
true of the text as it is today. A condition that holds for a mutant that was caught says too much:
tests look for those.
"""

import conditions
import shapes
from expert_proofs import EXPERT_PROOFS
from hopper_conditions import no_bulk_stores
from hopper_proofs import HOPPER_PROOFS
from offset_proofs import OFFSET_PROOFS
from proof import ALL, BRANCH, BYTES, FEW_ROWS, NEVER, OF_DECODE, TURNED, Proof
from shapes import skips_only

from numba_marlin.mutation.mutants import Mutant
from numba_marlin.mutation.program import Program

PROOFS = (
    Proof(
        "hints",
        ("ampere", *OF_DECODE, "wgmma", *BYTES),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        shapes.differ_in_hints,
        "the two sides are the same accesses, with a cache policy and without one: it says what to"
        " keep in L2, no value depends on it.",
    ),
    Proof(
        "waiting again",
        ALL,
        BRANCH,
        (NEVER,),
        "bra",
        shapes.waits_again,
        "a wait is a question and a loop that repeats it. What came stays: a phase of a barrier"
        " does not end before this thread has arrived for it, a lock keeps its turn until the block"
        " that waits passes it on. So who asks again gets the same answer.",
    ),
    Proof(
        "the parity it has",
        ALL,
        ("phase",),
        ("parity 0",),
        r"mbarrier\.(try|test)_wait\..*",
        conditions.the_parity_it_has,
        "the wait is for the first phase of its barrier: its parity is 0.",
    ),
    Proof(
        "nothing to wait for",
        ("wgmma", *BYTES, "block_scaled", "tcgen05"),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.passes_over_waits_for_copies,
        "a thread that has issued no bulk copies waits for none.",
    ),
    Proof(
        "no bulk stores",
        ("wgmma",),
        ("wait", "count", "predicate"),
        ("deleted", "one more", NEVER, TURNED),
        r"cp\.async\.bulk\.wait_group\.read|bra",
        no_bulk_stores,
        "blocks of a cluster write their results themselves: there are no bulk copies out of shared"
        " memory to wait for.",
    ),
    Proof(
        "dependents",
        ALL,
        ("arrival",),
        ("deleted",),
        r"griddepcontrol\.launch_dependents",
        lambda cell, program, ins: True,
        "a kernel that does not say when the next one may begin lets it begin when it ends itself:"
        " later, with the same results.",
    ),
    Proof(
        "dead",
        ALL,
        ("swizzle", "phase"),
        ("no xor",),
        r"xor\.b\d+",
        shapes.dead,
        "nobody takes the result: it is the parity of a place in the ring that is walked without"
        " waiting.",
    ),
    Proof(
        "k is positive",
        ("general", "tiled", "buffered"),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.k_is_positive,
        "k is a positive multiple of 16.",
    ),
    Proof(
        "a step has a row",
        ("tiled", "buffered"),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_step_has_a_row,
        "a step begins before the end of k, which is a multiple of 16.",
    ),
    Proof(
        "a sign that nothing has",
        ("tiled", "buffered"),
        ("swizzle",),
        ("no xor",),
        r"xor\.b64",
        shapes.sign_of_numbers_that_have_none,
        "Numba's floor division asks whether remainder and divisor differ in sign: both are"
        " positive.",
    ),
    Proof(
        "first tile",
        ("ampere",),
        ("size",),
        ("no zero-fill",),
        r"cp\.async\..*",
        conditions.first_tile_of_a_slice,
        "a slice's first tile belongs to the block, or it would not have begun the slice: its"
        " copies are never empty.",
    ),
    Proof(
        "a slice has a tile",
        ("ampere",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_slice_has_a_tile,
        "a block begins a slice because it has a tile of it.",
    ),
    Proof(
        "zeros past the end",
        ("ampere",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.leaves_tiles_out,
        "a slice's tiles that a round has left over were filled with zeros, weights and scales too:"
        " multiplying them adds nothing, and fetches none.",
    ),
    Proof(
        "sums given away",
        ("ampere",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.slots_for_all_warps,
        "a warp that has given its sums away adds to its own what lies in its place of shared"
        " memory: nobody takes them again.",
    ),
    Proof(
        "sums for nobody",
        ("ampere",),
        BRANCH,
        (NEVER,),
        "bra",
        skips_only("st.global.v4.f32"),
        "the top block leaves the slice's sums in the workspace too, when all others have read"
        " theirs: nobody reads them.",
    ),
    Proof(
        "polling together",
        ("ampere",),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        conditions.only_polls_before_a_barrier,
        "whether one thread polls the lock or others do: the barrier behind holds everybody back"
        " until it has its turn, and passes on what the pollers have acquired.",
    ),
    Proof(
        "the bottom's turn",
        ("ampere",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.waits_for_its_turn,
        "the bottom block's turn is 0, which is what its lock holds: it waits for nothing.",
    ),
    Proof(
        "a barrier comes anyway",
        ("ampere",),
        ("barrier",),
        ("deleted",),
        r"bar\.sync",
        conditions.nobody_writes_before_the_next,
        "from the sums that warps add up to the next barrier nobody writes to shared memory but"
        " each thread to the place it has just read itself: with a scale per column, a barrier"
        " behind the wait for their copies comes before results are put there.",
    ),
    Proof(
        "rows that do not exist",
        OF_DECODE,
        BRANCH,
        (NEVER,),
        "bra",
        conditions.passes_over_partial_sums,
        "sums of rows below the matrix go to the workspace and come back, in places of their own,"
        " and are not written to C.",
    ),
    Proof(
        "a tile has a row",
        OF_DECODE,
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_tile_has_a_row,
        "a tile has a row of the matrix.",
    ),
    Proof(
        "a block has a stage",
        ("decode", *FEW_ROWS),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_block_has_a_stage,
        "the grid has no more blocks than there are stages, and a stripe's part of a tile is a"
        " stage at least.",
    ),
    Proof(
        "fetched later",
        ("decode", *FEW_ROWS),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        conditions.fetches_ahead,
        "stages that are not fetched ahead are fetched in their turn; and there is one at least.",
    ),
    Proof(
        "a ring of two stages",
        ("decode", *FEW_ROWS),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.ring_of_two,
        "the loop that fills the ring does two stages in a turn: with two stages there is no second"
        " turn.",
    ),
    Proof(
        "all warps own a part",
        OF_DECODE,
        BRANCH,
        (NEVER,),
        "bra",
        conditions.all_warps_own,
        "as many warps of a column as there are finish sums of it.",
    ),
    Proof(
        "columns that fill tiles",
        ("decode", *FEW_ROWS),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.fills_columns,
        "n fills whole tiles, or the configuration would be a ragged one.",
    ),
    Proof(
        "columns that have factors",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.factors_of_whole_tiles,
        "n fills whole tiles, or the configuration would be a ragged one: the columns of a tile"
        " have factors, all of them.",
    ),
    *EXPERT_PROOFS,
    *HOPPER_PROOFS,
    *OFFSET_PROOFS,
)


def proof_of(cell, program: Program, mutant: Mutant):
    """The first proof that covers ``mutant``, None if there is none."""
    return next((proof for proof in PROOFS if proof.covers(cell, program, mutant)), None)
