"""Contract under test, without running anything: every kernel x configuration x target compiles and
assembles with no spills, no local memory, no float64, and exactly the tensor-core and copy
instructions that its tile asks for."""

import itertools
from dataclasses import replace

import pytest

from numba_marlin import compiler
from numba_marlin.compiler import gates
from numba_marlin.compiler.assemble import assemble
from numba_marlin.compiler.resources import count_ptx
from numba_marlin.hardware.targets import target_named
from numba_marlin.heuristics.candidates import find_kernel
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.ampere.config import HALVES
from numba_marlin.kernels.buffered import BufferedConfig
from numba_marlin.kernels.decode import DecodeConfig
from numba_marlin.kernels.general import GeneralConfig
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.naive import NaiveConfig
from numba_marlin.kernels.tiled import TiledConfig
from tests.kernels.harness import KERNELS, OF_GROUP_SIZE, PLAIN, TILES, cases

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")
GROUP_BLOCKS = (-1, 2, 4, 8)
ORIGINAL = [(1, 8, 8), (1, 16, 4), (2, 16, 4), (3, 16, 4), (4, 16, 4)]


counts = gates.opcode_count


def check_gates(compiled):
    assert not gates.broken_promises(compiled)
    assert compiled.resources.registers <= 255


def for_target(hopper, kernel, target, every_target):
    """``hopper``, compiled for sm_90a, for ``target``: its PTX assembled for it, or compiled anew
    with --every-target."""
    if target == hopper.target or every_target:
        return compiler.build(kernel, hopper.config, target=target)
    cubin, resources = assemble(
        hopper.ptx.replace(".target sm_90a", f".target {target}"), target_named(target)
    )
    return replace(hopper, target=target, cubin=cubin, resources=resources)


def all_configurations():
    for group_size in (-1, 32, 64, 128):
        yield "general", GeneralConfig(group_size)
    for name in PLAIN:  # whose code is the same for every group size
        yield name, OF_GROUP_SIZE[name](128)
    for m_blocks, n_blocks, k_blocks in ORIGINAL:
        for group_blocks in GROUP_BLOCKS:
            for ragged in (False, True):
                yield "ampere", AmpereConfig(m_blocks, n_blocks, k_blocks, group_blocks, 4, ragged)
    # not the original's, but the heuristic's: tails and small groups take the most registers
    for m_blocks in (2, 3, 4):
        yield "ampere", AmpereConfig(m_blocks, 8, 8, 2, 4, True)


def check_counts(compiled, config):
    fetches = 2 * config.stages - 1  # the prologue's, and one a stage of the unrolled loop
    copies_a, copies_b, copies_s = (
        ceil_div(16 * config.thread_m_blocks * config.a_row_chunks, 256),
        2,
        1,
    )
    copies = fetches * (copies_a + copies_b) + copies_s * (fetches if config.grouped else 1)
    if config.thread_m_blocks > 1:
        copies += 8 * config.thread_m_blocks  # the partial sums of the block below
    assert (
        counts(compiled, "mma.sync.aligned.m16n8k16")
        == config.stages * HALVES * 8 * config.thread_m_blocks
    )
    assert (
        counts(compiled, "ldmatrix.sync.aligned.m8n8.x4")
        == (HALVES * config.stages + 1) * config.thread_m_blocks
    )
    assert counts(compiled, "cp.async.cg") == copies
    assert counts(compiled, "cp.async.cg.shared.global.L2::cache_hint") == fetches * copies_b
    assert counts(compiled, "cp.async.wait_group") == config.stages + 1


# The least tile, and that which takes the most registers: with --thorough, all of them with all.
TELLING = (
    AmpereConfig(1, 8, 8, 4, 4),
    AmpereConfig(4, 8, 8, 2, 4, True),
)


def usual(name, config):
    return config in TELLING if name == "ampere" else config.group_size in (-1, 64)


OTHERS = [
    (config, target)
    for (_, config), target in zip(
        all_configurations(), itertools.cycle(("sm_80", "sm_120", "sm_86", "sm_89"))
    )
]


