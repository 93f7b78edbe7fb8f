"""Imports scripts of other experiments, whose folders have names that ``import`` cannot use."""

import importlib.util
from pathlib import Path

HERE = Path(__file__).resolve().parent


def script(path: str):
    """Return the module of a script, given its path below experiments/, such as
    ``script("02_hopper/sanitize.py")``."""
    file = HERE / path
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
