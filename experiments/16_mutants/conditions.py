"""The side conditions of ``proofs`` that know a kernel: (cell, program, instruction) -> whether a
proof may speak of it."""

from shapes import (
    condition,
    following,
    guards_a_loop,
    join_of,
    number_of,
    opcodes,
    operand_texts,
    previous,
    sides,
    skips_only,
    touches,
    until_next,
)


def repeats_the_loops_question(cell, program, branch):
    """Another branch compares the same two registers, and this one stands inside of the loop that
    it keeps going."""
    asked = condition(program, branch)
    if asked is None:
        return False
    pair = set(asked.operands[1:])
    return any(
        other.root == "bra"
        and other.guard is not None
        and other.pc > branch.pc >= other.target
        and (setp := condition(program, other)) is not None
        and set(setp.operands[1:]) == pair
        for other in program.instructions
    )


def first_tile_of_a_slice(cell, program, ins):
    """The copy's bytes depend on nothing but the comparison that guards the loop over the slice's
    tiles."""
    chosen = program.writers.get(ins.operands[3], [])
    if len(chosen) != 1 or chosen[0].root != "selp":
        return False
    setps = program.writers.get(chosen[0].operands[3], [])
    if len(setps) != 1 or setps[0].root != "setp":
        return False
    pair = set(setps[0].operands[1:])
    return any(
        each.root == "bra"
        and each.guard is not None
        and guards_a_loop(cell, program, each)
        and (setp := condition(program, each)) is not None
        and set(setp.operands[1:]) == pair
        for each in program.instructions
    )


def only_polls_before_a_barrier(cell, program, branch):
    """Who polls is decided by the thread's number, not by what was found."""
    joined, asked = join_of(program, branch), condition(program, branch)
    threads = asked is not None and [
        getattr(ins.operands[-1], "name", None)
        for ins in program.writers.get(asked.operands[1], [])
    ]
    return (
        skips_only("ld.acquire")(cell, program, branch)
        and joined is not None
        and joined.opcode == "bar.sync"
        and bool(threads)
        and set(threads) == {"%tid.x"}
    )


def made_by(program, operand):
    """The root of the one instruction that writes a register; None for several, or no register."""
    found = program.writers.get(operand, [])
    return found[0].root if len(found) == 1 else None


def compares(program, branch, how, first, value=None):
    """Whether a branch asks for the comparison ``how`` of what an instruction of root ``first``
    made, with the number ``value`` if one is given."""
    asked = condition(program, branch)
    return (
        asked is not None
        and asked.modifiers[0] == how
        and made_by(program, asked.operands[1]) == first
        and (value is None or getattr(asked.operands[2], "value", None) == value)
    )


def k_is_positive(cell, program, branch):
    """k, or k / 16, against 0."""
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
    ):
        return False
    origins = program.writers.get(asked.operands[1], [])
    if len(origins) == 1 and origins[0].root == "shr":
        origins = program.writers.get(origins[0].operands[1], [])
    names = {"naive": "param_8", "tiled": "param_6"}
    return (
        len(origins) == 1
        and origins[0].root == "ld"
        and origins[0].operands[1].base.name.endswith(names[cell.kernel])
    )


def a_slice_has_a_tile(cell, program, branch):
    """The guard of the loop over a slice's tiles asks what the loop asks behind each round."""
    asked = condition(program, branch)
    return (
        guards_a_loop(cell, program, branch)
        and compares(program, branch, "le", "min")
        and any(
            ins.root == "bra"
            and ins.guard is not None
            and ins.target <= ins.pc
            and (setp := condition(program, ins)) is not None
            and set(setp.operands[1:]) == set(asked.operands[1:])
            for ins in sides(program, branch)[1]
        )
    )


def a_tile_has_a_row(cell, program, branch):
    """The smaller of the rows that are left and a batch, against 0."""
    return compares(program, branch, "eq", "min", 0) and skips_only("cp.async.bulk")(
        cell, program, branch
    )


def a_block_has_a_stage(cell, program, branch):
    """Directly behind the wait for the kernel before, or in front of the loop over a tile's
    stages."""
    before = previous(program, branch)
    asked = condition(program, branch)
    if not guards_a_loop(cell, program, branch):
        return False
    if asked is None or asked.modifiers[0] == "le":
        return before is not None and before.opcode == "griddepcontrol.wait"
    return (
        asked.modifiers[0] == "ge"
        and made_by(program, asked.operands[2]) == "add"
        and any(ins.root == "mma" for ins in sides(program, branch)[1])
        and any(
            made_by(program, each) == "min"
            for each in program.writers[asked.operands[2]][0].operands[1:]
        )
    )


