"""Contract under test: Blackwell's kernels multiply block-scaled operands exactly where sums are
exact, whatever the shape, schedule and format. (``test_blackwell_guards``: no guard is for show.)
"""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin import compiler, counts, heuristics, trace
from numba_marlin.compiler import gates
from numba_marlin.emulator import (
    Machine,
    Schedule,
)
from numba_marlin.kernels.language.definition import TooMuchSharedMemory
from numba_marlin.kernels.nvfp4.block_mma.config import WARP_COLUMNS, WARP_ROWS, BlockMmaConfig
from numba_marlin.kernels.nvfp4.tcgen05.config import FORMATS, Tcgen05Config
from numba_marlin.testing.launches import launch_on
from numba_marlin.trace import perfetto
from tests.kernels.blackwell import (
    BLOCK_MMA,
    TCGEN05,
    USUAL,
    check_exact,
    check_near,
    exact_operand,
    multiply,
    prepare,
    random_operand,
    values,
)

KERNELS = [TCGEN05, BLOCK_MMA]
by_name = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@by_name
@pytest.mark.parametrize("m, n, k", [(1, 8, 32), (129, 136, 288), (40, 16, 1568)])
def test_exact_sums_are_exact_with_tails_of_m_n_and_k(kernel, m, n, k):
    check_exact(kernel, m, n, k)


@pytest.mark.parametrize("sms", [1, 4])
def test_a_block_takes_any_number_of_tiles(sms):
    """Both rings go round: of stages, and of the two tiles of sums."""
    check_exact(TCGEN05, 300, 264, 800, sms=sms)


@by_name
def test_ordinary_data_is_within_its_bound(kernel):
    check_near(
        kernel, random_operand(70, 800, "nvfp4", 1), random_operand(72, 800, "nvfp4", 2), alpha=0.75
    )


@by_name
@pytest.mark.parametrize(
    "seed", [Schedule(2, copies="early"), Schedule(3, "slowest warp", "late")], ids=str
)
def test_sums_that_round_come_out_the_same_in_any_order(kernel, seed):
    a, b = random_operand(150, 800, "nvfp4", 3), random_operand(24, 800, "nvfp4", 4)
    got = multiply(kernel, a, b, seed=seed, races=True, sms=1)
    assert np.array_equal(got, multiply(kernel, a, b))


@by_name
def test_one_kernel_more_is_no_choice_for_weights(kernel):
    """They multiply other things than the ladder: nothing proposes them for a problem with
    quantised weights."""
    assert kernel.name not in heuristics.LADDER


