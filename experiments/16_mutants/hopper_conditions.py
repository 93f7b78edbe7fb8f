"""The side conditions of ``hopper_proofs`` that know the wgmma kernel: (cell, program, instruction)
-> whether a proof may speak of it."""

from part_conditions import counted_in, every_part_has_a_step, steps_of_a_part
from shapes import (
    condition,
    expression,
    following,
    guards_a_loop,
    made_by,
    number_of,
    opcodes,
    operand_texts,
    previous,
    sides,
    skips_only,
    touches,
    until_next,
)


def an_item_has_a_step(cell, program, branch):
    """Steps of an item, or as many of them as the ring has stages, against 0. (Where a tile may
    have more parts than steps, one of the blocks that share it may have none, and so may one of two
    rows of consumers.)"""
    asked = condition(program, branch)
    if (
        not every_part_has_a_step(cell.config)
        or asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
        or not guards_a_loop(cell, program, branch)
    ):
        return False
    if cell.config.team > 1:
        return steps_of_a_part(cell, program, branch, asked.operands[1])
    through = sides(program, branch)[1]
    multiplies = any(ins.root == "wgmma.mma_async" for ins in through) and not any(
        ins.root == "barrier" or ins.opcode.startswith("griddepcontrol") for ins in through
    )
    return (
        cell.config.k_groups == 1
        and multiplies
        and len(program.writers.get(asked.operands[1], [])) > 1
        or made_by(program, asked.operands[1]) == "min"
        or none_without_a_tile(program, branch, asked.operands[1])
    )


def none_without_a_tile(program, branch, steps):
    """Whether steps are chosen to be 0 where, by the same question, the tile is NO_TILE, else all
    of k's, and counted down; and the branch stands where the tile is one."""

    def choices(register, number):
        """{(predicate, which side is the number)} of the instructions that write a register"""
        return {
            (each.operands[3], side)
            for each in program.writers.get(register, [])
            if each.root == "selp"
            for side in (1, 2)
            if number_of(program, each.operands[side]) == number
        }

    none = choices(steps, 0)
    counts_down = [each for each in program.writers.get(steps, []) if each.root != "selp"]
    return (
        bool(none)
        and all(
            each.root == "add"
            and each.operands[1] == steps
            and number_of(program, each.operands[2]) == -1
            for each in counts_down
        )
        and any(
            (tile := condition(program, each)) is not None
            and tile.modifiers[0] == "eq"
            and number_of(program, tile.operands[2]) == -1
            and choices(tile.operands[1], -1) == none
            and any(branch is inside for inside in sides(program, each)[1])
            for each in program.instructions
            if each.root == "bra" and each.guard is not None
        )
    )


def no_item(cell, program, branch):
    """An item's tile against NO_TILE, in front of what copies."""
    asked = condition(program, branch)
    found = opcodes(sides(program, branch)[1])
    return (
        asked is not None
        and asked.modifiers[0] == "eq"
        and getattr(asked.operands[2], "value", None) == -1
        and any(opcode.startswith("cp.async.bulk.tensor.2d.shared") for opcode in found)
        and not any(opcode.startswith("wgmma.mma") for opcode in found)
    )


def a_cluster_has_a_tile(cell, program, branch):
    """Directly behind the wait for the kernel before: the first item against NO_TILE, where tiles
    are whole."""
    asked, before = condition(program, branch), previous(program, branch)
    return (
        not cell.config.split
        and before is not None
        and before.opcode == "griddepcontrol.wait"
        and asked is not None
        and asked.modifiers[0] == "eq"
        and getattr(asked.operands[2], "value", None) == -1
    )


def a_tile_has_parts(cell, program, branch):
    """How many parts of a shared tile there are, or follow the first, against 0. Where the last
    block to come has their number, and all others 0: against 1."""
    asked = condition(program, branch)
    if asked is None or asked.modifiers[0] != "eq":
        return False
    none = 1 if counted_in(cell, program, asked.operands[1]) else 0
    return (
        getattr(asked.operands[2], "value", None) == none
        and guards_a_loop(cell, program, branch)
        and skips_only("ld.global.v4.f32")(cell, program, branch)
    )