def an_item_has_a_step(cell, program, branch):
    """Steps of an item, or as many of them as the ring has stages, against 0. (One of the blocks
    that share a tile alike may have none of its steps, and so may one of two rows of consumers.)"""
    asked = condition(program, branch)
    if (
        cell.config.team > 1
        or asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
        or not guards_a_loop(cell, program, branch)
    ):
        return False
    through = sides(program, branch)[1]
    multiplies = any(ins.root == "wgmma.mma_async" for ins in through) and not any(
        ins.root == "barrier" or ins.opcode.startswith("griddepcontrol") for ins in through
    )
    return (
        cell.config.k_groups == 1
        and multiplies
        and len(program.writers.get(asked.operands[1], [])) > 1
        or made_by(program, asked.operands[1]) == "min"
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
    """How many parts of a shared tile follow the first, against 0."""
    asked = condition(program, branch)
    return (
        asked is not None
        and asked.modifiers[0] == "eq"
        and getattr(asked.operands[2], "value", None) == 0
        and guards_a_loop(cell, program, branch)
        and skips_only("ld.global.v4.f32")(cell, program, branch)
    )


def ring_of_two(cell, program, branch):
    """The loop that fills the ring at first does two stages in a turn, and the ring has no more."""
    taken, through = sides(program, branch)
    return (
        cell.config.stages == 2
        and branch.target <= branch.pc
        and sum("expect_tx" in ins.modifiers for ins in taken) == 2
        and not any(
            ins.root.startswith("mbarrier.try") or ins.opcode.startswith("griddep") for ins in taken
        )
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
    """A fence directly in front of an arrival that releases to the cluster; or that arrival, if it
    is not the kernel's last: what it does to a barrier itself is behind the fence, and another
    release must tell of it before a block may end."""
    before, behind = previous(program, ins), following(program, ins)
    if ins.opcode == "fence.acq_rel.cluster":
        return behind is not None and behind.opcode.startswith("mbarrier.arrive.release.cluster")
    return (
        before is not None
        and before.opcode == "fence.acq_rel.cluster"
        and any(each.pc > ins.pc and each.opcode == ins.opcode for each in program.instructions)
    )


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


def leaves_tiles_out(cell, program, branch):
    """What is left out multiplies tiles and fetches others."""
    taken, through = sides(program, branch)
    return (
        any(ins.root == "ldmatrix" for ins in through)
        and not guards_a_loop(cell, program, branch)
        and skips_only("cp.async", "ldmatrix", "ld.shared", "bar.sync")(cell, program, branch)
    )


def fetches_ahead(cell, program, branch):
    """What is left out announces bytes and copies them, and waits for nothing."""
    taken, through = sides(program, branch)
    only_that = skips_only("mbarrier.arrive.expect_tx", "cp.async.bulk")(
        cell, program, branch
    ) and any("expect_tx" in ins.modifiers for ins in through)
    return only_that and not opcodes(taken) and compares(program, branch, "le", "min")


def all_warps_own(cell, program, branch):
    asked = condition(program, branch)
    return (
        cell.config.owners == cell.config.warps_k
        and asked is not None
        and asked.modifiers[0] == "gt"
        and getattr(asked.operands[2], "value", None) == cell.config.consumers - 1
    )


def fills_columns(cell, program, branch):
    asked = condition(program, branch)
    parameter = asked is not None and program.writers.get(asked.operands[2], [])
    return (
        not cell.config.ragged
        and bool(parameter)
        and parameter[0].root == "ld"
        and parameter[0].operands[1].base.name.endswith("param_9")
        and skips_only("st.global.b16")(cell, program, branch)
    )


def factors_of_whole_tiles(cell, program, branch):
    return (
        cell.config.block_scaled
        and not cell.config.ragged
        and skips_only("ld.global.v2.f32")(cell, program, branch)
    )


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


def nobody_writes_before_the_next(cell, program, ins):
    """(Only the way forward counts: the next slice begins behind a barrier, whether this one was
    shared or has its result here.)"""
    region, barriers = until_next(program, ins.pc, "bar")
    before, behind = previous(program, ins), following(program, ins)
    if before.opcode != "ld.shared.v4.f32" or not behind.opcode.startswith("ld.acquire"):
        return False
    found = opcodes(each for each in region if each.pc > ins.pc)
    return (
        not cell.config.grouped
        and bool(barriers)
        and not any(opcode.startswith(("st.shared", "cp.async.c")) for opcode in found)
    )


def slots_for_all_warps(cell, program, branch):
    """Shared memory has a place for the sums of each warp, and nothing but reading them is left
    out."""
    return (
        cell.config.warps_k * cell.config.partial_bytes <= cell.config.shared_bytes
        and skips_only("ld.shared.v4.f32")(cell, program, branch)
    )


def waits_for_its_turn(cell, program, branch):
    """The whole wait is left out, its barrier too."""
    return skips_only("ld.acquire", "bar.sync")(cell, program, branch) and "bar.sync" in opcodes(
        sides(program, branch)[1]
    )


def passes_over_partial_sums(cell, program, branch):
    """Forward, and over fp32 vectors in global memory, which nothing but partial sums is."""
    return branch.target > branch.pc and skips_only("st.global.v4.f32", "ld.global.v4.f32")(
        cell, program, branch
    )


def the_parity_it_has(cell, program, ins):
    return number_of(program, ins.operands[2]) == 0
