"""Contract under test: every puzzle can be solved, none is solved at the start, and what a learner
is told names their line and their thread."""

import ast
import json
import textwrap

import numpy as np
import pytest

from numba_marlin import puzzles
from numba_marlin.cli.main import CHECK_FAILED, OK, USAGE, main, parser
from numba_marlin.judge.watching import NOBODY
from numba_marlin.puzzles import picture
from numba_marlin.puzzles.template import find

ALL = puzzles.puzzles()
QUICK = {"add_ten", "transpose"}


def each():
    return [
        pytest.param(
            puzzle,
            id=puzzle.name,
            marks=[] if puzzle.checks().KERNEL in QUICK else pytest.mark.thorough,
        )
        for puzzle in ALL
    ]


def written(folder, puzzle, text):
    path = folder / puzzle.file
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def kernel_of(tmp_path):
    """Source of a file for a puzzle, from the body of its kernel -> the verdict."""

    def verdict(number, body, head="x, y"):
        puzzle = find(number)
        name = puzzle.checks().KERNEL
        lines = ["import numpy as np", "from numba import cuda", "from numba_marlin import ptx", ""]
        lines += ["@cuda.jit", f"def {name}({head}):", textwrap.indent(body, "    ")]
        return puzzles.check_file(written(tmp_path, puzzle, "\n".join(lines) + "\n"))

    return verdict


# ---- the puzzles


@pytest.mark.parametrize("puzzle", each())
def test_the_solution_is_right_and_the_start_is_not(puzzle, tmp_path):
    right = puzzles.check_file(written(tmp_path, puzzle, puzzle.solved()))
    assert right.passed, str(right)
    assert "no race, no hazard" in right.message
    wrong = puzzles.check_file(written(tmp_path, puzzle, puzzle.start()))
    assert not wrong.passed
    assert "does not compile" not in wrong.message and "imported" not in wrong.message
    assert wrong.message.startswith("launch 1 of")


def test_numbers_names_and_kernels_are_all_different():
    assert [puzzle.number for puzzle in ALL] == list(range(1, len(ALL) + 1))
    assert len(ALL) >= 20
    assert len({puzzle.name for puzzle in ALL}) == len(ALL)
    assert len({puzzle.checks().KERNEL for puzzle in ALL}) == len(ALL)


@pytest.mark.parametrize("puzzle", ALL, ids=lambda puzzle: puzzle.name)
def test_a_puzzle_has_a_text_a_hint_and_no_trace_of_its_solution(puzzle):
    task = puzzle.checks()
    start, solved = puzzle.start(), puzzle.solved()
    for text in (start, solved):
        ast.parse(text)
        assert not any(mark in text for mark in (">>>", "<<<", "#: ", "KERNEL", "CASES", "HINT"))
        assert f"def {task.KERNEL}(" in text and "def spec(" in text
        assert max(map(len, text.splitlines())) <= 100
    assert start != solved and puzzle.solution().strip()
    assert len(puzzle.statement.split("\n\n")) >= 2 and len(puzzle.title) < 60
    assert task.HINT and task.CASES


@pytest.mark.parametrize("puzzle", ALL, ids=lambda puzzle: puzzle.name)
def test_a_notebook_has_the_text_the_code_and_the_check(puzzle):
    notebook = json.loads(puzzle.notebook())
    assert notebook["nbformat"] == 4
    text, code, check = notebook["cells"]
    assert text["cell_type"] == "markdown" and puzzle.statement in text["source"]
    assert (
        ast.parse(code["source"]) and f"puzzles.check({puzzle.checks().KERNEL})" in check["source"]
    )
    assert len({cell["id"] for cell in notebook["cells"]}) == 3


# ---- what a learner is told


@pytest.mark.thorough
def test_elements_that_nobody_wrote_are_counted(kernel_of):
    body = "i = cuda.threadIdx.x\nif i < 20:\n    y[i] = 10 + x[i]"
    verdict = kernel_of(1, body)
    assert "12 of 32 elements of y were never written, the first is y[20]" in verdict.message
    second = verdict.picture.splitlines()[2].split()
    assert second == ["16", "16", "17", "18", "19", *12 * "."]


