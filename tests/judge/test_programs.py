"""Contract under test: the command, end to end: kernels of Numba, hostile tasks and kernels, time
limits; and what docs/judge.md shows."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from numba_marlin.cli.main import CHECK_FAILED, OK, USAGE
from numba_marlin.emulator.checks import CHECKS
from numba_marlin.judge import processes
from numba_marlin.judge.processes import TooSlow, talk
from tests.cli.verbs import run, run_json
from tests.judge.kernels import RIGHT, WRONG

PAGE = (Path(__file__).parents[2] / "docs" / "judge.md").read_text(encoding="utf-8")
TASK = """
from dataclasses import replace
from numba_marlin import judge
from tests.judge.kernels import TASK
task = replace(TASK, sizes={"n": judge.Size(1, 20)})
"""


def block(marker):
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def judged(tmp_path, capsys, monkeypatch):
    """Texts of a task and a kernel, options -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def call(task, kernel, *options, suffix="ptx"):
        Path("task.py").write_text(task, encoding="utf-8")
        Path(f"kernel.{suffix}").write_text(kernel, encoding="utf-8")
        return run(capsys, "judge", "task.py", f"kernel.{suffix}", *options)

    return call


# ---- the protocol


def test_what_a_process_says_is_heard_and_what_it_prints_is_not():
    program = (
        "from numba_marlin.judge.processes import answering; import os, sys\n"
        "say = answering(); print('{}'); os.write(1, b'x'); say({'a': 1})\n"
        "say({'b': sys.stdin.read()})"
    )
    heard = []
    last = talk([sys.executable, "-c", program], "hello", 60, heard.append)
    assert last == {"b": "hello"} and heard == [{"a": 1}, {"b": "hello"}]


@pytest.mark.parametrize("said", ("", "[1]", "{", "1", '"a"', "[" * 10_000))
def test_what_means_nothing_is_passed_over(said):
    program = f"print({said!r})"
    assert talk([sys.executable, "-S", "-c", program], "", 60) == {}


