"""The side conditions of ``expert_proofs`` about how weights are copied where k leaves a tail:
(cell, program, instruction) -> whether a proof may speak of it.

A whole stage has a copy for each k16 row, one behind the other; what k leaves of the last stage has
a loop, of which the compiler makes turns of four copies and up to three copies behind them. So
these turns are for nobody where a stage has four rows, and of the copies behind them none is for
more rows than the groups of a tail have.
"""

from shapes import condition, made_by, number_of, opcodes, sides, skips_only

from numba_marlin.mutation.program import operand_texts

COPY = "cp.async.bulk.shared::cluster.global"


def copies_among(instructions):
    return [ins for ins in instructions if ins.opcode.startswith(COPY)]


def is_among(ins, instructions):
    return any(ins is each for each in instructions)


def has_a_loop(instructions):
    return any(
        ins.root == "bra" and any(ins.target == each.pc for each in instructions[:index])
        for index, ins in enumerate(instructions)
    )


def parts_whole_stages(cell, program, branch):
    """k16 rows that are left against one less than a stage has; a taken branch leads to as many
    copies as a stage has rows, in no loop, the other way to copies, and neither to anything
    else."""
    config, asked = cell.config, condition(program, branch)
    if not getattr(config, "ragged", False) or asked is None or asked.modifiers[0] != "gt":
        return False
    taken, through = sides(program, branch)
    return (
        number_of(program, asked.operands[2]) == config.stage_rows - 1
        and made_by(program, asked.operands[1]) == "sub"
        and skips_only(COPY)(cell, program, branch)
        and len(copies_among(taken)) == config.stage_rows
        and not has_a_loop(taken)
        and bool(copies_among(through))
    )


def of_a_tail(cell, program):
    """The instructions of every way that a stage goes which k does not fill."""
    return [
        sides(program, each)[1]
        for each in program.instructions
        if each.root == "bra" and each.guard is not None and parts_whole_stages(cell, program, each)
    ]


def copies_row_by_row(cell, program, branch):
    """The way of a tail has a loop, and its copies have, as those of a whole stage, the same bytes,
    barrier and policy, and begin with the same row."""
    if not parts_whole_stages(cell, program, branch):
        return False
    taken, through = sides(program, branch)
    copies = [[operand_texts(ins)[1:] for ins in copies_among(side)] for side in (taken, through)]
    (first, *_), (other, *_) = copies
    return (
        has_a_loop(through)
        and first == other
        and all(texts[1:] == first[1:] for side in copies for texts in side)
    )


def turns(cell, program, tail):
    """Of the way of a tail, instructions of the turns that take as many rows as a stage has, or
    more: behind a question whether that many are left."""
    found = []
    for each in tail:
        asked = condition(program, each) if each.root == "bra" and each.guard is not None else None
        if asked is None or asked.modifiers[0] != "lt" or each.target <= each.pc:
            continue
        taken, through = sides(program, each)
        rows = len(copies_among(through))
        if (
            rows >= cell.config.stage_rows
            and number_of(program, asked.operands[2]) == rows - 1
            and made_by(program, asked.operands[1]) == "sub"
            and not opcodes(taken)
            and has_a_loop(through)
        ):
            found += through
    return found


def takes_a_whole_stage(cell, program, ins):
    return any(is_among(ins, turns(cell, program, tail)) for tail in of_a_tail(cell, program))


def asked_of_a_tail(cell, program, branch):
    """(register, number, numbers that it can hold) of a branch that compares with a number what
    turns leave of a tail's k16 rows, None if it asks something else. k is a multiple of a group,
    and so is a stage."""
    config, asked = cell.config, condition(program, branch)
    if (
        asked is None
        or asked.modifiers[0] != "eq"
        or not config.grouped
        or config.stage_rows % config.group_blocks
    ):
        return None
    made = program.writers.get(asked.operands[1], [])
    if len(made) != 1 or made[0].root != "and" or made_by(program, made[0].operands[1]) != "min":
        return None
    (least,) = program.writers[made[0].operands[1]]
    mask = number_of(program, made[0].operands[2])
    if mask is None or number_of(program, least.operands[2]) != config.stage_rows:
        return None
    tails = range(config.group_blocks, config.stage_rows, config.group_blocks)
    number = number_of(program, asked.operands[2])
    return asked.operands[1], number, {rows & mask for rows in tails}


def rows_that_no_tail_has(cell, program, branch):
    """A branch asks whether a tail has so many rows as none has."""
    asked = asked_of_a_tail(cell, program, branch)
    if asked is None:
        return False
    _, number, possible = asked
    return number not in possible and any(
        is_among(branch, tail) for tail in of_a_tail(cell, program)
    )


def copies_a_row_that_no_tail_has(cell, program, ins):
    """A copy behind branches past it for every number of rows that a tail can have."""
    for tail in of_a_tail(cell, program):
        if not is_among(ins, tail):
            continue
        passed = {}
        for each in tail:
            if each.root != "bra" or each.guard is None:
                continue
            asked, (taken, through) = asked_of_a_tail(cell, program, each), sides(program, each)
            if asked is not None and not opcodes(taken) and is_among(ins, through):
                register, number, possible = asked
                passed.setdefault(register, set(possible)).discard(number)
        if any(not left for left in passed.values()):
            return True
    return False
