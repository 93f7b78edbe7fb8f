"""The scripts of ``.ci`` as modules."""

import importlib.util
import sys
from pathlib import Path

CI = Path(__file__).resolve().parent.parent / ".ci"


def script(name):
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
