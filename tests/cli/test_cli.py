"""Contract under test: verbs, exit codes, and JSON that stands alone on stdout.

Most runs take the ``reference`` backend, which compiles nothing; one goes all the way through the
PTX machine.
"""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from numba_marlin.cli import main as cli
from numba_marlin.execution import driver
from tests.cli.verbs import run, run_json


def test_run_goes_all_the_way_through_the_machine(capsys, tmp_path):
    out = tmp_path / "y.npy"
    code, data = run_json(
        capsys,
        "run",
        "--m",
        4,
        "--n",
        128,
        "--k",
        256,
        "--backend",
        "emulator",
        "--kernel",
        "ampere",
        "--save",
        out,
    )
    assert code == 0
    assert data["schema"] == "numba-marlin/run/1" and data["ok"] is True
    assert data["weight"] == {"source": "random, seed 0", "k": 256, "n": 128, "dtype": "float32"}
    assert 0.05 < data["quantised"]["relative_rms_error"] < 0.2
    assert data["packed"] == {
        "layout": "marlin",
        "bytes": 256 * 128 // 2 + 2 * 2 * 128,
        "bits_per_weight": 4.125,
        "fp16_bytes": 2 * 256 * 128,
    }
    assert data["compiled"]["kernel"] == "ampere" and data["compiled"]["spill_stores"] in (0, None)
    assert data["run"]["backend"] == "emulator" and data["run"]["candidate"]["grid"][0] >= 1
    assert (
        data["check"]["ok"]
        and data["check"]["outputs"] == 4 * 128
        and data["check"]["max_error_over_bound"] <= 1
    )
    y = np.load(out)
    assert y.shape == (4, 128) and y.dtype == np.float16 and np.isfinite(y).all()


def test_run_prints_rows_for_people_and_progress_on_stderr(capsys):
    code, out, err = run(capsys, "run", "--backend", "reference", "--n", 64, "--k", 128)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == [
        "weight",
        "quantised",
        "packed",
        "ran",
        "checked",
    ]
    assert "quantising" in err and "quantising" not in out


def test_a_wrong_product_is_exit_code_1(capsys, monkeypatch):
    from numba_marlin import api

    honest = api.matmul

    def wrong(*arguments, **options):
        y, info = honest(*arguments, **options)
        y[0, 0] += np.float16(8)
        return y, info

    monkeypatch.setattr(api, "matmul", wrong)
    code, data = run_json(capsys, "run", "--backend", "reference", "--n", 64, "--k", 128)
    assert code == 1 and data["ok"] is False and data["check"]["failures"] == 1


def test_a_seed_decides_everything_random(capsys, tmp_path):
    results = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(
            capsys,
            "run",
            "--backend",
            "reference",
            "--n",
            64,
            "--k",
            128,
            "--seed",
            seed,
            "--save",
            tmp_path / f"{name}.npy",
        )
        results.append(np.load(tmp_path / f"{name}.npy"))
    assert np.array_equal(results[0], results[1]) and not np.array_equal(results[0], results[2])


def test_a_gpu_that_is_not_there_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    code, data = run_json(capsys, "run", "--backend", "cuda", "--n", 64, "--k", 128)
    assert code == 3 and data == {
        "schema": "numba-marlin/run/1",
        "ok": False,
        "error": "backend='cuda': no NVIDIA driver on this machine",
    }


def test_a_directory_that_cannot_be_written_is_refused_before_any_work(
    capsys, tmp_path, monkeypatch
):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    # for root every directory is writable
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    code, out, err = run(capsys, "run", "--save", tmp_path / "y.npy")
    assert code == 2 and out == "" and "must be writable" in err and not any(tmp_path.iterdir())


def test_a_compiler_that_is_not_installed_is_exit_code_3(capsys, monkeypatch):
    from numba_marlin import compiler
    from numba_marlin.execution import plan as planning

    def missing(*arguments, **options):
        raise compiler.MissingCompiler(
            "numba-cuda is not installed: pip install numba-marlin[cu13]"
        )

    monkeypatch.setattr(planning, "compiled_kernel", missing)
    code, out, err = run(capsys, "run", "--backend", "emulator", "--n", 64, "--k", 128)
    assert code == 3 and "error: numba-cuda is not installed" in err


def test_explain_says_and_serialises_the_choice(capsys, tmp_path):
    argv = ["explain", "--m", 16, "--n", 8192, "--k", 8192, "--device", "h200"]
    code, out, _ = run(capsys, *argv)
    first = r"chosen: decode, because its predicted time is least: [\d.]+ us \(wgmma: [\d.]+ us\)\n"
    assert re.match(first, out)
    assert code == 0 and "1. decode  grid 128 x 1 x 1" in out and "ampere  grid 132 x 1 x 1" in out
    code, data = run_json(capsys, *argv, "--out", tmp_path / "e.json")
    assert code == 0 and data["schema"] == "numba-marlin/explain/1" and data["ok"] is True
    assert (
        data["candidates"][0]["config"]["batch"] == 16
        and data["candidates"][0]["modelled"]["predicted_us"] > 0
    )
    assert json.loads((tmp_path / "e.json").read_text()) == data


