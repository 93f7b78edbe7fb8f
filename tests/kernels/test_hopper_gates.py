"""Contract under test, without running anything: every configuration of the Hopper kernels that
``heuristics`` proposes compiles and assembles with no spills, no local memory, no float64 and no
serialised wgmma, and with exactly the tensor-core instructions that its tile asks for.
"""

from dataclasses import asdict, replace

import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.compiler.assemble import assemble
from numba_marlin.hardware import devices
from numba_marlin.hardware.targets import target_named
from numba_marlin.heuristics import Problem, configured
from numba_marlin.kernels.decode import KERNEL as DECODE
from numba_marlin.kernels.decode import choose as decode
from numba_marlin.kernels.wgmma import KERNEL as WGMMA
from numba_marlin.kernels.wgmma import choose as wgmma
from numba_marlin.kernels.wgmma.config import STAGE_K16_ROWS
from tests.kernels.harness import cases

H200 = devices.device("H200")
USUAL = Problem(16, 8192, 8192, 128)
OTHERS = (
    Problem(5, 8200, 8208, -1, "bfloat16", scale_dtype="bfloat16", bias=True),
    Problem(5, 8200, 8192, 32, bias=True),
    Problem(16, 8192, 8192, 256),
)


def configurations(chooser, problem):
    # several waves of tiles and some left over: then every arrangement is worth a thought
    problem = replace(problem, m=4000)
    return list(
        dict.fromkeys(
            chooser.configurations(problem, H200) + chooser.invariant_configurations(problem, H200)
        )
    )


# not chosen by itself, but asked for (``decode.ALONE``)
PAIRS = tuple(
    configured(USUAL, H200, "decode", asdict(each))
    for each in decode.FITTED
    if each not in decode.ALONE
)


def arrangement(config):
    return str(config).replace(" ", "")


def check_decode(compiled, config):
    assert not gates.broken_promises(compiled)
    # the loop over a stage, and the row at a time of its tail
    rows = config.rows_per_warp + (1 if config.ragged else 0)
    assert gates.opcode_count(compiled, "mma.sync.aligned.m16n8k16") == rows * 4 * config.n8_blocks


def check_wgmma(compiled, config):
    assert not gates.broken_promises(compiled)
    assert (
        gates.opcode_count(compiled, "wgmma.mma_async") % (STAGE_K16_ROWS * config.strips)
        == 0
        < gates.opcode_count(compiled, "wgmma.mma_async")
    )


def telling_decode(config):
    """A batch of 16, which takes the most registers; tiles that nobody shares. (Others are
    compiled by ``test_decode``; of 8 and 24: thorough.)"""
    return (config.batch, config.warps_n) == (16, 8)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config",
    cases(((config,) for config in (*configurations(decode, USUAL), *PAIRS)), telling_decode),
    ids=arrangement,
)
def test_decode_is_clean(config, every_target):
    hopper = compiler.build(DECODE, config, target="sm_90a")
    check_decode(hopper, config)
    for target in ("sm_100", "sm_120") if every_target or config.batch == 16 else ():
        if every_target:
            check_decode(compiler.build(DECODE, config, target=target), config)
        else:
            cubin, resources = assemble(
                hopper.ptx.replace(".target sm_90a", f".target {target}"), target_named(target)
            )
            check_decode(replace(hopper, target=target, cubin=cubin, resources=resources), config)


def telling_wgmma(config):
    """Few and many rows; parts that one assembler spilled. (``test_wgmma`` compiles others, with
    pairs and parts. Stripes where most registers are in use: thorough.)"""
    return (config.tile_m, config.tile_n, config.split, config.parts) in (
        (16, 128, False, 1),
        (128, 128, False, 2),
    )


@pytest.mark.parametrize(
    "config",
    cases(((config,) for config in configurations(wgmma, USUAL)), telling_wgmma),
    ids=arrangement,
)
def test_wgmma_is_clean(config):
    check_wgmma(compiler.build(WGMMA, config, target="sm_90a"), config)


@pytest.mark.parametrize(
    "problem",
    OTHERS,
    ids=str,
)
@pytest.mark.thorough
def test_other_types_and_groups_are_clean(problem, every_target):
    """All of them with --every-target, else the first of each kernel."""
    for kernel, chooser, check in ((DECODE, decode, check_decode), (WGMMA, wgmma, check_wgmma)):
        for config in configurations(chooser, problem)[: None if every_target else 1]:
            check(compiler.build(kernel, config, target="sm_90a"), config)
