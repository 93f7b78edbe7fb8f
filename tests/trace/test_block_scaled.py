"""Contract under test: pages of kernels with two block-scaled operands show codes, scales and sums
as they were: each against the matrices that were multiplied."""

import copy
import json

import numpy as np
import pytest

from numba_marlin.formats.small_floats import decode, table
from numba_marlin.kernels.nvfp4.tcgen05 import KERNEL as TCGEN05
from numba_marlin.layout import fragments
from numba_marlin.quantizers import dequantize
from numba_marlin.trace import compare, pages, roles
from numba_marlin.trace.history import History, vector
from numba_marlin.trace.pages import block_fragments
from numba_marlin.trace.pages.choice import products
from numba_marlin.trace.record import Trace
from numba_marlin.trace.stages import fills
from numba_marlin.views import html, plain, text
from tests.trace.block_runs import RUNS, record, recorded
from tests.views.pages import shown as shown_in_browser

by_name = pytest.mark.parametrize("name", RUNS)


def section(found, key, **choice):
    return plain.plain(pages.page(found, pages.Choice(**choice), (key,)).sections[0])


def titled(section_, words):
    parts = [
        *section_.get("parts", ()),
        *(part for step in section_.get("steps", ()) for part in step["parts"]),
    ]
    return next(part for part in parts if words in part.get("title", ""))


def cells(row):
    return [cell["text"] if isinstance(cell, dict) else cell for cell in row]


@by_name
def test_every_section_is_shown(name):
    found, *_ = recorded(name)
    page = pages.page(found, pages.Choice(warp=roles.multipliers(found, 0)[0], lane=5))
    assert [each.key for each in page.sections] == list(pages.usual(found))
    shown = text.render(page, 80, steps=2)
    assert (
        max(map(len, shown.splitlines())) <= 80
        and "nan" not in shown
        and "None" not in shown.replace("=None", "")
    )
    assert "no ring of stages" not in shown and "not drawn" not in shown and "No fills" not in shown
    assert len(html.render(page)) < 5_000_000
    json.loads(plain.render(page))


