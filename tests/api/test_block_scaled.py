"""Contract under test: ``block_scaled_matmul`` gives the product that its reference gives, results that are operands again, and errors that name value and rule."""
from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.block_reference import block_scaled_bounds, interleave_gated
from numba_marlin.heuristics.block_scaled import TILES, choose
from numba_marlin.kernels.block_scaled_config import BlockScaledConfig

SMALL = BlockScaledConfig(tile_m=128, tile_n=64, stages=2, expanded_stages=2, source=True, bias=True)  # those of tests.kernels.test_block_scaled: compiled once
FLOATS = replace(SMALL, result="float32", source=False, bias=False)
BLOCKS = replace(FLOATS, result="nvfp4")


def operands(m=20, n=32, k=64, seed=0):
    rng = np.random.default_rng(seed)
    return nm.quantize_blocks(rng.normal(size=(m, k)).astype(np.float32)), nm.quantize_blocks(rng.normal(size=(n, k)).astype(np.float32) / k**0.5)


def test_the_machine_agrees_with_the_reference():
    a, b = operands()
    rng = np.random.default_rng(1)
    given = {"alpha": 1.5, "beta": 0.5, "c": rng.normal(size=(20, 32)).astype(np.float16), "bias": rng.normal(size=32).astype(np.float32)}
    y = nm.block_scaled_matmul(a, b, **given, backend="emulator", config=SMALL)
    expected, error = block_scaled_bounds(a, b, **given)
    assert y.dtype == np.float16 and (np.abs(y - expected) <= error + 2.0**-11 * (np.abs(expected) + error)).all()
    assert np.abs(nm.block_scaled_matmul(a, b, **given, backend="reference").astype(np.float64) - y).max() <= 2.0**-8


def test_a_block_scaled_result_is_the_next_operand():
    a, b = operands()
    h = nm.block_scaled_matmul(a, b, out_format="nvfp4", out_global_scale=0.0078125, backend="emulator", config=BLOCKS)
    floats = nm.block_scaled_matmul(a, b, out_format="float32", backend="emulator", config=FLOATS)
    expected = nm.quantize_blocks(floats, global_scale=0.0078125)
    assert np.array_equal(h.data, expected.data) and np.array_equal(h.plain_scales(), expected.scales) and h.scale_order == "128x4"
    again = nm.block_scaled_matmul(h, operands(m=8, n=8, k=32, seed=4)[1], out_format="float32", backend="emulator", config=FLOATS)
    assert again.shape == (20, 8) and np.isfinite(again).all()


@pytest.mark.parametrize("out_format", ("nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", "bfloat16"))
def test_the_reference_gives_every_format(out_format):
    pytest.importorskip("ml_dtypes")
    a, b = operands(n=64)
    y = nm.block_scaled_matmul(a, b, activation="gated_silu", out_format=out_format, backend="reference")
    numbers = y.astype(np.float64) if out_format == "bfloat16" else nm.dequantize(y, np.float64)
    assert numbers.shape == (20, 32)
    expected, _ = block_scaled_bounds(a, b, activation="gated_silu")
    assert np.abs(numbers - expected).max() <= 0.35 * np.abs(expected).max()


def test_gates_are_interleaved_in_eights():
    gate, up = np.arange(16)[:, None], 100 + np.arange(16)[:, None]
    assert interleave_gated(gate, up)[:, 0].tolist() == [*range(8), *range(100, 108), *range(8, 16), *range(108, 116)]
    rng = np.random.default_rng(3)
    x, w, v = (rng.normal(size=(rows, 64)) for rows in (4, 16, 16))
    both = nm.quantize_blocks(interleave_gated(w, v), global_scale=1.0)
    apart = [nm.dequantize(nm.quantize_blocks(each, global_scale=1.0), np.float64) for each in (w, v)]
    a = nm.quantize_blocks(x)
    g, u = (nm.dequantize(a, np.float64) @ each.T for each in apart)
    assert np.allclose(block_scaled_bounds(a, both, activation="gated_silu")[0], g / (1 + np.exp(-g)) * u)
    with pytest.raises(ValueError, match="with a multiple of 8 rows"):
        interleave_gated(gate[:4], up[:4])


def test_the_choice_of_tiles_is_the_one_that_ends_first():
    assert (choose(4096, 4096, 132).tile_m, choose(4096, 4096, 132).tile_n) == (256, 128)
    assert choose(128, 4096, 132).tile_m == 128 and choose(1, 64, 132).tile_n == 64
    assert choose(1, 64, 132, result="bfloat16", activation="gated_silu").tile_n == 128
    assert all(choose(m, n, 132, result="mxfp8-e4m3").result == "mxfp8-e4m3" for m, n in ((1, 8), (5000, 70)))
    assert set(TILES) == {(256, 128), (128, 128), (128, 64)}