def test_a_wrong_element_names_its_thread_and_line(kernel_of):
    verdict = kernel_of(1, "i = cuda.threadIdx.x\ny[31 - i] = x[i] + 10")
    assert "32 of 32 elements of y are wrong: y[0] is 41.0, and should be 10.0" in verdict.message
    assert "thread 31 of block 0 wrote it, line 8: y[31 - i] = x[i] + 10" in verdict.message
    assert " 31!" in verdict.picture


@pytest.mark.thorough
def test_an_index_past_the_end_names_the_threads(kernel_of):
    verdict = kernel_of(2, "i = cuda.threadIdx.x\ny[i] = 2 * x[i]")
    assert "past the end of the array" in verdict.message
    assert "line 8: y[i] = 2 * x[i]    (block 0, threads 50-63)" in verdict.message


def test_a_race_names_both_lines(kernel_of):
    body = "\n".join(
        [
            "tile = cuda.shared.array(64, np.float32)",
            "i = cuda.threadIdx.x",
            "tile[i] = x[i]",
            "y[i] = tile[63 - i]",
        ]
    )
    said = kernel_of(5, body).message
    assert "nothing orders these two" in said
    assert "first line 9: tile[i] = x[i]" in said
    assert "then line 10: y[i] = tile[63 - i]" in said


@pytest.mark.thorough
def test_a_right_result_in_the_wrong_way_is_not_right(kernel_of):
    body = "\n".join(
        [
            "tile = cuda.shared.array((32, 32), np.float32)",
            "c, r = cuda.threadIdx.x, cuda.threadIdx.y",
            "tile[r, c] = x[r, c]",
            "cuda.syncthreads()",
            "y[r, c] = tile[c, r]",
        ]
    )
    verdict = kernel_of(10, body)
    assert not verdict.passed and not verdict.picture
    assert "line 11: 1024 turns where 32 would do: y[r, c] = tile[c, r]" in verdict.message


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body, said",
    [
        ("y[0] = nothing", "does not compile"),
        ("x[0] = y[0]", "an input must not be written"),
        ("while True:\n    cuda.syncthreads()", "a loop does not end"),
    ],
)
def test_other_mistakes_are_worded_too(kernel_of, body, said):
    verdict = kernel_of(1, body)
    assert not verdict.passed and said in verdict.message


@pytest.mark.thorough
def test_a_kernel_with_other_parameters_or_none_is_refused(kernel_of, tmp_path):
    assert "must have" in kernel_of(1, "y[0] = x[0]", head="a, y").message
    puzzle = find(1)
    plain = written(tmp_path, puzzle, "def add_ten(x, y):\n    pass\n")
    assert "put @cuda.jit above" in puzzles.check_file(plain).message
    assert "has no add_ten" in puzzles.check_file(written(tmp_path, puzzle, "")).message
    broken = puzzles.check_file(written(tmp_path, puzzle, "def add_ten(x, y:\n"))
    assert "cannot be imported: SyntaxError" in broken.message


def test_a_kernel_finds_its_puzzle_and_no_other_does():
    with pytest.raises(ValueError, match="there is no puzzle 'nothing'"):
        find("nothing")
    assert find("transpose") is find(10) is find("10_bank_conflicts.py")


# ---- the picture


def test_the_picture_cuts_what_does_not_fit():
    writers = np.arange(20 * 40).reshape(20, 40)
    wrong = np.zeros((20, 40), bool)
    wrong[0, 1] = True
    lines = picture.draw("y", writers, wrong, 1024).splitlines()
    assert max(map(len, lines)) <= picture.WIDTH and len(lines) == 1 + picture.ROWS + 1
    assert lines[1].split()[:3] == ["0", "0", "1!"]
    assert "rows 16 of 20" in lines[-1] and "of 40" in lines[-1]
    assert ". " in picture.draw("y", np.full(3, NOBODY), np.zeros(3, bool), 32)


# ---- the verb


