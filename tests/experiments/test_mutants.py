"""Contract under test: experiment 16_mutants has judged every mutant of today's kernels, and nobody
survived without a proof; a few of each kernel are judged here and now.

What it has judged is told by a kernel's skeleton, the order of its accesses, copies,
synchronisations and branches: other arithmetic, registers and comments make nothing stale.
"""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_marlin.mutation.judge import budgets, judge
from numba_marlin.mutation.mutants import mutants, skeleton
from numba_marlin.mutation.program import Program
from tests.experiments.mutants_sample import SAMPLE
from tests.kernels.broken import POLLS
from tests.mutation.kernels import text

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "16_mutants"
RUN = "python experiments/16_mutants/run.py"
ROWS = [
    json.loads(line) for line in (FOLDER / "results.jsonl").read_text(encoding="utf-8").splitlines()
]
# Those that are quickly judged; with --thorough all, which between them have every kind of guard.
USUAL = ("general, a scale per column", "tcgen05")
EVERY_CELL = tuple(dict.fromkeys(row["cell"] for row in ROWS))


def usual_first(names):
    return [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough) for name in names
    ]


@pytest.fixture(scope="module")
def experiment():
    """The experiment's modules by name, imported as its run.py imports them."""
    names = (
        "cells",
        "shapes",
        "part_conditions",
        "conditions",
        "hopper_conditions",
        "block_conditions",
        "offset_conditions",
        "proof",
        "hopper_proofs",
        "copy_conditions",
        "expert_conditions",
        "expert_proofs",
        "offset_proofs",
        "proofs",
        "small_cells",
        "report",
        "run",
        "problems",
    )
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def test_every_mutant_was_caught_or_is_proved_to_be_equivalent(experiment):
    proofs = {proof.name for proof in experiment.proofs.PROOFS}
    left = [
        f"{row['cell']}: {row['mutant']}"
        for row in ROWS
        if row["outcome"] not in ("caught", "equivalent")
        or row["outcome"] == "equivalent"
        and row["proof"] not in proofs
    ]
    assert not left, (
        f"{len(left)} mutants survived or are proved by nobody, the first are {left[:5]}: `{RUN}"
        " --report` lists them"
    )
    judged, waiting = {row["cell"] for row in ROWS}, set(experiment.cells.WAITING)
    assert judged | waiting == set(experiment.cells.CELLS) and not judged & waiting, (
        f"cells were added, renamed or judged: `{RUN}`"
    )


def as_judged(name: str) -> None:
    """Skip where Python compiles a loop of waits otherwise than the Pythons on which the mutants
    were judged: the kernels with such loops have others."""
    if POLLS == 1 and name.startswith(("ampere", "decode", "wgmma", "tcgen05", "moe")):
        pytest.skip("judged where a wait is two polls; this Python compiles it to one")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough)
        for name in EVERY_CELL
    ],
)
def test_what_was_judged_are_the_mutants_of_todays_kernels_and_proofs_hold_for_no_other(
    name, experiment
):
    as_judged(name)
    cell = experiment.cells.CELLS[name]
    of_cell = {row["mutant"]: row for row in ROWS if row["cell"] == name}
    if experiment.cells.compiler_of(cell) not in {row["compiler"] for row in of_cell.values()}:
        pytest.skip(
            f"judged with {next(iter(of_cell.values()))['compiler']}, compiled with"
            f" {experiment.cells.compiler_of(cell)}"
        )
    ptx = cell.compiled.ptx
    message = (
        f"{name}: what its PTX accesses, copies, waits for or branches on has changed since its"
        f" mutants were judged; `{RUN} --cell '{name}'` judges them again, in minutes"
    )
    assert {row["skeleton"] for row in of_cell.values()} == {skeleton(ptx)}, message
    found = {mutant.name: mutant for mutant in mutants(ptx)}
    assert set(found) == set(of_cell), f"the rules have changed: `{RUN} --cell '{name}'`"
    program = Program(ptx)
    for row in of_cell.values():
        proof = experiment.proofs.proof_of(cell, program, found[row["mutant"]])
        if row["outcome"] == "equivalent":
            assert proof is not None and proof.name == row["proof"], (
                f"{row}: its proof holds no longer"
            )
        else:
            assert proof is None, (
                f"{row}: {proof.name!r} says that this mutant changes nothing, and it was caught"
            )


