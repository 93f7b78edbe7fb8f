"""Contract under test: what would take hours, or more memory than there is, is refused before any
work, with sizes that would do; --anyway runs it. Estimates are as near as their docstring says."""

import logging
import re
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.cli import estimate
from numba_marlin.cli import run as run_verb
from numba_marlin.emulator import limits
from numba_marlin.execution import expected, machine
from numba_marlin.execution.plan import plan
from numba_marlin.problems import BlockProblem, WeightProblem
from tests.cli.verbs import run, run_json

ON_MACHINE = ("--backend", "emulator")
HOURS = ("--m", 4096, "--n", 16384, "--k", 16384)
SIZES = re.compile(r"; m=(\d+), n=(\d+), k=(\d+) would take about (.*?) and .*; --anyway")
PRODUCT = ("run", "--m", 4, "--n", 128, "--k", 256, "--kernel", "ampere", *ON_MACHINE)
SMALL = ("--m", 4, "--n", 64, "--k", 128)


@pytest.mark.parametrize(
    "argv",
    [
        ("run", *HOURS, *ON_MACHINE),
        ("run", *HOURS, *ON_MACHINE, "--format", "nvfp4"),
        ("run", *HOURS, *ON_MACHINE, "--kernel", "naive"),
        ("trace", *HOURS),
        ("trace", *HOURS, "--kernel", "block_scaled"),
        ("profile", "--m", 16, "--n", 64, "--k", 1 << 28, "--device", "H200"),
    ],
    ids=lambda argv: " ".join(map(str, (argv[0], *argv[9:]))),
)
def test_hours_are_refused_with_sizes_that_would_do(capsys, monkeypatch, argv):
    monkeypatch.setattr(estimate, "memory", lambda: float("inf"))
    drawn = []
    monkeypatch.setattr("numba_marlin.cli.weights.Drawn.values", property(drawn.append))
    code, out, err = run(capsys, *argv)
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and not drawn
    assert re.search(r"would take about .* (min|h) and .*, more than 10 min; m=", err), err
    m, n, k, takes = SIZES.search(err).groups()
    assert int(m) <= 4096 and int(n) <= 16384 and int(k) <= 1 << 27
    assert takes.endswith((" s", " min")), "the sizes that are named are not refused"


def test_more_memory_than_there_is_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "memory", lambda: 1 << 30)
    drawn = []
    monkeypatch.setattr("numba_marlin.cli.weights.Drawn.values", property(drawn.append))
    argv = ("run", "--m", 1, "--n", 16384, "--k", 16384, "--backend", "reference")
    code, data = run_json(capsys, *argv)
    assert code == 2 and not drawn and data["expected"]["bytes"] > 1 << 30
    assert "more than this computer's 1 GiB; m=1, n=" in data["error"]


def test_a_file_keeps_its_sizes(capsys, monkeypatch, tmp_path):
    """Only m can be less, and if that is not enough, that is said."""
    np.save(tmp_path / "w.npy", np.zeros((512, 256), np.float32))
    argv = ("run", "--input", tmp_path / "w.npy", "--backend", "reference", "--m", 4096)
    asked = WeightProblem(4096, 256, 512, 128)
    asked = expected.whole(asked, plan(asked, "reference"))
    monkeypatch.setattr(estimate, "memory", lambda: asked.nbytes - (1 << 20))
    _, data = run_json(capsys, *argv)
    assert "; m=2048, n=256, k=512 would take" in data["error"]
    monkeypatch.setattr(estimate, "memory", lambda: 1 << 20)
    _, data = run_json(capsys, *argv)
    assert f"; {tmp_path / 'w.npy'} is too large for any m; --anyway" in data["error"]


def test_anyway_runs_what_would_be_refused(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "memory", lambda: 1.0)
    argv = ("run", *SMALL, "--backend", "reference")
    assert run(capsys, *argv)[0] == 2
    assert run(capsys, *argv, "--anyway")[0] == 0


def test_what_takes_a_while_is_said_first(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "SAID_SECONDS", 0)
    code, out, _ = run(capsys, "run", *SMALL, "--backend", "reference")
    assert code == 0 and re.match(r"expected   about 0\.0 s and .* of memory\nweight ", out), out
    assert "expected" in run_json(capsys, "run", *SMALL, "--backend", "reference")[1]


def test_memory_is_the_containers_where_that_is_less(monkeypatch, tmp_path):
    before = estimate.memory()
    assert before > 1 << 20
    monkeypatch.setattr(estimate, "MEMORY_LIMITS", (str(tmp_path / "memory.max"),))
    (tmp_path / "memory.max").write_text("1048576\n")
    assert estimate.memory() == 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert before <= estimate.memory(), "the computer's own"


