"""Contract under test: what a block-scaled product is and where it may run
(``problems.operands``), and which results may be right
(``reference.operands.within_bounds``)."""

import math
from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.formats.operands import BLOCK_FORMATS, from_weight, to_weight
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate, check_device, configured, devices_for
from numba_marlin.kernels import registry
from numba_marlin.problems import OPERANDS, BlockProblem
from numba_marlin.quantizers.operands import quantize_blocks
from numba_marlin.reference.operands import block_scaled_bounds, within_bounds

H200 = devices.device("H200")


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8-e4m3"])
def test_the_least_bytes_are_those_of_the_operands_and_the_result(format):
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    a, b = quantize_blocks(x[:40], format), quantize_blocks(x[40:], format)
    stored = sum(each.data.nbytes + each.scales.nbytes for each in (a, b))
    problem = BlockProblem(40, 56, 64, format)
    assert problem.least_bytes == stored + 2 * 40 * 56 and problem.flops == 2 * 40 * 56 * 64
    assert (
        replace(problem, source=True, bias=True, result="bfloat16").least_bytes
        == stored + 2 * 2 * 40 * 56 + 4 * 56
    )
    assert (
        problem.to_dict()["group_size"] == BLOCK_FORMATS[format].block
        and problem.to_dict()["bits"] == BLOCK_FORMATS[format].bits
    )


def test_a_quantised_result_counts_its_codes_and_scales():
    y = quantize_blocks(
        np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32), "nvfp4"
    )
    problem = BlockProblem(40, 128, 64, result="nvfp4", activation="gated_silu")
    assert problem.columns == 64 and problem.result_bytes == y.data.nbytes + y.scales.nbytes
    assert replace(problem, result="float32", activation=None).result_bytes == 4 * 40 * 128


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"k": 48}, "k=48 must be a multiple of 32 for block-scaled operands: 32 or 64"),
        ({"n": 12}, "n=12 must be a multiple of 8"),
        ({"m": 0}, "m=0 must be positive"),
        (
            {"n": 48, "result": "mxfp4"},
            "n=48 must be a multiple of 32 for result='mxfp4': 32 or 64",
        ),
        ({"format": "fp4"}, "format='fp4' must be one of"),
    ],
)
def test_sizes_that_no_kernel_takes_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        BlockProblem(**{"m": 16, "n": 64, "k": 64} | fields)


@pytest.mark.parametrize("kernel", registry.names(OPERANDS))
def test_a_candidate_covers_the_result_on_devices_that_have_the_instructions(kernel):
    found = devices_for(kernel)
    assert {each.name for each in found} == {
        "block_scaled": {"H100", "H200"},
        "block_decode": {"H100", "H200"},
        "tcgen05": {"B200"},
        "block_mma": {"RTX 5090"},
    }[kernel]
    for each in devices.SPECIFICATIONS:
        if each not in found:
            with pytest.raises(ValueError, match=f"choose {found[0].name}"):
                check_device(kernel, each)
    problem = BlockProblem(300, 264, 512)
    chosen = candidate(problem, found[0], kernel)
    config, tiles = chosen.config, chosen.figures["tiles"]
    assert BlockProblem.of(config, 300, 264, 512) == problem
    assert (
        math.prod(chosen.grid)
        == (
            tiles["m"] * tiles["n"] * config.split
            if kernel == "block_decode"
            else min(found[0].sms, tiles["m"] * tiles["n"])
        )
        and tiles["m"] * getattr(config, "tile_m", 128) >= 300
        and tiles["n"] * getattr(config, "tile_n", 128) >= 264
    )
    with pytest.raises(ValueError, match="is no field of"):
        configured(problem, found[0], kernel, {"tile_k": 3})
    with pytest.raises(ValueError, match="must have .*what was asked for"):
        candidate(replace(problem, result="float32"), found[0], kernel, config)


def test_a_grid_has_so_many_rows():
    config = configured(BlockProblem(1, 128, 128), H200, "block_decode", {"tokens": 8})
    problem = BlockProblem.of(config, 8 * 65535 + 1, 128, 128)
    with pytest.raises(ValueError, match=r"tokens=8, .* is beyond CUDA.s limit"):
        candidate(problem, H200, "block_decode", config)


def test_a_ring_has_room_for_the_warps_that_were_asked_for():
    problem = BlockProblem(1, 57344, 128)
    for changes, stages in (({}, 2), ({"k_warps": 8}, 4), ({"k_warps": 8, "stages": 8}, 8)):
        assert configured(problem, H200, "block_decode", changes).stages == stages


def test_a_weight_out_of_a_file_lies_in_rows():
    """C-contiguous, as kernels take it: the transposed view of a file's codes is not."""
    weight = to_weight(
        quantize_blocks(np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32))
    )
    assert (
        from_weight(weight).data.flags.c_contiguous
        and from_weight(weight).scales.flags.c_contiguous
    )


# ---- which results may be right

A, B = (
    quantize_blocks(np.random.default_rng(seed).standard_normal((rows, 128)).astype(np.float32))
    for seed, rows in ((1, 40), (2, 64))
)
EXACT, ERROR = block_scaled_bounds(A, B)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_beyond_their_bounds_are_found(dtype):
    right = EXACT.astype(dtype)
    assert within_bounds(right, EXACT, ERROR).all()
    for wrong in (right[3, 5] * dtype(1.01), dtype(np.nan), dtype(np.inf)):
        other = right.copy()
        other[3, 5] = wrong
        assert np.argwhere(~within_bounds(other, EXACT, ERROR)).tolist() == [[3, 5]]


@pytest.mark.parametrize(
    "format, rounding",
    [
        ("nvfp4", "floor"),
        ("mxfp4", "floor"),
        ("mxfp4", "ceil"),
        ("mxfp8-e4m3", "ceil"),
        ("mxfp8-e5m2", "floor"),
    ],
)
def test_codes_and_scales_beyond_their_bounds_are_found(format, rounding):
    """Whatever an fp32 sum within the bounds is quantised to is right; the next code but one, and
    another scale, are not."""
    random, options = (
        np.random.default_rng(3),
        ({"global_scale": 0.01} if format == "nvfp4" else {"rounding": rounding}),
    )
    for _ in range(3):
        assert within_bounds(
            quantize_blocks(
                (EXACT + ERROR * random.uniform(-1, 1, EXACT.shape)).astype(np.float32),
                format,
                **options,
            ).with_scales("128x4"),
            EXACT,
            ERROR,
            rounding,
        ).all()
    right = quantize_blocks(EXACT.astype(np.float32), format, **options)
    block, codes = BLOCK_FORMATS[format].block, right.codes()
    row, column = next(
        (row, column)
        for row in range(40)
        for column in range(64)
        if 1 <= codes[row, column] % 8 <= 4 and codes[row, column] < 100
    )
    data = right.data.copy()
    if right.form.bits == 4:
        data[row, column // 2] += 2 << 4 * (column % 2)
    else:
        data[row, column] += 2
    assert np.argwhere(
        ~within_bounds(replace(right, data=data), EXACT, ERROR, rounding)
    ).tolist() == [[row, column]]
    scales = right.scales.copy()
    scales[7, 1] += 2
    found = np.argwhere(~within_bounds(replace(right, scales=scales), EXACT, ERROR, rounding))
    assert set(map(tuple, found.tolist())) == {(7, column) for column in range(block, 2 * block)}
