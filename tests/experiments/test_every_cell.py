"""Contract under test: experiment 25's cells are those of its layers, its tables say what its rows
say, and a run resumes, stops in time and leaves out the peers that fail. Times are invented."""

from types import SimpleNamespace

import pytest

from numba_marlin.bench import measure as measure_module
from numba_marlin.bench import rows
from numba_marlin.bench.peers import PeerFailed
from numba_marlin.errors import CapabilityMissing
from numba_marlin.problems import WeightProblem
from tests.bench.invented import row as invented
from tests.experiments.every_cell_rows import H200, cell, run

__all__ = ["run"]  # a fixture


def lines_of(table):
    return [
        [each.strip() for each in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_layers_are_distinct_problems_of_many_models_with_sources(run):
    layers = run.shapes.layers()
    assert len({(each.k, each.n) for each in layers}) == len(layers) >= 24
    assert all(run.shapes.source(each).count("/") == 1 for each in layers)
    makers = {run.shapes.source(each).partition("/")[0] for each in layers}
    assert len(makers) >= 6 and {"tp2", "tp4", "tp8"} <= {
        each.name.partition("/")[2].partition(" ")[0] for each in layers
    }
    for each in layers:
        WeightProblem(1, each.n, each.k, run.GROUP_SIZE)


def test_every_cell_comes_once_and_each_pass_has_all_layers(run):
    cells = run.shapes.cells()
    assert len(set(cells)) == len(cells) == len(run.shapes.layers()) * len(run.shapes.BATCHES)
    first = len(run.shapes.layers()) * len(run.shapes.PASSES[0])
    assert {layer for layer, _ in cells[:first]} == set(run.shapes.layers())
    assert {m for _, m in cells[:first]} == set(run.shapes.PASSES[0])


def test_cells_are_chosen_by_pattern(run):
    found = run.shapes.cells(["5120x5120@64", "*x3584@1"])
    assert {(each.k, each.n, m) for each, m in found} > {(5120, 5120, 64), (18944, 3584, 1)}
    assert {each.n for each, m in found if m == 1} == {3584} and len(found) == 1 + 4
    with pytest.raises(ValueError, match="'51x@1' names none"):
        run.shapes.cells(["*@1", "51x@1"])


@pytest.mark.parametrize("m", [1, 128, 2048])
def test_the_choice_comes_first_and_nothing_hopeless_is_timed(run, m):
    problem = WeightProblem(m, 5120, 5120, 128)
    found = run.candidates_of(problem, H200, 4)
    assert found[0] == run.rank(problem, H200)[0] and 1 < len(found) <= 4
    assert run.candidates_of(problem, H200, 1) == found[:1]
    times = [each.figures["predicted_us"] for each in run.candidates_of(problem, H200, 99)]
    assert times == sorted(times) and times[-1] <= run.FAR * times[0]


def test_regret_is_over_the_fastest_that_was_timed(run):
    layer, report = run.shapes.layers()[0], run.report
    assert report.regret(cell(run, layer, 1, 10.0, (12.0, 8.0, 9.0))) == 0.25
    assert report.regret(cell(run, layer, 1, 10.0, (12.0,))) == 0
    assert report.best_other(cell(run, layer, 1, 10.0)) is None


def test_the_tables_say_who_is_ahead(run):
    one, two = run.shapes.layers()[:2]
    found = [
        cell(run, one, 1, us=10.0, others=(8.0,), humming=9.0),
        cell(run, one, 64, us=40.0, humming=50.0),
        cell(run, two, 64, us=20.0, humming="peer 'humming' raises E"),
        cell(run, two, 64, us=15.0, humming="peer 'humming' raises E"),  # newer: this one counts
        cell(run, one, 3),  # an m that is not in the table
        cell(run, one, 1) | {"group_size": 32},
    ]
    report, cells = run.report, run.report.newest(found)
    assert [(layer, m) for layer, m in cells] == [(one, 1), (one, 64), (two, 64)]
    assert report.names_of_peers(cells) == ["cuBLAS fp16", "humming"]
    first, second, total = lines_of(report.overview(cells))  # cuBLAS takes 30 us
    assert first == ["1 to 16", "1", "3.00 (1 of 1)", "0.90 (0 of 1)", "25.0%", "25.0%"]
    assert second == ["17 to 64", "2", "1.22 (1 of 2)", "1.25 (1 of 1)", "0.0%", "0.0%"]
    assert total[:3] == ["1 to 4096", "3", "1.65 (2 of 3)"]
    lines = lines_of(report.speedups(cells, "cuBLAS fp16"))
    assert [each for each in lines[0] if each] == ["5120 x 5120", "3.00", "**0.75**"]
    lines = lines_of(report.speedups(cells, "humming"))  # it failed in the other layer
    assert [[each for each in line if each] for line in lines] == [
        ["5120 x 5120", "**0.90**", "1.25"]
    ]
    worst, last = lines_of(report.lost(cells))
    assert worst[:5] == ["5120 x 5120", "64", "40.00", "**0.75**", "1.25"]
    assert last[:5] == ["5120 x 5120", "1", "10.00", "3.00", "**0.90**"]
    (line,) = lines_of(report.regrets(cells))
    assert line[:3] == ["5120 x 5120", "1", "25.0%"] and line[-3:] == ["8.00", "9.00", "tile_m=64"]
    said = report.sentences(cells)
    assert "Beside humming: ahead in 1 of 2 cells, 0.90 to 1.25 times as fast" in said
    assert "humming failed in 1 cells; the first says: peer 'humming' raises E" in said
    assert "2 of 3 cells are within 5%" in said and "8.3% on average (goal 2%)" in said
    assert "Peers: humming 1.0." in report.body(cells)


def test_without_rows_the_report_has_the_layers(run):
    text = run.report.body({})
    assert "Not measured yet" in text and "deepseek-ai/DeepSeek-V3" in text


@pytest.mark.thorough
def test_the_readme_shows_the_recorded_rows_with_todays_choices(run):
    begin, end = run.report.MARKERS
    text = (run.HERE / "README.md").read_text(encoding="utf-8")
    cells = run.cells_of_today(run.RESULTS)
    assert text.split(begin)[1].split(end)[0].strip() == run.report.body(cells)


def test_todays_choice_stands_where_it_was_timed(run):
    """And its time is that of the same rounds; what was chosen then is one of the others."""
    layer = run.shapes.layers()[0]
    row = cell(run, layer, 64, us=20.0, others=(8.0, 9.0), humming=16.0)
    row["others"][1] |= {"kernel": "decode", "config": {"batch": 8}}
    whole = {"tile_m": 128, "tile_n": 128, "stages": 4}

    def today(kernel, config):
        key = (layer, 64)
        return run.report.of_today({key: row}, {key: (kernel, config)})[key]

    assert today("wgmma", whole) == row
    other = today("wgmma", whole | {"tile_m": 64})
    assert (other["us"], run.report.ratio(other, "humming"), run.report.regret(other)) == (8, 2, 0)
    assert [each["us"] for each in other["others"]] == [20.0, 9.0]
    assert other["others"][1]["config"] == {"batch": 8}
    assert other["limit_share"] == pytest.approx(2.5 * row["limit_share"])
    decode = today("decode", {"batch": 8})
    assert decode["us"] == 9.0 and run.report.best_other(decode)["config"] == whole | {"tile_m": 64}
    unknown = today("wgmma", whole | {"tile_m": 32})
    assert unknown["us"] == 20.0
    said = run.report.sentences({1: row, 2: other, 3: decode, 4: unknown})
    assert "In 2 cells the choice is another than when they were timed" in said
    assert "In 1 today's choice was not timed" in said


def test_no_lost_cell_is_said_in_words(run):
    layer = run.shapes.layers()[0]
    assert run.report.lost({(layer, 1): cell(run, layer, 1)}) == "No cell is lost."


class FakeBench:
    """Every configuration takes 10 us more than the one before; ``asked``: what was to be left out
    of each cell. ``bad``: the name of a peer that fails."""

    asked: list = []
    bad = ""

    def __init__(self, settings):
        self.settings, self.device = settings, H200
        self.environment = {"device": "GPU", "driver": "1", "sources": "0"}
        self.peers = [SimpleNamespace(name=each.rpartition(":")[2]) for each in settings.peers]

    def ceilings(self, dtype):
        pass

    stub = measure_module.Bench.stub

    def cell(self, problem, candidates, chosen, label, without=()):
        self.asked.append((problem.m, without))
        entrants = [each for each in self.peers if each.name not in without]
        if any(each.name == self.bad for each in entrants):
            raise PeerFailed(self.bad, "raises TypeError: bf16 only")
        found = [
            invented(us=10.0 * (at + 1)) | self.stub(problem, each) | {"chosen": each == chosen}
            for at, each in enumerate(candidates)
        ]
        return found + [
            invented(us=25.0, kernel=each.name, peer_version="1.0") for each in entrants
        ]


@pytest.fixture
def measured(run, monkeypatch, tmp_path, capsys):
    """call(arguments) -> (what was asked for, rows of the file, what was printed)"""
    out = tmp_path / "r.jsonl"
    FakeBench.asked, FakeBench.bad = [], ""
    monkeypatch.setattr(measure_module, "Bench", FakeBench)
    monkeypatch.setattr(run, "compile_all", lambda work, device, jobs: len(work))
    monkeypatch.setattr(
        "numba_marlin.bench.timing.torch_on_gpu",
        lambda: SimpleNamespace(cuda=SimpleNamespace(OutOfMemoryError=MemoryError)),
    )

    def call(*arguments):
        FakeBench.asked.clear()
        run.main(["measure", "--out", str(out), "--cells", "5120x5120@*", *arguments])
        return (
            list(FakeBench.asked),
            rows.read(out) if out.exists() else [],
            capsys.readouterr().out,
        )

    return call


def test_a_run_goes_on_where_it_stopped(run, measured):
    asked, found, said = measured("--seconds", "4")
    assert asked == [] and found == [] and "18 to go" in said  # the first cell might take longer
    asked, found, said = measured()
    assert [m for m, _ in asked] == [m for each in run.shapes.PASSES for m in each]
    assert len(found) == 18 and "regret 0.0%" in said and "cuBLAS 3.00" in said
    asked, found, _ = measured()
    assert asked == [] and len(found) == 18
    asked, found, said = measured("--peer", "humming")  # a peer that the rows do not have
    assert len(asked) == 18 and len(found) == 36 and "humming 2.50" in said
    assert measured("--peer", "humming")[0] == []


def test_a_run_goes_on_after_an_edit_of_the_kernels(run, measured, monkeypatch):
    """Rows of other sources count, unless --again asks for a row of these."""
    cells = ("--cells", "5120x5120@1,5120x5120@512")
    assert len(measured(*cells)[0]) == 2
    whole = FakeBench.__init__

    def edited(self, settings):
        whole(self, settings)
        self.environment |= {"sources": "1", "driver": "2", "commit": "later"}

    monkeypatch.setattr(FakeBench, "__init__", edited)
    assert measured(*cells)[0] == []
    assert len(measured(*cells, "--again")[0]) == 2
    proposed = run.candidates_of
    monkeypatch.setattr(run, "candidates_of", lambda *of: proposed(*of)[1:])
    assert len(measured(*cells)[0]) == 2  # another choice


def test_a_peer_that_fails_is_left_out_of_the_cell(measured):
    FakeBench.bad = "gemlite"
    asked, found, _ = measured("--peer", "gemlite", "--peer", "humming", "--cells", "5120x5120@1")
    assert asked == [(1, ()), (1, ("gemlite",))]
    (row,) = found
    assert row["peers"]["gemlite"] == {"failed": "peer 'gemlite' raises TypeError: bf16 only"}
    assert row["peers"]["humming"]["us"] == 25.0
    assert measured("--peer", "gemlite", "--cells", "5120x5120@1")[0] == []  # known to fail
    again = ("--peer", "gemlite", "--cells", "5120x5120@1", "--retry")
    assert measured(*again)[0] == [(1, ()), (1, ("gemlite",))]
    assert measured("--peer", "humming", "--cells", "5120x5120@1", "--retry")[0] == [(1, ())]


def test_a_peer_that_runs_nowhere_is_given_up(run, measured):
    FakeBench.bad = "gemlite"
    asked, found, _ = measured("--peer", "gemlite")
    assert [left_out for _, left_out in asked] == [(), ("gemlite",)] * 3 + [("gemlite",)] * 15
    assert all("bf16 only" in row["peers"]["gemlite"]["failed"] for row in found)
    rows = [{"peers": {"a": {"failed": "x"}}}] * 5
    assert run.hopeless_peers(rows) == {"a": "x"} and run.hopeless_peers(rows[:2]) == {}
    assert run.hopeless_peers([*rows, {"peers": {"a": {"us": 1.0}}}]) == {}


def test_a_row_says_how_the_others_differ(measured):
    _, (row,), _ = measured("--cells", "5120x5120@512")
    assert row["kernel"] == "wgmma" and row["others"] and row["predicted_us"] > 0
    for other in row["others"]:
        if other["kernel"] == "wgmma":
            assert 0 < len(other["config"]) < len(row["config"])
            assert all(row["config"][name] != each for name, each in other["config"].items())
    assert "ceilings" not in row and "bytes" not in row


def test_a_configuration_that_does_not_fit_leaves_the_choice(measured, monkeypatch):
    whole = FakeBench.cell

    def full(self, problem, candidates, *more, **named):
        if len(candidates) > 1:
            raise CapabilityMissing("blocks wait for each other and do not all fit")
        return whole(self, problem, candidates, *more, **named)

    monkeypatch.setattr(FakeBench, "cell", full)
    _, (row,), _ = measured("--cells", "5120x5120@512")
    assert row["others"] == []


def test_a_wrong_result_of_ours_is_said_and_ends_in_an_error(measured, monkeypatch):
    def wrong(*arguments, **named):
        raise measure_module.WrongResult("kernel 'wgmma': relative error 1", "wgmma")

    monkeypatch.setattr(FakeBench, "cell", wrong)
    with pytest.raises(SystemExit, match="1 cells could not be measured"):
        measured("--cells", "5120x5120@512")


def test_only_what_is_not_cached_is_compiled(run, monkeypatch):
    from numba_marlin import compiler
    from numba_marlin.execution import warmup

    problem = WeightProblem(1, 5120, 5120, 128)
    found = run.candidates_of(problem, H200)
    there = found[0].config
    monkeypatch.setattr(compiler, "load", lambda kernel, config, target: config == there or None)
    asked = []
    monkeypatch.setattr(
        warmup, "compile_missing", lambda choice, jobs: asked.append(choice) or choice
    )
    assert run.compile_all([(problem, found), (problem, found)], H200, 2) == len(found) - 1
    assert [each.job.config for each in asked[0].kernels] == [each.config for each in found[1:]]
    assert {each.job.target for each in asked[0].kernels} == {"sm_90a"}


@pytest.mark.parametrize("peer", ["humming", "gemlite"])
def test_peers_by_name_are_files_beside_it(run, peer):
    file, _, name = run.spelled(peer).rpartition(":")
    assert name == peer and f"def {peer}(weight):" in open(file, encoding="utf-8").read()
    assert run.spelled("a.py:f") == "a.py:f"
    with pytest.raises(ValueError, match="--peer hum must be one of gemlite, humming"):
        run.spelled("hum")
