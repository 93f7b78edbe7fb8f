"""Contract under test: the litmus tests of the PTX memory model (Lustig, Sahasrabuddhe, Giroux, "A
formal analysis of the NVIDIA PTX memory consistency model", ASPLOS 2019) end as the model allows,
and in every way that a machine can which does one access after the other.

``relaxed`` of a row are the outcomes that PTX allows besides where all accesses are .relaxed. The
machine is sequentially consistent and reaches none of them, and with .acquire, .release and
fence.sc, by which PTX forbids some or all of them, the same outcomes as without. Accesses that are
weak, or whose scopes do not include each other, are races whatever came of them.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from numba_marlin.emulator import Machine, Race, Schedule
from numba_marlin.emulator.scheduling.schedules import APART
from tests.emulator.ptx_cases import frame

SPACING = 256  # bytes from one place in memory to the next
SEEDS = 1200


@dataclass(frozen=True)
class Litmus:
    """``threads``: of each its accesses, "x=1" a store and "x" a load; ``relaxed``: outcomes (what
    the loads gave, in order; then x and y in the end) that only a weak machine has."""

    name: str
    threads: tuple[tuple[str, ...], ...]
    relaxed: frozenset[tuple[int, ...]] = frozenset()


LITMUS = [
    Litmus("store buffering", (("x=1", "y"), ("y=1", "x")), frozenset({(0, 0, 1, 1)})),
    Litmus("message passing", (("x=1", "y=1"), ("y", "x")), frozenset({(1, 0, 1, 1)})),
    Litmus("load buffering", (("x", "y=1"), ("y", "x=1")), frozenset({(1, 1, 1, 1)})),
    Litmus("two and two writes", (("x=1", "y=2"), ("y=1", "x=2")), frozenset({(1, 1)})),
    Litmus("read and store", (("x=1", "y=1"), ("y=2", "x")), frozenset({(0, 1, 2)})),
    Litmus(
        "independent reads of independent writes",
        (("x", "y"), ("y", "x"), ("x=1",), ("y=1",)),
        frozenset({(1, 0, 1, 0, 1, 1)}),
    ),
    Litmus(
        "write to read causality",
        (("y", "x"), ("x", "y=1"), ("x=1",)),
        frozenset({(1, 0, 1, 1, 1)}),
    ),
    Litmus("coherence of two reads", (("x=1",), ("x", "x"))),
    Litmus("coherence of a write and a read", (("x=1", "x"), ("x=2",))),
    Litmus("coherence of a read and a write", (("x", "x=1"), ("x=2",))),
    Litmus("coherence of two writes", (("x=1", "x=2"), ("x",))),
]
QUALIFIERS = {  # of stores, of loads, and what lies between two accesses
    "relaxed": (".relaxed.gpu", ".relaxed.gpu", ""),
    "acquire and release": (".release.gpu", ".acquire.gpu", ""),
    "fences": (".relaxed.gpu", ".relaxed.gpu", "fence.acq_rel.gpu;"),
    "sequentially consistent": (".relaxed.gpu", ".relaxed.gpu", "fence.sc.gpu;"),
}
PLACES = {  # where thread i lies: the block's threads, the blocks, and its number
    "lanes of a warp": (32, 1, "mov.u32 %r0, %t;"),
    "warps of a block": (128, 1, "shr.u32 %r0, %t, 5; and.b32 %r1, %t, 31;"),
    "blocks": (32, 4, "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %t;"),
}


def loads(litmus):
    return [op for thread in litmus.threads for op in thread if "=" not in op]


def in_order(litmus):
    """Every outcome of doing one access after the other, by trying all ways."""
    found = set()

    def go(at, memory, seen):
        moved = False
        for number, thread in enumerate(litmus.threads):
            if at[number] < len(thread):
                moved = True
                place, _, value = thread[at[number]].partition("=")
                after = at[:number] + (at[number] + 1,) + at[number + 1 :]
                if value:
                    go(after, memory | {place: int(value)}, seen)
                else:
                    go(after, memory, seen | {(number, at[number]): memory[place]})
        if not moved:
            values = [value for _, value in sorted(seen.items())]
            found.add((*values, memory["x"], memory["y"]))

    go((0,) * len(litmus.threads), {"x": 0, "y": 0}, {})
    return found


def program(litmus, stores, loads_, between, place, first=0):
    """``first``: the thread that gets to its accesses by the shortest way."""
    threads, blocks, number = PLACES[place]
    body = f"mov.u32 %r1, 0; {number} setp.ne.u32 %q1, %r1, 0; @%q1 exit;\n"
    count = len(litmus.threads)
    for index in (*range(first, count), *range(first)):
        thread, texts, results = litmus.threads[index], [], []
        read = sum("=" not in op for other in litmus.threads[:index] for op in other)
        for op in thread:
            name, _, value = op.partition("=")
            at = f"[%p0+{SPACING * 'xy'.index(name)}]"
            if value:
                texts.append(f"st{stores}.global.u32 {at}, {value};")
            else:
                texts.append(f"ld{loads_}.global.u32 %r{10 + read}, {at};")
                results.append(f"st.global.u32 [%p0+{SPACING * (2 + read)}], %r{10 + read};")
                read += 1
        body += f"setp.ne.u32 %q0, %r0, {index}; @%q0 bra NEXT{index};\n"
        body += f" {between} ".join(texts) + " ".join(results) + f" exit; NEXT{index}:\n"
    return frame(body), threads, blocks


def outcome(machine, x, launch, litmus, seed):
    x[:] = 0
    machine.run("k", launch[1], launch[0], args=[machine.memory.buffers[0].address], seed=seed)
    words = x[:: SPACING // 4].tolist()
    return (*words[2 : 2 + len(loads(litmus))], words[0], words[1])


@cache
def reached(litmus, strength, place):
    x, machines = np.zeros(8 * SPACING // 4, np.uint32), []
    for first in range(len(litmus.threads)):
        text, *launch = program(litmus, *QUALIFIERS[strength], place, first)
        machines.append(Machine(text))
        machines[-1].memory.buffer(x, "x")
    wanted, found = in_order(litmus), set()
    for seed in range(SEEDS):
        machine = machines[seed % len(machines)]
        found.add(outcome(machine, x, launch, litmus, Schedule(seed, APART)))
        if found >= wanted:
            break
    return found


CHEAP = {("store buffering", "relaxed", "blocks"), ("message passing", "relaxed", "blocks")}


@pytest.mark.parametrize(
    "litmus, strength, place",
    [
        pytest.param(
            litmus,
            strength,
            place,
            id=f"{litmus.name}-{strength}-{place}",
            marks=[] if (litmus.name, strength, place) in CHEAP else [pytest.mark.thorough],
        )
        for litmus, strength, place in product(LITMUS, QUALIFIERS, PLACES)
        if "relaxed" == strength or "blocks" == place
    ],
)
def test_every_outcome_of_one_access_after_the_other_and_no_other(litmus, strength, place):
    assert not in_order(litmus) & litmus.relaxed
    assert reached(litmus, strength, place) == in_order(litmus)


@pytest.mark.parametrize(
    "qualifiers, place, kind",
    [
        (("", "", ""), "blocks", {"missing-release", "missing-acquire"}),
        (("", "", ""), "lanes of a warp", {"missing-warp-sync"}),
        ((".relaxed.cta", ".relaxed.cta", ""), "blocks", {"narrow-scope"}),
        ((".relaxed.gpu", "", ""), "warps of a block", {"missing-barrier"}),
    ],
)
def test_what_is_weak_or_of_too_narrow_a_scope_is_a_race(qualifiers, place, kind):
    litmus = LITMUS[1]
    text, *launch = program(litmus, *qualifiers, place)
    for seed in range(3):
        machine, x = Machine(text, races=True), np.zeros(8 * SPACING // 4, np.uint32)
        machine.memory.buffer(x, "x")
        with pytest.raises(Race) as caught:
            outcome(machine, x, launch, litmus, Schedule(seed, APART))
        assert caught.value.kind in kind


@pytest.mark.parametrize("place", PLACES)
def test_scopes_that_include_both_are_none(place):
    text, *launch = program(LITMUS[1], ".relaxed.sys", ".relaxed.gpu", "fence.sc.sys;", place)
    machine, x = Machine(text, races=True), np.zeros(8 * SPACING // 4, np.uint32)
    machine.memory.buffer(x, "x")
    outcome(machine, x, launch, LITMUS[1], Schedule(1, APART))
