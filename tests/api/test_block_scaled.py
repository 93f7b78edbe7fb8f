"""Contract under test: ``block_scaled_matmul`` gives the product that its reference gives, results
that are operands again, and errors that name value and rule."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.execution import arrays, driver, gpu, launch, map_encoding, scratch
from numba_marlin.execution import plan as planning
from numba_marlin.formats.floats import float_type
from numba_marlin.hardware import devices
from numba_marlin.heuristics import rank
from numba_marlin.kernels.nvfp4.block_decode.choose import FEW_ROWS
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled.choose import TILES
from numba_marlin.kernels.nvfp4.block_scaled.config import BlockScaledConfig
from numba_marlin.problems import BlockProblem
from numba_marlin.reference.operands import block_scaled_bounds, interleave_gated
from tests.api.block_operands import BLOCKS, FLOATS, ONES, SMALL, A, B, operands


def test_the_machine_agrees_with_the_reference():
    a, b = operands()
    rng = np.random.default_rng(1)
    given = {
        "alpha": 1.5,
        "beta": 0.5,
        "c": rng.normal(size=(20, 32)).astype(np.float16),
        "bias": rng.normal(size=32).astype(np.float32),
    }
    y = nm.block_scaled_matmul(a, b, **given, backend="emulator", config=SMALL)
    expected, error = block_scaled_bounds(a, b, **given)
    assert (
        y.dtype == np.float16
        and (np.abs(y - expected) <= error + 2.0**-11 * (np.abs(expected) + error)).all()
    )
    assert (
        np.abs(
            nm.block_scaled_matmul(a, b, **given, backend="reference").astype(np.float64) - y
        ).max()
        <= 2.0**-8
    )


@pytest.mark.thorough
def test_a_block_scaled_result_is_the_next_operand():
    a, b = operands()
    h = nm.block_scaled_matmul(
        a, b, out_format="nvfp4", out_global_scale=0.0078125, backend="emulator", config=BLOCKS
    )
    floats = nm.block_scaled_matmul(a, b, out_format="float32", backend="emulator", config=FLOATS)
    expected = nm.quantize_blocks(floats, global_scale=0.0078125)
    assert (
        np.array_equal(h.data, expected.data)
        and np.array_equal(h.plain_scales(), expected.scales)
        and h.scale_order == "128x4"
    )
    again = nm.block_scaled_matmul(
        h,
        operands(m=8, n=8, k=32, seed=4)[1],
        out_format="float32",
        backend="emulator",
        config=FLOATS,
    )
    assert again.shape == (20, 8) and np.isfinite(again).all()


@pytest.mark.parametrize("out_format", ("nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2", "bfloat16"))
def test_the_reference_gives_every_format(out_format):
    pytest.importorskip("ml_dtypes")
    a, b = operands(n=64)
    y = nm.block_scaled_matmul(
        a, b, activation="gated_silu", out_format=out_format, backend="reference"
    )
    numbers = y.astype(np.float64) if out_format == "bfloat16" else nm.dequantize(y, np.float64)
    assert numbers.shape == (20, 32)
    expected, _ = block_scaled_bounds(a, b, activation="gated_silu")
    assert np.abs(numbers - expected).max() <= 0.35 * np.abs(expected).max()


def test_gates_are_interleaved_in_eights():
    gate, up = np.arange(16)[:, None], 100 + np.arange(16)[:, None]
    assert interleave_gated(gate, up)[:, 0].tolist() == [
        *range(8),
        *range(100, 108),
        *range(8, 16),
        *range(108, 116),
    ]
    rng = np.random.default_rng(3)
    x, w, v = (rng.normal(size=(rows, 64)) for rows in (4, 16, 16))
    both = nm.quantize_blocks(interleave_gated(w, v), global_scale=1.0)
    apart = [
        nm.dequantize(nm.quantize_blocks(each, global_scale=1.0), np.float64) for each in (w, v)
    ]
    a = nm.quantize_blocks(x)
    g, u = (nm.dequantize(a, np.float64) @ each.T for each in apart)
    assert np.allclose(
        block_scaled_bounds(a, both, activation="gated_silu")[0], g / (1 + np.exp(-g)) * u
    )
    with pytest.raises(ValueError, match="with a multiple of 8 rows"):
        interleave_gated(gate[:4], up[:4])


def choose(m, n, **epilogue):
    """The configuration that leads on an H200."""
    return rank(BlockProblem(m, n, 128, **epilogue), devices.device("H200"))[0].config


def test_the_choice_of_tiles_is_the_one_that_ends_first():
    assert (choose(4096, 4096).tile_m, choose(4096, 4096).tile_n) == (256, 128)
    assert choose(128, 4096).tile_m == 128 and choose(65, 64).tile_n == 64
    assert choose(1, 64, result="bfloat16", activation="gated_silu").tile_n == 128
    assert all(
        choose(m, n, result="mxfp8-e4m3").result == "mxfp8-e4m3" for m, n in ((1, 32), (5000, 96))
    )
    assert set(TILES) == {(256, 128), (128, 128), (128, 64)}


def test_few_rows_have_a_kernel_of_their_own():
    """Blocks for all multiprocessors; gates and block-scaled results go the usual way, whatever
    m."""
    for m, n, tokens, least in (
        (1, 4096, 8, 64),
        (1, 1024, 8, 64),
        (8, 8192, 8, 128),
        (9, 8192, 16, 128),
        (33, 8192, 32, 128),
        (64, 57344, 32, 896),
        (5, 64, 8, 8),
        (16, 18432, 16, 576),
    ):
        config = choose(m, n, bias=True)
        assert (
            isinstance(config, BlockDecodeConfig)
            and config.bias
            and config.tokens == tokens
            and config.grid(m, n)[0] * config.grid(m, n)[1] >= least
        )
    for other in (
        {"activation": "gated_silu"},
        {"result": "nvfp4"},
        {"result": "mxfp4", "rounding": "ceil"},
    ):
        assert isinstance(choose(1, 4096, **other), BlockScaledConfig)
    assert isinstance(choose(FEW_ROWS + 1, 4096), BlockScaledConfig) and isinstance(
        choose(FEW_ROWS, 4096), BlockDecodeConfig
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "m, given",
    (
        pytest.param(3, {}, marks=pytest.mark.thorough),
        (20, {"beta": 0.5, "out_format": "bfloat16"}),
        pytest.param(
            9, {"activation": "gelu", "out_format": "float32"}, marks=pytest.mark.thorough
        ),
    ),
)
def test_few_rows_agree_with_the_reference(m, given):
    a, b = operands(m=m, n=136, k=320, seed=m)
    given = given | (
        {"c": np.linspace(-2, 2, m * 136).reshape(m, 136).astype(float_type(given["out_format"]))}
        if "beta" in given
        else {}
    )
    y = nm.block_scaled_matmul(
        a, b, bias=np.arange(136, dtype=np.float32), backend="emulator", **given
    )
    expected, error = block_scaled_bounds(
        a,
        b,
        bias=np.arange(136, dtype=np.float32),
        **{name: value for name, value in given.items() if name != "out_format"},
    )
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[
        given.get("out_format", "float16")
    ]
    assert (
        np.abs(y.astype(np.float64) - expected) <= error + rounding * (np.abs(expected) + error)
    ).all()


@pytest.mark.thorough
def test_what_is_not_finite_is_the_same_by_reference_and_kernel():
    """Sums that overflow and a scale that is NaN; a matrix that holds NaN can be looked at."""
    a, b = (
        nm.BlockScaled(
            "nvfp4", (rows, 64), np.zeros((rows, 32), np.uint8), np.full((rows, 4), 0x7E, np.uint8)
        )
        for rows in (3, 32)
    )
    a.data[:2], b.data[0], b.data[17] = 0x77, 0x77, 0xFF  # 6, 6 and -6, times 448
    a.scales[1, 2] = 0x7F
    for config in (FLOATS, BLOCKS):
        options = {"alpha": 3e38 / 2.0**28, "out_format": config.result}
        y = nm.block_scaled_matmul(a, b, **options, backend="emulator", config=config)
        expected = nm.block_scaled_matmul(a, b, **options, backend="reference")
        if config is BLOCKS:
            assert np.array_equal(y.data, expected.data) and np.array_equal(
                y.scales, expected.scales
            )
            y = nm.dequantize(y)
            assert y[0, [0, 17]].tolist() == [6 * 448, -6 * 448]
        else:
            assert np.array_equal(y, expected, equal_nan=True) and y[0, [0, 17]].tolist() == [
                np.inf,
                -np.inf,
            ]
        assert np.isnan(y[1]).all() and not y[2].any()


def test_the_rounding_of_powers_makes_no_other_kernel_of_what_has_none():
    y = nm.block_scaled_matmul(
        A, B, out_format="float32", out_rounding="ceil", backend="emulator", config=FLOATS
    )
    assert np.array_equal(
        y, nm.block_scaled_matmul(A, B, out_format="float32", backend="emulator", config=FLOATS)
    )


class Bytes:
    """An array on device 0 that a library made on ``stream``."""

    def __init__(self, shape, address, stream=None):
        self.shape, self.dtype = shape, np.dtype(np.uint8)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "stream": stream,
            "strides": None,
        }


@pytest.fixture
def on_device(monkeypatch):
    """a and b on a made-up device, and what is done there, in order."""
    done = []
    monkeypatch.setattr(driver, "probe", lambda: driver.Probe(True, "", (devices.device("H200"),)))
    monkeypatch.setattr(driver, "describe", lambda ordinal: devices.device("H200"))
    monkeypatch.setattr(driver, "on_device", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(driver, "capture_id", lambda stream: None)
    monkeypatch.setattr(
        driver, "follow", lambda ordinal, stream, before: done.append((stream, before))
    )
    monkeypatch.setattr(
        map_encoding, "encode_tensor_map", lambda tensor_map, address, ordinal: bytes(128)
    )
    monkeypatch.setattr(map_encoding, "tensor_map_template", lambda tensor_map, ordinal: None)
    monkeypatch.setattr(
        driver.DeviceArray,
        "from_host",
        lambda array, ordinal: Bytes((16,), 0x7000) if done.append("factors") is None else None,
    )
    monkeypatch.setattr(arrays, "_device_of_pointer", lambda address: 0)
    monkeypatch.setattr(
        arrays,
        "empty_like",
        lambda like, shape, kind: Bytes(shape, 0x90000) if done.append("result") is None else None,
    )
    monkeypatch.setattr(scratch, "workspace", lambda *arguments: (0x5000, 0x6000))

    def bind(grid, arguments, stream):
        return SimpleNamespace(
            enqueue=lambda: done.append(f"kernel on {stream}"), place={}, stream=stream
        )

    monkeypatch.setattr(
        launch, "launcher", lambda compiled, ordinal, **options: SimpleNamespace(bind=bind)
    )
    monkeypatch.setattr(planning, "compiled_kernel", lambda *arguments: None)
    monkeypatch.setattr(
        Bytes,
        "address",
        property(lambda self: self.__cuda_array_interface__["data"][0]),
        raising=False,
    )
    gpu._numbers.cache_clear()
    operands = [
        replace(
            each,
            data=Bytes(each.data.shape, 0x10000 << side, stream),
            scales=Bytes(each.scales.shape, 0x1000 << side, stream),
        )
        for side, (each, stream) in enumerate(
            ((A.with_scales("128x4"), None), (B.with_scales("128x4"), 5))
        )
    ]
    yield *operands, done
    gpu._numbers.cache_clear()


@pytest.mark.parametrize(
    "copied, stream, before, after",
    (
        (False, None, set(), set()),
        (False, 7, {(7, 0)}, {(0, 7)}),
        (True, 7, {(7, 0), (7, 5)}, {(0, 7), (5, 7)}),
        (True, 5, {(5, 0)}, {(0, 5)}),
        (True, None, {(0, 5)}, {(5, 0)}),
    ),
)
def test_work_on_another_stream_waits_for_the_libraries_own_and_is_waited_for(
    on_device, monkeypatch, copied, stream, before, after
):
    """They may hand memory on as soon as their own streams are done with it: copies of operands,
    and the result."""
    a, b, done = on_device
    if copied:
        contiguous, copy = arrays.contiguous, arrays.view("copy", Bytes(b.scales.shape, 0x40000, 5))
        monkeypatch.setattr(
            arrays,
            "contiguous",
            lambda name, view: copy if name == "b.scales" else contiguous(name, view),
        )
    nm.block_scaled_matmul(a, b, stream=stream)
    start, kernel = done.index("result"), done.index(f"kernel on {stream or 0}")
    assert set(done[:start]) == before and set(done[kernel + 1 :]) == after


def test_factors_of_a_captured_launch_are_kept(on_device, monkeypatch):
    a, b, _ = on_device
    kept = []
    monkeypatch.setattr(gpu, "_captured_numbers", kept)
    nm.block_scaled_matmul(a, b)
    assert kept == []
    monkeypatch.setattr(driver, "capture_id", lambda stream: 3)
    nm.block_scaled_matmul(a, b, alpha=2.0)
    assert [each.address for each in kept] == [0x7000]


def test_arrays_of_torch_on_the_host():
    torch = pytest.importorskip("torch")
    a, b = (
        replace(each, data=torch.tensor(each.data), scales=torch.tensor(each.scales))
        for each in (A, B)
    )
    c, bias = (
        torch.ones((20, 32), dtype=torch.bfloat16, requires_grad=True),
        torch.ones(32, requires_grad=True),
    )
    with torch.no_grad():
        y = nm.block_scaled_matmul(
            a, b, c=c, beta=2.0, bias=bias, out_format="bfloat16", backend="reference"
        )
    expected, _ = block_scaled_bounds(A, B, c=np.ones((20, 32)), beta=2.0, bias=ONES)
    assert np.abs(y.astype(np.float64) - expected).max() < 0.02
    assert np.array_equal(a.with_scales("128x4").scales, A.with_scales("128x4").scales)
    q = nm.quantize_blocks(torch.ones((2, 32), dtype=torch.bfloat16, requires_grad=True))
    assert np.array_equal(q.data, nm.quantize_blocks(np.ones((2, 32), np.float32)).data)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"activation": "gelu", "out_format": "bfloat16"},
        {"out_format": "mxfp8-e5m2", "out_rounding": "ceil"},
    ),
)
def test_the_default_configuration_runs(options, run_on):
    a, b = operands(n=64)
    y = nm.block_scaled_matmul(
        a, b, backend="emulator" if run_on == "machine" else "cuda", **options
    )
    numbers = nm.dequantize(y, np.float64) if hasattr(y, "scales") else y.astype(np.float64)
    expected, _ = block_scaled_bounds(a, b, activation=options.get("activation"))
    assert np.abs(numbers - expected).max() <= 0.13 * np.abs(expected).max()


def test_device_arrays_of_torch(run_on):
    if run_on != "cuda":
        pytest.skip("needs a GPU: --run-on cuda")
    torch = pytest.importorskip("torch")
    a, b = (
        replace(
            each.with_scales("128x4"),
            data=torch.tensor(each.data).cuda(),
            scales=torch.tensor(each.with_scales("128x4").scales).cuda(),
        )
        for each in (A, B)
    )
    y = nm.block_scaled_matmul(a, b)
    assert y.dtype == torch.float16 and y.is_cuda
    expected, error = block_scaled_bounds(A, B)
    assert (np.abs(y.cpu().numpy() - expected) <= error + 2.0**-10 * np.abs(expected) + 1e-6).all()
    h = nm.block_scaled_matmul(a, b, out_format="nvfp4", out_global_scale=0.0078125)
    assert h.data.is_cuda and nm.block_scaled_matmul(
        h, nm.block_scaled_matmul(b, b, out_format="nvfp4"), out_format="float32"
    ).shape == (20, 32)
    with pytest.raises(ValueError, match="must be '128x4' on a device"):
        nm.block_scaled_matmul(replace(A, data=a.data, scales=torch.tensor(A.scales).cuda()), b)
