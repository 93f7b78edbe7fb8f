"""Contract under test: what is right passes, under every Schedule and with every check; what is
wrong is found where it is, in words that say what to do, and its right twin passes.

The programs are those of ``right_programs`` and ``planted_errors``.
"""

from pathlib import Path

import pytest

from numba_marlin.cli import main as cli
from numba_marlin.emulator import Machine, MachineError, Schedule
from numba_marlin.emulator.checks import CHECKS, OWN, table
from tests.ci_scripts import script
from tests.emulator.checked import SCHEDULES, check_of, launch, strict
from tests.emulator.planted_errors import PLANTED
from tests.emulator.ptx_cases import frame
from tests.emulator.right_programs import RIGHT

WEAK = tuple(
    Schedule(seed, order, memory="weak")
    for seed in range(3)
    for order in ("any", "lanes apart", "slowest warp")
)
DOCS = Path(__file__).parents[2] / "docs" / "checks.md"


def by_name(programs):
    slow = {True: [pytest.mark.thorough], False: []}
    return [
        pytest.param(each, id=each.name, marks=slow[getattr(each, "slow", False)])
        for each in programs
    ]


@pytest.mark.parametrize("program", by_name(RIGHT))
def test_what_is_right_passes_under_every_schedule(program):
    for seed in SCHEDULES:
        x, _ = launch(program, program.body, seed, races=seed is None)
        assert tuple(x[: len(program.x)]) == program.x, seed


@pytest.mark.parametrize("program", by_name(RIGHT))
def test_what_is_right_is_right_in_weak_memory_too(program):
    for seed in WEAK:
        x, _ = launch(program, program.body, seed, races=False)
        assert tuple(x[: len(program.x)]) == program.x, seed


@pytest.mark.thorough
@pytest.mark.parametrize("program", by_name(PLANTED))
def test_so_are_the_mended_ones(program):
    for seed in WEAK[:3]:
        launch(program, program.body.replace(*program.fix), seed, False, "style")


UNDEFINED = [each for each in PLANTED if CHECKS[each.check].kind != "wrong" and each.goes_on]


def marked(body):
    return " ".join(" ".join(line for line in body.splitlines() if "BAD" in line).split())


@pytest.mark.parametrize("program", by_name(PLANTED))
def test_a_planted_error_is_found_where_it_is(program):
    for seed in SCHEDULES:
        with pytest.raises(MachineError) as caught:
            launch(program, program.body, seed, True, strict(program))
        error = caught.value
        assert check_of(error) == program.check, seed
        assert program.words in str(error) and error.text in marked(program.body), seed


@pytest.mark.parametrize("program", by_name(PLANTED))
def test_its_right_twin_passes(program):
    assert program.fix[0] in program.body
    for seed in SCHEDULES:
        _, result = launch(program, program.body.replace(*program.fix), seed, True, "style")
        assert not result.warnings


@pytest.mark.parametrize("program", by_name(UNDEFINED))
def test_what_works_on_chips_is_one_warning_and_the_run_goes_on(program):
    _, result = launch(program, program.body, None, True, f"hardware,{program.check}=warn")
    assert [each.check for each in result.warnings] == [program.check]
    assert result.warnings[0].text in marked(program.body)
    _, result = launch(program, program.body, None, True, f"hardware,{program.check}=off")
    assert not result.warnings


def test_every_check_with_a_name_of_its_own_has_a_program():
    assert {check.name for check in OWN} <= {program.check for program in PLANTED}


def test_the_table_in_docs_is_made_from_the_code():
    assert DOCS.read_text(encoding="utf-8") == table(), "write what table() gives to docs/checks.md"


@pytest.mark.thorough
def test_the_page_of_programs_says_what_comes_of_them():
    """If this fails: python .ci/programs_table.py."""
    made = script("programs_table")
    assert made.PAGE.read_text(encoding="utf-8") == made.page()


@pytest.mark.parametrize(
    "checks, rule",
    [
        ("hard", "must begin with one of strict, hardware, style"),
        ("strict,benign=off", "there is no check 'benign'"),
        ("strict,benign-race=no", "must be benign-race=error, =warn or =off"),
        ("hardware,out-of-bounds=off", "wrong on every machine and always an error"),
    ],
)
def test_what_cannot_be_chosen_is_refused_by_name(checks, rule):
    with pytest.raises(ValueError, match=rule):
        Machine(frame(""), checks=checks)


def test_the_command_line_chooses_too(tmp_path, capsys):
    program = PLANTED[0]
    path = tmp_path / "k.ptx"
    path.write_text(frame(program.body), encoding="utf-8")
    words = ["machine", "run", str(path), "--args", "out:u32[256]", "--no-races"]
    assert cli.main(words) == 1 and "checks='hardware'" in capsys.readouterr().err
    assert cli.main([*words, "--checks", "hardware"]) == 0
    assert "uninitialized-shared: UninitializedRead" in capsys.readouterr().out
    assert cli.main([*words, "--checks", "loose"]) != 0 and "loose" in capsys.readouterr().err
