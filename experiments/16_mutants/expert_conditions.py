"""The side conditions of ``expert_proofs``: (cell, program, instruction) -> whether a proof may
speak of it."""

import re

from hopper_conditions import an_item_has_a_step
from shapes import (
    condition,
    expression,
    following,
    guards_a_loop,
    made_by,
    number_of,
    opcodes,
    sides,
    skips_only,
    touches,
    until_next,
)

from numba_marlin.kernels.experts.tables import GATED_STEP
from numba_marlin.kernels.registry import kernel_of

LANES = 32


def the_only_writer(program, operand):
    found = program.writers.get(operand, [])
    return found[0] if len(found) == 1 else None


def an_item_begins_with_a_step(cell, program, branch):
    """A step against itself and the steps of its item, the smaller of two numbers: of those that
    the tile has left, and the stripe."""
    asked = condition(program, branch)
    if asked is None or asked.modifiers[0] != "ge":
        return False
    end = the_only_writer(program, asked.operands[2])
    return (
        end is not None
        and end.root == "add"
        and asked.operands[1] in end.operands[1:]
        and any(made_by(program, each) == "min" for each in end.operands[1:])
        and branch.target > branch.pc
    )


def a_step_has_a_group(cell, program, branch):
    """k16 rows of a step, the smaller of those that are left and those of a stage, or rows of
    scales of them, against no more of them than a group has."""
    config, asked = cell.config, condition(program, branch)
    if asked is None or not config.grouped or config.stage_rows % config.group_blocks:
        return False
    number = number_of(program, asked.operands[2])
    rows = the_only_writer(program, asked.operands[1])
    direct = rows is not None and rows.root == "min"
    while rows is not None and rows.root in ("and", "add"):  # rounded up to rows of scales
        if rows.root == "and" and number_of(program, rows.operands[2], 1) % config.group_blocks:
            return False  # what turns of a loop leave of them
        rows = the_only_writer(program, rows.operands[1])
    least = {"eq": 1 if number == 0 else None, "lt": number if direct else None}
    enough = least.get(asked.modifiers[0])
    return (
        rows is not None
        and rows.root == "min"
        and number_of(program, rows.operands[2]) == config.stage_rows != config.batch
        and enough is not None
        and enough <= config.group_blocks
        and skips_only("cp.async.bulk")(cell, program, branch)
    )


def own_number(program, operand):
    """Whether a value is the thread's number."""
    return getattr(expression(program, operand, set()), "name", None) == "%tid.x"


def number_in_warp(program, branch, operand):
    """Whether a value is a thread's number and 31, or the number itself where others than the first
    warp do not come."""
    made = the_only_writer(program, operand)
    return (
        made is not None
        and made.root == "and"
        and number_of(program, made.operands[2]) == LANES - 1
        and own_number(program, made.operands[1])
    ) or (own_number(program, operand) and (LANES - 1) in bounds_of_number(program, branch))


def bounds_of_number(program, ins):
    """The numbers that threads which come to ``ins`` have at most: of all branches past it that ask
    whether a thread's is greater."""
    found = set()
    for each in program.instructions:
        asked = condition(program, each) if each.root == "bra" and each.guard is not None else None
        if (
            asked is not None
            and asked.modifiers[0] in ("gt", "ne")
            and own_number(program, asked.operands[1])
            and any(ins is inside for inside in sides(program, each)[1])
            and not opcodes(sides(program, each)[0])
        ):
            number = number_of(program, asked.operands[2])
            if asked.modifiers[0] == "gt" or number == 0:
                found.add(number)
    return found


def no_expert_is_left(cell, program, branch):
    """A thread's number against 31, around what threads do whose number is that of an expert, or 0.
    (A thread for each expert.)"""
    asked, (taken, through) = condition(program, branch), sides(program, branch)
    accesses = [ins for ins in through if touches(ins)]
    return (
        cell.config.experts_per_lane == 1
        and asked is not None
        and asked.modifiers[0] == "gt"
        and own_number(program, asked.operands[1])
        and number_of(program, asked.operands[2]) == LANES - 1
        and not opcodes(taken)
        and bool(accesses)
        and all(min(bounds_of_number(program, ins)) <= cell.config.experts - 1 for ins in accesses)
    )


