"""What a proof may ask of a kernel's PTX: what the two sides of a branch do, what a condition
compares, where a value goes."""

from collections import Counter

from numba_marlin.emulator.text.cfg import EXIT
from numba_marlin.emulator.text.program import Address, Register, Vector
from numba_marlin.kernels.language.pipeline import BARRIER_BYTES
from numba_marlin.mutation.flow import reachable, touches
from numba_marlin.mutation.program import operand_texts, registers

# of what touches memory
RESULT_FIRST = ("ld", "ldu", "atom", "ldmatrix", "mbarrier.try_wait", "mbarrier.test_wait")
ARITHMETIC = ("mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor")
HINT = ".L2::cache_hint"


def sides(program, branch):
    """(instructions that only a taken branch reaches, those that only an untaken one does), up to
    where the sides meet."""
    join = next(
        block.join for block in program.kernel.blocks.values() if block.stop == branch.pc + 1
    )
    target = branch.target if branch.target < len(program.instructions) else EXIT
    taken, through = (reachable(program, start, join) for start in (target, branch.pc + 1))
    return tuple(
        [program.instructions[pc] for pc in sorted(pcs)]
        for pcs in (taken - through, through - taken)
    )


def join_of(program, branch):
    """The instruction where the sides of a branch meet, None at the end of the kernel."""
    join = next(
        block.join for block in program.kernel.blocks.values() if block.stop == branch.pc + 1
    )
    return None if join == EXIT else program.instructions[join]


def opcodes(instructions):
    """What touches memory or synchronises among them: {opcode: how often}."""
    return Counter(ins.opcode for ins in instructions if touches(ins))


def skips_only(*allowed):
    """-> condition: all that a taken branch leaves out, or does instead, begins with one of
    ``allowed``."""

    def holds(cell, program, branch):
        taken, through = sides(program, branch)
        found = opcodes([*taken, *through])
        return bool(found) and all(opcode.startswith(allowed) for opcode in found)

    return holds


def guards_a_loop(cell, program, branch):
    """A branch past a loop: what it leaves out ends in a branch back, and a taken one does nothing
    instead."""
    taken, through = sides(program, branch)
    return not opcodes(taken) and any(
        ins.root == "bra" and ins.target is not None and branch.pc < ins.target <= ins.pc
        for ins in through
    )


def meaning(program, text):
    """An operand as it is written, or, where it is a register that one instruction makes, what that
    does."""
    names = (text, text.strip("[]"))
    register = next((each for each in program.writers if each.name in names), None)
    made = writers_of(program, register)
    return (made[0].opcode, *operand_texts(made[0])[1:]) if len(made) == 1 else text


def differ_in_hints(cell, program, branch):
    """Both sides have the same accesses, one with a cache policy."""

    def plain(instructions):
        found = ((ins.opcode, operand_texts(ins)) for ins in instructions if touches(ins))
        return Counter(
            (
                opcode.replace(HINT, ""),
                tuple(meaning(program, text) for text in (texts[:-1] if HINT in opcode else texts)),
            )
            for opcode, texts in found
        )

    one, other = sides(program, branch)
    return plain(one) == plain(other) and opcodes(one) != opcodes(other)


def condition(program, branch):
    """The setp that a branch asks, None if it is another instruction."""
    found = program.writers.get(branch.guard, [])
    return found[0] if len(found) == 1 and found[0].root == "setp" else None


def waits_again(cell, program, branch):
    """What a taken branch leaves out asks the same barrier, or lock, for the same thing as the
    question before it, and nothing else."""
    taken, through = sides(program, branch)
    again = [ins for ins in through if touches(ins)]
    before = next(
        (ins for ins in reversed(program.instructions[: branch.pc]) if touches(ins)), None
    )

    if opcodes(taken) or len(again) != 1 or before is None or before.opcode != again[0].opcode:
        return False
    since = [*program.instructions[before.pc + 1 : branch.pc], *through]

    def alike(one, other):
        leaves = set()
        if expression(program, one, leaves) == expression(program, other, leaves):
            return not any(leaves & set(registers(ins.operands[:1])) for ins in since)
        return same_value(program, (one, before.pc), (other, again[0].pc), since[-1].pc)

    return all(map(alike, before.operands[1:], again[0].operands[1:]))


