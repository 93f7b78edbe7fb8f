"""Contract under test: what leads a reader through a run, the idea, six phases, floats to bytes and
the source beside the steps, is read from the run."""

import copy
import json

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.formats.marlin_order import code_order
from numba_marlin.hardware.devices import device as device_named
from numba_marlin.trace import Trace, model, open_trace, pages, sources
from numba_marlin.trace.pages import idea, phases, timeline, weights
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.phases import PHASES, phase_of, phase_of_verb
from numba_marlin.views import COUNTED, Bits, Facts, Levels, Text, plain, text
from numba_marlin.views.palette import palette
from tests.cli.verbs import run
from tests.trace import block_runs
from tests.trace.runs import recorded

NAMES = [phase.name for phase in PHASES]
SEED = [0.5, -0.3, 0.8, -0.1, 0.6, -0.4, 0.2, 0.0]


def test_every_instruction_is_of_one_of_six_phases():
    found, _ = recorded("ampere")
    assert len(NAMES) == 6 and set(phase_of(found)) == set(NAMES)
    for ins, phase in zip(found.instructions, phase_of(found)):
        assert (ins["kind"] == "tensor") == (phase == "multiply" and ins["root"] == "mma")
        if ins["text"].startswith("cp.async.cg"):
            assert phase == "copy"
    verbs = phase_of_verb(found)
    assert (verbs["fetch_to_shared"], verbs["own_slice"], verbs["write_result"]) == (
        "copy",
        "set up",
        "write",
    )
    assert verbs["thread_block_reduce"] == verbs["global_reduce"] == "add up"


@pytest.mark.parametrize("key", ["tiled", "naive", "decode"])
def test_kernels_that_declare_little_have_phases_too(key):
    found, _ = recorded(key)
    names = phase_of(found)
    assert set(names) <= set(NAMES) and {"copy", "write"} <= set(names)


def test_the_flow_has_a_box_for_each_phase_and_all_instructions():
    found, _ = recorded("ampere")
    (flow,) = [
        part
        for part in pages.page(found, keys=("phases",)).sections[0].parts
        if isinstance(part, Levels)
    ]
    assert [box.name for box in flow.levels] == [f"{i} {name}" for i, name in enumerate(NAMES, 1)]
    said = [int(box.size.split()[0].replace(",", "")) for box in flow.levels]
    assert sum(said) == found.counts["total"]["tally"]["executed"]
    assert all(box.down for box in flow.levels[:-1]) and not flow.levels[-1].down
    flops = found.counts["total"]["tally"]["flops"]
    assert ("operations", f"{flops:,}", COUNTED) in flow.levels[3].rows
    colours = palette(pages.page(found, keys=("phases", "timeline")))
    assert len({colours[name] for name in NAMES}) == 6


def test_the_way_of_a_warp_is_folded_where_it_repeats():
    assert phases.folded(list("abababc")) == ["3 x (a > b)", "c"]
    assert phases.folded(list("aabaab")) == ["2 x (a > a > b)"]
    assert phases.folded([]) == [] and phases.folded(["a"]) == ["a"]
    long = list("abc" * 50 + "d")
    assert phases.folded(long) == ["50 x (a > b > c)", "d"]


def test_the_idea_comes_first_and_its_numbers_are_the_runs():
    found, problem = recorded("ampere")
    page = pages.page(found)
    assert [section.key for section in page.sections][:2] == ["idea", "launch"]
    choice = pages.Choice(lane=5)
    parts = idea.section(found, choice).parts
    (facts,) = [part for part in parts if isinstance(part, Facts) and "product" in part.title]
    (word,) = [part for part in parts if isinstance(part, Bits)]
    said = dict((row[0], row[1]) for row in facts.rows)
    k, n = map(int, said["w"].partition("]")[0][2:].split(","))
    code = int(problem.weight.codes[k, n])
    assert f"(code {code} - 8) * scale = {code - 8:+d} * scale" in said["w"]
    assert f"x[0, {k}] = {float(problem.x[0, k]):g}," in said["x"]
    assert word.rows[0].value & 15 == code
    (share,) = [part for part in parts if isinstance(part, Facts) and "stripe" in part.title]
    assert sum(float(row[1].partition("%")[0]) for row in share.rows) == pytest.approx(100, abs=1)
    (words,) = [part.text for part in parts if isinstance(part, Text) and "together" in part.text]
    assert "read the weights once" in words


@pytest.mark.parametrize("name", ["tcgen05", "block_mma"])
def test_the_idea_of_two_operands_is_told_too(name):
    found, _, _ = block_runs.recorded(name)
    said = text.render(pages.page(found, keys=("idea", "weights")), 100)
    assert "nvfp4" in said and "came as codes" in said


def test_source_stands_beside_every_step():
    found, _ = recorded("ampere")
    for section in pages.page(found).sections:
        if section.key in ("copies", "unpack", "fragments", "pipeline"):
            for step in section.steps:
                if step.title == "The result":
                    continue
                (code,) = [
                    part for part in step.parts if isinstance(part, Text) and part.style == "source"
                ]
                file, _, rest = code.text.partition(":")
                number = int(rest.partition(",")[0])
                path = sources.PACKAGE.parent / file
                line = path.read_text(encoding="utf-8").splitlines()[number - 1].strip()
                (marked,) = [each for each in code.text.splitlines() if each.startswith(">")]
                assert marked == f"> {number:>4}  {marked[8:]}" and marked.endswith(line)


