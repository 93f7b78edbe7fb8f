"""A compiler that makes empty kernels at once and counts them, and workers that are this process:
for tests of what is compiled, and when."""

from types import SimpleNamespace

from numba_marlin.compiler import COMPILERS, CompiledKernel, Resources, builder, workers
from numba_marlin.execution import driver, warmup
from numba_marlin.execution import plan as planning


def without_ptx(kernel, config, target, backend, key, versions):
    """In place of ``builder._compile``: a compiled kernel with all but its PTX."""
    return CompiledKernel(
        kernel.name,
        config,
        target.name,
        COMPILERS[0],
        "no PTX",
        "entry",
        kernel.parameters,
        kernel.threads(config),
        kernel.shared_bytes(config),
        None,
        Resources(),
        key,
        versions,
    )


def fake_compiler(tmp_path, monkeypatch):
    """built: the configurations compiled since the cache, which is empty, was made; forget():
    what a new process would not know, to be called at the end too; cache: the directory. There is
    no GPU."""
    built = []

    def compile_it(kernel, config, target, backend, key, versions):
        built.append(config)
        return without_ptx(kernel, config, target, backend, key, versions)

    def forget():
        planning.held.cache_clear()
        built.clear()

    cache = tmp_path / "kernels"
    monkeypatch.setenv("NUMBA_MARLIN_CACHE", str(cache))
    monkeypatch.setattr(builder, "_compile", compile_it)
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(False, "no GPU in this test"))
    monkeypatch.setattr(
        warmup,
        "compile_in_processes",
        lambda jobs, processes: ((job, workers._answer(job)) for job in jobs),
    )
    planning.held.cache_clear()
    return SimpleNamespace(built=built, forget=forget, cache=cache)