@by_name
def test_stages_are_filled_with_both_operands_and_their_scales_and_then_read(name):
    found, (a, _), prepared = recorded(name)
    step_k = getattr(prepared.config, "stage_k", 128 if name == "block_scaled" else 256)
    steps, split = -(-a.shape[1] // step_k), getattr(prepared.config, "split", 1)
    for block in range(found.blocks):
        used = [each for each in fills(found, block) if each.read >= 0]
        own = [step_k * i for i in range(steps)][block % split * -(-steps // split) :][
            : -(-steps // split)
        ]
        assert [each.tile for each in used] == own * (len(used) // len(own)) and len(used) >= len(
            own
        )
        for each in used:
            assert each.issued < each.landed <= each.read <= each.read_last
    names = {
        row[-1]
        for row in (
            cells(row) for row in titled(section(found, "pipeline"), "Where the stages are")["rows"]
        )
    }
    assert names == {"a", "b", "sfa", "sfb"}


RINGS = {  # who fills, waits for, gives back, and waits for room, where no verbs tell roles
    "block_scaled": {
        "packed stages": ("warp 12", "warps 0-11", "warps 0-11", "warp 12"),
        "B as halves": ("warps 8-11", "warps 0-7", "warps 0-7", "warps 8-11"),
        "tile numbers": ("warp 13", "warps 0-12, 14", "warps 0-12, 14", "warp 13"),
        "C": ("warp 14", "warps 0-7", "warps 0-7", "warp 14"),
    },
    "block_decode": {"stages": ("warp 4", "warps 0-3", "warps 0-3", "warp 4")},
    "tcgen05": {
        "stages": ("warp 4", "warp 5", "warp 5", "warp 4"),
        "tiles of sums": ("warp 5", "warps 0-3", "warps 0-3", "warp 5"),
        "tile numbers": ("warp 6", "warps 0-5", "warps 0-5", "warp 6"),
    },
    "block_mma": {"stages": ("warp 8", "warps 0-7", "warps 0-7", "warp 8")},
}


@by_name
def test_rings_are_shown_with_those_who_meet_at_them(name):
    found, _, prepared = recorded(name)
    rows = [
        cells(row)
        for row in titled(section(found, "pipeline"), "The rings between the roles")["rows"]
    ]
    assert {row[0]: tuple(cell.split(" (")[0] for cell in row[2:]) for row in rows} == RINGS[name]
    used = [each for each in fills(found, 0) if each.landed >= 0]
    assert rows[0][1] == str(prepared.config.stages) and rows[0][2].endswith(f"({len(used)})")


@by_name
def test_rings_are_drawn_between_those_who_meet_at_them(name):
    """Every ring once, below the role that fills it, above those who wait for it."""
    found, *_ = recorded(name)
    figures = [
        each
        for each in section(found, "pipeline")["parts"]
        if each["title"].startswith("Who fills and who gives back")
    ]
    drawn = set()
    for figure in figures:
        levels = figure["levels"]
        for above, below in zip(levels, levels[1:]):
            ring = above["down"].partition(" (")[0]
            filled, awaited, *_ = RINGS[name][ring]
            assert filled in above["name"] or f" by {filled}" in above["down"]
            assert below["name"] == awaited and ring not in drawn
            drawn.add(ring)
    assert drawn == set(RINGS[name])


@by_name
def test_blocks_are_shown_where_they_wrote(name):
    """Tiles of block_mma go to blocks in turn; of a scheduler's the last may go to any block."""
    found, *_ = recorded(name)
    grid = titled(section(found, "launch"), "Which blocks wrote which part of D")
    # tiles are numbered down the rows first
    shown = np.array([cells(row) for row in grid["cells"]]).T.reshape(-1).tolist()
    # four rows of eight for each block of a cluster, of the ninth there is only one
    if name == "block_decode":
        assert shown == ["0-1", "4", "2-3", "6"]
        return
    assert len(shown) > 1 and set(shown) == {str(block) for block in range(found.blocks)}
    if name == "block_mma":
        assert shown == [str(tile % found.blocks) for tile in range(len(shown))]


def test_products_of_block_mma_are_the_recorded_sums():
    """Codes and scales, gathered from the registers of 32 lanes, make D of C: for every product of
    a warp."""
    found, *_ = recorded("block_mma")
    history = History(found, 5)
    steps = products(history)
    assert len(steps) >= 64
    for step in steps:
        operands = history.operands(step)
        d, a, b, c = (vector(each) for each in operands[:4])
        codes = [
            fragment.scatter(
                np.concatenate([block_fragments.codes_in(history, name, step) for name in names]).T
            )
            for fragment, names in zip(block_fragments.MAPS, (a, b))
        ]
        left, right = (decode(each, "e2m1").astype(np.float64) for each in codes)
        scales = []
        for position, rows in ((4, 2), (6, 1)):
            _, thread = (int(each) for each in vector(operands[position + 1]))
            lanes = [
                4 * group + (2 * thread + half if rows == 2 else thread)
                for half in range(rows)
                for group in range(8)
            ]
            scales.append(
                decode(
                    np.ascontiguousarray(history.value(vector(operands[position])[0], step)[lanes])
                    .view(np.uint8)
                    .reshape(-1, 4),
                    "e4m3",
                ).astype(np.float64)
            )
        product = (left * np.repeat(scales[0], 16, axis=1)) @ (
            right.T * np.repeat(scales[1], 16, axis=1)
        ).T
        before, after = (
            fragments.MMA_M16N8K16_C.scatter(
                np.stack([history.value(name, at).view(np.float32) for name in names], 1)
            )
            for names, at in ((c, step), (d, step + 1))
        )
        assert np.array_equal(before + product, after)


@pytest.mark.parametrize("lane", [0, 13, 31])
def test_a_sum_of_block_mma_is_shown_block_by_block(lane):
    found, *_ = recorded("block_mma")
    for step in (0, 9):
        rows = [
            cells(row)
            for row in titled(
                section(found, "fragments", lane=lane, step=step),
                "of the accumulators, block by block",
            )["rows"]
        ]
        adds = {row[0]: float(row[-1]) for row in rows}
        blocks = [float(row[1]) * float(row[2]) * float(row[3]) for row in rows[:4]]
        assert adds["together"] == pytest.approx(sum(blocks), rel=1e-5) and adds["C before"] + adds[
            "together"
        ] == pytest.approx(adds["C after (recorded)"], rel=1e-4)


def test_a_product_of_tcgen05_shows_the_operands_and_the_scales_as_they_lie():
    found, (a, b), _ = recorded("tcgen05")
    for lane, step in ((0, 0), (5, 6), (30, 2)):
        shown = section(found, "fragments", warp=5, lane=lane, step=step)["steps"][0]["parts"]
        first, k = lane // 4 * 4, 64 * step
        grids = {
            part["title"].split(":")[0].split(" (")[0]: part for part in shown if part.get("cells")
        }
        for name, matrix, start in (("A", a, first), ("B", b, 0)):
            values = [[float(each) for each in cells(row)] for row in grids[name]["cells"]]
            assert np.array_equal(
                values, decode(matrix.codes()[start : start + 4, k : k + 64], "e2m1")
            )
            scales = [
                [float(each) for each in cells(row)] for row in grids[f"Scales of {name}"]["cells"]
            ]
            assert np.array_equal(
                scales,
                decode(matrix.plain_scales()[start : start + 4, k // 16 : k // 16 + 4], "e4m3"),
            )
        adds = float(cells(titled({"parts": shown}, "What the product adds")["rows"][4])[-1])
        exact = (
            dequantize(a, np.float64)[lane, k : k + 64] @ dequantize(b, np.float64)[0, k : k + 64]
        )
        assert adds == pytest.approx(exact, rel=1e-5)


def test_sums_that_leave_tensor_memory_are_the_product():
    found, (a, b), _ = recorded("tcgen05")
    exact = dequantize(a, np.float64) @ dequantize(b, np.float64).T
    for warp, lane in ((0, 3), (2, 17)):
        rows = [
            cells(row)
            for row in titled(
                section(found, "sums", warp=warp, lane=lane), "Accumulators from tensor memory"
            )["rows"]
        ]
        for row in rows[:4]:  # of the block's first tile
            column = int(row[1].split("-")[0])
            assert [float(each) for each in row[2:]] == pytest.approx(
                exact[32 * warp + lane, column : column + 4], rel=1e-4
            )


@pytest.mark.parametrize(
    "kernel, places",
    (
        ("block_scaled", ((0, 5, 0), (5, 30, 9), (8, 5, 3), (9, 2, 0))),
        ("block_decode", ((0, 5, 0), (1, 17, 5), (2, 30, 20), (3, 0, 33))),
    ),
)
def test_words_become_halves_times_their_scales(kernel, places):
    """Of A for those that multiply, of B for those that expand; where B streams through registers,
    both for all."""
    found, operands, _ = recorded(kernel)
    seen = set()
    for warp, lane, step in places:
        shown = section(found, "unpack", warp=warp, lane=lane, step=step)
        where = dict(cells(row)[:2] for row in shown["parts"][0]["rows"])["word"]
        name, row, first = (
            where.split()[1].strip(","),
            int(where.split("row ")[1].split(",")[0]),
            int(where.split("k from ")[1]),
        )
        matrix = operands["AB".index(name)]
        last = shown["steps"][-1]["parts"][0]
        assert last["title"].startswith("From codes")
        for found_row in last["rows"]:
            values = dict(zip(last["heads"], cells(found_row)))
            k = int(values["k"])
            code, scale = (
                int(matrix.codes()[row, k]),
                float(decode(matrix.plain_scales()[row, k // 16 : k // 16 + 1], "e4m3")[0]),
            )
            assert first <= k < first + 8 and int(values["code's value"]) == code
            assert float(values["times"]) == scale and float(
                values["scaled"]
            ) * 2**14 == pytest.approx(float(table("e2m1")[code]) * scale, rel=1e-5)
            seen.add(name)
    assert seen == ({"A", "B"} if kernel == "block_scaled" else {"B"})


def test_clusters_are_told_of_where_there_are_any():
    found, *_ = recorded("block_decode")
    assert "of the blocks of a cluster" in section(found, "sums")["notes"][0]
    alone = Trace(copy.deepcopy(found.header), dict(found.arrays))
    alone.header["about"]["k_shares"] = [2, 1]
    assert (
        "cluster" not in section(alone, "sums")["notes"][0]
        and "its shared memory. Then" in section(alone, "sums")["notes"][0]
    )


def test_nothing_is_unpacked_where_tensor_cores_take_codes():
    found, (a, _), _ = recorded("block_mma")
    shown = section(found, "unpack", lane=7)
    assert len(shown["steps"]) == 1 and "They are not unpacked" in shown["notes"][0]
    rows = [cells(row) for row in shown["steps"][0]["parts"][1]["rows"]]
    # group 1, thread 3
    assert [int(row[2]) for row in rows] == a.codes()[1, 24:32].tolist() and [
        int(row[4]) for row in rows
    ] == list(range(24, 32))
    assert {int(row[5]) for row in rows} == {1}
    assert "Codes are not unpacked" in section(recorded("tcgen05")[0], "unpack", warp=5)["notes"][0]


def test_whoever_alters_the_record_sees_another_page():
    found, *_ = recorded("tcgen05")
    changed = Trace(copy.deepcopy(found.header), dict(found.arrays))
    changed.arrays["tile_value"] = found.tile_value.copy()
    step = products(History(found, 5))[0]
    changed.arrays["tile_value"][np.flatnonzero(found.tile_step == step)[0], 0] ^= 0x22
    assert section(changed, "fragments", warp=5) != section(found, "fragments", warp=5)
    other, *_ = recorded("block_mma")
    changed = Trace(copy.deepcopy(other.header), dict(other.arrays))
    changed.header["counts"]["buffers"][0]["reads"]["sectors"] += 10**6
    assert section(changed, "intensity") != section(other, "intensity")


def test_two_runs_differ_in_what_was_altered():
    found, *_ = recorded("block_mma")
    other, *_ = record(
        "block_mma",
        change=lambda prepared: prepared.buffers["a"].__setitem__(
            (0, 0), prepared.buffers["a"][0, 0] ^ 2
        ),
    )
    said = plain.render(compare.page(found, other))
    assert (
        "operands differ too: a)" in said
        and f" of {130 * 24:,} results differ" in said
        and not compare.same(found, other)
    )


def test_roles_are_told_by_their_verbs():
    """Of a made-up kernel of four instructions: what stands between a role's verb and another's is
    that role's."""
    phases = ["load_operands", "wait_empty", "multiply_tiles", "finish_tiles"]
    header = {
        "about": TCGEN05.about.of_run(TCGEN05.config_type(), 0),
        "launch": {"block": [64, 1, 1]},
        "result": {"blocks": 1},
        "instructions": [
            {"phase": phase, "kind": "tensor" if phase == "multiply_tiles" else ""}
            for phase in phases
        ],
    }
    found = Trace(
        header,
        {
            "step_pc": np.array([1, 0, 1, 2, 1, 3], np.int32),
            "step_set": np.array([0, 0, 0, 1, 1, 1], np.int32),
            "set_start": np.array([0, 1, 2]),
            "set_warp": np.array([0, 1], np.int32),
            "set_mask": np.array([1, 1], np.uint32),
        },
    )
    told, waits = roles.activities(found, 0)
    assert told.tolist() == [-1, 1, 1] and waits.tolist() == [True, False, True]
    assert (
        roles.roles_of_warp(found, 1) == ["mma", "epilogue"]
        and roles.warps_of_role(found, 0, "main-loop load") == [0]
        and roles.multipliers(found, 0) == [1]
    )


@pytest.mark.thorough
@by_name
def test_the_page_in_a_browser(name, tmp_path):
    found, *_ = recorded(name)
    page = pages.page(found, pages.Choice(warp=roles.multipliers(found, 0)[0]))
    with shown_in_browser(html.render(page), tmp_path, "#fragments/2") as (browser, complaints):
        assert browser.title() == page.title and "product 1 of" in browser.inner_text(
            "section.here .step.here h3"
        )
        # whose products are of halves
        assert (
            "block by block" in browser.inner_text("section.here")
            or "What the product adds" in browser.inner_text("section.here")
            or name in ("block_scaled", "block_decode")
        )
        browser.keyboard.press("ArrowRight")
        assert "product 2 of" in browser.inner_text("section.here .step.here h3")
        assert complaints == []