A, B = operands()
ONES = np.ones(32, np.float32)


@pytest.mark.parametrize("a, b, options, error, message", (
    (A.data, B, {}, TypeError, "a is a ndarray, must be a BlockScaled"), (A, nm.quantize_blocks(np.ones((8, 64), np.float32), "mxfp4"), {}, ValueError, "b.format='mxfp4' must be 'nvfp4'"),
    (A, operands(k=32)[1], {}, ValueError, "must have the same k"), (operands(k=48)[0], operands(k=48)[1], {}, ValueError, "k=48 must be a multiple of 32"),
    (A, operands(n=12)[1], {}, ValueError, "n=12 of 8"), (A, B, {"activation": "tanh"}, ValueError, "activation='tanh' must be one of"),
    (A, B, {"out_format": "int8"}, ValueError, "out_format='int8' must be one of"), (A, operands(n=24)[1], {"out_format": "nvfp4"}, ValueError, "n=24 must be a multiple of 16"),
    (A, B, {"out_format": "mxfp4", "activation": "gated_silu"}, ValueError, "n=32 must be a multiple of 64 for out_format='mxfp4' and a gate"),
    (A, B, {"out_global_scale": 2.0}, ValueError, "out_global_scale=2.0 must be 1"), (A, B, {"beta": 1.0}, ValueError, "needs c"), (A, B, {"c": np.ones((20, 32))}, ValueError, "leaves c out"),
    (A, B, {"beta": 1.0, "c": np.ones((20, 32))}, ValueError, r"c is float64\[20, 32\], must be float16"), (A, B, {"bias": ONES[:8]}, ValueError, r"bias is float32\[8\], must be float32\[32\]"),
    (A, B, {"bias": ONES.astype(">f4")}, ValueError, r"bias is >f4\[32\], must be float32\[32\]"), (A, B, {"beta": 1.0, "c": np.ones((20, 32), ">f2")}, ValueError, r"c is >f2\[20, 32\], must be float16"),
    (A, B, {"beta": 1.0, "c": np.ones((20, 32), np.float32), "out_format": "float32"}, ValueError, "c must be None with out_format='float32'"),
    (A, B, {"backend": "gpu"}, ValueError, "backend='gpu' must be one of"), (A, B, {"config": SMALL, "backend": "emulator"}, ValueError, "must have result='float16', source=False"),
    (A, B, {"alpha": 1e39, "backend": "emulator"}, ValueError, "must be finite in float32"), (A, B, {"out_format": "nvfp4", "out_global_scale": 1e-45, "backend": "emulator"}, ValueError, "its inverse finite"),
))
def test_what_does_not_fit_is_refused(a, b, options, error, message):
    with pytest.raises(error, match=message):
        nm.block_scaled_matmul(a, b, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("options", ({}, {"activation": "gelu", "out_format": "bfloat16"}, {"out_format": "mxfp8-e5m2", "out_rounding": "ceil"}))
def test_the_default_configuration_runs(options, run_on):
    a, b = operands(n=64)
    y = nm.block_scaled_matmul(a, b, backend="emulator" if run_on == "machine" else "cuda", **options)
    numbers = nm.dequantize(y, np.float64) if hasattr(y, "scales") else y.astype(np.float64)
    expected, _ = block_scaled_bounds(a, b, activation=options.get("activation"))
    assert np.abs(numbers - expected).max() <= 0.13 * np.abs(expected).max()


def test_device_arrays_of_torch(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: --run-on cuda")
    torch = pytest.importorskip("torch")
    a, b = (replace(each.with_scales("128x4"), data=torch.tensor(each.data).cuda(), scales=torch.tensor(each.with_scales("128x4").scales).cuda()) for each in (A, B))
    y = nm.block_scaled_matmul(a, b)
    assert y.dtype == torch.float16 and y.is_cuda
    expected, error = block_scaled_bounds(A, B)
    assert (np.abs(y.cpu().numpy() - expected) <= error + 2.0**-10 * np.abs(expected) + 1e-6).all()
    h = nm.block_scaled_matmul(a, b, out_format="nvfp4", out_global_scale=0.0078125)
    assert h.data.is_cuda and nm.block_scaled_matmul(h, nm.block_scaled_matmul(b, b, out_format="nvfp4"), out_format="float32").shape == (20, 32)
    with pytest.raises(ValueError, match="must be '128x4' on a device"):
        nm.block_scaled_matmul(replace(A, data=a.data, scales=torch.tensor(A.scales).cuda()), b)
