"""Proofs about mutants of the kernels for experts, and of ``decode_int8`` and ``decode_fp8`` where
they have their loops."""

import copy_conditions
import expert_conditions as conditions
from proof import BRANCH, FEW_ROWS, MOE_BYTES, NEVER, TURNED, Proof

TILES = ("moe_wgmma", *MOE_BYTES)

EXPERT_PROOFS = (
    Proof(
        "an item begins with a step",
        ("moe", *FEW_ROWS),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.an_item_begins_with_a_step,
        "an item is found before the end of a stripe, and within a tile: it has a step.",
    ),
    Proof(
        "an empty stripe",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.copies_no_step,
        "a block without work has the stripe from 0 to 0: what it takes for its first item has no"
        " steps to copy. It looks up rows of the first tile, or of none.",
    ),
    Proof(
        "a step has a group",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_step_has_a_group,
        "k is a multiple of a group, and a stage is: a step has the k16 rows of a group at least,"
        " and a row of scales.",
    ),
    Proof(
        "lanes store alike",
        ("moe", *TILES),
        BRANCH,
        (NEVER, TURNED),
        "bra",
        conditions.lanes_store_alike,
        "any lane of the warp stores the same numbers to the same places: one suffices, more do no"
        " harm.",
    ),
    Proof(
        "no expert is left",
        TILES,
        BRANCH,
        (NEVER,),
        "bra",
        conditions.no_expert_is_left,
        "a thread counts the row blocks of the expert of its number: behind the first warp there"
        " is no expert.",
    ),
    Proof(
        "steps to count down",
        ("moe_wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.counts_steps_down,
        "an item is a step of k at least, or it is none.",
    ),
    Proof(
        "rows that nobody has",
        TILES,
        ("size",),
        ("no zero-fill",),
        r"cp\.async\.cg\..*",
        conditions.copies_another_row,
        "in place of a row that does not exist zeros are multiplied, or x's first row, which is"
        " there: no result that is stored comes of it.",
    ),
    Proof(
        "copies that were waited for",
        TILES,
        ("wait", "count"),
        ("deleted", "all but the latest"),
        r"cp\.async\.wait_all",
        conditions.copies_were_counted,
        "consumers have waited for all copies, by the barriers of their stages: a block does not"
        " end before them. (That a thread must not, PTX does not say.)",
    ),
    Proof(
        "a product lies between",
        TILES,
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        conditions.a_product_lies_between,
        "since lanes read the tile before, all of them have begun products, which the warp has"
        " waited for: a product takes registers of every lane.",
    ),
    Proof(
        "gate and up fill tiles",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.columns_exist,
        "with an activation n is a multiple of 128, and here a tile has 128 columns: all exist.",
    ),
    Proof(
        "behind tiles that are full",
        ("moe",),
        ("predicate", "arrival", "barrier"),
        (NEVER, TURNED, "deleted"),
        ".*",
        conditions.behind_columns_that_do_not_exist,
        "no warp comes here: it is what one without columns does, and gate and up fill tiles.",
    ),
    Proof(
        "a turn asks again",
        ("moe_wgmma",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.a_turn_asks_again,
        "a turn beyond the rows of a tile asks of each row whether it exists, and does nothing.",
    ),
    Proof(
        "whole stages too",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        conditions.whole_stages_too,
        "what multiplies a stage that k does not fill asks how many rows there are, and multiplies"
        " those of a whole one, one at a time: the same sums, in another order, which only numbers"
        " show whose sums are rounded.",
    ),
    Proof(
        "nothing was read",
        ("moe",),
        ("barrier",),
        ("deleted",),
        r"bar\.warp\.sync",
        conditions.has_read_nothing,
        "a warp whose columns do not exist gives a stage back that it has not read. (Lanes of one"
        " warp wait together on the machine. Where they drift apart, one that is late could miss"
        " two phases: the barrier stays.)",
    ),
    Proof(
        "a whole stage row by row",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        copy_conditions.copies_row_by_row,
        "the loop that copies a stage which k does not fill copies a whole one too, row by row.",
    ),
    Proof(
        "no turn in a tail",
        ("moe",),
        ("predicate", "size"),
        (NEVER, TURNED, "16 bytes less"),
        ".*",
        copy_conditions.takes_a_whole_stage,
        "nobody comes here: a turn of that loop takes as many rows as a stage has, and what k"
        " leaves of a stage it does not fill is less.",
    ),
    Proof(
        "rows that no tail has",
        ("moe",),
        BRANCH,
        (NEVER,),
        "bra",
        copy_conditions.rows_that_no_tail_has,
        "k is a multiple of a group, and a stage is: what k leaves of a stage is groups, and the"
        " question is for another number of rows.",
    ),
    Proof(
        "a row that no tail has",
        ("moe",),
        ("size",),
        ("16 bytes less",),
        r"cp\.async\.bulk\..*",
        copy_conditions.copies_a_row_that_no_tail_has,
        "nobody comes here: the branches before lead past the copy for every number of rows that"
        " k can leave of a stage.",
    ),
)