@pytest.mark.thorough
def test_a_process_that_says_nothing_is_ended(tmp_path):
    program = (
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
        "print('{\"a\": 1}', flush=True); time.sleep(1000)"
    )
    with pytest.raises(TooSlow):
        talk([sys.executable, "-S", "-c", program], "", 1.0, group=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_process_that_says_too_much_is_ended(monkeypatch):
    monkeypatch.setattr(processes, "MOST_BYTES", 1000)
    program = "while True: print('x' * 100)"
    assert talk([sys.executable, "-S", "-c", program], "", 60) == {}


# ---- the command


@pytest.mark.thorough
def test_exit_codes_say_what_the_verdict_is(judged):
    code, out, _ = judged(TASK, RIGHT, "--cases", 1, "--html", "v.html", "--out", "v.json")
    found = json.loads(Path("v.json").read_text())
    assert (code, found["ok"], found["schema"]) == (OK, True, "numba-marlin/judge/1")
    assert "<html" in Path("v.html").read_text(encoding="utf-8")
    code, out, _ = judged(TASK, WRONG["reads one too many"][0])
    assert code == CHECK_FAILED and "kernel.ptx: not right: out-of-bounds" in out


@pytest.mark.thorough
def test_json_is_one_object_with_the_keys_of_the_page(judged, capsys):
    judged(TASK, WRONG["no barrier in the tree"][0])
    code, found = run_json(capsys, "judge", "task.py", "kernel.ptx", "--cases", 0)
    assert code == CHECK_FAILED and found["kinds"] == ["race"]
    table = PAGE[PAGE.index("| key |") : PAGE.index("A defect has")]
    keys = "".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    assert set(found) == set(re.findall(r"`(\w+)`", keys))
    said = set(re.findall(r"`(\w+)`", re.search(r"A defect has .*", PAGE)[0]))
    defect = found["cases"][0]["defect"]
    assert set(defect) | set(defect["where"]) == said


# (task, kernel, exit code, what is said)
HOSTILE = {
    "an endless task": ("while True: pass", RIGHT, USAGE, "importing the task did not end"),
    "a task that exits": ("raise SystemExit(0)", RIGHT, USAGE, "cannot be imported: SystemExit"),
    "a task that kills": ("import os; os._exit(0)", RIGHT, USAGE, "ended the judging process"),
    "a task of terabytes": ("x = [0] * (1 << 42)", RIGHT, USAGE, "MemoryError"),
    "no task": ("x = 1", RIGHT, USAGE, "must have a `task = judge.Task(...)`"),
    "no Python": ("x = = 1", RIGHT, USAGE, "SyntaxError"),
    "an endless reference": (
        f"{TASK}\ntask = replace(task, reference=lambda x: [0 for _ in iter(int, 1)])",
        RIGHT,
        USAGE,
        "making case n=1 did not end",
    ),
    "no PTX": (TASK, "hello", USAGE, "unknown directive 'hello'"),
    "an unknown instruction": (TASK, RIGHT.replace("add.f32", "foo.bar"), 3, "foo.bar"),
    "PTX without end": (TASK, RIGHT[:400], USAGE, "PtxSyntaxError"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_input_ends_in_words(judged, what):
    task, kernel, wanted, said = HOSTILE[what]
    code, out, err = judged(task, kernel, "--seconds", 10 if "endless" in what else 100)
    assert (code, out) == (wanted, "") and said in err and "Traceback" not in err, err


GOOD = """
from numba import cuda
print("noise"); import sys; sys.stderr.write("noise")
@cuda.jit(device=True)
def twice(v): return 2 * v
@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = twice(x[i])
"""
DOUBLE = """
from numba_marlin import judge
task = judge.Task(
    sizes={"n": judge.Size(1, 70)},
    arguments=[judge.Input("x", "float32", ("n",)), judge.Output("y", "float32", ("n",))],
    reference=lambda x: 2 * x,
    grid=lambda n: -(-n // 32),
    block=32,
)
"""
PYTHON = {
    "right": (GOOD, OK, "double: right"),
    "off by one": (GOOD.replace("i < x", "i <= x"), CHECK_FAILED, "line 10: y[i] = twice(x[i])"),
    "an input changed": (GOOD.replace("y[i] =", "x[i] ="), CHECK_FAILED, "read-only-write"),
    "two kernels": (GOOD + GOOD.replace("double", "other"), USAGE, "choose one with --entry"),
    "no kernel": ("x = 1", USAGE, "it has no kernel"),
    "no compiler's": (GOOD.replace("twice(x[i])", "foo"), USAGE, "NameError"),
    "other parameters": (GOOD.replace("(x, y)", "(x, y, z)"), USAGE, "3 parameters, the task"),
    "it exits": ("import os; os._exit(0)", USAGE, "ended the process that compiles it"),
    "a forged answer": (
        "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'{\"verdict\": {}}\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        USAGE,
        "ended the process that compiles it",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", PYTHON)
def test_kernels_of_numba(judged, what):
    pytest.importorskip("numba_cuda")
    kernel, wanted, said = PYTHON[what]
    code, out, err = judged(DOUBLE, kernel, "--cases", 2, suffix="py")
    assert code == wanted and said in out + err, out + err


# ---- the page


@pytest.mark.thorough
def test_the_example_says_what_the_page_shows(judged, tmp_path):
    pytest.importorskip("numba_cuda")
    code, out, _ = judged(block("task"), block("kernel"), "--view", "failed", suffix="py")
    shown, printed = (re.sub(r"PTX line \d+: [^;]*;", "", text) for text in (block("output"), out))
    assert code == CHECK_FAILED and printed.replace(f"{tmp_path}/", "") == shown


def test_every_kind_on_the_page_exists_and_every_planted_one_is_there():
    table = PAGE[PAGE.index("<!-- kinds -->") : PAGE.index("<!-- end:kinds -->")]
    kinds = set(
        re.findall(r"`([a-z]+-?[a-z-]*)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    )
    assert {kind for _, kind, _ in WRONG.values()} <= kinds
    own = {
        *("reads-output", "input-not-read", "not-written", "wrong-value", "nondeterministic"),
        *("launch", "budget", "time-limit"),
    }
    assert own <= kinds and kinds - own <= set(CHECKS)
