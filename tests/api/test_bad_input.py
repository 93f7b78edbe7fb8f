"""Contract under test: bad input is a TypeError or ValueError that names the value and the rule,
and nothing is written.

Everything here is refused before anything is compiled, so it runs against every backend that this
machine has.
"""

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.kernels.naive import NaiveConfig

K, N = 256, 128


@pytest.fixture(scope="module")
def packed():
    return nm.pack(nm.quantize(np.random.default_rng(0).standard_normal((K, N), dtype=np.float32)))


@pytest.fixture
def x():
    return np.ones((4, K), np.float16)


@pytest.mark.parametrize(
    "bad, error, message",
    [
        (np.ones((4, K), np.float32), TypeError, r"x.dtype=float32 must be float16.*x.astype"),
        (
            np.ones((4, K), ">f2"),
            TypeError,
            r"x.dtype=>f2 must be float16 or bfloat16, in native byte order",
        ),
        (np.ones((4, K), np.int8), TypeError, "x.dtype=int8"),
        (np.ones((4, K), np.complex64), TypeError, "x.dtype=complex64"),
        ([[1.0] * K], TypeError, "x is a list, must be an array"),
        (None, TypeError, "x is a NoneType"),
        ("abc", TypeError, "x is a str"),
        (
            np.ones(K, np.float16),
            ValueError,
            r"x.shape=\(256,\) must have 2 dimensions.*reshape\(-1, 256\)",
        ),
        (np.ones((1, 4, K), np.float16), ValueError, "must have 2 dimensions"),
        (
            np.ones((4, K - 1), np.float16),
            ValueError,
            r"x.shape=\(4, 255\) must be \(m, k\) with k=256",
        ),
        (np.ones((K, 4), np.float16), ValueError, r"with k=256"),
        (np.ones((0, K), np.float16), ValueError, r"x.shape=\(0, 256\) must have at least one row"),
    ],
)
def test_a_wrong_x_is_refused_and_out_is_untouched(packed, bad, error, message):
    out = np.full((4, N), 7, np.float16)
    with pytest.raises(error, match=message):
        nm.matmul(bad, packed, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda x: np.empty((4, N), np.float32), TypeError, "out.dtype=float32 must be float16"),
        (lambda x: np.empty((4, N), ">f2"), TypeError, "out.dtype=>f2 must be float16"),
        (
            lambda x: np.empty((4, N + 1), np.float16),
            ValueError,
            r"out.shape=\(4, 129\) must be \(m, n\)=\(4, 128\)",
        ),
        (lambda x: np.empty((N, 4), np.float16), ValueError, "out.shape"),
        (lambda x: np.broadcast_to(np.float16(1), (4, N)), ValueError, "out is read-only"),
        (lambda x: x[:, :N], ValueError, "out overlaps x"),
        (lambda x: x[::-1, N:], ValueError, "out overlaps x"),
        (lambda x: [[0.0] * N] * 4, TypeError, "out is a list"),
        (lambda x: strided((0, 2)), ValueError, r"out .strides \(0, 2\). overlaps itself"),
        (lambda x: strided((2 * N, 0)), ValueError, "out .* overlaps itself"),
        (lambda x: strided((2 * N - 2, 2)), ValueError, "out .* overlaps itself"),
        (lambda x: strided((2 * N, 1)), ValueError, "out .* overlaps itself"),
        (lambda x: strided((2, 6)), ValueError, "out .* overlaps itself"),
    ],
)
def test_a_wrong_out_is_refused_and_x_is_untouched(packed, x, make, error, message):
    before = x.copy()
    with pytest.raises(error, match=message):
        nm.matmul(x, packed, "reference", out=make(x))
    assert (x == before).all()


def strided(strides):
    """An array [4, N] of float16 with these strides, in bytes."""
    return np.lib.stride_tricks.as_strided(np.zeros(8 * N, np.float16), (4, N), strides)


@pytest.mark.parametrize(
    "out",
    [
        strided((2 * N, 2)),
        strided((2 * N + 6, 2)),
        strided((2, 8)),  # transposed
        np.zeros((8, N), np.float16)[::-2],
        np.zeros((4, 3 * N), np.float16)[:, ::-3],
    ],
)
def test_an_out_of_any_strides_that_keep_its_elements_apart_is_written(packed, x, out):
    nm.matmul(x, packed, "reference", out=out)
    assert np.array_equal(out, nm.matmul(x, packed, "reference"))


@pytest.mark.parametrize("backend", ["reference", "emulator"])
@pytest.mark.parametrize(
    "stream, error, message",
    [
        ("x", TypeError, "stream is a str, must be"),
        (1.5, TypeError, "stream is a float, must be"),
        (True, TypeError, "stream is a bool, must be"),
        (-1, ValueError, "stream=-1 must not be negative"),
    ],
)
def test_what_is_no_stream_is_refused_off_the_gpu_too(packed, x, stream, backend, error, message):
    with pytest.raises(error, match=message):
        nm.matmul(x, packed, backend, stream=stream)


@pytest.mark.parametrize(
    "bias, error, message",
    [
        (np.ones(N, np.float32), TypeError, "bias.dtype=float32 must be float16, x's"),
        (np.ones(N, ">f2"), TypeError, "bias.dtype=>f2 must be float16, x's"),
        (np.ones((1, N), np.float16), ValueError, r"bias.shape=\(1, 128\) must be \(n,\)=\(128,\)"),
        (np.ones(N + 1, np.float16), ValueError, r"bias.shape=\(129,\) must be"),
        ([0.0] * N, TypeError, "bias is a list"),
    ],
)
def test_a_wrong_bias_is_refused(packed, x, bias, error, message):
    with pytest.raises(error, match=message):
        nm.matmul(x, packed, "reference", bias=bias)


