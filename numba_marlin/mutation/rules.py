"""What one instruction may lose: deletions and weakenings that need no look at the rest of the
kernel.

A rule is a function of an instruction that yields (kind, change, replacement); ``RULES`` has them
by a pattern of opcodes. A replacement stands where the instruction stood, without its guard: what a
rule deletes is gone, what it weakens keeps the guard.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from numba_marlin.emulator.text.program import Immediate, Instruction
from numba_marlin.mutation.program import operand_texts

Change = tuple[str, str, str]
Rule = Callable[[Instruction], Iterator[Change]]
RULES: list[tuple[re.Pattern, Rule]] = []
DELETED = ""
COPY_UNIT = 16  # bytes that a bulk copy may be shortened by

KINDS = (
    "barrier",
    "wait",
    "count",
    "fence",
    "commit",
    "phase",
    "arrival",
    "order",
    "scope",
    "predicate",
    "size",
    "swizzle",
)


def rule(pattern: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.append((re.compile(pattern), function))
        return function

    return register


def changes(ins: Instruction) -> list[Change]:
    """Of all rules whose pattern the whole opcode fits."""
    return [
        change
        for pattern, function in RULES
        if pattern.fullmatch(ins.opcode)
        for change in function(ins)
    ]


def rewritten(ins: Instruction, opcode: str, texts: list[str]) -> str:
    """The instruction with another opcode or other operands, under the guard it had."""
    guard = ins.text.split(ins.opcode, 1)[0]
    return f"{guard}{opcode} {', '.join(texts)};" if texts else f"{guard}{opcode};"


@rule(
    r"bar(rier)?(\.cta)?\.(sync|arrive)(\.aligned)?|bar\.warp\.sync"
    r"|barrier\.cluster\.(arrive|wait).*"
)
def barrier(ins):
    yield "barrier", "deleted", DELETED


@rule(
    r"cp\.async\.wait_(group|all)|cp\.async\.bulk\.wait_group(\.read)?|wgmma\.wait_group\..*"
    r"|griddepcontrol\.wait"
)
def wait(ins):
    yield "wait", "deleted", DELETED
    texts = operand_texts(ins)
    if ins.opcode == "cp.async.wait_all":
        yield "count", "all but the latest", "cp.async.wait_group 1;"
    elif texts and isinstance(ins.operands[-1], Immediate):
        yield (
            "count",
            "one more",
            rewritten(ins, ins.opcode, [*texts[:-1], str(int(ins.operands[-1].value) + 1)]),
        )
    if ins.opcode == "cp.async.bulk.wait_group":
        yield "wait", "sources only", rewritten(ins, f"{ins.opcode}.read", texts)


@rule(r"mbarrier\.(try|test)_wait\..*")
def wait_of_barrier(ins):
    """A test that always succeeds, one that never waits; and waits for the phase of a parity that
    does not change."""
    texts = operand_texts(ins)
    yield "wait", "always succeeds", f"setp.eq.u32 {texts[0]}, 0, 0;"
    if "parity" in ins.modifiers:
        for parity in "01":
            yield (
                "phase",
                f"parity {parity}",
                rewritten(ins, ins.opcode, [texts[0], texts[1], parity, *texts[3:]]),
            )


@rule(r"griddepcontrol\.launch_dependents")
def launch_dependents(ins):
    yield "arrival", "deleted", DELETED


@rule(r"tcgen05\.wait::.*")
def wait_of_tensor_memory(ins):
    yield "wait", "deleted", DELETED


@rule(r"fence\..*|membar\..*|wgmma\.fence\..*|tcgen05\.fence::.*")
def fence(ins):
    yield "fence", "deleted", DELETED


@rule(r"cp\.async(\.bulk)?\.commit_group|wgmma\.commit_group\..*")
def commit(ins):
    yield "commit", "deleted", DELETED


@rule(r"tcgen05\.commit\..*")
def commit_of_tensor_cores(ins):
    """Gone, or an arrival of the thread's own, which does not wait for what it has issued."""
    yield "commit", "deleted", DELETED
    operands = ["state", *operand_texts(ins)]
    arrival = rewritten(ins, "mbarrier.arrive.shared::cta.b64", operands)
    yield "commit", "an arrival at once", f"{{ .reg .b64 state; {arrival} }}"


