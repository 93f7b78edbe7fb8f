"""Contract under test: each way to switch on reaches a program that knows nothing of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numba_marlin.on_cpu import Options
from numba_marlin.on_cpu.__main__ import LINE, install

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import sys
import numpy as np
from numba import cuda

assert cuda.is_available()


@cuda.jit
def doubled(x):
    i = cuda.grid(1)
    x[i] *= 2


def test_doubled():
    x = np.arange(8)
    doubled[1, 8](x)
    assert (x == 2 * np.arange(8)).all()


def test_too_far():
    doubled[1, 9](np.arange(8))


if __name__ == "__main__":
    test_doubled()
    print("doubled", *sys.argv[1:])
"""


def run(folder, *arguments, **environment):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=path, **environment),
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM, encoding="utf-8")
    return tmp_path


def test_a_numpy_without_row_stack_will_do(folder):
    """As from 2.5 on, which is what pip brings for Python 3.12 and later."""
    lacking = "import numpy\nnumpy.__dict__.pop('row_stack', None)\n"
    (folder / "program.py").write_text(lacking + PROGRAM, encoding="utf-8")
    done = run(folder, "-m", "numba_marlin.on_cpu", "program.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "doubled\n"


@pytest.mark.parametrize(
    "text, options",
    (
        ("1", Options(None)),
        ("races=on", Options(True)),
        ("races=off", Options(False)),
        ("1,races=auto", Options(None)),
    ),
)
def test_the_variable_has_options(text, options):
    assert Options.from_text(text) == options == Options.from_text(options.as_text())


def test_a_misspelt_variable_is_an_error():
    with pytest.raises(ValueError, match="NUMBA_CUDA_ON_CPU='races=yes' must be 1, or races=on"):
        Options.from_text("races=yes")


def test_install_writes_one_line_and_takes_it_out(tmp_path, capsys):
    assert install(remove=False, folder=tmp_path) == 0
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".pth" and path.read_text(encoding="utf-8") == LINE
    assert len(LINE.splitlines()) == 1 and LINE.startswith("import ")
    assert "NUMBA_CUDA_ON_CPU=1" in capsys.readouterr().out
    assert install(remove=True, folder=tmp_path) == 0 and not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_program_runs_with_its_arguments(folder):
    done = run(folder, "-m", "numba_marlin.on_cpu", "test_program.py", "one", "--two")
    assert (done.returncode, done.stdout) == (0, "doubled one --two\n"), done.stderr
    done = run(folder, "-m", "numba_marlin.on_cpu", "--races", "off", "-m", "test_program")
    assert (done.returncode, done.stdout) == (0, "doubled\n"), done.stderr


@pytest.mark.thorough
def test_the_variable_reaches_a_program_where_the_line_is_installed(folder):
    # as a .pth file would, at the interpreter's start
    (folder / "sitecustomize.py").write_text(LINE, encoding="utf-8")
    done = run(folder, "test_program.py", NUMBA_CUDA_ON_CPU="1")
    assert (done.returncode, done.stdout) == (0, "doubled\n"), done.stderr
    idle = "import sys; print('numba' in sys.modules, 'numba_marlin.emulator' in sys.modules)"
    assert run(folder, "-c", idle, NUMBA_CUDA_ON_CPU="1").stdout.split()[1] == "False"


@pytest.mark.thorough
def test_the_plugin_of_pytest(folder):
    plugin = ("-m", "pytest", "-q", "-p", "numba_marlin.on_cpu.pytest_plugin", "test_program.py")
    done = run(folder, *plugin, "--cuda-on-cpu")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "OutOfBounds in kernel doubled" in done.stdout and "x[8] (x is int64[8])" in done.stdout
    assert "line 12: x[i] *= 2" in done.stdout
    assert "error" in run(folder, *plugin).stdout
    asked = run(folder, *plugin, "--help").stdout
    assert "--cuda-on-cpu-races" in asked and "no GPU and no" in " ".join(asked.split())