def test_info_labels_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    code, data = run_json(capsys, "info")
    rows = {row["name"]: row for row in data["rows"]}
    assert code == 0 and data["schema"] == "numba-marlin/info/1"
    assert rows["driver"] == {
        "name": "driver",
        "status": "missing",
        "detail": "no NVIDIA driver on this machine",
    }
    assert rows["can: GPU"]["status"] == "missing" and rows["can: reference"]["status"] == "ok"
    assert rows["numpy"]["detail"] == np.__version__
    assert {"ptxas", "nvdisasm", "kernel cache", "gpu"} <= set(rows)
    code, out, _ = run(capsys, "info")
    assert code == 0 and "driver [missing]" in out


def test_lines_fit_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for argv in (
        ["run", "--backend", "reference", "--n", 64, "--k", 128],
        ["explain", "--m", 16, "--n", 8192, "--k", 8192],
        ["info"],
    ):
        _, out, _ = run(capsys, *argv)
        # paths are not broken
        assert max(len(line) for line in out.splitlines() if "/" not in line) <= 60


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    from numba_marlin.cli import report

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert report.styled("text", report.RED) == "text"  # pytest captures stdout: no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert report.styled("text", report.RED) == "\x1b[1;31mtext\x1b[0m"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert report.styled("text", report.RED) == "text"


@pytest.mark.parametrize("terminal", (False, True))
def test_names_out_of_files_steer_no_terminal_and_are_no_markup(capsys, monkeypatch, terminal):
    from numba_marlin.cli.progress import bar
    from numba_marlin.cli.report import Report

    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    name, report = "a[/b]\x1b]0;owned\x07\u202e\n\tb\u00e9", Report("run", False)
    report.row("label", name)
    report.text(name)
    with report.step(name):
        pass
    with bar(name) as advance:
        advance(1, 2, name)
    found = capsys.readouterr()
    assert (
        not {"\x1b", "\x07", "\u202e"} & set(found.out)
        and "\x1b]0;" not in found.err
        and "\u202e" not in found.err
    )
    assert "a[/b]\\x1b]0;owned\\x07\\u202e" in found.out and "b\u00e9" in found.out
    cli.main(["inspect", name])
    assert "a[/b]\\x1b]0;owned" in capsys.readouterr().err


def test_an_interruption_while_starting_is_told_as_any_other(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parser", interrupted)
    assert run(capsys, "info") == (130, "", "\nnumba-marlin: interrupted\n")


def test_without_arguments_the_help_is_printed(capsys):
    code, out, err = run(capsys)
    assert code == 2 and out == "" and "examples:" in err and "VERB" in err


def test_the_module_is_the_command():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "numba_marlin",
            "explain",
            "--m",
            "1",
            "--n",
            "64",
            "--k",
            "128",
            "--json",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] is True
    done = subprocess.run(
        [sys.executable, "-m", "numba_marlin", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("numba-marlin ")


@pytest.mark.parametrize("verb", ("run", "trace", "profile"))
def test_every_kernel_can_be_asked_for(capsys, verb):
    from numba_marlin.kernels import registry

    verbs = next(action for action in cli.parser()._actions if action.dest == "verb").choices
    action = next(action for action in verbs[verb]._actions if action.dest == "kernel")
    assert tuple(action.choices) == registry.names()
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in registry.names())
    with pytest.raises(SystemExit) as usage:
        cli.main([verb, "--kernel", "nothing"])
    assert usage.value.code == 2 and "'naive'" in capsys.readouterr().err


def test_help_loads_neither_numpy_nor_numba():
    program = (
        "import sys\nfrom numba_marlin.cli.main import parser\nparser().format_help()\nprint([m for"
        " m in ('numpy', 'numba', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_two_block_scaled_operands_are_multiplied_and_explained(capsys):
    sizes = ("--m", 4, "--n", 32, "--k", 64, "--format", "nvfp4", "--json")
    code, out, _ = run(capsys, "run", "--backend", "emulator", "--kernel", "tcgen05", *sizes)
    data = json.loads(out)
    assert code == 0 and data["check"]["ok"] and data["run"]["candidate"]["kernel"] == "tcgen05"
    assert data["run"]["problem"]["format"] == "nvfp4" and data["compiled"]["target"] == "sm_100a"
    code, out, _ = run(capsys, "explain", "--device", "H200", *sizes)
    found = json.loads(out)
    assert code == 0 and found["candidates"][0]["kernel"] == "block_decode"
    code, out, _ = run(capsys, "explain", "--codes", "e2m1", *sizes)
    assert code == 2 and "leave out --codes" in json.loads(out)["error"]