def same_value(program, one, other, end):
    """Whether two operands have the same value, each (operand, pc of who reads it): nobody writes
    that register from the first reader to ``end``, or in a straight line before its reader each is
    made by the same operation from such values. The second reader follows the first in the text,
    and stands in a loop that ends at ``end``, or in none."""
    (a, at_a), (b, at_b) = one, other
    if isinstance(a, Address) and isinstance(b, Address):
        return a.offset == b.offset and all(
            same_value(program, (x, at_a), (y, at_b), end)
            for x, y in ((a.base, b.base), (a.index, b.index))
        )
    if not (isinstance(a, Register) and isinstance(b, Register)):
        return a == b

    def writes(register, first, last):
        return [
            ins
            for ins in program.instructions[first:last]
            if register in registers(ins.operands[:1])
        ]

    if a == b and not writes(a, at_a, end + 1):
        return True
    start = max(pc for pc in program.kernel.blocks if pc <= one[1])
    made_a, made_b = (writes(a, start, at_a) or [None])[-1], (writes(b, start, at_b) or [None])[-1]
    return (
        made_a is not None
        and made_b is not None
        and not writes(b, at_b, end + 1)
        and made_a.guard is None
        and made_b.guard is None
        and made_a.opcode == made_b.opcode
        and made_a.root in (*ARITHMETIC, "selp", "setp")
        and all(
            same_value(program, (x, made_a.pc), (y, made_b.pc), end)
            for x, y in zip(made_a.operands[1:], made_b.operands[1:], strict=True)
        )
    )


def writers_of(program, register):
    """Instructions that write a register; among ``program.writers`` are those with an address in
    front as well."""
    found = program.writers.get(register, [])
    return [ins for ins in found if ins.root in RESULT_FIRST or not touches(ins)]


def expression(program, operand, leaves):
    """What a value is computed from, down to registers that more than one instruction writes, or
    one that does no arithmetic: these are added to ``leaves``. The same expression has the same
    value as long as nobody writes to a leaf; a compiler may compute it twice."""
    if isinstance(operand, Address):
        parts = (operand.base, operand.index)
        return (operand.offset, *(expression(program, part, leaves) for part in parts))
    if not isinstance(operand, Register):
        return getattr(operand, "value", operand)
    made = writers_of(program, operand)
    if len(made) != 1 or made[0].root not in ARITHMETIC or made[0].guard is not None:
        leaves.add(operand)
        return operand
    values = [expression(program, each, leaves) for each in made[0].operands[1:]]
    return values[0] if made[0].root == "mov" else (made[0].opcode, *values)


def number_of(program, operand, otherwise=None):
    """The number that an operand is, or that the only instruction to write it moves there."""
    made = program.writers.get(operand, []) if isinstance(operand, Register) else []
    if len(made) == 1 and made[0].root == "mov" and made[0].guard is None:
        operand = made[0].operands[1]
    return getattr(operand, "value", otherwise)


def dead(cell, program, ins):
    """The result goes nowhere but into itself: no access, no branch and no comparison takes what
    comes of it."""
    wanted, seen = set(registers(ins.operands[:1])), set()
    while wanted:
        register = wanted.pop()
        seen.add(register)
        for reader in program.instructions:
            reads = (
                reader.operands[1:]
                if reader.root in RESULT_FIRST or not touches(reader)
                else reader.operands
            )
            if register in registers(reads) or reader.guard == register:
                if touches(reader) or reader.root in ("setp", "bra") or reader.guard is not None:
                    return False
                wanted |= set(registers(reader.operands[:1])) - seen
    return True


def sign_of_numbers_that_have_none(cell, program, ins):
    """The result is only asked whether it is negative."""
    (result,) = registers(ins.operands[:1])
    readers = [each for each in program.instructions if result in registers(each.operands[1:])]
    return bool(readers) and all(
        each.root == "setp"
        and each.modifiers[0] == "lt"
        and getattr(each.operands[2], "value", None) == 0
        for each in readers
    )


