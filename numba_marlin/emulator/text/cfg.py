"""Basic blocks of a kernel, and where its branches reconverge: at the immediate post-dominator.

A divergent branch sends its lanes along both sides; they wait for each other at the first
instruction that every path to the end must pass. EXIT stands for "never again": the end of the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from numba_marlin.emulator.text.program import BasicBlock, Instruction

EXIT = -1
BRANCH = {"bra"}
LEAVE = {"ret", "exit"}
CALLS, RETURNS = {"call"}, {"return"}  # of recursive functions; the others are inlined
BARRIERS = {"bar", "barrier", "barrier.cluster"}
WAITS = {"wgmma.wait_group"}
TERMINATORS = BRANCH | LEAVE | CALLS | RETURNS | BARRIERS | WAITS


def find_blocks(instructions: Sequence[Instruction]) -> dict[int, BasicBlock]:
    """Blocks by their first pc. A terminator (branch, exit, barrier, wait of a warpgroup) ends its
    block."""
    count = len(instructions)
    leaders = {0} | {i.target for i in instructions if i.target is not None}
    leaders |= {i.pc + 1 for i in instructions if i.root in TERMINATORS}
    starts = sorted(pc for pc in leaders if pc < count)
    stops = dict(zip(starts, starts[1:] + [count]))
    following = {
        start: successors(instructions[stop - 1], stop, count) for start, stop in stops.items()
    }
    joins = immediate_post_dominators(following)
    return {start: BasicBlock(start, stop, joins[start]) for start, stop in stops.items()}


def successors(last: Instruction, stop: int, count: int) -> list[int]:
    """Pcs control may reach after a block that ends with ``last``; running off the end is an
    exit."""
    through = stop if stop < count else EXIT
    if last.root in BRANCH:
        target = last.target if last.target < count else EXIT
        return [target] if last.guard is None else [target, through]
    if last.root in LEAVE | RETURNS:
        return [EXIT] if last.guard is None else [EXIT, through]
    return [through]


def immediate_post_dominators(following: dict[int, list[int]]) -> dict[int, int]:
    """Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm", on the reversed graph.

    Blocks that cannot reach the end (endless loops) get EXIT.
    """
    preceding: dict[int, list[int]] = {}
    for block, targets in following.items():
        for target in targets:
            preceding.setdefault(target, []).append(block)
    order, seen, stack = [], {EXIT}, [(EXIT, iter(preceding.get(EXIT, ())))]
    while stack:  # post-order of the reversed graph, without recursion
        node, rest = stack[-1]
        for block in rest:
            if block not in seen:
                seen.add(block)
                stack.append((block, iter(preceding.get(block, ()))))
                break
        else:
            order.append(node)
            stack.pop()
    rank = {node: i for i, node in enumerate(order)}
    dominator = {EXIT: EXIT}

    def meet(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = dominator[a]
            while rank[b] < rank[a]:
                b = dominator[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [target for target in following[node] if target in dominator]
            new = known[0]
            for target in known[1:]:
                new = meet(new, target)
            if dominator.get(node) != new:
                dominator[node], changed = new, True
    return {block: dominator.get(block, EXIT) for block in following}
