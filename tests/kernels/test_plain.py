"""Contract under test: the first rungs are plain Numba files. Each is one file of less than 100
lines that imports Numba, NumPy and ``numba_marlin.ptx`` alone; copied somewhere else and launched
as ``kernel[grid, block](x, qweight, scales, y)`` it multiplies, with either compiler. The example
in its docstring is run as it stands, after the copy, as in a notebook.

On a GPU (``--run-on cuda``) Numba itself launches the copy; without one, what Numba makes of the
copy runs on the PTX machine.
"""

import ast
import importlib.util
import textwrap
from pathlib import Path

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import kernels, testing
from numba_marlin.compiler.builder import COMPILERS, backend
from numba_marlin.compiler.module_text import tidy
from numba_marlin.emulator import Machine
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels import registry
from numba_marlin.kernels.language.arrays import array_words
from numba_marlin.kernels.language.plain import body_of
from tests.kernels.harness import PLAIN, cases

FOLDER = Path(kernels.__file__).parent


def source_of(name):
    return FOLDER / name / "kernel.py"


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_rung_is_one_short_file_over_numba_numpy_and_ptx(name):
    text = source_of(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    imported = {
        each.name if isinstance(node, ast.Import) else f"{node.module}.{each.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for each in node.names
    }
    assert imported <= {"numpy", "numba.cuda", "numba_marlin.ptx"}
    assert f"@cuda.jit\ndef {name}(x, qweight, scales, y):" in text and "uint32(" not in text
    assert "cuda.shared.array" in text or name == "naive"


def copied(name, compiler, folder):
    """The kernel, from a copy of its file that imports the compiler's cuda."""
    return getattr(copied_module(name, compiler, folder), name)


def copied_module(name, compiler, folder):
    file = folder / f"notebook_{name}.py"
    module = compiler.replace("-", "_")
    text = source_of(name).read_text(encoding="utf-8")
    if compiler != COMPILERS[0]:
        text = text.replace("from numba import cuda", f"from {module} import cuda")
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def grid_of(name, m, n):
    """As the files' docstrings say."""
    return (m * n + 127) // 128 if name == "naive" else (n // 64, (m + 15) // 16)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", PLAIN)
def test_a_copy_of_the_file_multiplies(name, compiler, run_on, tmp_path):
    language = backend(compiler)
    if compiler != COMPILERS[0]:
        pytest.importorskip("numba_cuda_mlir")
    cuda = language.language().cuda
    kernel = copied(name, compiler, tmp_path)
    problem = testing.exact_problem(19, 128, 208, 16, seed=5)
    packed = nm.pack(problem.weight)
    operands = (problem.x, packed.qweight, packed.scales)
    y = np.full((19, 128), np.nan, np.float16)
    if run_on == "cuda":
        on_device = [cuda.to_device(each) for each in operands]
        result = cuda.to_device(y)
        kernel[grid_of(name, 19, 128), 128](*on_device, result)
        y = result.copy_to_host()
    else:
        on_machine(name, kernel, language, operands, y)
    assert (y == problem.expected).all()


class OnMachine:
    """A kernel whose launches run on the PTX machine."""

    def __init__(self, name, kernel, language):
        self.name, self.kernel, self.language = name, kernel, language

    def __getitem__(self, launch):
        grid, threads = launch

        def run(*arrays):
            assert threads == 128
            *operands, y = arrays
            assert grid == grid_of(self.name, *y.shape)
            on_machine(self.name, self.kernel, self.language, operands, y)

        return run


@pytest.mark.parametrize(
    "compiler", cases(((each,) for each in COMPILERS), lambda compiler: compiler == COMPILERS[0])
)
@pytest.mark.parametrize("name", PLAIN)
def test_the_example_in_the_docstring_multiplies(name, compiler, run_on, tmp_path):
    """It is the indented paragraph that begins with an import, and it checks its result itself."""
    language = backend(compiler)
    if compiler != COMPILERS[0]:
        pytest.importorskip("numba_cuda_mlir")
    copy = copied_module(name, compiler, tmp_path)
    paragraphs = [textwrap.dedent(each) for each in copy.__doc__.split("\n\n")]
    (example,) = [each for each in paragraphs if each.startswith("import numba_marlin as nm")]
    notebook = dict(vars(copy))
    if run_on != "cuda":
        notebook[name] = OnMachine(name, getattr(copy, name), language)
    exec(example, notebook)
    assert f"{name}[" in example and "assert" in example and notebook["y"].any()


def on_machine(name, kernel, language, operands, y):
    definition = registry.find_kernel(name)
    ptx = language.to_ptx(
        body_of(kernel, language.language()),
        definition.parameters,
        target_named("sm_90a"),
        128,
        plain=True,
    )
    machine = Machine(language.with_array_words(tidy(ptx, name), name, definition.parameters))
    passed = []
    for (_, kind), array in zip(definition.parameters, (*operands, y)):
        address = machine.memory.buffer(array, readonly=array is not y).address
        passed += array_words(kind, address, array.shape)
    grid = grid_of(name, *y.shape)
    machine.run(name, grid if isinstance(grid, tuple) else (grid,), (128,), 0, passed)


@pytest.mark.parametrize("name", PLAIN)
def test_one_scale_per_column_is_refused(name):
    """Its order in memory is another one."""
    problem = testing.exact_problem(2, 64, 64, -1, seed=1)
    with pytest.raises(ValueError, match=f"kernel '{name}' does not take group_size=-1"):
        nm.matmul(problem.x, nm.pack(problem.weight), "emulator", kernel=name)