def test_every_row_and_column_comes_from_its_own_place():
    """Rows of A are powers of two by number, one column of k each: the product is B, seen through
    A."""
    a, b = exact_operand(128, 128, "nvfp4", 5), exact_operand(128, 128, "nvfp4", 6)
    one = replace(a, data=np.zeros_like(a.data), scales=np.full_like(a.scales, 0x38))
    for row in range(128):
        one.data[row, row // 2] = 2 << 4 * (row % 2)  # 1.0
    assert np.array_equal(multiply(TCGEN05, one, b), values(b).T.astype(np.float16))
    assert np.array_equal(multiply(TCGEN05, b, one), values(b).astype(np.float16))


PRODUCTS_OF_A_STEP = (WARP_ROWS // 16) * (WARP_COLUMNS // 8)  # in block_mma, of m16n8k64


def compiled(kernel, config=None):
    return compiler.build(kernel, config or USUAL[kernel], kernel.min_arch)


@by_name
def test_static_promises(kernel):
    built = compiled(kernel)
    assert not gates.broken_promises(built) and built.cubin.startswith(b"\x7fELF")
    counted = {
        name: gates.opcode_count(built, name)
        for name in ("tcgen05.mma", "tcgen05.cp", "tcgen05.ld", "mma.sync")
    }
    if kernel is TCGEN05:
        assert counted == {"tcgen05.mma": 4, "tcgen05.cp": 8, "tcgen05.ld": 4, "mma.sync": 0}
    else:
        # of the steps of a stage, which a compiler unrolls, or some of them, or none
        assert counted.pop("mma.sync") in (PRODUCTS_OF_A_STEP * unrolled for unrolled in (1, 2, 4))
        assert not any(counted.values())


def counted(kernel, m, n, k, sms=2):
    prepared = prepare(
        kernel, exact_operand(m, k, "nvfp4", 9), exact_operand(n, k, "nvfp4", 10), sms=sms
    )
    machine = Machine(prepared.compiled.ptx)
    return counts.count(machine, **launch_on(machine, prepared))[1]


def test_what_the_tcgen05_kernel_moves():
    """Of a tile and a step of 256: 16 KiB of A and of B, 2 KiB of scales of each; every product
    reads 8 KiB of shared memory; sums are loaded once."""
    m, n, k = 256, 128, 512
    found = counted(TCGEN05, m, n, k)
    total, tiles, steps = found.total.tally, 2, 2
    assert total.flops == 2 * m * n * k
    assert total.copied == {"tensor": tiles * steps * 36 * 1024 + 2 * m * n}
    assert total.operand_bytes == tiles * steps * (4 * 2 * 128 * 32 + 8 * 512)
    assert total.tensor_memory == {"scales": tiles * steps * 8 * 4 * 512, "loaded": 4 * m * n}
    assert (
        found.buffer("a").reads.bytes == m * k // 2
        and found.buffer("b").reads.bytes == tiles * n * k // 2
    )
    assert (
        found.buffer("sfa").reads.bytes == m * k // 16
        and found.buffer("d").writes.bytes == 2 * m * n
    )
    assert total.shared.conflicts == 0 and "tensor memory: " in str(found)


def test_what_the_block_mma_kernel_moves():
    found = counted(BLOCK_MMA, 128, 128, 256)
    assert (
        found.total.tally.flops == 2 * 128 * 128 * 256
        and found.buffer("sfb").reads.bytes == 128 * 16
    )


@pytest.mark.thorough
def test_a_trace_shows_the_roles_side_by_side():
    """Loads begin before products, products before results; each role's warp has verbs of its
    own."""
    built = compiler.build(TCGEN05, USUAL[TCGEN05], "sm_100a", line_info=True)
    prepared = prepare(
        TCGEN05, exact_operand(256, 544, "nvfp4", 15), exact_operand(128, 544, "nvfp4", 16), sms=1
    )
    machine = Machine(built.ptx)
    recorded = trace.record(machine, **launch_on(machine, prepared, built))
    slices = [each for each in perfetto.events(recorded)["traceEvents"] if each["ph"] == "X"]
    verbs = {warp: {each["name"] for each in slices if each["tid"] == warp} for warp in range(7)}
    assert (
        "load_operands" in verbs[4]
        and {"multiply_stage", "copy_scales"} <= verbs[5]
        and "hand_out_tiles" in verbs[6]
        and all("store_chunk" in verbs[warp] for warp in range(4))
    ), verbs
    first = {
        name: min(each["ts"] for each in slices if each["name"] == name)
        for name in ("load_operands", "multiply_stage", "store_chunk")
    }
    assert first["load_operands"] < first["multiply_stage"] < first["store_chunk"]
    second_load = max(each["ts"] for each in slices if each["name"] == "load_operands")
    # the next tile is on its way while this one multiplies
    assert second_load > first["multiply_stage"]


@pytest.mark.parametrize(
    "config",
    [
        Tcgen05Config(256, 3, "nvfp4", "float32"),
        Tcgen05Config(128, 2, "mxfp4", "bfloat16"),
        Tcgen05Config(256, 2, "mxfp4", "float16"),
        Tcgen05Config(128, 5, "mxfp8-e4m3", "float32"),
        Tcgen05Config(256, 2, "mxfp8-e4m3", "bfloat16"),
        Tcgen05Config(128, 3, "nvfp4", "float32"),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_every_format_and_result(config):
    check_exact(TCGEN05, 140, 264, 800, config=config)
    assert not gates.broken_promises(compiled(TCGEN05, config))


@pytest.mark.parametrize(
    "config",
    [
        BlockMmaConfig("mxfp4", "float32"),
        BlockMmaConfig("nvfp4", "bfloat16"),
        BlockMmaConfig("mxfp4", "float16"),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_every_format_and_result_of_block_mma(config):
    check_exact(BLOCK_MMA, 140, 136, 800, config=config)
    assert not gates.broken_promises(compiled(BLOCK_MMA, config))


def test_a_tile_may_begin_within_a_tile_of_scales():
    """Three of 64 columns: the second at row 64 of 128 rows of scales."""
    check_exact(TCGEN05, 20, 136, 288, config=Tcgen05Config(64, 4))


@pytest.mark.parametrize(
    "config",
    [
        Tcgen05Config(64, 7),
        Tcgen05Config(192, 4),
        Tcgen05Config(64, 8, "mxfp4"),
        Tcgen05Config(192, 3, "mxfp8-e4m3", "float32"),
        Tcgen05Config(192, 2, "mxfp4", "bfloat16"),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_every_format_in_tiles_of_64_and_192(config):
    """The last tile ends within a tile of scales too; races looked for."""
    check_exact(TCGEN05, 140, 424, 288, config=config, races=True)
    assert not gates.broken_promises(compiled(TCGEN05, config))


class Unshifted(Tcgen05Config):
    """Takes the scales of every tile's rows from where a tile of scales begins."""

    @property
    def shifts_scales(self):
        return False


@pytest.mark.thorough
def test_scales_that_are_not_shifted_are_noticed():
    check_exact(TCGEN05, 20, 64, 288, config=Unshifted(64, 4))  # one tile, which begins with one
    with pytest.raises(AssertionError):
        check_exact(TCGEN05, 20, 128, 288, config=Unshifted(64, 4))


@by_name
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_both_compilers_give_the_same_bits(kernel):
    """numba-cuda-mlir takes long over block_mma, whose many small verbs it inlines one by one."""
    pytest.importorskip("numba_cuda_mlir")
    a, b = random_operand(150, 544, "nvfp4", 11), random_operand(136, 544, "nvfp4", 12)
    assert np.array_equal(
        multiply(kernel, a, b), multiply(kernel, a, b, compiled_by="numba-cuda-mlir")
    )


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@by_name
def test_a_hundred_schedules(kernel):
    a, b = random_operand(150, 1312, "nvfp4", 13), random_operand(24, 1312, "nvfp4", 14)
    expected = multiply(kernel, a, b)
    for number in range(100):
        assert np.array_equal(
            multiply(kernel, a, b, seed=Schedule.drawn(number), races=True), expected
        ), number


@pytest.mark.parametrize(
    "made, kind, match",
    [
        (lambda: Tcgen05Config(tile_n=96), ValueError, "tile_n=96"),
        (lambda: Tcgen05Config(stages=1), ValueError, "stages=1"),
        (lambda: Tcgen05Config(stages=9), ValueError, "544 columns"),
        (lambda: Tcgen05Config(format="int4"), ValueError, "format='int4'"),
        (lambda: Tcgen05Config(result="int8"), ValueError, "result='int8'"),
        (lambda: Tcgen05Config(rounding="up"), ValueError, "rounding='up'"),
        (lambda: Tcgen05Config(group_m=0), ValueError, "group_m=0"),
        (lambda: Tcgen05Config(stages=6), TooMuchSharedMemory, "bytes of shared memory"),
        (lambda: BlockMmaConfig(stages=3), TooMuchSharedMemory, "101376 at most"),
        (lambda: BlockMmaConfig(format="mxfp8-e4m3"), ValueError, "format='mxfp8-e4m3'"),
        (lambda: BlockMmaConfig(result="int8"), ValueError, "result='int8'"),
        (lambda: BlockMmaConfig(stages=1), ValueError, "stages=1"),
    ],
)
def test_what_cannot_be_is_refused(made, kind, match):
    with pytest.raises(kind, match=match):
        made()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tile_n, stages", [(64, 7), (128, 5), (192, 4), (256, 3)])
def test_tensor_memory_and_shared_memory_hold_all_stages(format, tile_n, stages):
    config = Tcgen05Config(tile_n, stages, format)
    columns = [config.scales_tensor + stage * config.stage_columns for stage in range(stages + 1)]
    assert columns[-1] <= 512 and config.scales_tensor == config.accumulators * tile_n
    scales = config.kind.vectors / config.kind.depth * 8 / config.bits  # of a byte of codes
    whole_tiles = 128 + 128 * config.n_tiles
    assert config.copied_bytes == (128 + tile_n) * 128 + whole_tiles * 128 * scales


def test_kernels_are_refused_elsewhere():
    with pytest.raises(ValueError, match="needs sm_100a"):
        compiler.build(TCGEN05, USUAL[TCGEN05], "sm_100")
    with pytest.raises(ValueError, match="needs sm_120a"):
        compiler.build(BLOCK_MMA, USUAL[BLOCK_MMA], "sm_90a")
