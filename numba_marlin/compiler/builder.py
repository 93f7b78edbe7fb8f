"""``build``: compiles a kernel in a configuration for a target to PTX, cubin and resources, or
loads them from the disk cache.

The compiler and the assembler are imported only if a kernel is not in the cache; a process that
finds its kernels there starts several times as fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

from numba_marlin.compiler import cache as disk
from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.compiler.errors import MissingCompiler
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels.language.definition import KernelDefinition

_DISTRIBUTIONS = {
    "numba-cuda": ("numba", "numba-cuda", "llvmlite"),
    "numba-cuda-mlir": ("numba-cuda-mlir", "numba"),
}
"""Name of a compiler -> the distributions whose versions determine its output."""

_SIMULATOR = "NUMBA_ENABLE_CUDASIM"

COMPILERS = tuple(_DISTRIBUTIONS)
"""Names of the compilers, the default first."""


def backend(compiler: str):
    """Return the module of a compiler; importing it does not import numba. Raises ValueError for an
    unknown name."""
    _check_compiler(compiler)
    return importlib.import_module("numba_marlin.compiler." + compiler.replace("-", "_"))


def _check_compiler(compiler):
    if compiler not in COMPILERS:
        raise ValueError(f"compiler={compiler!r} must be one of {', '.join(COMPILERS)}")


def available_compilers() -> tuple[str, ...]:
    """Return the names of the installed compilers, the default first, without importing them."""
    return tuple(
        name
        for name in COMPILERS
        if importlib.util.find_spec(backend(name).IMPORT_NAME) is not None
    )


def build(
    kernel: KernelDefinition,
    config,
    target: str = "sm_90a",
    compiler: str = "numba-cuda",
    cache: bool = True,
    line_info: bool = False,
) -> CompiledKernel:
    """Compile ``kernel`` in the configuration ``config`` for ``target``. Needs neither a GPU nor a
    driver.

    cache: whether to read and write the disk cache.
    line_info: the PTX also has the line and the device function of each instruction, and is
        otherwise the same; for numba-cuda only.

    Raises TypeError for a configuration of another kernel; ValueError for an unknown target or
    compiler, a target below the kernel's min_arch, or a compiler without ``line_info``;
    MissingCompiler if the compiler is not installed, or if NUMBA_ENABLE_CUDASIM hides it, and the
    package does not bring the kernel's PTX (``shipped``);
    AssemblyError if assemblers reject the PTX.
    """
    key, versions = _identity(kernel, config, target, compiler, line_info)
    found = disk.load(key, config) if cache else None
    if found is not None:
        return found
    try:
        compiled = _compile(
            kernel,
            config,
            target_named(target),
            backend(compiler),
            key,
            versions,
            **({"line_info": True} if line_info else {}),
        )
    except MissingCompiler as missing:
        return _shipped(kernel, config, target, compiler, line_info, missing)
    if cache:
        disk.store(compiled)
    return compiled


def load(
    kernel: KernelDefinition, config, target: str, compiler: str = "numba-cuda"
) -> CompiledKernel | None:
    """What ``build`` would find in the disk cache; None if it would compile. Raises TypeError and
    ValueError as ``build`` does."""
    key, _ = _identity(kernel, config, target, compiler)
    return disk.load(key, config)


def _identity(kernel, config, target, compiler, line_info=False) -> tuple[str, dict[str, str]]:
    """Check what is to be compiled -> (its key in the disk cache, versions)."""
    kernel.check_config(config)
    _check_compiler(compiler)
    if not target_named(target).supports(kernel.min_arch):
        raise ValueError(
            f"kernel {kernel.name} needs {kernel.min_arch}, which target={target!r} lacks"
        )
    if line_info and compiler != COMPILERS[0]:
        raise ValueError(f"line_info needs compiler={COMPILERS[0]!r}, not {compiler!r}")
    versions = disk.installed_versions(_DISTRIBUTIONS[compiler])
    return disk.cache_key(kernel, config, target, compiler, versions, line_info), versions


def _shipped(kernel, config, target, compiler, line_info, missing):
    """Return the kernel that comes with the package. Raises MissingCompiler with what there is
    instead."""
    from numba_marlin.compiler import shipped

    if compiler != COMPILERS[0]:
        raise missing
    found = shipped.find(kernel, config, target, compiler, line_info)
    if found is None:
        raise MissingCompiler(
            f"{missing}. {shipped.without_compiler(kernel, config, target, line_info)}"
        ) from missing
    return found


def _compile(kernel, config, target, the_backend, key, versions, **line_info):
    from numba_marlin.compiler.assemble import assemble
    from numba_marlin.compiler.module_text import (
        cluster_of,
        files_of_package,
        number_functions,
        pass_by_value,
        tidy,
    )

    if os.environ.get(_SIMULATOR, "0") not in ("", "0"):
        raise MissingCompiler(
            f"{_SIMULATOR}={os.environ[_SIMULATOR]} replaces Numba's compiler by a simulator, which"
            " knows no PTX: unset it. Without a GPU these kernels run on the PTX machine"
        )
    threads = kernel.threads(config)
    body = kernel.make(the_backend.language(**line_info), config)
    entry = f"marlin_{kernel.name}"
    ptx = tidy(
        the_backend.to_ptx(
            body,
            kernel.parameters,
            target,
            threads,
            kernel.blocks_per_sm(config),
            plain=kernel.plain,
            **line_info,
        ),
        entry,
    )
    ptx = the_backend.with_array_words(ptx, entry, kernel.parameters)
    if line_info:
        ptx = number_functions(files_of_package(ptx))
    ptx = pass_by_value(
        ptx,
        entry,
        [index for index, (_, kind) in enumerate(kernel.passed) if kind == "tensormap"],
    )
    ptx = cluster_of(ptx, kernel.cluster(config))
    cubin, resources = assemble(ptx, target)
    return CompiledKernel(
        kernel=kernel.name,
        config=config,
        target=target.name,
        compiler=the_backend.NAME,
        ptx=ptx,
        entry=entry,
        parameters=kernel.passed,
        threads=threads,
        shared_bytes=kernel.shared_bytes(config),
        cubin=cubin,
        resources=resources,
        key=key,
        versions=versions,
    )
