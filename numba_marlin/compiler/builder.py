"""``build``: a kernel, a configuration and a target in; PTX, cubin and resources out; from the disk
cache if they are there.

What compiles and assembles is imported when a kernel is not in the cache: a process that finds its
kernels there starts several times as fast.
"""

from __future__ import annotations

import importlib
import importlib.util

from numba_marlin.compiler import cache as disk
from numba_marlin.compiler.compiled import CompiledKernel
from numba_marlin.hardware.targets import target_named
from numba_marlin.kernels.language.definition import KernelDefinition

_DISTRIBUTIONS = {
    "numba-cuda": ("numba", "numba-cuda", "llvmlite"),
    "numba-cuda-mlir": ("numba-cuda-mlir", "numba"),
}
"""Name of a compiler -> the distributions whose versions decide what it makes of a kernel."""

COMPILERS = tuple(_DISTRIBUTIONS)
"""Names of the compilers, the default first."""


def backend(compiler: str):
    """The module of a compiler; importing it imports no numba. ValueError for an unknown name."""
    _check_compiler(compiler)
    return importlib.import_module("numba_marlin.compiler." + compiler.replace("-", "_"))


def _check_compiler(compiler):
    if compiler not in COMPILERS:
        raise ValueError(f"compiler={compiler!r} must be one of {', '.join(COMPILERS)}")


def available_compilers() -> tuple[str, ...]:
    """Those that are installed, the default first. Looks, but does not import them."""
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
    """Compile ``kernel`` in ``config`` for ``target``. Needs neither a GPU nor a driver.
    ``line_info``: the PTX says which line and device function each instruction comes from, and is
    otherwise the same; numba-cuda only.

    TypeError for a config of another kernel; ValueError for an unknown target or compiler, a target
    below the kernel's min_arch, or a compiler without line_info; MissingCompiler if the compiler is
    not installed; AssemblyError if the PTX is refused. cache=False neither reads nor writes the
    cache.
    """
    kernel.check_config(config)
    _check_compiler(compiler)
    the_target = target_named(target)
    if not the_target.supports(kernel.min_arch):
        raise ValueError(
            f"kernel {kernel.name} needs {kernel.min_arch}, target={target!r} does not have it"
        )
    if line_info and compiler != COMPILERS[0]:
        raise ValueError(f"line_info is what compiler={COMPILERS[0]!r} can do, not {compiler!r}")
    versions = disk.installed_versions(_DISTRIBUTIONS[compiler])
    key = disk.cache_key(kernel, config, target, compiler, versions, line_info)
    found = disk.load(key, config) if cache else None
    if found is not None:
        return found
    compiled = _compile(
        kernel,
        config,
        the_target,
        backend(compiler),
        key,
        versions,
        **({"line_info": True} if line_info else {}),
    )
    if cache:
        disk.store(compiled)
    return compiled


def _compile(kernel, config, target, the_backend, key, versions, **line_info):
    from numba_marlin.compiler.assemble import assemble
    from numba_marlin.compiler.module_text import cluster_of, files_of_package, pass_by_value, tidy

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
        ptx = files_of_package(ptx)
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