def test_start_writes_files_once(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["puzzles", "start", "1", "2", "--dir", str(folder)]) == OK
    file = folder / "01_one_thread.py"
    assert file.read_text() == find(1).start()
    file.write_text("mine")
    capsys.readouterr()
    assert main(["puzzles", "start", "all", "--dir", str(folder)]) == OK
    assert file.read_text() == "mine" and len(list(folder.iterdir())) == len(ALL)
    assert "it is there already" in " ".join(capsys.readouterr().out.split())
    assert main(["puzzles", "start", "1", "--notebook", "--dir", str(folder)]) == OK
    assert json.loads((folder / "01_one_thread.ipynb").read_text()) == json.loads(
        find(1).notebook()
    )


def test_check_says_what_is_right(tmp_path, capsys):
    written(tmp_path, find(1), find(1).solved())
    assert main(["puzzles", "check", "1", "--dir", str(tmp_path)]) == OK
    assert "1. A thread, an element: right" in capsys.readouterr().out
    written(tmp_path, find(5), find(5).start())
    assert main(["puzzles", "check", "--dir", str(tmp_path), "--json"]) == CHECK_FAILED
    said = json.loads(capsys.readouterr().out)["puzzles"]
    assert {name: each["passed"] for name, each in said.items()} == {
        "one_thread": True,
        "shared_memory": False,
    }


def test_check_takes_notebooks(tmp_path, capsys):
    notebook = tmp_path / "01_one_thread.ipynb"
    notebook.write_text(find(1).notebook(), encoding="utf-8")
    assert main(["puzzles", "--dir", str(tmp_path)]) == OK
    assert "A thread, an element (begun)" in capsys.readouterr().out
    assert main(["puzzles", "check", str(notebook)]) == CHECK_FAILED
    assert "32 of 32 elements of y were never written" in capsys.readouterr().out
    mine = json.loads(find(1).notebook())
    lines = mine["cells"][1]["source"].splitlines(keepends=True)
    body = ["    i = cuda.threadIdx.x\n", "    y[31 - i] = x[i] + 10\n"]
    mine["cells"][1]["source"] = [*lines[:-1], *body]  # in lines, as Jupyter saves it
    notebook.write_text(json.dumps(mine), encoding="utf-8")
    assert main(["puzzles", "check", "1", "--dir", str(tmp_path)]) == CHECK_FAILED
    said = capsys.readouterr().out
    assert f"line {len(lines) + 1}: y[31 - i] = x[i] + 10" in said
    mine["cells"][1]["source"][-1] = "    y[i] = x[i] + 10\n"
    notebook.write_text(json.dumps(mine), encoding="utf-8")
    assert main(["puzzles", "check", "--dir", str(tmp_path)]) == OK
    assert "1. A thread, an element: right" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["check", "3"], "puzzles start 3"),
        (["check"], "puzzles start 1"),
        (["start"], "which one?"),
        (["start", "99"], "numbered 1 to"),
        (["hint", "swizle"], "swizzle"),
        (["hint", "1", "--notebook"], "goes with start"),
        (["list", "3"], "puzzles start 3"),
    ],
)
def test_wrong_words_get_the_right_ones(tmp_path, capsys, words, said):
    assert main(["puzzles", *words, "--dir", str(tmp_path)]) == USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ("check --dir mine 1 2", "--dir mine check 1 2", "check 1 --dir mine 2")
)
def test_options_may_stand_between_the_words(words):
    found = parser().parse_args(["puzzles", *words.split()])
    assert (found.action, found.which, str(found.dir)) == ("check", ["1", "2"], "mine")


def test_the_list_the_hint_and_the_solution(tmp_path, capsys):
    assert main(["puzzles", "--dir", str(tmp_path)]) == OK
    listed = capsys.readouterr().out
    assert all(puzzle.title in listed for puzzle in ALL)
    assert main(["puzzles", "hint", "7"]) == OK
    assert find(7).checks().HINT in capsys.readouterr().out
    assert main(["puzzles", "solution", "7"]) == OK
    assert "shfl_sync_bfly" in capsys.readouterr().out
