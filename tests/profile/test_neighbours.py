"""Contract under test: ``profile --try`` tries configurations one field away that the device holds,
drops those that do not run, judges the others by the quartiles of the same rounds, and says what a
GPU is needed for."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from numba_marlin.bench import measure, tune
from numba_marlin.cli.main import main
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.heuristics import Problem, candidate, find_kernel
from numba_marlin.problems import BlockProblem
from numba_marlin.profile.pages import profile_page
from numba_marlin.profile.sources import neighbours, rules
from numba_marlin.views import text
from tests.profile.built import H200, data, section

CASES = (
    ("ampere", Problem(16, 8192, 8192)),
    ("decode", Problem(16, 8192, 8192)),
    ("wgmma", Problem(256, 8192, 8192)),
    ("block_scaled", BlockProblem(4096, 4096, 4096)),
)


@pytest.mark.parametrize("kernel, problem", CASES)
def test_a_neighbour_is_named_by_the_one_thing_that_was_changed(kernel, problem):
    chosen = candidate(problem, H200, kernel)
    found = neighbours.neighbours(problem, chosen, H200)
    assert 2 <= len(found) <= neighbours.MOST
    assert len({each.candidate.config for each in found} | {chosen.config}) == len(found) + 1
    own = asdict(chosen.config)
    for each in found:
        other = asdict(each.candidate.config)
        changed = [name for name in own if own[name] != other[name]]
        assert each.change == ", ".join(f"{name} {own[name]} > {other[name]}" for name in changed)
        # as if it had been asked for by name: nothing is tried that the device refuses
        assert candidate(problem, H200, kernel, each.candidate.config) == each.candidate


@pytest.mark.parametrize("kernel, problem", CASES[1:3])
def test_a_number_goes_to_the_next_one_that_the_kernel_proposes(kernel, problem):
    chosen = candidate(problem, H200, kernel)
    proposed = [asdict(each) for each in find_kernel(kernel).chooser.configurations(problem, H200)]
    own, seen = asdict(chosen.config), 0
    for each in neighbours.neighbours(problem, chosen, H200):
        name, value, _, other = each.change.split(", ")[0].split()
        numbers = {config[name] for config in proposed} - {own[name]}
        if value.isdigit() and numbers:
            low, high = sorted((int(value), int(other)))
            assert int(other) in numbers and not any(low < each < high for each in numbers)
            seen += 1
    assert seen


def test_what_a_smaller_device_cannot_hold_is_no_neighbour():
    problem, small = Problem(16, 8192, 8192), devices.device("RTX 4090")
    chosen = candidate(problem, small, "ampere")
    for each in neighbours.neighbours(problem, chosen, small):
        assert each.candidate.shared_bytes <= small.shared_bytes_per_block


def test_a_kernel_that_has_nothing_to_choose_has_no_neighbours():
    problem = Problem(16, 256, 256)
    assert neighbours.neighbours(problem, candidate(problem, H200, "tiled"), H200) == ()


def bench_of(times: dict, asked: list):
    """A bench whose rows have these times: {configuration: (low, median, high)}."""

    def cell(problem, candidates, chosen):
        asked.append((problem, candidates, chosen))
        return [
            {
                "us": times[each.config][1],
                "us_spread": [times[each.config][0], times[each.config][2]],
                "registers": 100,
            }
            for each in candidates
        ]

    return SimpleNamespace(device=H200, cell=cell)


def four_neighbours():
    problem = Problem(16, 8192, 8192)
    chosen = candidate(problem, H200, "ampere")
    return problem, chosen, neighbours.neighbours(problem, chosen, H200, most=4)


def timed(monkeypatch):
    problem, chosen, around = four_neighbours()
    faster, slower, unclear, wrong = (each.candidate for each in around)
    monkeypatch.setattr(
        tune,
        "screen",
        lambda bench, problem, given: (
            [(each, 1.0) for each in given if each is not wrong],
            [(wrong, "relative error 0.5")],
        ),
    )
    times = {
        chosen.config: (9.9, 10.0, 10.1),
        faster.config: (8.9, 9.0, 9.1),
        slower.config: (11.9, 12.0, 12.1),
        unclear.config: (8.0, 9.5, 11.0),
    }
    asked = []
    found = neighbours.timed(bench_of(times, asked), problem, chosen, around)
    return found, [each.change for each in around], asked, chosen


def test_neighbours_are_timed_beside_the_launch_and_judged(monkeypatch):
    found, changes, asked, chosen = timed(monkeypatch)
    ((_, together, first),) = asked  # one cell: the same rounds
    assert together[0] == first == chosen and len(together) == 4
    assert [(row["change"], row["verdict"]) for row in found["rows"]] == [
        ("", ""),
        (changes[0], "faster"),
        (changes[1], "slower"),
        (changes[2], "ambiguous"),
    ]
    assert [row["change_by"] for row in found["rows"]] == [0.0, -0.1, 0.2, -0.05]
    assert found["dropped"] == [{"change": changes[3], "why": "relative error 0.5"}]


def test_what_was_timed_stands_on_the_page_and_among_the_findings(monkeypatch):
    found, changes, _, _ = timed(monkeypatch)
    told = {**data(), "tried": found}
    shown = section(told, "tried")
    assert all(change in shown for change in changes) and "-10.0%" in shown
    assert "relative error 0.5" in shown and "measured" in shown
    (finding,) = [each for each in rules.findings(told) if "neighbouring" in each.rule]
    assert finding.tone == rules.WARN and f"{changes[0]}: 9.00 us in place of 10.00" in finding.text
    found["rows"] = [row for row in found["rows"] if row["verdict"] != "faster"]
    (finding,) = [each for each in rules.findings(told) if "neighbouring" in each.rule]
    assert finding.tone == rules.GOOD and "of 2 configurations" in finding.text


def test_a_profile_is_tried_again_from_its_own_data():
    found = data()
    assert neighbours.problem_of(found) == Problem(16, 256, 256)
    assert asdict(neighbours.chosen_of(found, H200).config) == found["config"]
    with pytest.raises(ValueError, match="kind 'experts' has no neighbours"):
        neighbours.problem_of({**found, "kind": "experts"})


@pytest.mark.thorough
def test_counted_neighbours_differ_by_what_the_machine_counted():
    problem = Problem(16, 256, 512)
    chosen = candidate(problem, H200, "ampere")
    (stages,) = [
        each
        for each in neighbours.neighbours(problem, chosen, H200)
        if each.change.startswith("stages") and each.change.endswith("> 3")
    ]
    found = neighbours.counted(problem, chosen, (stages,), H200)
    own, other = found["rows"]
    assert found["source"] == "counted" and not found["dropped"]
    assert (own["change"], other["change"]) == ("", stages.change)
    assert own["flops"] == other["flops"] == 2 * 16 * 256 * 512
    assert own["shared_bytes"] > other["shared_bytes"]
    shown = text.render(profile_page.page({**data(), "tried": found}).only(("tried",)), 100)
    assert "Counted (counted)" in shown and "measured" not in shown


def test_without_a_gpu_it_is_exit_code_3_before_any_work(capsys, monkeypatch):
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver"))
    assert main(["profile", "--demo", "--try"]) == 3
    err = capsys.readouterr().err
    assert "on a GPU, with torch: no NVIDIA driver" in err and "--try counted" in err
    assert "counting" not in err
    assert main(["profile", "--demo", "--try", "--device", "H200"]) == 2
    assert "omit --device" in capsys.readouterr().err


def test_on_a_gpu_a_saved_profile_is_tried(monkeypatch, tmp_path, capsys):
    """The path of the command, with a bench in the GPU's place."""
    problem, chosen, around = four_neighbours()
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", "13.0", (H200,)))
    monkeypatch.setattr(driver, "describe", lambda ordinal: H200)
    monkeypatch.setattr(
        tune, "screen", lambda bench, problem, given: ([(each, 1.0) for each in given], [])
    )
    near = neighbours.neighbours(problem, chosen, H200)
    times = {each.candidate.config: (11.0, 11.5, 12.0) for each in near}
    times[chosen.config] = (9.0, 10.0, 10.5)
    monkeypatch.setattr(measure, "Bench", lambda settings: bench_of(times, []))
    path = tmp_path / "run.json"
    saved = {
        **data(),
        "problem": problem.to_dict(),
        "kernel": "ampere",
        "config": asdict(chosen.config),
    }
    path.write_text(json.dumps(saved))
    assert main(["profile", "--open", str(path), "--try", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["profile"]["tried"]
    assert found["device"] == "H200" and len(found["rows"]) == len(near) + 1
    assert {row["verdict"] for row in found["rows"][1:]} == {"slower"}
