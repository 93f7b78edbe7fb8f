"""Contract under test: pages show what is in the record, all of it from there: whoever alters the
record, or the run, sees another page."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin import trace
from numba_marlin.formats import small_floats
from numba_marlin.quantizers import dequantize
from numba_marlin.trace import compare, pages, perfetto
from numba_marlin.trace.history import History
from numba_marlin.trace.pages import fragments, sums
from numba_marlin.trace.pages.choice import products
from numba_marlin.trace.pages.unpack import places_of, word_of
from numba_marlin.trace.record import KINDS, Trace
from numba_marlin.trace.stages import fills
from numba_marlin.views import html, plain, text
from tests.kernels.configurations import FAITHFUL
from tests.trace.runs import RUNS, launch, recorded
from tests.views.pages import shown

KERNELS = tuple(key for key in RUNS if key != "nvfp4")
LARGEST_PAGE = 5_000_000


def said(found, choice=pages.Choice(), *keys):
    return plain.render(pages.page(found, choice, keys))


def altered(found, array=None, at=None, header=None):
    """A copy of a trace with one number changed."""
    other = Trace(copy.deepcopy(found.header) if header else found.header, dict(found.arrays))
    if array is not None:
        other.arrays[array] = other.arrays[array].copy()
        other.arrays[array][at] ^= other.arrays[array].dtype.type(
            0x4008 & np.iinfo(other.arrays[array].dtype).max
        )
    if header is not None:
        header(other.header)
    return other


@pytest.mark.parametrize("key, width", [*((key, 80) for key in KERNELS), ("ampere", 60)])
def test_every_section_of_every_kernel_is_shown(key, width):
    found, _ = recorded(key)
    page = pages.page(found, pages.Choice(lane=5))
    assert [section.key for section in page.sections] == list(pages.usual(found))
    shown_text = text.render(page, width, steps=2)
    assert (
        max(map(len, shown_text.splitlines())) <= width
        and "nan" not in shown_text
        and "None" not in shown_text
    )
    assert len(html.render(page)) < LARGEST_PAGE
    json.loads(plain.render(page))


@pytest.mark.parametrize("key", KERNELS)
def test_unpacked_words_are_the_weights(key):
    """Codes, their places and what they become, against the matrix that was packed."""
    found, problem = recorded(key)
    q, seen = problem.weight, set()
    for warp in range(found.warps):
        for lane, step in ((0, 0), (13, 3), (31, 7)):
            choice = pages.Choice(warp=warp, lane=lane, step=step)
            history = History(found, choice.grid_warp(found))
            place = word_of(found, history, choice)
            if place is None:
                continue
            at, register, address = place
            b = found.buffer("b")
            word, value = (address - b["address"]) // 4, int(history.result(register, at)[lane])
            for _, first, k, n in places_of(*divmod(word, b["shape"][1]), 4):
                assert value >> first & 15 == q.codes[k, n]
                seen.add((k, n))
            section = plain.plain(pages.page(found, choice, ("unpack",)).sections[0])
            last = section["steps"][-1]["parts"][0]
            # these have no register of two halves
            assert key in ("general", "naive") or last["title"].startswith("From codes")
            if last.get("title", "").startswith("From codes"):
                heads = last["heads"]
                for row in last["rows"]:
                    cells = dict(
                        zip(
                            heads,
                            (cell["text"] if isinstance(cell, dict) else cell for cell in row),
                        )
                    )
                    code = int(q.codes[int(cells["k"]), int(cells["n"])])
                    assert (
                        int(cells["code's value"]) == code
                        and float(cells["dequantised"]) == code - 8
                    )
                    if cells.get("scaled"):
                        scale = float(
                            q.scales[
                                int(cells["k"]) // (found.about["problem"]["group_size"]),
                                int(cells["n"]),
                            ]
                        )
                        assert float(cells["scaled"]) == pytest.approx((code - 8) * scale, rel=1e-5)
    assert len(seen) >= 16


def test_unpacked_words_of_blocks_are_the_weights():
    """NVFP4: codes are e2m1 numbers with their bits turned; in the end a register holds code times
    scale, up to the factor of its column."""
    found, problem = recorded("nvfp4")
    values, seen = dequantize(problem.weight, np.float64), 0
    for warp, lane, step in ((0, 5, 0), (1, 30, 3), (3, 12, 9)):
        section = plain.plain(
            pages.page(found, pages.Choice(warp=warp, lane=lane, step=step), ("unpack",)).sections[
                0
            ]
        )
        first, last = section["steps"][0]["parts"][1], section["steps"][-1]["parts"][0]
        assert first["heads"][3] == "as e2m1" and last["title"].startswith("From codes")
        factors = {}
        for meaning, row in zip(first["rows"], last["rows"]):
            cells = dict(zip(last["heads"], row))
            k, n = int(cells["k"]), int(cells["n"])
            code = int(problem.weight.codes[k, n])
            assert int(cells["code's value"]) == code and float(meaning[3]) == float(
                small_floats.table("e2m1")[code]
            )
            if float(cells["scaled"]):
                factors.setdefault(n, set()).add(values[k, n] / float(cells["scaled"]))
            else:
                assert values[k, n] == 0
            seen += 1
        # printed with six figures
        assert factors and all(max(each) <= min(each) * 1.0001 for each in factors.values())
    assert seen == 24


def test_whoever_alters_the_record_sees_another_page():
    found, _ = recorded("ampere")
    history = History(found, 0)
    product = products(history)[0]
    operand = history.operands(product)[1].strip("{}").split(",")[0]
    word = word_of(found, history, pages.Choice())
    lock = int(np.flatnonzero(found.lock_before == 1)[0])
    first_copy = int(np.flatnonzero(found.access_kind == KINDS.index("copy-request"))[0])
    changes = {
        "fragments": dict(array="write_value", at=(history.written(operand, product), 0)),
        "unpack": dict(array="write_value", at=(history.written(word[1], word[0] + 1), 0)),
        "copies": dict(array="access_address", at=(first_copy, 0)),
        "launch": dict(
            array="access_address",
            at=(first_copy, 0),
            header=lambda header: header["launch"].update(shared_bytes=1),
        ),
        "sums": dict(array="lock_before", at=lock),
        "phases": dict(
            header=lambda header: header["counts"]["phases"][0]["tally"].update(executed=1)
        ),
        "memory": dict(header=lambda header: header["counts"]["total"].update(sectors=1)),
        "intensity": dict(
            header=lambda header: header["counts"]["buffers"][0]["reads"].update(sectors=10**6)
        ),
    }
    for key, change in changes.items():
        assert said(altered(found, **change), pages.Choice(), key) != said(
            found, pages.Choice(), key
        ), key
    later = altered(found)
    # copies that land later
    later.arrays["access_step"] = np.where(
        found.access_kind == KINDS.index("copy-land"), found.access_step + 200, found.access_step
    )
    for key in ("pipeline", "copies"):
        assert said(later, pages.Choice(), key) != said(found, pages.Choice(), key)
    other_way = altered(found)
    other_way.arrays["step_pc"] = np.concatenate([found.step_pc[:400][::-1], found.step_pc[400:]])
    assert said(other_way, pages.Choice(), "timeline") != said(found, pages.Choice(), "timeline")


def test_an_altered_run_is_seen_altered():
    """One code of one weight is another: the word, the fragment that holds it and the sums of its
    column change, and nothing about the launch or the copies."""

    def flip(prepared):
        prepared.buffers["b"] = prepared.buffers["b"].copy()
        prepared.buffers["b"][0, 0] ^= 1

    found, problem = recorded("ampere")
    machine, given, _, about, prepared = launch(*FAITHFUL, line_info=True, change=flip)
    other = trace.record(machine, about=about, **given)
    assert (prepared.buffers["c"][:, 0] != problem.expected[:, 0]).any() and (
        prepared.buffers["c"][:, 1:] == problem.expected[:, 1:]
    ).all()
    for key, differs in {
        "unpack": True,
        "fragments": True,
        "sums": True,
        "launch": False,
        "copies": False,
        "pipeline": False,
        "timeline": False,
        "memory": False,
    }.items():
        assert (said(other, pages.Choice(), key) != said(found, pages.Choice(), key)) == differs, (
            key
        )
    assert said(other, pages.Choice(lane=9), "unpack") == said(
        found, pages.Choice(lane=9), "unpack"
    )


def test_nothing_is_drawn_of_registers_that_were_not_recorded():
    machine, given, _, about, _ = launch(*FAITHFUL, line_info=True)
    found = trace.record(machine, about=about, rows=1000, **given)  # what comes before any product
    assert (
        not found.header["complete"]
        and 1000 <= len(found.write_step) < 1100
        and "registers up to step" in said(found, pages.Choice(), "launch")
    )
    assert "No load of a word of weights was found" in said(found, pages.Choice(), "unpack")
    cells = [
        cell["text"]
        for part in plain.plain(pages.page(found, pages.Choice(), ("fragments",)).sections[0])[
            "steps"
        ][0]["parts"]
        if part["part"] == "grid"
        for row in part["cells"]
        for cell in row
    ]
    assert set(cells) == {"?"}


def test_wgmma_of_bytes_or_transposed_is_named_and_not_drawn():
    ins = {"text": "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {%r0, %r1, %r2, %r3}"}
    assert fragments.warpgroup_product(None, None, None, 0, ins, []) is None
    ins = {
        "text": "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 ..., %rd1, %rd2, %p, 1, 1, 0, 1"
    }
    given = ["{%f0}", "%rd1", "%rd2", "%p", "1", "1", "0", "1"]
    assert fragments.warpgroup_product(None, None, None, 0, ins, given) is None


@pytest.mark.parametrize(
    "types, value, said",
    [("s32.u8.s8", np.int32(-7), "-7"), ("f32.f16.f16", np.float32(0.5), "0.5")],
)
def test_accumulators_are_shown_as_what_they_are(types, value, said):
    step = SimpleNamespace(
        instructions=[{"text": f"wgmma.mma_async.sync.aligned.m64n8k32.{types} {{%d0}}"}],
        step_pc=np.zeros(1, int),
    )
    history = SimpleNamespace(
        wait_of=lambda step: 5,
        operands=lambda step: ["{%d0}"],
        result=lambda name, wait: np.full(32, value.view(np.uint32)),
    )
    choice = SimpleNamespace(lane=3, words="warp 0")
    assert sums.waits(step, history, choice, [0], ["%d0"]).rows[0][2:] == (said,)


def test_wrong_choices_say_what_there_is():
    found, _ = recorded("ampere")
    for choice, message in (
        (pages.Choice(block=9), "block 9 was not recorded: the trace has 0-2"),
        (pages.Choice(warp=8), "warp 8 must be 0 to 7"),
        (pages.Choice(lane=-1), "lane -1 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            pages.page(found, choice)
    with pytest.raises(ValueError, match="phase 'speed' must be one of idea"):
        pages.page(found, pages.Choice(), ("speed",))


@pytest.mark.parametrize("key", ["ampere", "decode", "wgmma"])
def test_the_ring_is_filled_and_used_in_turn(key):
    found, _ = recorded(key)
    count = len(found.about["stages"])
    for block in range(found.blocks):
        all_fills = fills(found, block)
        real = [fill for fill in all_fills if not fill.zeros]
        for fill in real:
            assert fill.issued < fill.landed <= fill.read <= fill.read_last
            verb = found.instructions[int(found.step_pc[fill.read_last])]["phase"]
            # the memory is used again, for sums, which are no reads of the stage
            assert key != "ampere" or verb == "fetch_to_registers"
        by_stage = [[fill for fill in all_fills if fill.stage == stage] for stage in range(count)]
        for mine in by_stage:
            assert all(before.read_last < after.issued for before, after in zip(mine, mine[1:]))
        assert [fill.stage for fill in all_fills] == [
            number % count for number in range(len(all_fills))
        ]
        tiles = [fill.tile for fill in real]
        assert (
            len(tiles) > 1
            and len({after - before for before, after in zip(tiles, tiles[1:]) if after > before})
            <= 1
        )


def test_every_instruction_is_in_the_perfetto_file():
    found, _ = recorded("decode")
    data = json.loads(perfetto.render(found))["traceEvents"]
    visits = [event for event in data if event["ph"] == "X"]
    assert (
        sum(event["args"]["instructions"] for event in visits)
        == found.header["result"]["instructions"]
    )
    assert all(0 <= event["ts"] and event["ts"] + event["dur"] <= found.steps for event in visits)
    begun, ended = (
        {event["id"]: event["ts"] for event in data if event["ph"] == kind} for kind in "be"
    )
    assert begun.keys() == ended.keys() and all(begun[key] < ended[key] for key in begun)
    in_flight = [event["args"]["bytes"] for event in data if event["ph"] == "C"]
    assert min(in_flight) == 0 < max(in_flight)
    by_warp = {}
    for event in sorted(visits, key=lambda event: event["ts"]):
        key = event["pid"], event["tid"]
        assert by_warp.get(key, 0) <= event["ts"]
        by_warp[key] = event["ts"] + event["dur"]


def test_two_traces_are_compared():
    found, _ = recorded("ampere")
    other, _ = recorded("decode")
    assert (
        compare.same(found, found)
        and not compare.same(found, other)
        and not compare.same(found, altered(found, "write_value", (0, 0)))
    )
    as_text = text.render(compare.page(found, other, ("one", "two")), 100)
    assert (
        "ampere" in as_text
        and "decode" in as_text
        and "float16_nibbles" in as_text
        and "new" in as_text
    )
    assert "0 of 4,096 results differ" in text.render(compare.page(found, found), 100)
    changed = altered(found, "after_c", 0)
    assert "1 of 4,096 results differ" in text.render(compare.page(found, changed), 100)


@pytest.mark.thorough
def test_a_browser_walks_through_a_run(tmp_path):
    found, _ = recorded("ampere")
    document = html.render(pages.page(found, pages.Choice(lane=5)))
    with shown(document, tmp_path) as (page, complaints):
        visited = []
        for _ in range(200):
            visited.append(
                page.eval_on_selector(
                    "section.here",
                    "section => [section.id, (section.querySelector('.step.here h3') ||"
                    " {}).textContent || '']",
                )
            )
            page.keyboard.press("ArrowRight")
            if visited[-1] == page.eval_on_selector(
                "section.here",
                "section => [section.id, (section.querySelector('.step.here h3') || {}).textContent"
                " || '']",
            ):
                break
        assert list(dict.fromkeys(key for key, _ in visited)) == list(pages.usual(found))
        unpacking = [title for key, title in visited if key == "unpack"]
        assert any("lop3" in title for title in unpacking) and any(
            "sub.rn.f16x2" in title for title in unpacking
        )
        page.goto(page.url.partition("#")[0] + "#fragments/2")
        assert "product 1 of" in page.inner_text("section.here .step.here h3")
        page.hover("section.here .step.here td[data-key='lane 7']")
        # of A, B, C before and after
        assert page.locator("section.here .step.here .on").count() == 8 + 4 + 4 + 4
        assert page.locator("section.here .step.here td.hot").count() == 20
        assert complaints == []
