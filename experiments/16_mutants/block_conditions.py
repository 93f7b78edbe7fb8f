"""The side conditions of ``hopper_proofs`` about the kernels of two block-scaled operands: (cell,
program, instruction) -> whether a proof may speak of it."""

from shapes import (
    condition,
    following,
    guards_a_loop,
    made_by,
    number_of,
    offsets,
    opcodes,
    previous,
    sides,
    skips_only,
    touches,
    until_next,
)

from numba_marlin.emulator.text.program import Register
from numba_marlin.mutation.program import registers

# which parameter k is
K = {
    "block_scaled": "param_14",
    "block_decode": "param_10",
    "tcgen05": "param_13",
    "block_mma": "param_8",
}


def parameters(program, operand):
    """Names of the parameters that a value is made from, and of nothing else but numbers; None if
    anything else is in it."""
    found, wanted, seen = set(), list(registers([operand])), set()
    while wanted:
        register = wanted.pop()
        if register in seen:
            continue
        seen.add(register)
        makers = program.writers.get(register, [])
        if not makers:
            return None
        for ins in makers:
            if ins.root == "ld" and "param" in ins.modifiers:
                found.add(ins.operands[1].base.name)
            elif (
                touches(ins)
                or ins.root in ("mov", "shfl.sync")
                and not isinstance(ins.operands[1], Register)
                and getattr(ins.operands[1], "value", None) is None
            ):
                return None
            else:
                wanted += registers(ins.operands[1:])
    return found


def asks_whether_k_is_zero(cell, program, branch):
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "eq"
        or getattr(asked.operands[2], "value", None) != 0
    ):
        return False
    latest = max(
        (ins for ins in program.writers.get(asked.operands[1], []) if ins.pc < asked.pc),
        key=lambda ins: ins.pc,
        default=None,
    )
    if latest is None or asked.operands[1] in registers(latest.operands[1:]):
        return False  # what is left of k, after a step
    names = parameters(program, asked.operands[1])
    return names is not None and len(names) == 1 and next(iter(names)).endswith(K[cell.kernel])


def every_warp_has_a_step(cell, program, branch):
    """The guard of a warp's loop over stages, its number among those that multiply side by side
    against the number of steps; where one stage is multiplied at a time, and a block has all of k,
    that is 0 against all steps."""
    asked = condition(program, branch)
    if cell.kernel != "block_decode" or asked is None or asked.modifiers[0] != "ge":
        return False
    config, makers = cell.config, program.writers.get(asked.operands[1], [])
    return (
        config.split == 1
        and config.stages_at_once == 1
        and guards_a_loop(cell, program, branch)
        and any(ins.root == "mma" for ins in sides(program, branch)[1])
        and any(
            ins.root == "shr" and 1 << number_of(program, ins.operands[2]) == 32 * config.consumers
            for ins in makers
        )
    )


def reached_if_k_is_zero(cell, program, ins):
    branches = [
        each
        for each in program.instructions
        if each.root == "bra"
        and each.guard is not None
        and asks_whether_k_is_zero(cell, program, each)
    ]
    return any(ins in sides(program, branch)[0] for branch in branches)


def a_block_has_a_tile(cell, program, branch):
    """The block's own number against the number of tiles, or the first word that a role is told
    against NO_TILE, in front of the loop over tiles."""
    asked = condition(program, branch)
    if asked is None or not guards_a_loop(cell, program, branch):
        return False
    makers = program.writers.get(asked.operands[1], [])
    own = any(
        ins.root == "mov" and getattr(ins.operands[1], "name", None) == "%ctaid.x" for ins in makers
    )
    told = asked.modifiers[0] == "eq" and number_of(program, asked.operands[2]) in (-1, 0xFFFFFFFF)
    return (
        own
        and (told or asked.modifiers[0] == "ge")
        or told
        and all(ins.root == "shfl.sync" or ins.opcode.startswith("ld.shared") for ins in makers)
    )


def only_a_number(cell, program, ins):
    """The one word of global memory that blocks exchange anything through: every atomic operation,
    acquire and release of the kernel is at one address."""
    strong = [
        each
        for each in program.instructions
        if {"acquire", "release", "acq_rel", "relaxed"} & set(each.modifiers)
        and each.root in ("ld", "st", "atom", "red")
    ]
    addresses = {each.operands[0 if each.root in ("st", "red") else 1] for each in strong}
    return (
        ins in strong and len(addresses) == 1 and [each.root for each in strong] == ["atom", "st"]
    )