def test_a_trace_without_source_shows_none_and_a_strange_one_does_no_harm():
    found, _ = recorded("ampere")
    header = copy.deepcopy(found.header)
    pc = next(pc for pc, ins in enumerate(header["instructions"]) if ins["source"])
    del header["source"]
    assert beside(Trace(header, found.arrays), pc) == ()
    header["instructions"][pc]["source"] = None
    assert beside(Trace(header, found.arrays), pc) == ()
    assert sources.lines_of(["no/such/file.py:3", None, "setup.cfg:1", "odd"]) == {}


def followed(found):
    """The tables and the grid of the section of weights."""
    return {part.title.partition(":")[0]: part for part in weights.section(found, None).parts}


def with_floats(values, scale, codes):
    found, problem = recorded("ampere")
    about = found.about | {
        "floats": {
            "values": values,
            "k": list(range(8)),
            "n": 0,
            "scale": scale,
            "codes": codes,
            "group_size": 128,
            "bits": 4,
            "given": True,
        }
    }
    return Trace(found.header | {"about": about}, found.arrays), problem


def test_the_seeds_eight_numbers_pack_to_what_each_convention_says():
    """Not to 0x3C 0x7F 0x5C 0x20, which a picture of them has."""
    codes = [13, 5, 15, 7, 14, 4, 10, 8]
    found, _ = with_floats(SEED, 0.1067, codes)
    parts = followed(found)
    grid = parts["Two a byte, one after the other"]
    rows = {
        name: [int(cell.text, 16) for cell in row] for name, row in zip(grid.row_labels, grid.cells)
    }
    assert rows == {
        "code, low first": [0x5D, 0x7F, 0x4E, 0x8A],
        "code, high first": [0xD5, 0xF7, 0xE4, 0xA8],
        "two's complement, low first": [0xD5, 0xF7, 0xC6, 0x02],
        "two's complement, high first": [0x5D, 0x7F, 0x6C, 0x20],
    }
    assert "0x3C" in grid.note
    # what the note says of +4 and -3
    assert weights.two_a_byte([12, 5], True) == [0x5C]
    assert weights.two_a_byte([4, 13], True) == [0xD4]


def test_codes_are_read_back_from_the_bytes_at_their_addresses():
    found, problem = recorded("ampere")
    codes = problem.weight.codes[:8, 0].tolist()
    other, _ = with_floats([0.0] * 8, 1.0, codes)
    table = followed(other)["Where they are in Marlin's matrix"]
    assert [int(row[7].text) for row in table.rows] == codes
    assert {row[7].tone for row in table.rows} == {"good"}
    b = found.buffer("b")
    for row in table.rows:
        address, byte = int(row[5], 16), int(row[6], 16)
        assert found.words_b.reshape(-1)[address - b["address"]] == byte
    wrong, _ = with_floats([0.0] * 8, 1.0, [code ^ 1 for code in codes])
    assert {row[7].tone for row in followed(wrong)["Where they are in Marlin's matrix"].rows} == {
        "bad"
    }


@pytest.mark.parametrize("bits", [4, 8])
def test_every_place_is_found(bits):
    order = code_order(bits)
    for k, n in ((0, 0), (17, 63), (15, 64), (31, 127)):
        word, position = weights.place_of(k, n, 64 * 2 * bits, bits)
        row, inside = divmod(word, 64 * 2 * bits)
        block, inside = divmod(inside, order.block_words)
        assert 16 * row + order.row[inside, position] == k
        assert 64 * block + order.column[inside, position] == n


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--floats", "nan"], "at most 8 finite numbers"),
        (["--floats", *map(str, range(9))], "at most 8 finite numbers"),
        (["--floats", "1", "--weights", "nvfp4"], "integer codes"),
        (["--floats", "1", "--kernel", "tcgen05"], "integer codes"),
        (["--floats", "1", "--input", "w.npy"], "omit --input"),
        (["--demo", "--floats", "1"], "omit --floats"),
    ],
)
def test_floats_that_cannot_be_shown_are_refused(arguments, message, capsys):
    code, _, complained = run(capsys, "trace", *arguments)
    assert code == 2 and message in " ".join(complained.split())


@pytest.mark.thorough
def test_floats_of_the_reader_are_what_the_kernel_multiplies(tmp_path, capsys):
    path = tmp_path / "run.npz"
    given = ["--floats", *map(str, SEED), "--m", "16", "--n", "256", "--k", "512"]
    assert cli.main(["trace", *given, "--save", str(path), "--phase", "weights"]) == 0
    assert "0x5D" in capsys.readouterr().out
    found = open_trace(path)
    floats = found.about["floats"]
    assert floats["values"] == [np.float32(value) for value in SEED] and floats["given"]
    assert floats["scale"] == float(np.float16(2 * np.float32(0.8) / 15))
    assert floats["codes"] == [13, 5, 15, 7, 14, 4, 10, 8]
    table = followed(found)["Where they are in Marlin's matrix"]
    assert {row[7].tone for row in table.rows} == {"good"}
    assert json.loads(plain.render(pages.page(found, keys=("weights",))))


def test_every_timeline_says_how_much_of_their_time_they_multiply():
    found, _ = recorded("ampere")
    device = device_named("H200")  # the default
    works = model.works(found, 0)
    rates = model.rates(device.bandwidth_bytes, device.peak_flops(16), device.sms)
    said = plain.render(pages.page(found, keys=("timeline",)))
    shares = []
    for how in (model.without_pipeline, model.double_buffer, model.with_pipeline):
        uses = how(works, rates)
        share = sum(model.cycles_of(work, rates) for work in works) / uses[-1].done
        assert timeline.busy(uses) == pytest.approx(share) and f" in {share:.0%}" in said
        shares.append(share)
    assert 0 < shares[0] < shares[1] <= shares[2] <= 1
