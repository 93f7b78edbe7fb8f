"""The side conditions of ``offset_proofs``, which know how ``wgmma_fp8`` adds offsets of x: (cell,
program, instruction) -> whether a proof may speak of it."""

from hopper_conditions import none_without_a_tile
from shapes import (
    condition,
    expression,
    guards_a_loop,
    made_by,
    number_of,
    opcodes,
    previous,
    sides,
    touches,
)

from numba_marlin.layout.offsets import OFFSET_GROUP, OFFSET_STEP


def a_stage_of_offsets(cell, program, branch):
    """Stages of a tile's offsets, 64 groups of 128 in each, against 0."""
    asked = condition(program, branch)
    if (
        not getattr(cell.config, "offsets", False)
        or asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
        or not guards_a_loop(cell, program, branch)
    ):
        return False
    leaves = set()
    found = expression(program, asked.operands[1], leaves)
    for number in (OFFSET_STEP, OFFSET_GROUP):  # divided by it, rounded up
        match found:
            case (shift, (add, inner, rest), bits) if (
                shift.startswith("shr")
                and add.startswith("add")
                and (rest, 1 << bits) == (number - 1, number)
            ):
                found = inner
            case _:
                return False
    return {found} == leaves and made_by(program, found) == "ld"


def of_offsets(ins):
    """A product in 16 bits."""
    return ins.root == "wgmma.mma_async" and bool({"f16", "bf16"} & set(ins.modifiers))


def waits_for_offsets(cell, program, ins):
    """Of the consumers, where every block has offsets, and not, as of parts, only some. Before the
    first product in 16 bits, which is of offsets, they touch nothing of global memory but scales of
    weights, and the barrier that they ask last is one at which the producer has arrived behind its
    own wait."""
    arrivals = [
        each for each in program.instructions if each.opcode.startswith("mbarrier.arrive.expect_tx")
    ]
    products = [each for each in program.instructions if of_offsets(each)]
    if not (
        getattr(cell.config, "offsets", False)
        and cell.config.team == 1
        and products
        and arrivals[-1].pc < ins.pc
    ):
        return False
    before = [each for each in program.instructions[ins.pc + 1 : products[0].pc] if touches(each)]
    return (
        any(
            each.opcode == ins.opcode and each.pc < arrivals[-1].pc for each in program.instructions
        )
        and any(each.root == "mbarrier.try_wait" for each in before)
        and not any(
            "global" in each.modifiers and each.opcode != "ld.global.b32" for each in before
        )
    )


def two_steps_of_groups(cell, program, branch):
    """With offsets and groups: an item's steps, none where there is no tile, against 2."""
    asked = condition(program, branch)
    return (
        getattr(cell.config, "offsets", False)
        and cell.config.grouped
        and asked is not None
        and asked.modifiers[0] == "lt"
        and getattr(asked.operands[2], "value", None) == 2
        and guards_a_loop(cell, program, branch)
        and none_without_a_tile(program, branch, asked.operands[1])
    )


def other_lanes_arrive(cell, program, branch):
    """With offsets and one warpgroup: lanes but the first pass over an arrival, and nothing else,
    that comes directly behind the wait for products of offsets."""
    asked, before = condition(program, branch), previous(program, branch)
    taken, through = sides(program, branch)
    found = list(opcodes(through).elements())
    products = [
        each for each in program.instructions[: branch.pc] if each.root == "wgmma.mma_async"
    ]
    return (
        getattr(cell.config, "offsets", False)
        and cell.config.warpgroups == 1
        and asked is not None
        and asked.modifiers[0] == "ne"
        and number_of(program, asked.operands[2]) == 0
        and not opcodes(taken)
        and len(found) == 1
        and found[0].startswith("mbarrier.arrive.shared")
        and before is not None
        and before.root == "wgmma.wait_group"
        and bool(products)
        and of_offsets(products[-1])
    )
