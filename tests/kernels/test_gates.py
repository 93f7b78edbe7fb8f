"""Contract under test, without running anything: every kernel x configuration x target compiles and assembles with no spills, no local
memory, no float64, and exactly the tensor-core and copy instructions that its tile asks for."""
import re

import pytest

from tests.kernels.harness import KERNELS, TILES
from numba_marlin import compiler
from numba_marlin.kernels.ampere import AmpereConfig
from numba_marlin.kernels.naive import NaiveConfig
from numba_marlin.kernels.tiled import TiledConfig

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")
GROUP_BLOCKS = (-1, 2, 4, 8)
ORIGINAL = [(1, 8, 8), (1, 16, 4), (2, 16, 4), (3, 16, 4), (4, 16, 4)]


def counts(compiled, pattern):
    return len(re.findall(pattern, compiled.ptx))


def check_gates(compiled):
    assert counts(compiled, r"\.local\b") == 0, "local memory"
    assert counts(compiled, r"\.f64\b") == 0, "float64 arithmetic: an int64 met a uint32 in a comparison"
    assert counts(compiled, r"\bcall\b") == 0, "a device function was not inlined"
    if compiled.resources is not None:
        assert compiled.resources.spill_stores == compiled.resources.spill_loads == 0
        assert compiled.resources.registers <= 255


def all_configurations():
    for group_size in (-1, 32, 64, 128):
        yield "naive", NaiveConfig(group_size)
        yield "tiled", TiledConfig(group_size)
    for m_blocks, n_blocks, k_blocks in ORIGINAL:
        for group_blocks in GROUP_BLOCKS:
            for ragged in (False, True):
                yield "ampere", AmpereConfig(m_blocks, n_blocks, k_blocks, group_blocks, 4, ragged)


@pytest.mark.parametrize("name, config", all_configurations(), ids=lambda value: str(value).replace(" ", ""))
def test_every_configuration_on_hopper(name, config):
    compiled = compiler.build(KERNELS[name], config, target="sm_90a")
    check_gates(compiled)
    if name == "ampere":
        stages, copies_a, copies_b = config.stages, -(-16 * config.thread_m_blocks * config.a_row_chunks // 256), 2
        assert counts(compiled, r"mma\.sync\.aligned\.m16n8k16") == stages * 2 * 8 * config.thread_m_blocks
        assert counts(compiled, r"ldmatrix\.sync\.aligned\.m8n8\.x4") == (2 * stages + 1) * config.thread_m_blocks
        fetches = 2 * stages - 1  # the prologue's, and one a stage of the unrolled loop
        scales = (sum(stage % config.tiles_per_group == 0 for stage in range(stages - 1))
                  + sum(stage % config.tiles_per_group == 0 for stage in range(stages))) if config.grouped else 1
        assert counts(compiled, r"cp\.async\.cg\.shared\.global") == fetches * (copies_a + copies_b) + scales
        assert counts(compiled, r"L2::cache_hint") == fetches * copies_b + scales
        assert counts(compiled, r"cp\.async\.wait_group") == stages + 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name, config", [("naive", NaiveConfig(128)), ("tiled", TiledConfig(64)), ("ampere", AmpereConfig(4, 16, 4, 8)),
                                          ("ampere", AmpereConfig(1, 8, 8, -1))], ids=lambda value: str(value).replace(" ", ""))
def test_every_target(name, config, target):
    compiled = compiler.build(KERNELS[name], config, target=target)
    check_gates(compiled)
    assert f".target {target}" in compiled.ptx


@pytest.mark.parametrize("name, config", [("tiled", TiledConfig(128)), *(("ampere", AmpereConfig(*tile, 8)) for tile in ((4, *TILES[1]), (1, *TILES[0])))],
                         ids=lambda value: str(value).replace(" ", ""))
def test_the_other_compiler_passes_the_same_gates(name, config):
    pytest.importorskip("numba_cuda_mlir")
    check_gates(compiler.build(KERNELS[name], config, target="sm_90a", compiler="numba-cuda-mlir"))
