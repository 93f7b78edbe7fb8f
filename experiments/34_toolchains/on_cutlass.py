"""CUTLASS's examples of the CuTe DSL for Ampere and Hopper, from a checkout of NVIDIA/cutlass, as
they are: their kernels' classes get tensors of ours. CUTLASS: the checkout's folder."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version as installed
from pathlib import Path
from types import ModuleType
from unittest import mock

EXAMPLES = Path(os.environ.get("CUTLASS", "cutlass"), "examples/python/CuTeDSL")


def version() -> str:
    if not EXAMPLES.is_dir():
        raise FileNotFoundError(f"{EXAMPLES}: CUTLASS is to be a checkout of NVIDIA/cutlass")
    named = os.environ.get("CUTLASS_COMMIT", "")
    command = ["git", "-C", str(EXAMPLES), "rev-parse", "--short", "HEAD"]
    commit = named or subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"cutlass at {commit}, nvidia-cutlass-dsl {installed('nvidia-cutlass-dsl')}"


def example(path: str) -> ModuleType:
    """The module of an example; torch, with which examples make their data, need not be there."""
    name = "example_" + path.removesuffix(".py").replace("/", "_")
    if name in sys.modules:
        return sys.modules[name]
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))  # their helpers
    if importlib.util.find_spec("torch") is None:
        absent = {"torch": mock.MagicMock(), "cutlass.torch": mock.MagicMock()}
    else:
        absent = {}
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "cute" / path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    with mock.patch.dict(sys.modules, absent):
        spec.loader.exec_module(made)
    return made


def cases():
    import cute_kit

    cute_kit.ready()
    import cutlass_cases

    for name, targets, function in cutlass_cases.CASES:
        for target in targets:
            yield name, target, function
