"""The litmus tests of the PTX memory model (Lustig, Sahasrabuddhe, Giroux: "A formal analysis of
the NVIDIA PTX memory consistency model", ASPLOS 2019): as programs for the machine, and as programs
of ``litmus_model``.

An access is text: "x=1" a store, "x" a load, "y=1@0" a store of a 1 that is calculated from what
the thread's load 0 gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.emulator.litmus_model import Op, outcomes
from tests.emulator.ptx_cases import frame

SPACING = 256  # bytes from one place in memory to the next
PLACES = "xyz"


@dataclass(frozen=True)
class Litmus:
    """``short``: the name in the literature; ``relaxed``: outcomes (what the loads gave, in order;
    then each place in the end) that only a weak machine has where all accesses are .relaxed."""

    name: str
    short: str
    threads: tuple[tuple[str, ...], ...]
    relaxed: frozenset[tuple[int, ...]] = frozenset()

    @property
    def places(self) -> list[str]:
        return sorted({op[0] for thread in self.threads for op in thread})

    @property
    def loads(self) -> list[str]:
        return [op for thread in self.threads for op in thread if "=" not in op]


LITMUS = [
    Litmus("store buffering", "SB", (("x=1", "y"), ("y=1", "x")), frozenset({(0, 0, 1, 1)})),
    Litmus("message passing", "MP", (("x=1", "y=1"), ("y", "x")), frozenset({(1, 0, 1, 1)})),
    Litmus("load buffering", "LB", (("x", "y=1"), ("y", "x=1")), frozenset({(1, 1, 1, 1)})),
    Litmus("load buffering with dependencies", "LB+deps", (("x", "y=1@0"), ("y", "x=1@0"))),
    Litmus(
        "load buffering with one dependency",
        "LB+dep",
        (("x", "y=1@0"), ("y", "x=1")),
        frozenset({(1, 1, 1, 1)}),
    ),
    Litmus("two and two writes", "2+2W", (("x=1", "y=2"), ("y=1", "x=2")), frozenset({(1, 1)})),
    Litmus("read and store", "R", (("x=1", "y=1"), ("y=2", "x")), frozenset({(0, 1, 2)})),
    Litmus("store", "S", (("x=2", "y=1"), ("y", "x=1")), frozenset({(1, 2, 1)})),
    Litmus(
        "independent reads of independent writes",
        "IRIW",
        (("x", "y"), ("y", "x"), ("x=1",), ("y=1",)),
        frozenset({(1, 0, 1, 0, 1, 1)}),
    ),
    Litmus(
        "write to read causality",
        "WRC",
        (("y", "x"), ("x", "y=1"), ("x=1",)),
        frozenset({(1, 0, 1, 1, 1)}),
    ),
    Litmus(
        "transitive causality",
        "ISA2",
        (("x=1", "y=1"), ("y", "z=1"), ("z", "x")),
        frozenset({(1, 1, 0, 1, 1, 1)}),
    ),
    Litmus("coherence of two reads", "CoRR", (("x=1",), ("x", "x"))),
    Litmus("coherence of a write and a read", "CoWR", (("x=1", "x"), ("x=2",))),
    Litmus("coherence of a read and a write", "CoRW", (("x", "x=1"), ("x=2",))),
    Litmus("coherence of two writes", "CoWW", (("x=1", "x=2"), ("x",))),
]


@dataclass(frozen=True)
class Strength:
    """Qualifiers of stores and of loads, and what lies between two accesses."""

    name: str
    stores: str
    loads: str
    between: str = ""


STRENGTHS = {
    each.name: each
    for each in (
        Strength("weak", "", ""),
        Strength("relaxed", ".relaxed.gpu", ".relaxed.gpu"),
        Strength("acquire and release", ".release.gpu", ".acquire.gpu"),
        Strength("fences", ".relaxed.gpu", ".relaxed.gpu", "fence.acq_rel.gpu;"),
        Strength("sequentially consistent", ".relaxed.gpu", ".relaxed.gpu", "fence.sc.gpu;"),
        Strength("acquire and release, cta", ".release.cta", ".acquire.cta"),
        Strength("fences, cta", ".relaxed.gpu", ".relaxed.gpu", "fence.acq_rel.cta;"),
        Strength("sequentially consistent, cta", ".relaxed.gpu", ".relaxed.gpu", "fence.sc.cta;"),
        Strength("volatile", ".volatile", ".volatile"),
    )
}
WHERE = {  # where thread i lies: the block's threads, the blocks, and its number
    "lanes of a warp": (32, 1, "mov.u32 %r0, %t;"),
    "warps of a block": (128, 1, "shr.u32 %r0, %t, 5; and.b32 %r1, %t, 31;"),
    "blocks": (32, 4, "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %t;"),
}


def parts(op: str) -> tuple[str, str, str]:
    """(place, value or "", number of the load that it is calculated from, or "")"""
    place, _, value = op.partition("=")
    value, _, load = value.partition("@")
    return place, value, load


def allowed(litmus: Litmus, strength: Strength, where: str) -> set[tuple[int, ...]]:
    """By the model."""
    fence = (
        (Op("F", order=strength.between.split(".")[1], scope=strength.between.split(".")[2][:-1]),)
        if strength.between
        else ()
    )
    threads = []
    for thread in litmus.threads:
        ops: list[Op] = []
        for op in thread:
            place, value, load = parts(op)
            words = (strength.stores if value else strength.loads).split(".")[1:]
            order, scope = (words + ["gpu"])[:2] if words else ("weak", "gpu")
            order, scope = ("relaxed", "sys") if order == "volatile" else (order, scope)
            kind, uses = "W" if value else "R", (int(load),) if load else ()
            made = Op(kind, place, int(value or 0), order, scope, uses)
            ops += [*(fence if ops else ()), made]
        threads.append(tuple(ops))
    return outcomes(tuple(threads), where != "blocks")


def in_order(litmus: Litmus) -> set[tuple[int, ...]]:
    """Every outcome of doing one access after the other, by trying all ways."""
    found = set()

    def go(at, memory, seen):
        moved = False
        for number, thread in enumerate(litmus.threads):
            if at[number] < len(thread):
                moved = True
                place, value, _ = parts(thread[at[number]])
                after = at[:number] + (at[number] + 1,) + at[number + 1 :]
                if value:
                    go(after, memory | {place: int(value)}, seen)
                else:
                    go(after, memory, seen | {(number, at[number]): memory[place]})
        if not moved:
            values = [value for _, value in sorted(seen.items())]
            found.add((*values, *(memory[place] for place in litmus.places)))

    go((0,) * len(litmus.threads), dict.fromkeys(litmus.places, 0), {})
    return found


@cache
def program(litmus: Litmus, strength: Strength, where: str, first: int = 0) -> tuple:
    """(text, threads of a block, blocks); ``first``: the thread that gets to its accesses by the
    shortest way."""
    threads, blocks, number = WHERE[where]
    body = f"mov.u32 %r1, 0; {number} setp.ne.u32 %q1, %r1, 0; @%q1 exit;\n"
    count = len(litmus.threads)
    for index in (*range(first, count), *range(first)):
        thread, texts, results = litmus.threads[index], [], []
        begin = sum("=" not in op for other in litmus.threads[:index] for op in other)
        for op in thread:
            place, value, load = parts(op)
            at = f"[%p0+{SPACING * PLACES.index(place)}]"
            if load:
                source = f"%r{10 + begin + int(load)}"
                texts.append(
                    f"and.b32 %r9, {source}, 0; add.u32 %r9, %r9, {value};"
                    f" st{strength.stores}.global.u32 {at}, %r9;"
                )
            elif value:
                texts.append(f"st{strength.stores}.global.u32 {at}, {value};")
            else:
                read = begin + len(results)
                texts.append(f"ld{strength.loads}.global.u32 %r{10 + read}, {at};")
                results.append(
                    f"st.global.u32 [%p0+{SPACING * (len(PLACES) + read)}], %r{10 + read};"
                )
        body += f"setp.ne.u32 %q0, %r0, {index}; @%q0 bra NEXT{index};\n"
        body += f" {strength.between} ".join(texts) + " ".join(results)
        body += f" exit; NEXT{index}:\n"
    return frame(body), threads, blocks


def memory() -> np.ndarray:
    return np.zeros(8 * SPACING // 4, np.uint32)


def outcome(machine, x, launch, litmus: Litmus, schedule, **options) -> tuple[int, ...]:
    """Of one run with the buffer ``x``."""
    x[:] = 0
    threads, blocks = launch
    args = [machine.memory.buffers[0].address]
    machine.run("k", blocks, threads, args=args, seed=schedule, **options)
    words, count = x[:: SPACING // 4].tolist(), len(PLACES)
    ends = [words[PLACES.index(place)] for place in litmus.places]
    return (*words[count : count + len(litmus.loads)], *ends)