def test_a_bias_inside_out_is_refused(packed, x):
    """A block may have written its row before another adds it."""
    out = np.full((4, N), 7, np.float16)
    with pytest.raises(ValueError, match="out overlaps bias"):
        nm.matmul(x, packed, "reference", out=out, bias=out[1])
    assert (out == 7).all()


def test_out_beside_x_in_the_same_buffer_is_no_overlap(packed, x):
    buffer = np.zeros((4, K + N), np.float16)
    buffer[:, :K] = x
    y = nm.matmul(buffer[:, :K], packed, "reference", out=buffer[:, K:])
    assert np.array_equal(buffer[:, K:], nm.matmul(x, packed, "reference"))
    assert np.shares_memory(y, buffer)


@pytest.mark.parametrize(
    "bad, message",
    [
        (np.zeros((4, 4), np.int32), "p is a ndarray, must be a PackedWeight"),
        (None, "p is a NoneType"),
    ],
)
def test_a_weight_of_another_kind_is_refused(x, bad, message):
    with pytest.raises(TypeError, match=message):
        nm.matmul(x, bad)


def test_a_weight_that_was_not_packed_is_refused_with_what_to_do(x):
    q = nm.quantize(np.ones((K, N), np.float32))
    with pytest.raises(TypeError, match=r"p is a QuantizedWeight.*pass nm.pack\(q\)"):
        nm.matmul(x, q)
    with pytest.raises(TypeError, match="p is a QuantizedWeight"):
        nm.unpack(q)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"backend": "gpu"},
            ValueError,
            "backend='gpu' must be one of auto, cuda, emulator, reference",
        ),
        ({"backend": None}, ValueError, "backend=None"),
        (
            {"backend": "emulator", "kernel": "warp"},
            ValueError,
            "kernel='warp' must be one of general, naive, tiled, buffered, ampere",
        ),
        ({"backend": "reference", "kernel": "warp"}, ValueError, "kernel='warp'"),
        (
            {"compiler": "nvcc"},
            ValueError,
            "compiler='nvcc' must be one of numba-cuda, numba-cuda-mlir",
        ),
        ({"backend": "emulator", "config": "big"}, TypeError, "config is a str"),
        (
            {"backend": "emulator", "kernel": "ampere", "config": NaiveConfig(128)},
            TypeError,
            "config is a NaiveConfig",
        ),
        (
            {"backend": "emulator", "kernel": "naive", "config": NaiveConfig(64)},
            ValueError,
            "config.group_size=64 must be the weight's group_size=128",
        ),
        ({"workspace": b"scratch"}, TypeError, "workspace is a bytes"),
    ],
)
def test_a_wrong_option_is_refused(packed, x, options, error, message):
    with pytest.raises(error, match=message):
        nm.matmul(x, packed, **options)


@pytest.mark.parametrize(
    "w, options, error, message",
    [
        (np.full((K, N), np.nan), {}, ValueError, r"w\[0, 0\]=nan must be finite"),
        (
            np.where(np.arange(K * N).reshape(K, N) == 300, np.inf, 1.0),
            {},
            ValueError,
            r"w\[2, 44\]=inf must be finite",
        ),
        (np.ones((0, N)), {}, ValueError, r"w.shape=\(0, 128\) must not be empty"),
        (np.ones((K, 0)), {}, ValueError, "must not be empty"),
        (np.ones(K), {}, ValueError, "must have 2 dimensions"),
        (np.ones((K, N), np.int32), {}, TypeError, "w.dtype=int32"),
        (np.ones((K, N), object), {}, TypeError, "w.dtype=object"),
        (np.ones((K, N)), {"group_size": 96}, ValueError, "group_size=96 must divide k=256"),
        (np.ones((K, N)), {"group_size": 0}, ValueError, "group_size=0 must be positive"),
        (np.ones((K, N)), {"group_size": 64.0}, TypeError, "group_size=64.0"),
        (np.ones((K, N)), {"bits": 3}, ValueError, "bits=3"),
        (np.ones((K, N)), {"method": "magic"}, ValueError, "method='magic' must be one of"),
    ],
)
def test_wrong_weights_are_refused(w, options, error, message):
    with pytest.raises(error, match=message):
        nm.quantize(w, **options)


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((K, 100), {}, "n=100 must be a positive multiple of 8"),
        ((100, N), {"group_size": -1}, "k=100 must be a positive multiple of 16"),
        ((K, N), {"group_size": 8}, r"group_size=8 must be -1 \(or k\) or a multiple of 16"),
    ],
)
def test_shapes_the_layout_does_not_hold_are_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        nm.pack(nm.quantize(np.ones(shape, np.float32), **options))


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="layout='machete' must be one of"):
        nm.pack(nm.quantize(np.ones((K, N), np.float32)), layout="machete")


def test_a_gpu_asked_for_by_name_and_not_there_is_a_missing_capability(packed, x, monkeypatch):
    from numba_marlin.execution import driver

    monkeypatch.setattr(
        driver, "probe", lambda: driver.Probe(False, "no NVIDIA driver on this machine")
    )
    out = np.full((4, N), 7, np.float16)
    with pytest.raises(nm.CapabilityMissing, match="backend='cuda': no NVIDIA driver"):
        nm.matmul(x, packed, "cuda", out=out)
    assert (out == 7).all()


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        nm.matmull  # noqa: B018