def only_arrivals_count(cell, program, ins):
    """No bulk copy and no commit counts on the barriers that were initialised since the fence
    before: none is told an address with the same offset. What may stand in front of the barrier of
    the block that follows, tensor memory being allocated, knows no barriers."""
    start = max(
        (each.pc for each in program.instructions[: ins.pc] if each.opcode == ins.opcode), default=0
    )
    made = {
        number_of(program, maker.operands[2])
        for each in program.instructions[start : ins.pc]
        if each.opcode.startswith("mbarrier.init")
        for maker in program.writers.get(each.operands[0].base, [])
        if maker.root == "add"
    }
    copies = [
        each
        for each in program.instructions
        if {"mbarrier::complete_tx::bytes", "expect_tx"} & set(each.modifiers)
        or each.root == "tcgen05.commit"
    ]
    counted = set().union(
        *(offsets(program, operand) for each in copies for operand in each.operands)
    )
    allocating = ("tcgen05.alloc", "tcgen05.relinquish_alloc_permit")
    behind = following(program, ins)
    while behind is not None and behind.root in allocating:
        behind = following(program, behind)
    return (
        bool(made)
        and None not in made
        and bool(copies)
        and not any(abs(one - other) < 8 for one in made for other in counted)
        and behind is not None
        and behind.opcode.startswith(("bar.sync", "barrier.sync"))
    )


def nothing_is_left(cell, program, ins):
    """Who has all 512 columns leaves none that another block could ask for."""
    columns = [
        number_of(program, each.operands[-1])
        for each in program.instructions
        if each.root == "tcgen05.alloc"
    ]
    return columns == [512]


def a_block_barrier_follows(cell, program, ins):
    behind = program.instructions[ins.pc + 1]
    return behind.opcode in ("bar.sync", "barrier.sync") and len(behind.operands) == 1


def fenced_by_who_arrives(cell, program, ins):
    """Directly behind a fence of the lane's own, in front of an arrival by one lane; nobody comes
    here from an access to tensor memory without the warp's wait for it."""
    before, behind = previous(program, ins), following(program, ins)
    accesses = [each for each in program.instructions if each.root in ("tcgen05.ld", "tcgen05.st")]
    return (
        before is not None
        and before.root == "tcgen05.fence::before_thread_sync"
        and behind is not None
        and behind.opcode.startswith("mbarrier.arrive")
        and bool(accesses)
        and not any(ins in until_next(program, each.pc, "tcgen05.wait::ld")[0] for each in accesses)
    )


def products_have_taken_them(cell, program, ins):
    """In front of the arrival that gives a stage back. Going back, a wait for a product comes
    before the warp's last read of shared memory; the product that it waits for took what was
    read."""
    behind = following(program, ins)
    earlier = program.instructions[: ins.pc]
    reads = [each.pc for each in earlier if each.opcode.startswith("ld.shared")]
    waits = [
        each
        for each in earlier
        if each.root == "wgmma.wait_group" and reads and each.pc > reads[-1]
    ]
    begun = [
        each.pc
        for each in earlier
        if each.root == "wgmma.mma_async" and reads and each.pc > reads[-1]
    ]
    return (
        behind is not None
        and behind.opcode.startswith("mbarrier.arrive")
        and len(waits) > max((int(each.operands[-1].value) for each in waits), default=0)
        and bool(begun)
    )


def a_tile_has_columns(cell, program, branch):
    """How many columns are left from a lane's first on, against 0: the first of a tile, for the
    others are asked of otherwise."""
    asked = condition(program, branch)
    return (
        asked is not None
        and asked.modifiers[0] == "eq"
        and number_of(program, asked.operands[2]) == 0
        and made_by(program, asked.operands[1]) == "sub"
        and skips_only("ld.global.v2.f32")(cell, program, branch)
    )


def waited_for_with_c(cell, program, ins):
    """The kernel's last wait for its stores, or a branch around it, where the epilogue of each tile
    waits for them before C's place is given back."""
    waits = [
        each for each in program.instructions if each.opcode.startswith("cp.async.bulk.wait_group")
    ]
    found = (
        [ins] if ins.root != "bra" else [each for each in sides(program, ins)[1] if touches(each)]
    )
    return cell.config.source and len(waits) > 1 and found == [waits[-1]]


def either_of_two_warps(cell, program, branch):
    """Of four warps, two have gone elsewhere; what one of the others does knows neither its
    thread's number nor its warp's."""
    asked = condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "ne"
        or number_of(program, asked.operands[2]) != 2
        or made_by(program, asked.operands[1]) != "and"
    ):
        return False
    warp = asked.operands[1]
    others = {
        number_of(program, each.operands[2])
        for each in program.instructions
        if each.root == "setp" and each.modifiers[0] == "eq" and each.operands[1] == warp
    }
    taken, through = sides(program, branch)
    reads = [operand for ins in through for operand in registers(ins.operands)]
    return (
        others == {0, 1}
        and not opcodes(taken)
        and warp not in reads
        and not any(
            getattr(operand, "name", "").startswith("%tid")
            for ins in through
            for operand in ins.operands
        )
    )


def scales_in_the_padding(cell, program, branch):
    """Around nothing but stores of scales, in a configuration whose tiles are no larger than those
    that scales are padded to: 128 rows by 64 columns."""
    padded = cell.config.kind == "scaled" and (cell.config.tile_m, cell.config.d_tile_n) == (
        128,
        64,
    )
    return (
        padded
        and not opcodes(sides(program, branch)[0])
        and skips_only("st.global.b16")(cell, program, branch)
    )