@rule(r"tcgen05\.(alloc|dealloc|relinquish_alloc_permit)\..*")
def tensor_memory(ins):
    """What is not given back, not taken, or too small."""
    yield "arrival", "deleted", DELETED
    texts = operand_texts(ins)
    if texts and isinstance(ins.operands[-1], Immediate):
        yield (
            "size",
            "half the columns",
            rewritten(ins, ins.opcode, [*texts[:-1], str(int(ins.operands[-1].value) // 2)]),
        )


@rule(r"mbarrier\.(arrive|expect_tx|init|inval).*|cp\.async\.mbarrier\.arrive.*")
def arrival(ins):
    yield "arrival", "deleted", DELETED
    texts = operand_texts(ins)
    if "arrive" in ins.opcode and "expect_tx" in ins.modifiers:
        yield (
            "arrival",
            "expects no bytes",
            rewritten(ins, ins.opcode.replace(".expect_tx", ""), texts[:-1]),
        )
    if ins.opcode.startswith("mbarrier.init"):
        for change, verb in (("one arrival more", "add"), ("one arrival fewer", "sub")):
            yield (
                "count",
                change,
                (
                    f"{{ .reg .b32 other; {verb}.u32 other, {texts[1]}, 1;"
                    f" {rewritten(ins, ins.opcode, [texts[0], 'other'])} }}"
                ),
            )


@rule(r"red\..*\.(release|relaxed)\..*|red\.(release|relaxed)\..*")
def counted(ins):
    """What tells another block: a reduction on a counter, or a lock."""
    yield "arrival", "deleted", DELETED


@rule(
    r"(ld|st|red|atom|fence|mbarrier\.arrive|mbarrier\.try_wait|barrier\.cluster\.arrive"
    r"|barrier\.cluster\.wait)\..*"
)
def order(ins):
    """Acquire and release become relaxed; what was visible to other blocks becomes visible to the
    own one."""
    words = ins.opcode.split(".")
    if words[0] != "fence":
        for strong in ("acquire", "release", "acq_rel"):
            if strong in words:
                weaker = ("relaxed", "acquire", "release") if strong == "acq_rel" else ("relaxed",)
                for word in weaker:
                    yield (
                        "order",
                        f"{strong} -> {word}",
                        rewritten(
                            ins,
                            ".".join(word if each == strong else each for each in words),
                            operand_texts(ins),
                        ),
                    )
    if (
        {"acquire", "release", "acq_rel", "relaxed"} & set(words)
        and ins.root != "barrier.cluster"
        and "mbarrier_init" not in words
    ):
        for wide in ("sys", "gpu", "cluster"):
            if wide in words:
                yield (
                    "scope",
                    f"{wide} -> cta",
                    rewritten(
                        ins,
                        ".".join("cta" if each == wide else each for each in words),
                        operand_texts(ins),
                    ),
                )


@rule(r"cp\.async\.c[ag]\..*")
def size_of_copy(ins):
    """cp.async [dst], [src], size, bytes that exist: the rest is zeros."""
    texts = operand_texts(ins)
    if len(texts) < 4 + ("cache_hint" in ins.opcode):
        return
    yield "size", "no zero-fill", rewritten(ins, ins.opcode, [*texts[:3], texts[2], *texts[4:]])
    yield "size", "all zero-fill", rewritten(ins, ins.opcode, [*texts[:3], "0", *texts[4:]])


@rule(r"cp\.async\.bulk\.(?!tensor|prefetch|commit_group|wait_group|reduce).*")
def size_of_bulk_copy(ins):
    texts = operand_texts(ins)
    at = 2
    shorter = rewritten(ins, ins.opcode, [*texts[:at], "shorter", *texts[at + 1 :]])
    yield (
        "size",
        f"{COPY_UNIT} bytes less",
        f"{{ .reg .b32 shorter; sub.u32 shorter, {texts[at]}, {COPY_UNIT}; {shorter} }}",
    )


@rule(r".*")
def guard(ins):
    """@p in front of an instruction: dropped, and turned round. (Those of branches are the business
    of ``flow``.)"""
    if ins.guard is None or ins.root == "bra":
        return
    bare = ins.text.split(maxsplit=1)[1]
    yield "predicate", "dropped", bare
    yield "predicate", "turned round", turned_round(ins)


def turned_round(ins: Instruction) -> str:
    """The same instruction, its guard negated."""
    name, rest = ins.text.removeprefix("@").split(maxsplit=1)
    return f"@{name[1:]} {rest}" if name.startswith("!") else f"@!{name} {rest}"
