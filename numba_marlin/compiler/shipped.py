"""The PTX that comes with the package: of every kernel in the configurations that ``run``,
``trace`` and ``profile`` show by default and in the examples of their ``--help``, so that these
work where no compiler is installed.

``data/shipped/`` holds it; ``.ci/ship_ptx.py`` writes it with the default compiler. An entry has
the key ``cache.source_key``: everything that a kernel is made from but the versions of the tools.
So PTX of other sources than the installed ones is never run. The resources that an assembler
reported are kept too; its machine code is not.
"""

from __future__ import annotations

from dataclasses import asdict

from numba_marlin.compiler.cache import package_digest, source_key
from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.compiler.resources import Resources
from numba_marlin.data import shipped_index, shipped_ptx

TOOLKIT = ("nvidia-nvvm", "nvidia-cuda-nvcc")
"""Distributions whose version says which CUDA the PTX was made with."""


def find(kernel, config, target: str, compiler: str, line_info: bool) -> CompiledKernel | None:
    """Return the kernel whose PTX comes with the package; None if it is not among them."""
    index = shipped_index()
    key = source_key(kernel, config, target, compiler, line_info)
    row = next((each for each in index["kernels"] if each["key"] == key), None)
    if row is None:
        return None
    return CompiledKernel(
        kernel=kernel.name,
        config=config,
        target=target,
        compiler=compiler,
        ptx=shipped_ptx(row["ptx"]),
        entry=f"marlin_{kernel.name}",
        parameters=kernel.passed,
        threads=kernel.threads(config),
        shared_bytes=kernel.shared_bytes(config),
        cubin=None,
        resources=Resources(**row["resources"]),
        key=key,
        versions=index["versions"],
        shipped=True,
    )


def current() -> bool:
    """Whether the PTX was made from the sources that are installed."""
    return shipped_index()["sources"] == package_digest()


def made_with(versions: dict[str, str]) -> str:
    """The compiler and the CUDA toolkit of ``CompiledKernel.versions``, in words."""
    toolkit = next((f", CUDA {versions[each]}" for each in TOOLKIT if each in versions), "")
    return f"numba-cuda {versions['numba-cuda']}{toolkit}"


def without_compiler(kernel, config, target: str, line_info: bool) -> str:
    """Say what there is instead of a kernel that is not shipped."""
    if not current():
        return (
            "The PTX that comes with the package is not used, as it was made from other sources"
            " than those installed: install the package anew, or, after a change of your own, run"
            " `python .ci/ship_ptx.py` where there is a compiler"
        )
    rows = [each for each in shipped_index()["kernels"] if each["kernel"] == kernel.name]
    same = [each for each in rows if (each["target"], each["line_info"]) == (target, line_info)]
    commands = "; ".join(f"`numba-marlin {each}`" for row in rows for each in row["commands"])
    if not rows:
        return f"No PTX of kernel {kernel.name} comes with the package"
    there = " or ".join(
        ", ".join(f"{name}={value}" for name, value in _others(each["config"], asdict(config)))
        for each in same
    )
    asked = ", ".join(
        f"{name}={value}"
        for name, value in asdict(config).items()
        if any(each["config"].get(name) != value for each in same)
    )
    wanted = f"not with {asked}, but with {there}" if there and asked else f"not as asked, {target}"
    return (
        f"Of {kernel.name}, PTX comes with the package, {wanted}; what runs without a compiler:"
        f" {commands}"
    )


def _others(shipped: dict, asked: dict):
    return [(name, value) for name, value in shipped.items() if asked.get(name) != value]
