"""Finds assemblers and disassemblers without running them.

This is separate from ``assemble``, which runs them: loading a kernel from the disk cache only needs
to know which ptxas would be used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache

# inside the namespace package `nvidia`; CUDA 13, CUDA 12
_WHEEL_DIRECTORIES = ("cu13/bin", "cuda_nvcc/bin", "cuda_nvdisasm/bin")


@cache
def find_tools(name: str) -> tuple[str, ...]:
    """Paths of every executable ``name`` (ptxas, nvdisasm), best first: pip wheels, CUDA_HOME,
    CUDA_PATH, PATH."""
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
