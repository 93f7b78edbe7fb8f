"""Contract under test: the page of experiment 29 has the tables of its results, and says what they
say; a launch comes out of its folder as it went in; a wrong result is found."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_marlin.layout.tensor_map import TensorMap
from tests.experiment_results import FOLDER, module, rows

EXPERIMENT = "29_zoo"
PAGE = (FOLDER / EXPERIMENT / "README.md").read_text(encoding="utf-8")
PROSE = PAGE.partition("<!-- results:end -->")[2]
ROWS = rows(EXPERIMENT)
RAN = [row for row in ROWS if "kinds" in row]
ADD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y, .param .f32 more)
{
    .reg .b32 %r<3>; .reg .b64 %rd<5>; .reg .f32 %f<4>;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [more];
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
    ld.global.f32 %f2, [%rd1]; add.f32 %f3, %f2, %f1; st.global.f32 [%rd2], %f3;
    ret;
}
"""


def test_the_page_has_the_tables(monkeypatch):
    report = module(EXPERIMENT, "report", monkeypatch)
    results = FOLDER / EXPERIMENT / "results.jsonl"
    assert report.tables(results) in PAGE, "run python experiments/29_zoo/run.py report"


def test_what_the_page_says_of_all():
    assert all(row["outcome"] == "right" and not row["exact"] for row in RAN)
    others = [row for row in RAN if row["package"] != "numba_marlin"]
    assert len({row["kernel"] for row in others}) >= 8
    assert len({row["compiler"] for row in RAN}) >= 5
    wrong_somewhere = {row["package"] for row in RAN if any(row.get("orders", ()))}
    assert wrong_somewhere == {"exllamav2"}
    clean = [row for row in RAN if row["compiler"] == "Triton" or row["package"] == "numba_marlin"]
    assert not any(row["races"] or row["warnings"] for row in clean)


def test_the_published_marlin_on_its_own_test(monkeypatch):
    problems = module(EXPERIMENT, "marlin_problems", monkeypatch)
    found = rows(EXPERIMENT, "marlin_problems.jsonl")
    assert problems.table(found) in PAGE, "run python experiments/29_zoo/marlin_problems.py report"
    asked = [{**vars(each), "sms": sms} for sms in problems.SMS for each in problems.problems()]
    assert [{key: row[key] for key in asked[0]} for row in found] == asked
    assert all(row["outcome"] == "right" and row["ratio"] <= 1 for row in found)
    scales = [row for row in found if problems.race_of(row) == "scales"]
    assert all((row["thread_k"], row["group"]) == (64, 128) for row in scales) and scales
    assert {problems.race_of(row) for row in found} == {"reduction", "scales"}


@pytest.mark.parametrize("m", (1, 16, 17, 64, 65, 118, 152, 1024, 1100))
def test_launches_of_the_published_marlin_cover_every_row_once(m, monkeypatch):
    problems = module(EXPERIMENT, "marlin_problems", monkeypatch)
    parts = problems.parts(m)
    covered = [row for part in parts for row in range(part.first, part.first + part.rows)]
    assert covered == list(range(m))


def counts(name: str, *kinds: str) -> str:
    (row,) = [row for row in ROWS if row["name"] == name and row["target"] in ("sm_80", "sm_90a")]
    return f"{sum(row['kinds'][kind] for kind in kinds or row['kinds']):,}"


def test_the_figures_of_the_page():
    ours = [f"ours_{kernel}_numba_cuda" for kernel in ("wgmma", "decode")]
    for each in ("humming_m16", "marlin", *ours):
        assert f" {counts(each)} " in PROSE or f"{counts(each)} of ours" in PROSE, each
        assert counts(each, "integer", "compare", "control") in PROSE, each
    (row,) = [
        row for row in ROWS if (row["name"], row["target"]) == ("exllamav2_gptq_n512", "sm_80")
    ]
    assert f"{max(row['orders']):,} of {row['m'] * row['n']:,}" in PROSE
    assert sum(map(bool, row["orders"])) == 2


@pytest.fixture
def zoo(monkeypatch, tmp_path):
    names = ("launches", "judge")
    found = {name: module(EXPERIMENT, name, monkeypatch) for name in names}
    launches = found["launches"]
    x, y = np.arange(32, dtype=np.float32), np.full(32, np.nan, np.float32)
    arguments = {"x": x, "y": launches.Written(y), "more": np.float32(0.5)}
    launch = launches.Launch(ADD, "add", (1, 1, 1), (32, 1, 1), arguments, "y")
    launch.write(tmp_path)
    return SimpleNamespace(**found, folder=tmp_path, launch=launch, x=x)


def test_a_launch_comes_out_of_its_folder_as_it_went_in(zoo):
    y, result, counted = zoo.judge.run(zoo.folder, counting=True)
    assert np.array_equal(y, zoo.x + np.float32(0.5)) and result.blocks == 1
    assert {each.name for each in counted.buffers} == {"x", "y"}
    assert zoo.launches.parameters_of(ADD, "add") == 3


def test_parts_are_added_as_the_host_adds_them(zoo):
    zoo.launch.arguments["y"] = zoo.launches.Written(np.zeros((2, 4, 4), np.float32))
    zoo.launch.write(zoo.folder)
    y = zoo.judge.run(zoo.folder)[0]
    assert np.array_equal(y, (zoo.x + np.float32(0.5)).reshape(2, 4, 4).sum(axis=0))


def test_a_tensor_map_keeps_its_strides(zoo):
    tensor_map = TensorMap("float16", (2, 8, 64), (128, 256, 2), (1, 8, 64), 128)
    array = np.arange(8 * 128, dtype=np.float16).reshape(8, 128)
    argument = zoo.launches.TensorMapOf(array, tensor_map, written=True)
    word = zoo.launches.Launch._word(zoo.folder, "c", argument)
    with zoo.launches.inside(zoo.folder):
        back = zoo.judge.mapped(word)
    assert back.map == tensor_map and np.array_equal(back.array, array)
    assert back.written and back.name == "c"


def test_wrong_results_are_found(zoo):
    problem = zoo.judge.problem
    x, weight = problem.operands("gaussian", 2, 64)
    right = zoo.judge.reference(x, weight).astype(np.float16)
    subject = SimpleNamespace(half_roundings=4)
    assert zoo.judge.verdict(right, x, weight, subject)["bound"] == "sums"
    for spoil, count in ((np.float16(np.nan), "not_finite"), (right[1, 2] + 20, "wrong")):
        wrong = right.copy()
        wrong[1, 2] = spoil
        found = zoo.judge.verdict(wrong, x, weight, subject)
        assert found["bound"] is None and found[count] == 1