def asks(program, branch):
    """What a branch compares: opcode, what the value is made from, and the number."""
    asked = condition(program, branch)
    return asked and (
        asked.opcode,
        sorted(ins.opcode for ins in program.origins(asked.operands[1])),
        operand_texts(asked)[2:],
    )


def covered_by_a_fence_behind(cell, program, ins):
    """Before anything but mbarrier.init, another fence of the same kind follows, in a part of the
    kernel that the same thread enters."""
    guards = [
        each
        for each in program.instructions
        if each.root == "bra"
        and each.guard is not None
        and any(ins is other for other in sides(program, each)[1])
    ]
    for each in program.instructions[ins.pc + 1 :]:
        if each.opcode == ins.opcode:
            own = [
                other
                for other in program.instructions
                if other.root == "bra"
                and other.guard is not None
                and any(each is inside for inside in sides(program, other)[1])
            ]
            return [asks(program, guard) for guard in guards] == [
                asks(program, guard) for guard in own
            ]
        if touches(each) and not each.opcode.startswith("mbarrier.init"):
            return False
    return False


def before_a_releasing_cluster_barrier(cell, program, ins):
    behind = following(program, ins)
    return (
        behind is not None
        and behind.opcode.startswith("barrier.cluster.arrive")
        and "relaxed" not in behind.modifiers
    )


def no_bulk_stores(cell, program, ins):
    """No instruction copies from shared memory to global; a branch passes over such a wait only."""
    none = not any(
        each.root.startswith("cp.async.bulk") and "bulk_group" in each.modifiers
        for each in program.instructions
    )
    return none and (
        ins.root != "bra" or skips_only("cp.async.bulk.wait_group")(cell, program, ins)
    )


def released_twice(cell, program, ins):
    """A fence directly in front of an arrival that releases to the cluster; or that arrival. (What
    it does to a barrier itself is over when the phase is that it completes.)"""
    before, behind = previous(program, ins), following(program, ins)
    if ins.opcode == "fence.acq_rel.cluster":
        return behind is not None and behind.opcode.startswith("mbarrier.arrive.release.cluster")
    return before is not None and before.opcode == "fence.acq_rel.cluster"


def warp_has_met_since(cell, program, ins):
    """From the warp's barriers before this one on, nobody has touched the block's own shared
    memory."""
    ways = [
        until_next(program, each.pc, ins.root)
        for each in program.instructions
        if each.root == ins.root
    ]
    before = [opcodes(region) for region, nexts in ways if ins in nexts]
    return bool(before) and not any(
        opcode.startswith(("ld.shared.", "st.shared.", "stmatrix", "ldmatrix"))
        for found in before
        for opcode in found
    )


def other_blocks_hold_back(cell, program, ins):
    """The barrier behind what one row of consumers takes from the other, in a cluster, where that
    memory is written again when all blocks have said so."""
    return (
        cell.config.cluster > 1
        and cell.config.k_groups > 1
        and len(ins.operands) == 2
        and previous(program, ins).opcode == "ld.shared.v4.f32"
    )


def tells_nothing_new(cell, program, ins):
    """In front of an arrival at other blocks' barriers, and since the warp's barriers before it
    nobody has touched other blocks' memory."""
    behind = following(program, ins)
    ways = [
        until_next(program, each.pc, ins.root)
        for each in program.instructions
        if each.root == ins.root
    ]
    before = [opcodes(region) for region, nexts in ways if ins in nexts]
    return (
        behind.opcode == "fence.acq_rel.cluster"
        and bool(before)
        and not any(
            opcode.startswith(("ld.shared::cluster", "st.shared"))
            for found in before
            for opcode in found
        )
    )


def behind_a_cluster_barrier(cell, program, ins):
    before = previous(program, ins)
    return before is not None and before.opcode.startswith("barrier.cluster.wait")


