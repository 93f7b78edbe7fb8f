"""Contract under test: what block_scaled_matmul cannot multiply is refused before any work, in
words that name it."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution import driver
from numba_marlin.hardware import devices
from numba_marlin.heuristics import candidate
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.layout import block_scales
from numba_marlin.problems import BlockProblem
from tests.api.block_operands import FLOATS, ONES, SMALL, A, B, operands


@pytest.mark.parametrize(
    "given, message",
    (
        ({"out_format": "nvfp4"}, "does not take result=nvfp4; kernels that do: block_scaled"),
        (
            {"activation": "gated_silu"},
            "does not take activation=gated_silu; kernels that do: block_scaled",
        ),
        ({"activation": "relu"}, "must have"),
    ),
)
def test_a_configuration_for_few_rows_that_cannot_do_what_was_asked_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        nm.block_scaled_matmul(
            *operands(n=64), backend="emulator", config=BlockDecodeConfig(), **given
        )


def test_more_rows_of_blocks_than_a_grid_has_are_refused():
    for m, fits in ((8 * 65535, True), (8 * 65535 + 1, False)):
        given = (BlockProblem(m, 8, 32), devices.MODEL, "block_decode", BlockDecodeConfig())
        if fits:
            assert candidate(*given).grid[1] == 65535
        else:
            with pytest.raises(ValueError, match="m=524281: grid .* is beyond CUDA's limit"):
                candidate(*given)


HUGE = nm.BlockScaled(
    "nvfp4",
    (2**31, 64),
    np.broadcast_to(np.uint8(0), (2**31, 32)),
    np.broadcast_to(np.uint8(0), (2**31, 4)),
)


@pytest.mark.parametrize(
    "a, b, options, error, message",
    (
        (A.data, B, {}, TypeError, "a is a ndarray, must be a BlockScaled"),
        (
            A,
            nm.quantize_blocks(np.ones((8, 64), np.float32), "mxfp4"),
            {},
            ValueError,
            "b.format='mxfp4' must be 'nvfp4'",
        ),
        (HUGE, B, {}, ValueError, "m=2147483648, n=32 and k=64 must fit in 32 bits"),
        (A, operands(k=32)[1], {}, ValueError, "must have the same k"),
        (operands(k=48)[0], operands(k=48)[1], {}, ValueError, "k=48 must be a multiple of 32"),
        (A, operands(n=12)[1], {}, ValueError, "n=12 of 8"),
        (A, B, {"activation": "tanh"}, ValueError, "activation='tanh' must be one of"),
        (A, B, {"out_format": "int8"}, ValueError, "out_format='int8' must be one of"),
        (
            A,
            operands(n=24)[1],
            {"out_format": "nvfp4"},
            ValueError,
            "n=24 must be a multiple of 16",
        ),
        (
            A,
            B,
            {"out_format": "mxfp4", "activation": "gated_silu"},
            ValueError,
            "n=32 must be a multiple of 64 for out_format='mxfp4' and a gate",
        ),
        (A, B, {"out_global_scale": 2.0}, ValueError, "out_global_scale=2.0 must be 1"),
        (A, B, {"beta": 1.0}, ValueError, "needs c"),
        (A, B, {"c": np.ones((20, 32))}, ValueError, "leaves c out"),
        (
            A,
            B,
            {"beta": 1.0, "c": np.ones((20, 32))},
            ValueError,
            r"c is float64\[20, 32\], must be float16",
        ),
        (A, B, {"bias": ONES[:8]}, ValueError, r"bias is float32\[8\], must be float32\[32\]"),
        (
            A,
            B,
            {"bias": ONES.astype(">f4")},
            ValueError,
            r"bias is >f4\[32\], must be float32\[32\]",
        ),
        (
            A,
            B,
            {"beta": 1.0, "c": np.ones((20, 32), ">f2")},
            ValueError,
            r"c is >f2\[20, 32\], must be float16",
        ),
        (
            A,
            B,
            {
                "beta": 1.0,
                "c": np.ones((20, 32), np.float32),
                "kernel": "block_decode",
                "backend": "emulator",
            },
            ValueError,
            "a C of float32 with result='float16'",
        ),
        (A, B, {"backend": "gpu"}, ValueError, "backend='gpu' must be one of"),
        (
            A,
            B,
            {"config": SMALL, "backend": "emulator"},
            ValueError,
            "must have .*result='float16', source=False",
        ),
        (A, B, {"alpha": 1e39}, ValueError, "must be finite in float32"),
        (
            A,
            B,
            {"out_format": "nvfp4", "out_global_scale": 1e-45},
            ValueError,
            "its inverse finite",
        ),
        (A, B, {"alpha": np.nan}, ValueError, "alpha=nan, beta=0.0: .* must be finite"),
        (A, B, {"alpha": "2"}, TypeError, "alpha is '2', must be a number"),
        (A, B, {"alpha": 1j}, TypeError, "alpha is 1j"),
        (
            A,
            B,
            {"beta": np.ones(3), "c": np.ones((20, 32), np.float16)},
            TypeError,
            "beta is a ndarray, must be a number",
        ),
        (
            A,
            B,
            {"out_format": "nvfp4", "out_global_scale": None},
            TypeError,
            "out_global_scale is None",
        ),
        (A, B, {"out_rounding": "up"}, ValueError, "out_rounding='up' must be one of floor, ceil"),
        (A, B, {"activation": ["relu"]}, ValueError, r"activation=\['relu'\] must be one of"),
        (A, B, {"config": "big"}, TypeError, "config is a str, must be one of .*BlockScaledConfig"),
        (A, B, {"compiler": "nvcc"}, ValueError, "compiler='nvcc' must be one of"),
        (
            A,
            B,
            {"beta": 1.0, "c": np.ones((20, 32), np.float16), "activation": "gated_silu"},
            ValueError,
            "c must be None with activation='gated_silu'",
        ),
    ),
)
def test_what_does_not_fit_is_refused(a, b, options, error, message):
    for backend in {"reference", "emulator"} if "backend" not in options else {options["backend"]}:
        with pytest.raises(error, match=message):
            nm.block_scaled_matmul(a, b, **{**options, "backend": backend})


def test_numbers_of_array_libraries_are_numbers():
    assert np.array_equal(
        *(
            nm.block_scaled_matmul(A, B, alpha=alpha, backend="reference")
            for alpha in (np.array(0.5), np.float16(0.5))
        )
    )


def test_bytes_that_complete_a_tile_of_scales_have_no_say_on_the_host():
    """Some leave there what was in memory; the kernel multiplies zeros by it, and NaN is not zero
    then."""
    a, b = operands(k=96)
    expected = nm.block_scaled_matmul(a, b, out_format="float32", backend="emulator", config=FLOATS)
    for operand in (a, b):
        full, rows, blocks = (
            np.full_like(operand.with_scales("128x4").scales, 0x7F),
            *np.indices(operand.scales.shape),
        )
        full[block_scales.place(rows, blocks, 6)] = operand.scales
        given = [
            replace(each, scales=full, scale_order="128x4") if each is operand else each
            for each in (a, b)
        ]
        assert np.array_equal(
            nm.block_scaled_matmul(*given, out_format="float32", backend="emulator", config=FLOATS),
            expected,
        )


@pytest.mark.parametrize("name", ("B200", "RTX 4090"))
def test_a_gpu_that_the_kernel_does_not_know_is_a_missing_capability(name, monkeypatch):
    device = devices.device(name)
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", (device,)))
    monkeypatch.setattr(driver, "describe", lambda ordinal: device)
    y = nm.block_scaled_matmul(A, B, out_format="float32", config=FLOATS)
    assert np.array_equal(
        y, nm.block_scaled_matmul(A, B, out_format="float32", config=FLOATS, backend="emulator")
    )
    with pytest.raises(
        nm.CapabilityMissing, match=f"backend='cuda': .*{name}.* the kernel needs sm_90a"
    ):
        nm.block_scaled_matmul(A, B, backend="cuda")
