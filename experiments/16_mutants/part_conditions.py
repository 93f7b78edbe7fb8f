"""What proofs may say of tiles that blocks share along k in parts: (cell, program, instruction), or
less, -> whether it is so."""

from shapes import condition, made_by, number_of, previous, sides, writers_of


def every_part_has_a_step(config):
    """Whether the grid is refused for a k of fewer steps than a tile has parts. (Parts as equal as
    they can be are then none of them empty.)"""
    if getattr(config, "team", 1) == 1:
        return True
    try:
        config.grid(1, 64, (config.team - 1) * config.stage_k, config.team)
    except ValueError:
        return True
    return False


def the_one(program, operand):
    """The one instruction that makes a value, behind copies and changes of its width; None for
    several."""
    made = writers_of(program, operand)
    while len(made) == 1 and made[0].root in ("cvt", "mov"):
        made = writers_of(program, made[0].operands[1])
    return made[0] if len(made) == 1 else None


def quotient(program, operand):
    """(dividend, divisor) of a value that is divided by a number: shifted, or multiplied by
    2**shift / divisor, rounded up, before. (None, None) of others."""
    made = the_one(program, operand)
    if (
        made is None
        or made.root != "shr"
        or (shift := number_of(program, made.operands[2])) is None
    ):
        return None, None
    inner = the_one(program, made.operands[1])
    if inner is None or not inner.opcode.startswith("mul.wide"):
        return made.operands[1], 1 << shift
    factor = number_of(program, inner.operands[2])
    if factor is None:
        return None, None
    return inner.operands[1], -(-(1 << shift) // (factor % 2**32)) if factor else None


def all_steps(config, program, operand):
    """Whether a value is k, the kernel's last parameter, in steps, rounded up."""
    dividend, divisor = quotient(program, operand)
    made = the_one(program, dividend)
    if divisor != config.stage_k or made is None or made.root != "add":
        return False
    k = the_one(program, made.operands[1])
    return (
        number_of(program, made.operands[2]) == config.stage_k - 1
        and k is not None
        and k.opcode.startswith("ld.param")
        and k.operands[1].base.name == program.kernel.parameters[-1].name
    )


def is_a_part(config, program, made):
    """Whether an instruction makes (a + steps) / parts - a / parts, of a product a of all steps:
    one at least if these are as many as parts."""
    if made.root == "mov":
        made = the_one(program, made.operands[1])
    if made is None or made.root != "sub":
        return False
    (end, divisor), (first, other) = (quotient(program, each) for each in made.operands[1:])
    product, both = the_one(program, first), the_one(program, end)
    return (
        (divisor, other) == (config.parts, config.parts)
        and product is not None
        and product.opcode.startswith("mul.lo")
        and both is not None
        and both.root == "add"
        and any(
            (one, steps) == (first, each)
            for one, steps in (both.operands[1:], both.operands[:0:-1])
            for each in product.operands[1:]
            if all_steps(config, program, each)
        )
    )


def steps_of_a_part(cell, program, branch, steps):
    """Whether ``steps`` are a tile's in this block's part, wherever a tile is chosen, and whatever
    they are where it is NO_TILE, or counted down; and the branch stands where the tile is one."""
    starts = sorted(program.kernel.blocks)

    def block_of(ins):
        return max(start for start in starts if start <= ins.pc)

    parts, others = set(), set()
    for each in writers_of(program, steps):
        if is_a_part(cell.config, program, each):
            parts.add(block_of(each))
        elif not (
            each.root == "add"
            and each.operands[1] == steps
            and number_of(program, each.operands[2]) == -1
        ):
            others.add(block_of(each))

    def chosen_with(tile):
        none = {
            block_of(each)
            for each in writers_of(program, tile)
            if each.root == "mov" and getattr(each.operands[1], "value", None) == -1
        }
        one = {block_of(each) for each in writers_of(program, tile)} - none
        return bool(one) and one <= parts and others <= none

    return any(
        (tile := condition(program, each)) is not None
        and tile.modifiers[0] == "eq"
        and number_of(program, tile.operands[2]) == -1
        and chosen_with(tile.operands[1])
        and any(branch is inside for inside in sides(program, each)[1])
        for each in program.instructions
        if each.root == "bra" and each.guard is not None
    )


def counted_in(cell, program, operand):
    """How many parts a tile has, or 0 for all blocks but the last of them to come: a word of shared
    memory that is read behind a barrier."""
    if getattr(cell.config, "team", 1) == 1 or made_by(program, operand) != "ld":
        return False
    (read,) = writers_of(program, operand)
    before = previous(program, read)
    return read.opcode == "ld.shared.b32" and before is not None and before.opcode == "bar.sync"