def until_next(program, pc, root):
    """Instructions on every way from behind ``pc`` to the next ones of ``root``, these left out;
    and those next ones."""
    wanted, seen, found = [pc + 1], set(), []
    while wanted:
        at = wanted.pop()
        if at in seen or at >= len(program.instructions):
            continue
        seen.add(at)
        ins = program.instructions[at]
        if ins.root == root:
            found.append(ins)
        elif ins.root in ("ret", "exit") and ins.guard is None:
            pass
        elif ins.root == "bra":
            wanted += [ins.target] if ins.guard is None else [ins.target, at + 1]
        else:
            wanted.append(at + 1)
    return [
        program.instructions[at] for at in sorted(seen) if program.instructions[at].root != root
    ], found


def waits_for_registers_that_nobody_wants_yet(cell, program, ins):
    """A product stays in flight until the next wait instead of this one, or, without its commit,
    until the one after: on no way there are its registers touched, but by products, nor is a stage
    given back."""
    products = [each for each in program.instructions if each.root == "wgmma.mma_async"]
    groups, last = [], None
    for each in program.instructions:  # products between two commits
        if each.root == "wgmma.mma_async":
            groups.append([each]) if last != "product" else groups[-1].append(each)
            last = "product"
        elif each.root == "wgmma.commit_group":
            last = "commit"
    if not products:
        return False
    committed = sum(group[-1].pc < ins.pc for group in groups)

    def untouched(number, region):
        """Whether nobody wants the registers of a product there; counted round the loop that all of
        them stand in."""
        inputs = {
            register
            for product in groups[number % len(groups)]
            for operand in product.operands[1:2]
            if isinstance(operand, Vector)
            for register in registers([operand])
        }
        return bool(inputs) and not any(
            gives_operands_back(cell, program, each) or inputs & touched(each)
            for each in region
            if each.root != "wgmma.mma_async"
        )

    waits = (
        [ins]
        if ins.root == "wgmma.wait_group"
        else until_next(program, ins.pc, "wgmma.wait_group")[1]
    )
    if len(waits) != 1:
        return False
    flying = int(waits[0].operands[-1].value)  # products that the wait leaves on their way
    # Without the wait one product is let go of at the next; without the commit, this one and all
    # that are under way.
    for number in range(
        committed - 1 - flying, committed - flying if ins.root == "wgmma.wait_group" else committed
    ):
        behind = {
            each.pc: each
            for wait in waits
            for each in until_next(program, wait.pc, "wgmma.wait_group")[1]
        }
        if not all(
            untouched(number, until_next(program, wait.pc, "wgmma.wait_group")[0]) for wait in waits
        ):
            return False
        # one that leaves nothing lets go of all
        waits = [wait for pc, wait in sorted(behind.items()) if int(wait.operands[-1].value)]
    return True


def touched(ins):
    """Registers that an instruction changes, or reads for more than a copy."""
    return set(registers([*(ins.operands[:1] if ins.root == "mov" else ins.operands), ins.guard]))


def offsets(program, operand):
    """The numbers that have been added on the way to a value."""
    return {
        number_of(program, ins.operands[2]) for ins in program.origins(operand) if ins.root == "add"
    } - {None}


def gives_operands_back(cell, program, ins):
    """An arrival, which may say that a stage can be filled again. (Packed stages of block_scaled
    hold no operands: what came out of them is in registers.)"""
    if not ins.root.startswith("mbarrier.arrive"):
        return False
    return (
        cell.kernel != "block_scaled"
        or cell.config.packed_barriers + BARRIER_BYTES
        not in set().union(*(offsets(program, operand) for operand in ins.operands))
    )


def previous(program, ins):
    """What touches memory or synchronises directly before ``ins`` in the text, None if nothing
    does."""
    return next((each for each in reversed(program.instructions[: ins.pc]) if touches(each)), None)


def following(program, ins):
    """What does directly behind."""
    return next((each for each in program.instructions[ins.pc + 1 :] if touches(each)), None)


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
