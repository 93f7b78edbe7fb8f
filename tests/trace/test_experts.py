"""Contract under test: the walk of a mixture's experts says which block took which expert's rows,
what it gathered, and who wrote a token's rows, as it was."""

import functools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler, trace
from numba_marlin.emulator import Machine, Schedule
from numba_marlin.kernels.experts.moe.declare import IDS, KERNEL, SMALL
from numba_marlin.testing import experts as layers
from numba_marlin.testing.launches import launch_on
from numba_marlin.trace import pages
from numba_marlin.trace.history import history_of
from numba_marlin.trace.pages import experts
from numba_marlin.trace.pages.choice import word_place
from numba_marlin.trace.pages.unpack import word_of
from numba_marlin.trace.stages import fills
from numba_marlin.views import html, plain, text

TRIAL = KERNEL.about.trials[0]
ROWS = {expert: [t for t, ids in enumerate(IDS) if expert in ids] for expert in range(5)}


@functools.cache
def recorded(x_of_pairs=True, combine=True):
    """(trace, the layer)"""
    config = replace(TRIAL.config, x_of_pairs=x_of_pairs, combine=combine)
    _, n, k = TRIAL.sizes
    given = layers.layer(config, IDS, n, k, integers=True)
    prepared = layers.prepare(given, sms=TRIAL.sms)
    compiled = compiler.build(KERNEL, config, line_info=True)
    machine = Machine(compiled.ptx)
    launch = launch_on(machine, prepared, compiled)
    found = trace.record(machine, **launch | {"seed": Schedule(0, "in turn", "any")})
    found.header["about"] = {
        "kernel": KERNEL.name,
        "kind": KERNEL.kind,
        "problem": layers.problem_of(given).to_dict(),
        "routing": {
            "ids": given.routing.ids.tolist(),
            "weights": given.routing.weights.tolist(),
        },
        **KERNEL.about.of_run(config, found.header["launch"]["shared_base"]),
    }
    return found, given


both = pytest.mark.parametrize(
    "x_of_pairs", (True, pytest.param(False, marks=pytest.mark.thorough))
)


@pytest.mark.thorough
@both
def test_every_step_of_every_tile_is_taken_once_with_its_expert_s_rows(x_of_pairs):
    found, _ = recorded(x_of_pairs, x_of_pairs)
    seen = {}
    for each in experts.fillings(found):
        tokens = tuple(experts.token_of(found, row) for row in each.rows)
        for k16 in range(each.first_k, each.end_k, 16):
            for n64 in range(each.first_n, each.end_n, 64):
                seen.setdefault((each.expert, k16, n64), []).extend(tokens)
    _, n, k = TRIAL.sizes
    touched = [expert for expert, rows in ROWS.items() if rows]
    assert sorted({expert for expert, _, _ in seen}) == touched and 3 not in touched
    for expert in touched:  # every word of its weights, for each of its rows, once
        for k16 in range(0, k, 16):
            for n64 in range(0, n, 64):
                assert sorted(seen[expert, k16, n64]) == ROWS[expert]


@pytest.mark.thorough
def test_stripes_of_blocks_follow_each_other_over_all_experts():
    found, _ = recorded()
    blocks = [each.block for each in experts.fillings(found)]
    assert blocks == sorted(blocks) and set(blocks) == set(range(found.blocks))
    shares = np.bincount(blocks)
    assert shares.max() - shares.min() <= 1  # equal, however uneven the routing is
    of_expert = {
        b: {e.expert for e in experts.fillings(found) if e.block == b} for b in set(blocks)
    }
    assert any(len(each) > 1 for each in of_expert.values())  # not cut at experts


def section(found, **choice):
    return plain.plain(pages.page(found, pages.Choice(**choice), (experts.KEY,)).sections[0])


def table(found, words, **choice):
    part = next(p for p in section(found, **choice)["parts"] if words in p.get("title", ""))
    return [[c["text"] if isinstance(c, dict) else c for c in row] for row in part["rows"]]


def test_the_tables_say_what_the_routing_and_the_result_say():
    found, given = recorded()
    listed = {int(row[0]): row for row in table(found, "The experts")}
    assert {expert: int(row[1]) for expert, row in listed.items()} == {
        expert: len(rows) for expert, rows in ROWS.items()
    }
    assert listed[3][-1] == "not read"
    c, stores = found.buffer("c"), {}
    width = 4 * TRIAL.sizes[1]
    for row in np.flatnonzero((found.access_kind == 1) & (found.access_space == 0)):
        for address in found.access_address[row].tolist():
            if c["address"] <= address < c["address"] + c["nbytes"]:
                pair = (address - c["address"]) // width
                stores.setdefault(pair, set()).add(int(found.access_warp[row]) // found.warps)
    took = {expert: numbers(listed[expert][4]) for expert, rows in ROWS.items() if rows}
    rows = table(found, "Rows of a token's experts")
    for token, said in rows:
        parts = [
            re.fullmatch(r"(\S+) x expert (\d+) \(blocks? (.*)\)", p) for p in said.split(" + ")
        ]
        assert [int(part[2]) for part in parts] == given.routing.ids[int(token)].tolist()
        weights = given.routing.weights[int(token)]
        assert [float(part[1]) for part in parts] == pytest.approx(weights, rel=5e-3)
        for slot, part in enumerate(parts):
            wrote = numbers(part[3])
            assert wrote == stores[2 * int(token) + slot]
            assert wrote <= took[int(part[2])]  # they have read its expert's weights
    assert len(rows) == len(IDS)


def numbers(ranges):
    found = set()
    for each in ranges.split(", "):
        first, _, last = each.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_an_unpacked_word_is_its_expert_s():
    found, given = recorded()
    b, words, seen = found.buffer("b"), given.experts.arrays["qweight"], set()
    for block in range(found.blocks):
        for warp in range(found.warps):
            choice = pages.Choice(block=block, warp=warp, lane=5)
            history = history_of(found, choice.grid_warp(found))
            word = word_of(found, history, choice)
            if word is None:
                continue
            step, register, address = word
            place = word_place(b, address)
            seen.add(place[0])
            value = np.uint32(history.result(register, step)[5])
            assert value == words[place].view(np.uint32)
    assert len(seen) > 1
    assert all(0 <= fill.tile < TRIAL.sizes[2] for fill in fills(found, 1) if fill.read >= 0)


def test_the_whole_walk_is_shown_and_only_a_mixture_s_has_experts():
    found, _ = recorded()
    page = pages.page(found, pages.Choice(lane=5))
    assert [each.key for each in page.sections] == list(pages.usual(found)) == list(pages.SECTIONS)
    shown = text.render(page, 80, steps=2)
    assert max(map(len, shown.splitlines())) <= 80 and "nan" not in shown
    assert "None" not in shown.replace("=None", "") and "top_k=2" in shown
    assert len(html.render(page)) < 5_000_000
    json.loads(plain.render(page))
    from tests.trace.runs import recorded as of_one_weight

    other, _ = of_one_weight("general")
    assert experts.KEY not in pages.usual(other)
    assert "no mixture" in text.render(pages.page(other, keys=(experts.KEY,)), 80)


@pytest.mark.thorough
def test_rows_of_pairs_have_no_weights():
    found, given = recorded(False, False)
    for (token, said), ids in zip(table(found, "Rows of a token's experts"), IDS, strict=True):
        experts_said = re.findall(r"expert (\d+) \(blocks? [\d, -]+\)", said)
        assert tuple(map(int, experts_said)) == ids and " x " not in said, token
    assert SMALL.combine is False