@pytest.mark.parametrize(
    "name, config",
    cases(all_configurations(), usual),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_every_configuration_on_every_target(name, config, every_target, thorough):
    """What differs between targets is the assembler's work above all, so Hopper's PTX stands for
    the others' unless --every-target is given; those that differ the least take turns, unless
    --thorough is."""
    hopper = compiler.build(KERNELS[name], config, target="sm_90a")
    check_gates(hopper)
    if name == "ampere":
        check_counts(hopper, config)
    for target in TARGETS if thorough or every_target else (dict(OTHERS)[config],):
        check_gates(for_target(hopper, KERNELS[name], target, every_target))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tile, group_blocks",
    # small groups take more registers than large ones and none
    cases(
        itertools.product(TILES, GROUP_BLOCKS),
        lambda tile, group_blocks: (tile, group_blocks) == (TILES[0], 2),
    ),
)
def test_two_blocks_fit_on_a_multiprocessor(tile, group_blocks, every_target):
    config = AmpereConfig(1, *tile, group_blocks, 6, True, blocks_per_sm=2)
    hopper = compiler.build(KERNELS["ampere"], config, target="sm_90a")
    for target in ("sm_80", "sm_90a"):
        compiled = for_target(hopper, KERNELS["ampere"], target, every_target)
        check_gates(compiled)
        assert 2 * 256 * compiled.resources.registers <= 65536


def test_the_gate_knows_the_copy_that_hopper_refuses():
    """Lines of two kernels run on an H200: with the first it stopped at an illegal instruction, the
    others ran."""
    refused = "/*1880*/                   LDGSTS.E.BYPASS.128 [R95+UR6], desc[UR7][R116.64] ;"
    ran = [
        "/*0ea0*/                   LDGSTS.E.BYPASS.128 [R15], desc[UR10][R12.64], !P3 ;",
        "/*17d0*/                   LDGSTS.E.BYPASS.LTC128B.128 [R7+0x4000], desc[UR10][R130.64] ;",
    ]
    assert gates.refused_copies("\n".join([*ran, refused])) == [
        "LDGSTS.E.BYPASS.128 [R95+UR6], desc[UR7]"
    ]
    assert not gates.refused_copies("\n".join(ran))


@pytest.mark.parametrize(
    "name, config, target",
    cases(
        (
            (name, config, target)
            for name, config in (
                ("general", GeneralConfig(128)),
                ("naive", NaiveConfig(128)),
                ("tiled", TiledConfig(64)),
                ("buffered", BufferedConfig(64)),
                ("ampere", AmpereConfig(1, 8, 8, 4)),
                ("ampere", AmpereConfig(4, 16, 4, 8)),
            )
            for target in TARGETS
        ),
        # the test above assembles it for others
        lambda name, config, target: (
            config != AmpereConfig(4, 16, 4, 8) and (name != "ampere" or target == "sm_90a")
        ),
    ),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_every_target(name, config, target):
    """Compiled for it, not only assembled."""
    compiled = compiler.build(KERNELS[name], config, target=target)
    check_gates(compiled)
    assert f".target {target}" in compiled.ptx


@pytest.mark.parametrize(
    "name, config",
    cases(
        (
            ("naive", NaiveConfig(64)),
            ("tiled", TiledConfig(64)),
            ("buffered", BufferedConfig(64)),
            ("ampere", AmpereConfig(1, *TILES[0], 4)),
            ("ampere", AmpereConfig(1, *TILES[0], 8)),
            ("ampere", AmpereConfig(4, *TILES[1], 8)),
        ),
        lambda name, config: name != "ampere",
    ),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_the_other_compiler_passes_the_same_gates(name, config):
    """Ampere's largest tile takes it half a minute."""
    pytest.importorskip("numba_cuda_mlir")
    check_gates(compiler.build(KERNELS[name], config, target="sm_90a", compiler="numba-cuda-mlir"))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_decode_by_the_other_compiler_keeps_accumulators_in_registers():
    """Its main loop was unrolled in part only, and indexed accumulators at run time: a stack of 144
    bytes, 2.7 times the instructions. What is left are dead stores of the epilogue, to 16 bytes."""
    pytest.importorskip("numba_cuda_mlir")
    config = DecodeConfig(
        *(8, 1, 8, 512, 7), group_blocks=8, ragged=True, blocks_per_sm=1, resident=1, whole=True
    )
    first, other = (
        compiler.build(find_kernel("decode"), config, target="sm_90a", compiler=by)
        for by in ("numba-cuda", "numba-cuda-mlir")
    )
    check_gates(first)
    assert not counts(other, "ld.local") and other.resources.stack <= 16
    assert not other.resources.spill_stores and other.resources.registers <= 96
    instructions = [sum(count_ptx(each.ptx).values()) for each in (first, other)]
    assert instructions[1] <= 1.4 * instructions[0], instructions
