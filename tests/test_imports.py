"""Contract under test: rooms stay in their place. What a fresh interpreter loads says who imports
whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import numba_marlin
from numba_marlin.compiler import COMPILERS, builder
from numba_marlin.execution import plan as planning
from numba_marlin.heuristics import Problem
from tests.fake_compiler import without_ptx
from tests.interpreter import loaded_by

PACKAGE = Path(numba_marlin.__file__).parent

ROOT = PACKAGE.parent
GPU_LIBRARIES = {
    "numba",
    "numba_cuda",
    "numba_cuda_mlir",
    "llvmlite",
    "cuda",
    "torch",
    "cupy",
    "hypothesis",
}
PURE_ROOMS = [
    "layout",
    "formats",
    "quantizers",
    "reference",
    "emulator",
    "counts",
    "mutation",
    "problems",
    "kernels",
    "hardware",
    "heuristics",
    "ptx",
    "bench",
    "calibration",
    "checkpoints",
    "trace",
    "views",
    "profile",
    "on_cpu",
    "judge",
]
ALLOWED = {
    "layout": {"hardware"},
    "formats": {"layout", "wording"},
    "quantizers": {"formats", "wording"},
    "reference": {"formats", "quantizers"},
    "hostloops": {"formats"},
    "checkpoints": {"errors", "formats", "hostloops", "wording"},
    "calibration": {"api", "checkpoints", "quantizers", "wording"},
    "views": {"wording"},
    "wording": set(),
    "trace": {"counts", "data", "hardware", "emulator", "formats", "layout", "views", "wording"},
    # Numba's CUDA without a GPU: of this package the machine alone
    "on_cpu": {"emulator", "hardware", "row_stack"},
    "row_stack": set(),
    # anybody's kernels: of this package the machine, and numba-cuda by way of on_cpu
    "judge": {"emulator", "errors", "hardware", "on_cpu", "views", "wording"},
    "puzzles": {"counts", "emulator", "errors", "judge", "on_cpu", "ptx", "wording"},
    # of the compiler the language, of which ``pipelines`` has a part in plain Python
    "testing": {
        "compiler",
        "hardware",
        "emulator",
        "execution",
        "formats",
        "heuristics",
        "kernels",
        "problems",
        "quantizers",
        "reference",
    },
    "emulator": {"hardware", "layout", "wording"},
    "counts": {"emulator", "layout"},
    "data": set(),
    "mutation": {"emulator"},
    "isa": set(),
    # the instructions' names; what turns them into a compiler's, when a kernel asks
    "ptx": {"compiler", "isa", "row_stack"},
    "problems": {"formats"},
    # ptx: the plain rungs, whose files are imported when they are compiled
    "kernels": {"hardware", "layout", "problems", "ptx", "wording"},
    "compiler": {"data", "errors", "hardware", "isa", "kernels", "row_stack", "wording"},
    "hardware": {"wording"},
    # of the compiler the place of the kernel cache and the digest of the sources (``tuned``)
    "heuristics": {"compiler", "hardware", "kernels", "problems", "wording"},
    "execution": {
        "compiler",
        "emulator",
        "errors",
        "formats",
        "hardware",
        "heuristics",
        "kernels",
        "problems",
        "quantizers",
        "reference",
        "wording",
    },
    "api": {
        "checkpoints",
        "compiler",
        "emulator",
        "errors",
        "execution",
        "formats",
        "hardware",
        "heuristics",
        "hostloops",
        "kernels",
        "problems",
        "quantizers",
        "reference",
    },
    "witness": {
        "compiler",
        "emulator",
        "errors",
        "execution",
        "hardware",
        "isa",
        "layout",
        "wording",
    },
    "profile": {
        "bench",
        "compiler",
        "counts",
        "data",
        "hardware",
        "emulator",
        "errors",
        "execution",
        "formats",
        "heuristics",
        "kernels",
        "layout",
        "problems",
        "quantizers",
        "views",
    },
    "bench": {
        "compiler",
        "hardware",
        "errors",
        "execution",
        "formats",
        "heuristics",
        "kernels",
        "layout",
        "problems",
        "wording",
    },
    "torch": {"api", "checkpoints", "execution", "formats", "quantizers"},
}


def imported_rooms(room):
    """Rooms that the source of ``room`` imports, anywhere in it, also inside functions."""
    source = PACKAGE / room
    files = source.rglob("*.py") if source.is_dir() else [source.with_suffix(".py")]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = []
            found |= {name.split(".")[1] for name in names if name.startswith("numba_marlin.")}
    return found - {room}


# What only compiling, assembling, writing, explaining or checking needs, and what of the standard
# library is slow to import.
SELDOM_NEEDED = {
    "json",
    "subprocess",
    "tempfile",
    *(
        f"numba_marlin.{module}"
        for module in (
            "bench",
            "calibration",
            "checkpoints",
            "cli",
            "compiler.assemble",
            "compiler.gates",
            "compiler.language",
            "compiler.module_text",
            "compiler.numba_cuda",
            "compiler.numba_cuda_mlir",
            "emulator",
            "formats.files",
            "heuristics.explanation",
            "hostloops",
            "isa.instruction",
            "isa.library",
            "kernels.nvfp4.block_scaled",  # and its relatives: of two block-scaled operands
            "isa.parsing",
            "quantizers",
            "reference",
            "testing",
        )
    ),
}


def loaded_beyond_numpy(statement):
    """Modules that ``statement`` loads in a fresh interpreter that has NumPy."""
    program = (
        f"import sys\nsys.path[:] = {sys.path}\nimport numpy\nbefore ="
        f" set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    )
    # -S: what installed packages load whenever Python starts (numba-cuda does) would hide what is
    # loaded here
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_the_probe_sees_what_is_seldom_needed():
    # it imports Numba
    rooms = {name for name in SELDOM_NEEDED if name.startswith("numba_marlin.")} - {
        "numba_marlin.hostloops"
    }
    assert rooms <= loaded_beyond_numpy(f"import {', '.join(rooms)}")


def test_the_public_functions_load_nothing_that_is_seldom_needed():
    assert not loaded_beyond_numpy("import numba_marlin as nm; nm.matmul") & SELDOM_NEEDED


def test_a_kernel_out_of_the_disk_cache_loads_nothing_that_is_seldom_needed(tmp_path, monkeypatch):
    """What a process does before its first product, but for CUDA: choose, find the kernel, read
    it."""

    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(tmp_path))
    monkeypatch.setattr(builder, "_compile", without_ptx)
    planning.held.cache_clear()
    assert not planning.plan(Problem(16, 64, 128), "emulator").compile(COMPILERS[0]).from_cache
    planning.held.cache_clear()
    loaded = loaded_beyond_numpy(
        "from numba_marlin import heuristics\nfrom numba_marlin.execution.plan import plan\nassert"
        " plan(heuristics.Problem(16, 64, 128),"
        f" 'emulator').compile({COMPILERS[0]!r}).from_cache"
    )
    assert "numba_marlin.compiler.cache" in loaded and not loaded & SELDOM_NEEDED


def test_the_probe_sees_imports():
    assert "numba" in loaded_by("import numba_marlin.hostloops")


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_load_no_compiler_and_no_gpu_library(room):
    assert not loaded_by(f"import numba_marlin.{room}") & GPU_LIBRARIES


def test_importing_the_package_loads_no_compiler_and_no_gpu_library():
    assert not loaded_by("import numba_marlin") & GPU_LIBRARIES


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_only_what_lies_below_them(room):
    assert imported_rooms(room) <= ALLOWED[room]


def test_nothing_imports_the_command_line():
    rooms = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    for room in rooms - {"cli", "__main__", "__init__"}:
        assert "cli" not in imported_rooms(room), room


def imports_of(text):
    """Every module that a file imports, wherever in it, and ``module.name`` of what it takes from
    one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def of_a_test_module(imported):
    first, *rest = imported.split(".")
    return first == "tests" and any(
        (ROOT / "tests" / "/".join(rest[:end])).with_suffix(".py").exists()
        and rest[end - 1].startswith("test_")
        for end in range(1, len(rest) + 1)
    )


def test_what_tests_share_stands_in_no_test_module():
    """Else one module's tests could not be split, moved or left out without another's."""
    found = {
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in (ROOT / "tests").rglob("*.py")
        for imported in imports_of(path.read_text(encoding="utf-8"))
        if of_a_test_module(imported)
    }
    assert not found


def test_experiments_import_no_tests():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "experiments").rglob("*.py")
        if any(
            each.partition(".")[0] == "tests"
            for each in imports_of(path.read_text(encoding="utf-8"))
        )
    }
    assert not found


@pytest.mark.parametrize(
    "line, counts",
    (
        ("from tests.test_imports import ROOT", True),
        ("from tests import test_imports", True),
        ("from tests.kernels.test_decode import exact", True),
        ("import tests.kernels.test_decode as decode", True),
        ("from tests.kernels.harness import prepare", False),
        ("from tests.kernels import harness", False),
        ("from numba_marlin.testing import problems", False),
    ),
)
def test_an_import_of_a_test_module_is_known(line, counts):
    assert any(map(of_a_test_module, imports_of(line))) == counts
