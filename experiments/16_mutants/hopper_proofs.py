"""Proofs about mutants of the kernels for Hopper and Blackwell: ``wgmma`` and those of two
block-scaled operands."""

import block_conditions
import hopper_conditions as conditions
import shapes
from proof import BLOCKS, BRANCH, BYTES, FEW_ROWS, MOE_BYTES, NEVER, TURNED, Proof
from shapes import skips_only

HOPPER_PROOFS = (
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
        ("wgmma", *BYTES, *MOE_BYTES),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.an_item_has_a_step,
        "an item is a step of k at least, or it is none.",
    ),
    Proof(
        "a cluster has a tile",
        ("wgmma", *BYTES),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_cluster_has_a_tile,
        "where tiles are whole, or shared alike, the grid has no more blocks, or teams of them,"
        " than there are tiles.",
    ),
    Proof(
        "no item, no steps",
        ("wgmma", *BYTES),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.no_item,
        "what comes after the last item has no steps: who fills the stages of these copies"
        " nothing.",
    ),
    Proof(
        "a tile has parts",
        ("wgmma", *BYTES, *FEW_ROWS, "moe", "moe_wgmma"),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_tile_has_parts,
        "a tile that blocks share has two parts at least.",
    ),
    Proof(
        "columns that are packed",
        ("wgmma", *BYTES),
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
        ("wgmma", *BYTES, "moe_wgmma", "block_scaled"),
        ("wait", "count", "commit"),
        ("deleted", "one more"),
        r"wgmma\.(wait_group|commit_group)\..*",
        shapes.waits_for_registers_that_nobody_wants_yet,
        "the wait lets go of the registers of a product, which PTX does not use again before the"
        " next wait does so too: it is there for the assembler, which gives the places of virtual"
        " registers to others.",
    ),
    Proof(
        "a stage to fill",
        BYTES,
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_stage_to_fill,
        "an item has a step of k, so that there is a stage to fill ahead.",
    ),
    Proof(
        "in the next group",
        (*BYTES, *MOE_BYTES),
        ("commit",),
        ("deleted",),
        r"wgmma\.commit_group\..*",
        conditions.in_the_next_group,
        "the product goes into the group that is committed next, and the wait behind is for all"
        " groups: it lets go of it as it did.",
    ),
    Proof(
        "either opens the first turn",
        (*BYTES, *MOE_BYTES),
        BRANCH,
        (TURNED,),
        "bra",
        conditions.one_warpgroup_arrives,
        "the first turn is opened by 128 threads that arrive at its barrier: of the other"
        " warpgroup, or of the one whose turn it is.",
    ),
    Proof(
        "after the last turn",
        (*BYTES, *MOE_BYTES),
        ("barrier", "predicate"),
        ("deleted", TURNED),
        r"bar\.sync|bra",
        conditions.nobody_wants_the_turn,
        "the last turn is given over, and taken so that of either barrier there are as many waits"
        " as arrivals. Whoever takes it, or nobody: no thread comes to the barrier any more.",
    ),
    Proof(
        "one fence of two",
        ("wgmma", *BYTES, "block_scaled", "tcgen05"),
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
        "every warp has a step",
        ("block_decode",),
        BRANCH,
        (NEVER,),
        "bra",
        block_conditions.every_warp_has_a_step,
        "a block has all of k, and its warps are at the same stage: each has the first step.",
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
        ("block_scaled", "tcgen05"),
        ("order",),
        ("acq_rel -> relaxed", "acq_rel -> acquire", "acq_rel -> release", "release -> relaxed"),
        r"atom\.acq_rel\..*|st\.release\..*",
        block_conditions.only_a_number,
        "blocks exchange a number and nothing else: no access of one depends on another's. Whose"
        " question comes when is the counter's own order.",
    ),
    Proof(
        "the last to ask",
        ("block_scaled", "tcgen05"),
        ("scope",),
        ("gpu -> cta",),
        r"st\.release\..*",
        block_conditions.only_a_number,
        "who stores the zero was the last to ask, and asked with acq_rel: every other question"
        " comes before his, whoever his store is visible to.",
    ),
    Proof(
        "only arrivals count",
        ("block_scaled", "tcgen05"),
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
        ("block_scaled", "tcgen05"),
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