def packed_columns(cell, program, branch):
    """(Of FP4 there is a factor for each.)"""
    return (
        not cell.config.bias
        and cell.config.tile_n == 64
        and skips_only("ld.global.v2.f32" if cell.config.block_scaled else "ld.global.b16")(
            cell, program, branch
        )
    )


def one_row_of_consumers(cell, program, branch):
    asked = condition(program, branch)
    if asked is None or cell.config.k_groups != 1:
        return False
    origins = program.writers.get(asked.operands[1], [])
    if (
        asked.modifiers[0] != "ne"
        or getattr(asked.operands[2], "value", None) != 0
        or len(origins) != 1
    ):
        return False
    # of threads in the row: the thread's number divided by it, or without what is below it
    number = getattr(origins[0].operands[-1], "value", None)
    threads = 128 * cell.config.warpgroups
    return (origins[0].root, number) in (
        ("and", -threads),
        ("shr", threads.bit_length() - 1),
        ("div", threads),
    )


def a_stage_to_fill(cell, program, branch):
    """Steps that are filled ahead, the smaller of an item's and of the ring's stages, against 0."""
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
        or not guards_a_loop(cell, program, branch)
    ):
        return False
    made = [each for each in program.writers.get(asked.operands[1], []) if each.pc < asked.pc]
    return (
        every_part_has_a_step(cell.config)
        and bool(made)
        and max(made, key=lambda each: each.pc).root == "min"
    )


def in_the_next_group(cell, program, ins):
    """Between a commit and the next wait, which is for all groups, another commit."""
    behind = [each for each in program.instructions if each.pc > ins.pc]
    for each in behind:
        if each.root == "wgmma.wait_group":
            return False
        if each.root == "wgmma.commit_group":
            break
    waits = [each for each in behind if each.root == "wgmma.wait_group"]
    return bool(waits) and int(waits[0].operands[-1].value) == 0


def of_all_consumers(cell, program, ins):
    """One barrier of both warpgroups, its number known, in a form in which they take turns."""
    config, leaves = cell.config, set()
    if ins.root == "bar":
        expression(program, ins.operands[0], leaves)
    return (
        getattr(config, "ordered", False)
        and config.warpgroups == 2
        and ins.root == "bar"
        and len(ins.operands) == 2
        and not leaves
    )


def one_warpgroup_arrives(cell, program, branch):
    """What is left out is an arrival at a barrier of both warpgroups, which one of them does."""
    taken, through = sides(program, branch)
    found = [ins for ins in through if touches(ins)]
    return (
        not opcodes(taken)
        and len(found) == 1
        and found[0].opcode == "bar.arrive"
        and of_all_consumers(cell, program, found[0])
        and asks_for_a_warpgroup(program, branch)
    )


def asks_for_a_warpgroup(program, branch):
    """Whether the thread's number, divided by 128, is not another one's."""
    asked = condition(program, branch)
    if asked is None or asked.modifiers[0] != "ne":
        return False
    made = program.writers.get(asked.operands[1], [])
    return (
        number_of(program, asked.operands[2]) in (0, 1)
        and len(made) == 1
        and made[0].root == "shr"
        and number_of(program, made[0].operands[2]) == 7
    )


def nobody_wants_the_turn(cell, program, ins):
    """A wait at a barrier of both warpgroups, or a branch around that and nothing else, behind
    which nobody comes to a barrier or to memory, but to wait for copies of his own."""
    wait = ins
    if ins.root == "bra":
        taken, through = sides(program, ins)
        found = [each for each in through if touches(each)]
        if opcodes(taken) or len(found) != 1 or not asks_for_a_warpgroup(program, ins):
            return False
        (wait,) = found
    behind, _ = until_next(program, wait.pc, "ret")
    return (
        wait.opcode == "bar.sync"
        and of_all_consumers(cell, program, wait)
        and not any(
            touches(each) and not each.opcode.startswith("cp.async.bulk.wait_group")
            for each in behind
        )
    )