@pytest.mark.parametrize("name", usual_first(SAMPLE))
def test_a_few_mutants_are_caught_here_and_now(name, experiment):
    as_judged(name)
    cell = experiment.cells.CELLS[name]
    ptx, launches, schedules = cell.compiled.ptx, cell.launches[:1], (None,)
    budget, found = budgets(ptx, launches, schedules), mutants(ptx)
    for words in SAMPLE[name]:
        kind, *rest = words.split()
        mutant = next(
            each
            for each in found
            if each.kind == kind and all(word in each.name.partition("/")[2] for word in rest)
        )
        assert judge(mutant.apply(ptx), launches, schedules, budget) is not None, mutant.name


def test_the_report_counts_every_mutant_once(experiment, tmp_path, capsys):
    readme = tmp_path / "README.md"
    begin, end = experiment.report.MARKERS
    readme.write_text(f"before\n{begin}\n{end}\nafter\n")
    rows = [
        {**ROWS[0], "outcome": "caught", "how": how}
        for how in ("Deadlock", "wrong result", "Race", "Race")
    ] + [{**ROWS[0], "outcome": "survived"}]
    assert experiment.report.report(rows, readme, "anything") == 1
    assert (
        f"| {rows[0]['cell']} | 5 | 2 | 1 | 1 | 0 | 1 |" in readme.read_text()
        and "Race 2" in readme.read_text()
    )
    assert (
        experiment.report.report(rows[:4], readme, "anything") == 0
        and "Nobody survived" in readme.read_text()
    )
    counts = Counter(map(experiment.report.group, ROWS))
    assert set(counts) <= set(experiment.report.GROUPS) and sum(counts.values()) == len(ROWS)


POLL = """
mov.u32 %r1, tile;
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
@%p1 bra DONE;
AGAIN:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [{}], 0;
@!%p2 bra AGAIN;
DONE:
"""


def branch_of(ptx):
    program = Program(text(ptx))
    return program, next(ins for ins in program.instructions if ins.root == "bra")


def test_only_the_same_question_is_asked_again(experiment):
    assert experiment.shapes.waits_again(None, *branch_of(POLL.format("%r1")))
    assert not experiment.shapes.waits_again(None, *branch_of(POLL.format("%r2")))


# a place in a ring of two, ahead of %r1, computed again for the second question
AHEAD = """
LOOP: add.u32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 2; selp.b32 %r3, 0, %r2, %p1; shl.b32 %r4, %r3, 3;
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
@%p2 bra DONE;
AGAIN: {} setp.eq.u32 %p3, %r5, 2; selp.b32 %r6, 0, %r5, %p3; shl.b32 %r7, %r6, 3;
mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r7], 0;
@!%p4 bra AGAIN;
DONE: add.u32 %r3, %r3, 1; mov.u32 %r1, %r3; setp.lt.u32 %p5, %r1, 9; @%p5 bra LOOP;
"""


@pytest.mark.parametrize(
    ("again", "same"),
    [
        ("add.u32 %r5, %r1, 1;", True),
        ("add.u32 %r5, %r1, 2;", False),
        ("add.u32 %r5, %r1, 1; add.u32 %r1, %r1, 1;", False),
        ("add.u32 %r5, %r3, 1;", False),
    ],
)
def test_a_question_is_the_same_if_its_address_is_made_in_the_same_way(again, same, experiment):
    assert experiment.shapes.waits_again(None, *branch_of(AHEAD.format(again))) == same