def lanes_store_alike(cell, program, branch):
    """A lane's number against 0, around nothing but stores of a number, to places that do not
    depend on the thread."""
    asked, (taken, through) = condition(program, branch), sides(program, branch)
    stores = [ins for ins in through if touches(ins)]

    def knows_its_thread(operand):
        return any(
            getattr(each, "name", "").startswith("%tid")
            for ins in program.origins(operand)
            for each in ins.operands
        )

    return (
        asked is not None
        and asked.modifiers[0] == "ne"
        and number_of(program, asked.operands[2]) == 0
        and number_in_warp(program, branch, asked.operands[1])
        and not opcodes(taken)
        and bool(stores)
        and all(
            ins.root == "st"
            and number_of(program, ins.operands[1]) is not None
            and not knows_its_thread(ins.operands[0])
            for ins in stores
        )
    )


def whole_stages_too(cell, program, branch):
    """k16 rows of a step against one less than a stage has; on either side products, and as many
    arrivals."""
    asked = condition(program, branch)
    one, other = sides(program, branch)
    arrivals = [sum(ins.root == "mbarrier.arrive" for ins in side) for side in (one, other)]
    return (
        getattr(cell.config, "ragged", False)
        and not cell.config.gated
        and asked is not None
        and asked.modifiers[0] == "gt"
        and number_of(program, asked.operands[2]) == cell.config.stage_rows - 1
        and made_by(program, asked.operands[1]) == "sub"
        and arrivals == [1, 1]
        and all(any(ins.root == "mma" for ins in side) for side in (one, other))
    )


def has_read_nothing(cell, program, ins):
    """In front of an arrival by one lane, which no way reaches but from the wait for the stage, and
    nothing touches memory on the way."""
    behind = following(program, ins)
    before = [
        each
        for each in program.instructions
        if touches(each) and each.pc != ins.pc and leads_to(program, each, ins, touches)
    ]
    return (
        behind is not None
        and behind.opcode.startswith("mbarrier.arrive")
        and bool(before)
        and all(each.root == "mbarrier.try_wait" for each in before)
    )


def leads_to(program, first, ins, ends, taken=lambda branch: True):
    """Whether some way leads from ``first`` to ``ins`` past no instruction that ``ends`` it; only
    branches that may be ``taken`` are."""
    wanted, seen = [first.pc + 1], set()
    while wanted:
        at = wanted.pop()
        if at == ins.pc:
            return True
        if at in seen or at >= len(program.instructions):
            continue
        seen.add(at)
        each = program.instructions[at]
        if ends(each) or each.root in ("ret", "exit"):
            continue
        if each.root == "bra" and (each.guard is None or taken(each)):
            wanted.append(each.target)
        if each.root != "bra" or each.guard is not None:
            wanted.append(at + 1)
    return False


def copies_no_step(cell, program, branch):
    """A stripe's begin against its end, around copies that stand behind a guard of their own: the
    steps of its first item, which are the smaller of two numbers, none if the stripe is empty."""
    asked, (taken, through) = condition(program, branch), sides(program, branch)
    inner = [
        ins
        for ins in through
        if ins.root == "bra"
        and ins.guard is not None
        and an_item_begins_with_a_step(cell, program, ins)
    ]
    if asked is None or asked.modifiers[0] != "ge" or len(inner) != 1 or opcodes(taken):
        return False
    copies = sides(program, inner[0])[1]
    begins_empty = all(
        any(ins.root == "mov" for ins in program.writers.get(each, []))
        for each in asked.operands[1:]
    )
    return (
        begins_empty
        and any(ins.root.startswith("cp.async.bulk") for ins in copies)
        and not any(
            ins.root != "ld"
            for ins in through
            if touches(ins) and not any(ins is other for other in copies)
        )
    )


def counts_steps_down(cell, program, branch):
    """The steps that an item has left against 0, in front of the loop over them: the smaller of two
    numbers at first."""
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "eq"
        or number_of(program, asked.operands[2]) != 0
        or not guards_a_loop(cell, program, branch)
    ):
        return False
    made = [ins.root for ins in program.writers.get(asked.operands[1], [])]
    through = sides(program, branch)[1]
    return (
        cell.config.team == 1
        and "min" in made
        and any(ins.root == "mbarrier.try_wait" for ins in through)
        and not any(ins.root in ("bar", "barrier", "griddepcontrol") for ins in through)
    )


