"""Contract under test: rooms stay in their place. What a fresh interpreter loads says who imports whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import numba_marlin

PACKAGE = Path(numba_marlin.__file__).parent

GPU_LIBRARIES = {"numba", "numba_cuda", "numba_cuda_mlir", "llvmlite", "cuda", "torch", "cupy", "hypothesis"}
PURE_ROOMS = ["layout", "formats", "quantize", "reference", "emulator", "kernels", "devices", "heuristics", "tuned", "bench"]
ALLOWED = {
    "layout": set(),
    "formats": {"layout"},
    "quantize": {"formats"},
    "reference": {"formats", "quantize"},
    "hostloops": {"formats"},
    "testing": {"formats", "quantize", "reference"},
    "emulator": {"layout"},
    "isa": set(),
    "kernels": {"layout"},
    "compiler": {"errors", "isa", "kernels"},
    "devices": {"compiler"},  # its table of targets
    "driver": {"devices", "errors"},
    "interop": {"driver", "formats"},
    "heuristics": {"devices", "formats", "kernels", "layout", "tuned"},
    "launch": {"devices", "driver", "errors"},
    "calls": {"backends", "driver", "interop", "launch"},
    "tuned": {"compiler", "devices", "driver"},  # the place of the kernel cache and the sources' digest; whether a driver is there
    "bench": {"compiler", "devices", "driver", "errors", "formats", "heuristics", "kernels", "launch", "tuned"},
}


def loaded_after(statement):
    """Top-level names of the modules that a fresh interpreter has loaded after ``statement``."""
    program = f"import sys\n{statement}\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


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


def test_the_probe_sees_imports():
    assert "numba" in loaded_after("import numba_marlin.hostloops")


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_pure_rooms_load_no_compiler_and_no_gpu_library(room):
    assert not loaded_after(f"import numba_marlin.{room}") & GPU_LIBRARIES


def test_importing_the_package_loads_no_compiler_and_no_gpu_library():
    assert not loaded_after("import numba_marlin") & GPU_LIBRARIES


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_only_what_lies_below_them(room):
    assert imported_rooms(room) <= ALLOWED[room]


def test_nothing_imports_the_command_line():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    for room in rooms - {"cli", "__main__", "__init__"}:
        assert "cli" not in imported_rooms(room), room