# of k, the last parameter, in steps of 128: those of part %r4
PART = """
ld.param.u32 %r1, [{k}]; add.u32 %r2, %r1, 127; shr.u32 %r3, %r2, 7; and.b32 %r4, %r0, 1;
mul.lo.u32 %r5, %r3, %r4; add.u32 %r6, %r5, {added}; {divided} sub.u32 %r9, %r8, %r7;
"""
HALVES = "shr.u32 %r7, %r5, 1; shr.u32 %r8, %r6, 1;"
THIRDS = """
mul.wide.u32 %rd1, %r5, -1431655765; shr.u64 %rd2, %rd1, 33; cvt.u32.u64 %r7, %rd2;
mul.wide.u32 %rd3, %r6, -1431655765; shr.u64 %rd4, %rd3, 33; cvt.u32.u64 %r8, %rd4;
"""


@pytest.mark.parametrize(
    ("parts", "k", "added", "divided", "known"),
    [
        (2, "dst", "%r3", HALVES, True),
        (3, "dst", "%r3", THIRDS, True),
        (3, "dst", "%r3", HALVES, False),
        (2, "src", "%r3", HALVES, False),
        (2, "dst", "%r4", HALVES, False),
        (2, "dst", "1", HALVES, False),
    ],
)
def test_a_part_has_steps_if_there_are_as_many_as_parts(
    parts, k, added, divided, known, experiment
):
    config = SimpleNamespace(parts=parts, stage_k=128)
    program = Program(text(PART.format(k=k, added=added, divided=divided)))
    made = next(ins for ins in program.instructions if ins.root == "sub")
    assert experiment.part_conditions.is_a_part(config, program, made) == known


def test_a_value_is_dead_only_if_nothing_takes_it(experiment):
    loop = (
        "LOOP:\nxor.b32 %r1, %r1, %r2;\nadd.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 9;\n@%p1 bra"
        " LOOP;\n{}"
    )
    for use, dead in (
        ("", True),
        ("st.shared.u32 [%r1], %r2;", False),
        ("add.u32 %r4, %r1, 1;", True),
        ("add.u32 %r4, %r1, 1;\nsetp.eq.u32 %p2, %r4, 0;", False),
    ):
        program = Program(text(loop.format(use)))
        assert experiment.shapes.dead(None, program, program.instructions[0]) == dead, use


COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r8], [%rd1], 64, [%r9];"
# a loop of turns, and up to two copies behind them, for what k leaves of a stage of four rows
TAIL = f"""
sub.u32 %r1, %r2, %r3; min.u32 %r4, %r1, 4; setp.gt.u32 %p1, %r1, 3; @%p1 bra WHOLE;
and.b32 %r5, %r4, 3; sub.u32 %r6, %r4, 1; setp.lt.u32 %p2, %r6, LEAST; @%p2 bra REST;
TURN: COPIES setp.ne.u32 %p3, %r8, %r1; @%p3 bra TURN;
REST: {COPY} setp.eq.u32 %p4, %r5, 1; @%p4 bra DONE;
{COPY} setp.eq.u32 %p5, %r5, 2; @%p5 bra DONE;
{COPY} bra DONE;
WHOLE: {COPY * 4}
DONE:
"""


@pytest.mark.parametrize(("rows", "group"), [(4, 2), (4, 1), (2, 2)])
def test_what_takes_a_whole_stage_or_half_a_group_is_for_no_tail(rows, group, experiment):
    config = SimpleNamespace(ragged=True, grouped=True, stage_rows=4, group_blocks=group)
    program = Program(text(TAIL.replace("LEAST", str(rows - 1)).replace("COPIES", COPY * rows)))
    whole, least, turn, one, two, _ = (ins.pc for ins in program.instructions if ins.root == "bra")
    found = {
        proof.name: [
            ins.pc
            for ins in program.instructions
            if (proof.opcode != "bra" or ins.root == "bra" and ins.guard is not None)
            and (ins.root != "setp" and proof.holds(SimpleNamespace(config=config), program, ins))
        ]
        for proof in experiment.proofs.PROOFS
        if proof.holds.__module__ == "copy_conditions"
    }
    assert found == {
        "a whole stage row by row": [whole],
        "no turn in a tail": [*range(least + 1, turn - 1), turn] if rows == 4 else [],
        "rows that no tail has": [one] if group == 2 else [],
        "a row that no tail has": [two + 1, two + 2] if group == 2 else [],
    }
