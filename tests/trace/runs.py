"""Recorded runs for the tests of this folder: configurations that other tests compile too, each run
once."""

import functools
from dataclasses import replace

from numba_marlin import compiler, testing, trace
from numba_marlin.emulator import Machine
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.testing.launches import launch_on
from tests.kernels import configurations
from tests.kernels.configurations import group_size_of
from tests.kernels.harness import prepare

HOPPER = replace(configurations.ARRANGEMENTS["two words"], group_blocks=4)
RUNS = {
    "ampere": dict(name="ampere", m=16, n=256, k=512, group_size=128, line_info=True),
    "decode": dict(
        name=DECODE,
        m=8,
        n=512,
        k=1024,
        group_size=group_size_of(configurations.DECODE),
        config=configurations.DECODE,
        line_info=True,
    ),
    "wgmma": dict(name=WGMMA, m=32, n=256, k=256, group_size=64, config=HOPPER),
    "tiled": dict(name="tiled", m=16, n=128, k=128, group_size=64),
    "buffered": dict(name="buffered", m=16, n=128, k=256, group_size=64),
    "general": dict(name="general", m=4, n=64, k=128, group_size=128),
    "naive": dict(name="naive", m=4, n=64, k=128, group_size=64),
    "nvfp4": dict(
        name=DECODE,
        m=2,
        n=256,
        k=640,
        group_size=16,
        config=configurations.configured(configurations.FEW_ROWS, "nvfp4", "float16"),
        blocks="nvfp4",
    ),
}


def launch(
    name,
    m,
    n,
    k,
    group_size,
    config=None,
    line_info=False,
    sms=3,
    seed=0,
    change=lambda prepared: None,
    blocks=None,
):
    """(machine, what Machine.run takes, problem, what trace.record is told about it, the prepared
    operands). blocks: "nvfp4" for weights in blocks."""
    problem = (
        testing.exact_problem(m, n, k, group_size, seed=seed)
        if blocks is None
        else testing.exact_blocks(blocks, m, n, k, seed=seed, bias=True)
    )
    prepared = prepare(
        name,
        problem.x,
        problem.weight,
        config=config,
        sms=sms,
        bias=getattr(problem, "bias", None) if blocks else None,
    )
    change(prepared)
    kernel, config, compiled = prepared.kernel, prepared.config, prepared.compiled
    if line_info:
        compiled = compiler.build(kernel, config, line_info=True)
    machine = Machine(compiled.ptx)
    given = launch_on(machine, prepared, compiled)
    about = {
        "kernel": kernel.name,
        "problem": {
            "m": m,
            "n": n,
            "k": k,
            "group_size": group_size,
            "bits": 4,
            "dtype": "float16",
            "codes": "e2m1" if blocks else "integer",
        },
        **kernel.about.of_run(config, 0x400),
    }
    return machine, given, problem, about, prepared


@functools.cache
def recorded(key):
    """(trace, problem) of one of RUNS; its product was right."""
    machine, given, problem, about, prepared = launch(**RUNS[key])
    found = trace.record(machine, about=about, **given)
    assert (prepared.buffers["c"] == problem.expected).all()
    return found, problem