def test_the_bar_of_a_product_ends_about_where_it_was_expected_to(capsys):
    code, data = run_json(capsys, *PRODUCT)
    assert code == 0
    assert 0.4 < data["expected"]["instructions"] / data["run"]["instructions"] < 2.5


# of the docstring of ``execution.expected``
PROBLEMS = [
    (WeightProblem(16, 2048, 2048), "decode"),
    (WeightProblem(200, 768, 2048), "wgmma"),
    (WeightProblem(64, 1536, 1024), "ampere"),
    (WeightProblem(40, 2048, 1024), "tiled"),
    (BlockProblem(100, 1024, 768), "block_scaled"),
    (BlockProblem(4, 2048, 2048), "block_decode"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("problem", "kernel"), PROBLEMS, ids=[name for _, name in PROBLEMS])
def test_instructions_are_as_many_as_expected(problem, kernel):
    from numba_marlin.profile.sources.samples import sample

    chosen = plan(problem, "emulator", kernel)
    drawn = sample(problem, np.random.default_rng(0))
    binding = drawn.bound(chosen.candidate, chosen.device.sms, chosen.compile("numba-cuda"))
    found = machine.set_up(binding).run().instructions
    assert 0.75 < expected.launch(problem, chosen.candidate).instructions / found < 1.35


def test_a_large_product_has_a_budget_of_its_own(capsys, monkeypatch):
    """A kernel that needs more instructions than the machine gives any program is not given up."""
    monkeypatch.setattr(limits, "MOST_WARP_INSTRUCTIONS", 1)
    code, data = run_json(capsys, *PRODUCT)
    assert code == 0 and data["run"]["instructions"] > 1
    monkeypatch.setattr(machine, "BUDGET", 0.1)
    code, data = run_json(capsys, *PRODUCT)
    assert code == 1 and re.search(r"the budget of \d+ warp instructions is spent", data["error"])


def test_a_call_on_the_machine_says_in_the_log_what_it_begins(caplog, capsys):
    p = nm.pack(nm.quantize(np.ones((256, 128), np.float32), 4, 128))
    with caplog.at_level(logging.INFO, "numba_marlin"):
        nm.matmul(np.ones((4, 256), np.float16), p, "emulator", kernel="ampere", return_info=True)
    assert re.fullmatch(
        r"ampere begins on the PTX machine: about 0\.\d s, [\d,]+ warp instructions",
        caplog.messages[0],
    )
    assert capsys.readouterr() == ("", "")


def test_the_option_is_called_the_same_everywhere(capsys):
    for verb in ("run", "trace", "profile"):
        assert "--anyway" in run(capsys, verb, "--help")[1]


def test_defaults_are_never_refused():
    """The demonstrations and README's examples take seconds."""
    problem = WeightProblem(16, run_verb.DEFAULT_N, run_verb.DEFAULT_K)
    assert expected.whole(problem, plan(problem, "emulator")).seconds < 10


def test_of_the_reference_the_product_is_taken_twice():
    problem = WeightProblem(64, 4096, 4096)
    product = expected.PRODUCT_SECONDS * 64 * 4096 * 4096
    once, twice = (
        expected.whole(problem, SimpleNamespace(backend=backend))
        for backend in ("cuda", "reference")
    )
    assert twice.seconds - once.seconds == pytest.approx(product)
    assert once.seconds - expected.WEIGHT_SECONDS * 4096 * 4096 == pytest.approx(product)
    assert once.nbytes == twice.nbytes and once.instructions == twice.instructions == 0


def test_a_record_takes_memory_and_time_on_top_of_a_launch():
    problem = WeightProblem(16, 256, 256)
    chosen = plan(problem, backend="emulator").candidate
    alone, one, three = (
        expected.launch(problem, chosen),
        expected.recorded(problem, chosen),
        expected.recorded(problem, chosen, runs=3),
    )
    weights = 256 * 256
    assert one.nbytes == three.nbytes  # one record at a time
    records = expected.RECORD_BYTES * alone.instructions / expected._warps(chosen)
    around = expected.BASE_BYTES + expected.WEIGHT_BYTES * weights
    assert one.nbytes - alone.nbytes == pytest.approx(around + records)
    drawing = expected.WEIGHT_SECONDS * weights
    assert one.seconds - drawing == pytest.approx(expected.LISTENING * alone.seconds)
    assert three.seconds - drawing == pytest.approx(3 * (one.seconds - drawing))
    assert (one.instructions, three.instructions) == (alone.instructions, 3 * alone.instructions)
