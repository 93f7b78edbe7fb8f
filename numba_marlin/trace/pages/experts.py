"""The section of a mixture's experts: which tokens an expert has, which blocks took its rows, what
a block gathered, and which blocks wrote a token's rows. Of the recorded addresses; which
expert a token goes to, and with which weight, is from the routing (about["routing"]: ``ids`` and
``weights``, a list for each token)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.trace.pages.choice import Choice, element, ranges, size, word_place
from numba_marlin.trace.record import Trace, remembered
from numba_marlin.trace.stages import rounds
from numba_marlin.trace.traffic import Copy, copies, requests
from numba_marlin.views import RECORDED, Cell, Grid, Section, Table

KEY, TITLE = "experts", "Experts, their rows, and the blocks that took them"
NO_EXPERTS = "This kernel multiplies one weight: there is no mixture of experts in it."
NOTES = (
    "A router sends every token to a few of the experts. One that no token goes to costs nothing:"
    " its weights are not read. The rows of x of the others are not sorted or padded: a block"
    " copies each from where its token lies.",
    "Here one expert's tiles follow the other's, and all of them in a row are cut into equal"
    " stripes, one for each block. So blocks read as many bytes, however uneven the routing is; a"
    " stripe may end in the middle of a tile, whose parts are then added up. (Or blocks take whole"
    " tiles by turns, if a token's bits must not depend on the others, and with x in 8 bits.)",
)
ROWS, COLUMNS = 32, 16  # that are shown


@dataclass(frozen=True)
class Filling:
    """One stage that a block filled: with weights [first_k, end_k) x columns [first_n, end_n) of an
    expert, and with rows of x, by their numbers in memory."""

    block: int
    step: int
    expert: int
    first_k: int
    end_k: int
    first_n: int
    end_n: int
    rows: tuple[int, ...]
    nbytes: int


def section(trace: Trace, choice: Choice) -> Section:
    if not trace.of_experts or "routing" not in trace.about:
        return Section(KEY, TITLE, (NO_EXPERTS,))
    parts = (picture(trace), listed(trace), gathered(trace, choice), written(trace))
    return Section(KEY, TITLE, NOTES, tuple(part for part in parts if part is not None))


def routing(trace: Trace) -> tuple[list[list[int]], list[list[float]]]:
    """(experts, weights) of each token."""
    found = trace.about["routing"]
    return found["ids"], found["weights"]


def tokens_of(trace: Trace, expert: int) -> list[int]:
    return [token for token, ids in enumerate(routing(trace)[0]) if expert in ids]


def token_of(trace: Trace, row: int) -> int:
    """The token whose row of x it is."""
    problem = trace.about["problem"]
    return row // problem["top_k"] if problem["x_of_pairs"] else row


@remembered
def fillings(trace: Trace) -> tuple[Filling, ...]:
    """Of all recorded blocks, block by block, in order. (Of a stage's copies, by where they go:
    warps that gather rows may be ahead of the one that copies weights.)"""
    found = []
    for block in trace.header["blocks"]:
        of_block = []
        for parts in trace.about["stages"]:
            inside = [
                copy
                for copy in copies(trace, block)
                if any(start <= copy.target < stop for start, stop in parts)
            ]
            of_block += [_filling(trace, block, group) for group in rounds(inside)]
        found += sorted(filter(None, of_block), key=lambda each: each.step)
    return tuple(found)


def _filling(trace: Trace, block: int, group: list[Copy]) -> Filling | None:
    """Of the copies of one; None if no weights are among them."""
    weights, rows, b = [], [], trace.buffer("b")
    for copy in group:
        name, row, _ = element(trace, copy.source)
        if name == "b":
            weights.append((copy, *word_place(b, copy.source), copy.nbytes // 4))
        elif name == "a":
            rows.append(row)
    if not weights:
        return None
    per_64 = 32 * trace.about["problem"]["bits"]  # words of 64 columns
    of_weights, experts, k16, words, counts = zip(*weights)
    return Filling(
        block,
        min(copy.step for copy in of_weights),
        experts[0],
        16 * min(k16),
        16 * max(k16) + 16,
        64 * (min(words) // per_64),
        64 * -(-max(word + count for word, count in zip(words, counts)) // per_64),
        tuple(dict.fromkeys(rows)),  # some kernels copy a row chunk by chunk
        sum(copy.nbytes for copy in of_weights),
    )


def picture(trace: Trace) -> Grid | None:
    """Draw every tile of every expert: a line for a block of rows, a column for each of its steps,
    in the order in which stripes are cut."""
    found = fillings(trace)
    steps = sorted({(each.first_n, each.first_k) for each in found})
    lines = sorted({(each.expert, each.rows) for each in found})
    if not found:
        return None
    wide = -(-len(steps) // COLUMNS)  # steps of a column
    groups = [steps[first : first + wide] for first in range(0, len(steps), wide)]
    cells, labels = [], []
    for expert, rows in lines[:ROWS]:
        line = []
        for group in groups:
            owners = sorted(
                {
                    each.block
                    for each in found
                    if (each.expert, each.rows) == (expert, rows)
                    and (each.first_n, each.first_k) in group
                }
            )
            text = ranges(owners) if owners else "-"
            tokens = ", ".join(str(token_of(trace, row)) for row in rows)
            line.append(
                Cell(
                    text,
                    f"block {text}" if owners else "",
                    tip=f"expert {expert}, tokens {tokens}; n from {group[0][0]}, k from"
                    f" {group[0][1]}",
                )
            )
        cells.append(tuple(line))
        labels.append(f"expert {expert}, {len(rows)} row{'s' * (len(rows) != 1)}")
    return Grid(
        tuple(cells),
        tuple(labels),
        tuple(f"n {group[0][0]}, k {group[0][1]}" for group in groups),
        title="Which block took which expert's rows",
        source=RECORDED,
        note=" ".join(
            (
                "A line is a block of an expert's rows, a column"
                f" {'a step' if wide == 1 else f'{wide} steps'} of its tiles, from the left to the"
                " right; the colour is that of the block that read the weights and gathered the"
                " rows.",
                *((f"The first {ROWS} of {len(lines)} lines.",) if len(lines) > ROWS else ()),
                *(
                    (f"Only block {ranges(trace.header['blocks'])} was recorded: - is not known.",)
                    if len(trace.header["blocks"]) < trace.blocks
                    else ()
                ),
            )
        ),
    )


def listed(trace: Trace) -> Table:
    """List the experts: their tokens, and the blocks that read their weights."""
    found, rows = fillings(trace), []
    experts = trace.about["problem"]["experts"]
    order = sorted(range(experts), key=lambda expert: (not tokens_of(trace, expert), expert))
    for expert in order[:ROWS]:
        tokens = tokens_of(trace, expert)
        mine = [each for each in found if each.expert == expert]
        blocks = sorted({each.block for each in mine})
        rows.append(
            (
                Cell(str(expert), tone="" if tokens else "dim"),
                str(len(tokens)),
                ranges(tokens) or "-",
                str(len({each.rows for each in mine})) if mine else "-",
                Cell(ranges(blocks), f"block {ranges(blocks)}") if blocks else "-",
                size(sum(each.nbytes for each in mine)) if mine else "not read",
            )
        )
    return Table(
        ("expert", "rows", "tokens", "row blocks", "by blocks", "weights copied"),
        tuple(rows),
        title="The experts",
        source=RECORDED,
        note=(
            "Row blocks: as many as a tile has rows; an expert with more of them is read again for"
            " each, as a rule from L2."
            + (f" The first {ROWS} of {experts} experts." if experts > ROWS else "")
        ),
    )


def gathered(trace: Trace, choice: Choice) -> Table | None:
    """List the stages that the chosen block filled: of which expert, and with the rows of which
    tokens."""
    mine = [each for each in fillings(trace) if each.block == choice.block]
    rows = tuple(
        (
            str(number),
            str(each.step),
            str(each.expert),
            f"{each.first_n}-{each.end_n - 1}",
            f"{each.first_k}-{each.end_k - 1}",
            ", ".join(str(token_of(trace, row)) for row in each.rows),
        )
        for number, each in enumerate(mine[:ROWS])
    )
    if not rows:
        return None
    return Table(
        ("use", "step", "expert", "columns", "k", "rows gathered, of tokens"),
        rows,
        title=f"What block {choice.block} gathered, stage by stage",
        source=RECORDED,
        note=(
            "Each row is copied from where the token's row of x lies: there is no sorted copy of x."
            + (
                " x has a row for each expert of a token."
                if trace.about["problem"]["x_of_pairs"]
                else ""
            )
            + (f" The first {ROWS} of {len(mine)}." if len(mine) > ROWS else "")
        ),
    )


def written(trace: Trace) -> Table:
    """List the tokens: which blocks wrote the rows of its experts."""
    problem, c = trace.about["problem"], trace.buffer("c")
    top_k, combine = problem["top_k"], problem["combine"]
    width, end = c["nbytes"] // (problem["m"] * top_k), c["address"] + c["nbytes"]
    wrote: dict[int, set[int]] = {}
    for block in trace.header["blocks"]:
        for each in requests(trace, block, ("store",), ("global",)):
            address = each.address[each.active]
            inside = address[(address >= c["address"]) & (address < end)]
            for row in np.unique((inside - c["address"]) // width).tolist():
                wrote.setdefault(row, set()).add(block)
    rows = []
    for token, (ids, weights) in enumerate(zip(*routing(trace))):
        if token == ROWS:
            break
        parts = (
            (f"{weight:.3g} x " if combine else "")
            + f"expert {expert} ({blocks_in_words(wrote.get(token * top_k + slot))})"
            for slot, (expert, weight) in enumerate(zip(ids, weights))
        )
        rows.append((str(token), (" + " if combine else "; ").join(parts)))
    summed = (
        "In float32. The pass behind the launch multiplies them by these weights and adds them up,"
        " in this order, whichever was written first: the same bits on every run."
    )
    return Table(
        ("token", "its rows, and the blocks that wrote them"),
        tuple(rows),
        title="Rows of a token's experts",
        source=RECORDED,
        note=(
            (summed if combine else "Each is a row of the result.")
            + (f" The first {ROWS} of {problem['m']} tokens." if problem["m"] > ROWS else "")
        ),
    )


def blocks_in_words(blocks: set[int] | None) -> str:
    if not blocks:
        return "not recorded"
    return f"block{'s' * (len(blocks) > 1)} {ranges(sorted(blocks))}"
