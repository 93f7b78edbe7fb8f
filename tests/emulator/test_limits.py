"""Contract under test: what would take all the time or all the memory is refused before it is
taken, by the limit's name."""

import inspect
import resource
import time

import numpy as np
import pytest

from numba_marlin.emulator import Deadlock, LimitExceeded, Machine, UnknownInstruction
from numba_marlin.emulator.limits import MOST_WARP_INSTRUCTIONS
from numba_marlin.emulator.text import body
from tests.cli.verbs import run
from tests.emulator.ptx_cases import HEADER, frame, launch


def used() -> tuple[float, float]:
    """(seconds, GiB at most at a time) of this process so far."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


@pytest.fixture(autouse=True)
def quick():
    """Each of them takes little time and less memory."""
    before = used()
    yield
    seconds, most = (b - a for a, b in zip(before, used()))
    assert seconds < 30 and most < 1


def doubling(levels: int, last: str) -> str:
    """Functions of which each calls the next one twice."""
    return "".join(
        f".func f{level}() {{ {f'call f{level - 1}; ' * 2 if level else last} ret; }}\n"
        for level in range(levels)
    )


@pytest.mark.parametrize("last", ("", "trap;", "{ } " * 50, f".reg .b32 {', '.join('abcdefgh')};"))
def test_calls_that_double(last, monkeypatch):
    monkeypatch.setattr(body, "MOST_CHARACTERS", 1 << 16)  # for the true ones see below
    monkeypatch.setattr(body, "MOST_INSTRUCTIONS", 1 << 11)
    with pytest.raises(LimitExceeded, match="PTX line"):
        Machine(frame("call f29;", before=doubling(30, last)))
    Machine(frame("call f5;", before=doubling(6, last)))


def test_jump_tables_that_multiply(monkeypatch):
    monkeypatch.setattr(body, "MOST_INSTRUCTIONS", 1 << 14)
    targets = ", ".join(["A"] * 2000)
    with pytest.raises(LimitExceeded, match="instructions"):
        Machine(frame(f"T: .branchtargets {targets};\n" + "brx.idx %t, T;\n" * 2000 + "A:\n", 0))


@pytest.mark.parametrize("name", ("%a", "%a0", "x1y2"))
def test_declared_registers_take_no_room(name):
    text = f".reg .b32 {name}<1000000000>; mov.u32 {name}999999999, 7;"
    out = np.zeros(1, np.uint32)
    launch(f"{text} st.global.u32 [%p0], {name}999999999;", {"out": out})
    assert out[0] == 7


@pytest.mark.parametrize(
    "declared, options",
    [
        (".local .align 8 .b8 x[1099511627776];", {}),
        (".local .align 8 .b8 x[400000];", {"block": 1024, "grid": 16}),
        ("", {"block": 1024, "grid": 1 << 20}),
        ("", {"grid": (1 << 31) - 1}),
    ],
)
def test_a_launch_that_needs_too_much_memory_names_the_option(declared, options):
    used = "mov.u64 %rd0, x;" if declared else ""
    with pytest.raises(LimitExceeded, match="GiB.*resident_blocks.*--resident"):
        launch(declared + used, **options)


def test_fewer_resident_blocks_need_less():
    text = ".local .align 8 .b8 x[400000]; mov.u64 %rd0, x;"
    assert launch(text, grid=500, resident_blocks=2).blocks == 500


def test_variables_of_the_module_have_a_limit():
    with pytest.raises(LimitExceeded, match="GiB"):
        Machine(HEADER + ".global .b8 x[1099511627776];\n")
    declared = "".join(f".global .b8 x{i}[1073741824];\n" for i in range(100))
    with pytest.raises(LimitExceeded, match="GiB"):
        Machine(HEADER + declared)


def test_a_wait_for_all_but_very_many_groups():
    with pytest.raises(UnknownInstruction, match="4294967296"):
        launch("cp.async.wait_group 4294967296;")
    launch("cp.async.commit_group; cp.async.wait_group 255;")


@pytest.mark.parametrize("kind", ("cp.async.wait_group", "cp.async.bulk.wait_group"))
def test_a_wait_for_all_but_less_than_none(kind):
    with pytest.raises(UnknownInstruction, match="-1"):
        launch(f"{kind} -1;")


LOOP = "L: add.u32 %r0, %r0, 1; bra L;"


def test_a_spent_budget_names_its_options():
    with pytest.raises(Deadlock, match=r"budget of 1000 .*max_instructions.*--budget"):
        launch(LOOP, max_instructions=1000)


@pytest.mark.parametrize("wrong", (0, -1))
def test_a_budget_is_positive(wrong):
    with pytest.raises(ValueError, match=f"max_instructions={wrong}"):
        launch(LOOP, max_instructions=wrong)


def test_the_command_line_has_a_budget(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(frame(LOOP, 0))
    command = "machine", "run", tmp_path / "k.ptx"
    code, _, error = run(capsys, *command, "--budget", 5000)
    assert code == 1 and "budget of 5000 warp instructions" in error and "--budget" in error
    code, _, error = run(capsys, *command, "--budget", 0)
    assert code == 2 and "max_instructions=0" in error
    (tmp_path / "k.ptx").write_text(frame("", 0))
    assert run(capsys, *command, "--budget", 2)[0] == 0


def test_the_default_budget_is_what_help_says(capsys):
    """A warp executes some hundred thousand instructions a second: an endless loop ends within
    minutes."""
    help = " ".join(run(capsys, "machine", "--help")[1].split())
    assert f"(default {MOST_WARP_INSTRUCTIONS // 10**6} million)" in help
    assert inspect.signature(Machine.run).parameters["max_instructions"].default == (
        MOST_WARP_INSTRUCTIONS
    )


def test_what_is_too_large_is_bad_input_and_no_failed_check(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(frame("call f29;", 0, doubling(30, "trap;")))
    assert run(capsys, "machine", "run", tmp_path / "k.ptx")[0] == 2


COUNT = 20_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        frame("mov.u64 %rd0, v19999;\n" * COUNT, 0).replace(
            HEADER, HEADER + "".join(f".global .u32 v{i};\n" for i in range(COUNT))
        ),
        frame("".join(f".shared .b8 v{i};\n" for i in range(COUNT)), 0),
        frame(
            ".reg .b32 %x<30000>; setp.ne.u32 %q0, %t, %t;"
            + "".join(f"mov.b32 %x{i}, %x{i + 1};\n" for i in range(COUNT))
            + "@%q0 wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%x0,%f1,%f2,%f3}, %rd0,"
            " %rd1, 1, 1, 1, 0, 0;",
            0,
        ),
    ],
    ids=("names of variables", "variables of a kernel", "moves of moves"),
)
def test_time_grows_as_the_text_does(text):
    """They took ten times as long as this, and a hundred times."""
    start = time.process_time()
    Machine(text).run(max_instructions=100_000)
    assert time.process_time() - start < 5
