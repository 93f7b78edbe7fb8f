"""The side conditions of ``proofs`` that know a kernel before Hopper, or any: (cell, program,
instruction) -> whether a proof may speak of it."""

from shapes import (
    compares,
    condition,
    following,
    guards_a_loop,
    join_of,
    made_by,
    number_of,
    opcodes,
    previous,
    sides,
    skips_only,
    until_next,
)

from numba_marlin.kernels.registry import kernel_of


def passes_over_waits_for_copies(cell, program, branch):
    """A branch that is never taken then waits; the wait must not be where a taken one leads."""
    return skips_only("cp.async.bulk.wait_group")(cell, program, branch) and not opcodes(
        sides(program, branch)[0]
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


def a_step_has_a_row(cell, program, branch):
    """The guard of the loop over a step's k16 rows: their number, which is no parameter, below
    one."""
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "lt"
        or getattr(asked.operands[2], "value", None) != 1
    ):
        return False
    return all(each.root != "ld" for each in program.writers.get(asked.operands[1], []))


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
    names = {"general": "param_8", "tiled": "param_6", "buffered": "param_6"}
    return (
        len(origins) == 1
        and origins[0].root == "ld"
        and origins[0].operands[1].base.name.endswith(names[cell.kernel])
    )


def a_slice_has_a_tile(cell, program, branch):
    """The guard of the loop over a slice's tiles, up to the smaller of two numbers, asks what the
    loop asks behind each round."""
    asked = condition(program, branch)
    return (
        guards_a_loop(cell, program, branch)
        and asked is not None
        and asked.modifiers[0] == "ge"
        and made_by(program, asked.operands[2]) == "min"
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
    return (
        compares(program, branch, "eq", "min", 0)
        and skips_only("cp.async.bulk", "ld.global", "st.global.b16")(cell, program, branch)
        and number_of(
            program, program.writers[condition(program, branch).operands[1]][0].operands[2]
        )
        == cell.config.batch
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
        and (made_by(program, asked.operands[1]) or "").startswith("shfl")
        and asked.modifiers[0] == "gt"
        and getattr(asked.operands[2], "value", None) == cell.config.consumers - 1
    )


def fills_columns(cell, program, branch):
    asked = condition(program, branch)
    parameter = asked is not None and program.writers.get(asked.operands[2], [])
    names = [name for name, _ in kernel_of(cell.config).parameters]
    return (
        not cell.config.ragged
        and bool(parameter)
        and parameter[0].root == "ld"
        and parameter[0].operands[1].base.name.endswith(f"param_{names.index('n')}")
        and skips_only("st.global.b16")(cell, program, branch)
    )


def factors_of_whole_tiles(cell, program, branch):
    return (
        cell.config.block_scaled
        and not cell.config.ragged
        and skips_only("ld.global.v2.f32")(cell, program, branch)
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