def copies_another_row(cell, program, ins):
    """The bytes of a copy are 16 if a row exists and 0 if not, and its address has, of the same
    question, the row's place or 0, where x begins."""
    size = the_only_writer(program, ins.operands[3])
    if size is None or size.root != "selp" or number_of(program, size.operands[2]) != 0:
        return False
    return any(
        each.root == "selp"
        and each is not size
        and each.operands[3] == size.operands[3]
        and number_of(program, each.operands[2]) == 0
        for each in program.origins(*ins.operands[1:2])
    )


def copies_were_counted(cell, program, ins):
    """Nothing touches memory from here to the end, and whoever has copied by cp.async has its
    barrier wait for that."""

    def copies(each):
        return re.match(r"cp\.async\.c[ag]", each.opcode)

    def arrives_behind(each):
        while copies(each):  # a thread may have several, one behind the other
            each = following(program, each)
        return each.opcode.startswith("cp.async.mbarrier.arrive.noinc")

    behind, _ = until_next(program, ins.pc, "ret")
    copying = [each for each in program.instructions if copies(each)]
    return not any(map(touches, behind)) and bool(copying) and all(map(arrives_behind, copying))


def a_product_lies_between(cell, program, ins):
    """From what lanes read of each other's, vectors in shared memory, every way here leads past a
    product, and from every product past a wait for all. (Items without steps there are none.)"""

    def taken(branch):
        return not any(
            each(cell, program, branch) for each in (counts_steps_down, an_item_has_a_step)
        )

    products = [each for each in program.instructions if each.root == "wgmma.mma_async"]
    reads = [each for each in program.instructions if each.opcode == "ld.shared.v4.b32"]

    def multiplies(each):
        return each.root == "wgmma.mma_async"

    def waits_for_all(each):
        return each.root == "wgmma.wait_group" and int(each.operands[-1].value) == 0

    return (
        following(program, ins).root == "stmatrix"
        and bool(products)
        and bool(reads)
        and not any(leads_to(program, each, ins, multiplies, taken) for each in reads)
        and not any(leads_to(program, each, ins, waits_for_all) for each in products)
    )


def is_of_columns_alone(cell, program, operand):
    """Whether a value is made of n, the parameter, and numbers."""
    leaves = set()
    expression(program, operand, leaves)
    place = [name for name, _ in kernel_of(cell.config).parameters].index("n")
    made = [writer for leaf in leaves for writer in program.writers.get(leaf, [])]
    return bool(made) and all(
        each.root == "ld" and getattr(each.operands[1].base, "name", "").endswith(f"param_{place}")
        for each in made
    )


def compares_with_columns(cell, program, branch, how):
    """Whether a branch compares with n, or how many panels it is, in a configuration whose tiles n
    fills: it is a multiple of 128, with an activation, and a tile has so many columns."""
    asked = condition(program, branch) if branch.guard is not None else None
    return (
        cell.config.gated
        and cell.config.columns == GATED_STEP
        and asked is not None
        and asked.modifiers[0] == how
        and is_of_columns_alone(cell, program, asked.operands[2])
    )


def columns_exist(cell, program, branch):
    return compares_with_columns(cell, program, branch, "ge")


def behind_columns_that_do_not_exist(cell, program, ins):
    return any(
        each.root == "bra"
        and compares_with_columns(cell, program, each, "lt")
        and any(ins is other for other in sides(program, each)[1])
        for each in program.instructions
    )


def asks_for_rows(cell, program, branch):
    """Whether a branch asks, maybe besides another thing, about the rows of a tile."""
    made = program.writers.get(branch.guard, [])
    asked = [
        question
        for each in made
        for question in (
            [each]
            if each.root == "setp"
            else [writer for operand in each.operands[1:] for writer in program.writers[operand]]
        )
    ]
    return any(
        question.root == "setp"
        and (rows := the_only_writer(program, question.operands[2])) is not None
        and rows.root == "min"
        and number_of(program, rows.operands[2]) == cell.config.tile_m
        for question in asked
    )


def a_turn_asks_again(cell, program, branch):
    """A row against those of a tile, around nothing that does not stand behind such a question of
    its own."""
    taken, through = sides(program, branch)
    inner = [
        ins
        for ins in through
        if ins.root == "bra"
        and ins.guard is not None
        and ins.target > ins.pc
        and asks_for_rows(cell, program, ins)
    ]
    guarded = [ins for each in inner for ins in sides(program, each)[1]]
    return (
        cell.config.gated
        and not opcodes(taken)
        and asks_for_rows(cell, program, branch)
        and bool(inner)
        and all(any(ins is other for other in guarded) for ins in through if touches(ins))
    )
