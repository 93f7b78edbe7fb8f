"""Why some mutants change nothing: the registry of proofs.

A proof names the kernels, kinds, changes and opcodes that it speaks of, gives its reason in words,
and has a condition on configuration and PTX (``shapes``, ``conditions``, ``block_conditions``) that
is checked for every mutant it is claimed for: a mutant is equivalent only where the condition is
true of the text as it is today. A condition that holds for a mutant that was caught says too much:
tests look for those.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import block_conditions
import conditions
import shapes
from shapes import skips_only

from numba_marlin.mutation.mutants import Mutant
from numba_marlin.mutation.program import Program

ALL = (
    "naive",
    "tiled",
    "ampere",
    "decode",
    "wgmma",
    "block_scaled",
    "block_decode",
    "tcgen05",
    "block_mma",
)
BLOCKS = ALL[-4:]  # both operands block-scaled
BRANCH, NEVER, TURNED = ("predicate",), "never taken", "turned round"


@dataclass(frozen=True)
class Proof:
    """kernels: names; kinds, changes: of the mutants; opcode: pattern that the whole opcode fits;
    holds(cell, program, instruction) -> bool."""

    name: str
    kernels: tuple
    kinds: tuple
    changes: tuple
    opcode: str
    holds: Callable
    reason: str

    def covers(self, cell, program: Program, mutant: Mutant) -> bool:
        if (
            cell.kernel not in self.kernels
            or mutant.kind not in self.kinds
            or mutant.change not in self.changes
            or not re.fullmatch(self.opcode, mutant.opcode)
        ):
            return False
        ins = next(
            ins
            for ins in program.instructions
            if ins.opcode == mutant.opcode and program.numbers[ins.pc] == mutant.number
        )
        return self.holds(cell, program, ins)


PROOFS = (
    Proof(
        "hints",
        ("ampere", "decode", "wgmma"),
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
        ("wgmma", "block_scaled", "tcgen05"),
        BRANCH,
        (NEVER,),
        "bra",
        skips_only("cp.async.bulk.wait_group"),
        "a thread that has issued no bulk copies waits for none.",
    ),
    Proof(
        "no bulk stores",
        ("wgmma",),
        ("wait", "count", "predicate"),
        ("deleted", "one more", NEVER, TURNED),
        r"cp\.async\.bulk\.wait_group\.read|bra",
        conditions.no_bulk_stores,
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
        ("naive", "tiled"),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.k_is_positive,
        "k is a positive multiple of 16.",
    ),
    Proof(
        "asked twice",
        ("tiled",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.repeats_the_loops_question,
        "the first k16 row of a step exists, or the loop would not have begun the step.",
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
        " each thread to the place it has just read itself: with scales a column, a barrier behind"
        " the wait for their copies comes before results are put there.",
    ),
    Proof(
        "rows that do not exist",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.passes_over_partial_sums,
        "sums of rows below the matrix go to the workspace and come back, in places of their own,"
        " and are not written to C.",
    ),
    Proof(
        "a tile has a row",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_tile_has_a_row,
        "a tile has a row of the matrix.",
    ),
    Proof(
        "a block has a stage",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_block_has_a_stage,
        "the grid has no more blocks than there are stages, and a stripe's part of a tile is a"
        " stage at least.",
    ),
    Proof(
        "fetched later",
        ("decode",),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        conditions.fetches_ahead,
        "stages that are not fetched ahead are fetched in their turn; and there is one at least.",
    ),
    Proof(
        "a ring of two stages",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.ring_of_two,
        "the loop that fills the ring does two stages in a turn: with two stages there is no second"
        " turn.",
    ),
    Proof(
        "all warps own a part",
        ("decode",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.all_warps_own,
        "as many warps of a column as there are finish sums of it.",
    ),
    Proof(
        "columns that fill tiles",
        ("decode",),
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
    Proof(
        "the second row's sums",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        lambda cell, program, ins: (
            cell.config.k_groups > 1 and skips_only("ld.shared.v4.f32")(cell, program, ins)
        ),
        "the second row of consumers has given its sums away; what it adds to them nobody takes.",
    ),
    Proof(
        "an item has a step",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.an_item_has_a_step,
        "an item is a step of k at least, or it is none.",
    ),
    Proof(
        "a cluster has a tile",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_cluster_has_a_tile,
        "where tiles are whole, or shared alike, the grid has no more blocks, or teams of them,"
        " than there are tiles.",
    ),
    Proof(
        "no item, no steps",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.no_item,
        "what comes after the last item has no steps: who fills the stages of these copies"
        " nothing.",
    ),
    Proof(
        "a tile has parts",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_tile_has_parts,
        "a tile that blocks share has two parts at least.",
    ),
    Proof(
        "columns that are packed",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.packed_columns,
        "scales of columns behind the last one are there, n is packed as a multiple of 64; what"
        " comes of them is clipped.",
    ),
    Proof(
        "one row of consumers",
        ("wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.one_row_of_consumers,
        "there is one row of consumers, the one that goes on.",
    ),
    Proof(
        "registers for later",
        ("wgmma", "block_scaled"),
        ("wait", "count", "commit"),
        ("deleted", "one more"),
        r"wgmma\.(wait_group|commit_group)\..*",
        shapes.waits_for_registers_that_nobody_wants_yet,
        "the wait lets go of the registers of a product, which PTX does not use again before the"
        " next wait does so too: it is there for the assembler, which gives the places of virtual"
        " registers to others.",
    ),
    Proof(
        "one fence of two",
        ("wgmma", "block_scaled", "tcgen05"),
        ("fence",),
        ("deleted",),
        r"fence\.mbarrier_init\..*",
        conditions.covered_by_a_fence_behind,
        "the thread that initialised these barriers initialises others and fences them, before"
        " anybody else goes on: one fence would do for all.",
    ),
    Proof(
        "fenced by the cluster's barrier",
        ("wgmma",),
        ("fence",),
        ("deleted",),
        r"fence\.mbarrier_init\..*",
        conditions.before_a_releasing_cluster_barrier,
        "no bulk copy counts on these barriers, and threads of other blocks come to know of them by"
        " barrier.cluster, which releases and acquires.",
    ),
    Proof(
        "fence and release",
        ("wgmma",),
        ("fence", "scope"),
        ("deleted", "cluster -> cta"),
        r"fence\.acq_rel\.cluster",
        conditions.released_twice,
        "an arrival that releases follows, by the same lane, behind a barrier of its warp: it tells"
        " the cluster what the warp has done.",
    ),
    Proof(
        "release and fence",
        ("wgmma",),
        ("order",),
        ("release -> relaxed",),
        r"mbarrier\.arrive\.release\.cluster.*",
        conditions.released_twice,
        "a fence stands in front, by the same lane, behind a barrier of its warp: it tells the"
        " cluster what the warp has done.",
    ),
    Proof(
        "the warp has met since",
        ("wgmma",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        conditions.warp_has_met_since,
        "a warp's scratch memory is written when all have read what was there. Of a tile's first"
        " piece all had by the end of the tile before, where the warp has met.",
    ),
    Proof(
        "other blocks hold back",
        ("wgmma",),
        ("barrier",),
        ("deleted",),
        r"bar\.sync",
        conditions.other_blocks_hold_back,
        "in a cluster the memory that rows of consumers exchange sums in is written again when all"
        " blocks have said that they are done with the tile, this one's first row too.",
    ),
    Proof(
        "nothing new to tell",
        ("wgmma",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        conditions.tells_nothing_new,
        "the arrival says that other blocks' sums have been read, which all lanes had done before"
        " the warp met the last time; what lanes read since is their warp's own, and the warp meets"
        " again before that is written.",
    ),
    Proof(
        "two barriers in a row",
        ("wgmma",),
        ("barrier",),
        ("deleted",),
        r"bar\.sync",
        conditions.behind_a_cluster_barrier,
        "all threads of the block have just come through the barrier of its cluster.",
    ),
    Proof(
        "steps of k",
        BLOCKS,
        BRANCH,
        (NEVER,),
        "bra",
        block_conditions.asks_whether_k_is_zero,
        "k is a positive multiple of 32: there is a step.",
    ),
    Proof(
        "no steps of k",
        BLOCKS,
        ("wait", "phase", "commit", "arrival", "predicate"),
        (
            "deleted",
            "always succeeds",
            "parity 0",
            "parity 1",
            "no xor",
            "an arrival at once",
            NEVER,
            TURNED,
        ),
        ".*",
        block_conditions.reached_if_k_is_zero,
        "nobody comes here: it is what there would be to do if k were 0, and k is a positive"
        " multiple of 32.",
    ),
    Proof(
        "a block has a tile",
        ("block_scaled", "tcgen05"),
        BRANCH,
        (NEVER,),
        "bra",
        block_conditions.a_block_has_a_tile,
        "the grid has no more blocks than there are tiles, and a block begins with that of its own"
        " number.",
    ),
    Proof(
        "only a number",
        ("block_scaled",),
        ("order",),
        ("acq_rel -> relaxed", "acq_rel -> acquire", "acq_rel -> release", "release -> relaxed"),
        r"atom\.acq_rel\..*|st\.release\..*",
        block_conditions.only_a_number,
        "blocks exchange a number and nothing else: no access of one depends on another's. Whose"
        " question comes when is the counter's own order.",
    ),
    Proof(
        "the last to ask",
        ("block_scaled",),
        ("scope",),
        ("gpu -> cta",),
        r"st\.release\..*",
        block_conditions.only_a_number,
        "who stores the zero was the last to ask, and asked with acq_rel: every other question"
        " comes before his, whoever his store is visible to.",
    ),
    Proof(
        "only arrivals count",
        ("block_scaled",),
        ("fence",),
        ("deleted",),
        r"fence\.mbarrier_init\..*",
        block_conditions.only_arrivals_count,
        "threads alone arrive at these barriers, and a barrier of the block stands between.",
    ),
    Proof(
        "nothing is left",
        ("tcgen05",),
        ("arrival",),
        ("deleted",),
        r"tcgen05\.relinquish_alloc_permit\..*",
        block_conditions.nothing_is_left,
        "the block has taken all columns of tensor memory: whether others may ask for more makes no"
        " difference before they are given back.",
    ),
    Proof(
        "the block meets",
        ("tcgen05",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        block_conditions.a_block_barrier_follows,
        "the barrier of the block that follows is one that all lanes come to: it waits for those of"
        " a warp as well.",
    ),
    Proof(
        "fenced by who arrives",
        ("tcgen05",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        block_conditions.fenced_by_who_arrives,
        "loads of tensor memory, and the wait for them, are the whole warp's; the lane that arrives"
        " has put its own fence behind them.",
    ),
    Proof(
        "products have taken them",
        ("block_scaled",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        block_conditions.products_have_taken_them,
        "what all lanes read of the stage has gone into a product that the warp has waited for"
        " since: a product takes registers of every lane.",
    ),
    Proof(
        "met since it read",
        ("block_scaled",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        conditions.warp_has_met_since,
        "what the warp read of its place in shared memory it had read when it met the last time;"
        " since then one lane has stored that place, and waited.",
    ),
    Proof(
        "a tile has columns",
        ("block_scaled",),
        BRANCH,
        (NEVER,),
        "bra",
        block_conditions.a_tile_has_columns,
        "n is a multiple of 8, and a tile has a column: a lane's first pair of columns is there.",
    ),
    Proof(
        "waited for with C",
        ("block_scaled",),
        ("wait", "count", "predicate"),
        ("deleted", "one more", TURNED),
        r"cp\.async\.bulk\.wait_group\.read|bra",
        block_conditions.waited_for_with_c,
        "with C, every tile's stores have been waited for in its epilogue: C's next tile comes to"
        " the same place.",
    ),
    Proof(
        "either of two warps",
        ("block_scaled",),
        BRANCH,
        (TURNED,),
        "bra",
        block_conditions.either_of_two_warps,
        "the warp that would have nothing to do loads C, and the one that would have loaded it does"
        " nothing.",
    ),
    Proof(
        "scales in the padding",
        ("block_scaled",),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        block_conditions.scales_in_the_padding,
        "all four lanes of a quad know a block's scale and its place, and whoever stores it stores"
        " the same. Outside of D, where others would store too, sums are zeros and their scale is"
        " 0, which is what the padding holds; and there is padding for every row and column of a"
        " tile.",
    ),
)


def proof_of(cell, program: Program, mutant: Mutant):
    """The first proof that covers ``mutant``, None if there is none."""
    return next((proof for proof in PROOFS if proof.covers(cell, program, mutant)), None)
