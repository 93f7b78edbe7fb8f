"""Which kernels there are, by name, and where each is defined; a module is imported when asked for."""

from __future__ import annotations

import importlib

from numba_marlin.kernels.language.definition import KernelDefinition

_MODULES = {
    "naive": "naive",
    "tiled": "tiled",
    "ampere": "ampere",
    "decode": "decode",
    "wgmma": "wgmma",
    "block_scaled": "nvfp4.block_scaled",
    "block_decode": "nvfp4.block_decode",
    "tcgen05": "nvfp4.tcgen05",
    "block_mma": "nvfp4.block_mma",
}


def find_kernel(name: str) -> KernelDefinition:
    """The kernel called ``name``; ValueError lists the known ones."""
    if name not in _MODULES:
        raise ValueError(f"kernel={name!r} must be one of {', '.join(_MODULES)}")
    return importlib.import_module(f"numba_marlin.kernels.{_MODULES[name]}").KERNEL
