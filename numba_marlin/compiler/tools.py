"""Finds assemblers and disassemblers without running them.

This module is separate from ``assemble``, which runs them, because loading a kernel from the disk
cache needs to know only which ptxas would be used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

# in the namespace package `nvidia`: of CUDA 13, of CUDA 12 (two)
_WHEEL_DIRECTORIES = ("cu13/bin", "cuda_nvcc/bin", "cuda_nvdisasm/bin")


@cache
def find_tools(name: str) -> tuple[str, ...]:
    """Return the paths of all executables ``name`` (ptxas, nvdisasm), in the order of preference:
    pip wheels, CUDA_HOME, CUDA_PATH, PATH."""
    file_name = name + (".exe" if os.name == "nt" else "")
    directories = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        directories += [os.path.join(root, directory) for directory in _WHEEL_DIRECTORIES]
    directories += [
        os.path.join(os.environ[key], "bin")
        for key in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(key)
    ]
    candidates = [os.path.join(directory, file_name) for directory in directories] + [
        shutil.which(name) or ""
    ]
    return tuple(
        dict.fromkeys(
            path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)
        )
    )
