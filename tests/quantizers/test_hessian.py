"""Contract under test: a Hessian says what an error of the weights does to the layer's outputs, by
whatever method it came about, and what is stored of it is what it was."""

import os

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.quantizers import dequantize, hessian


def correlated(rows, k, seed=0):
    random = np.random.default_rng(seed)
    directions = random.standard_normal((k, k)) * np.arange(1, k + 1)[:, None] ** -0.7
    return (random.standard_normal((rows, k)) @ directions).astype(np.float32)


X = correlated(500, 128)
W = 0.02 * np.random.default_rng(1).standard_normal((128, 48))
MADE = {
    "rtn": dict(method="rtn"),
    "mse": dict(method="mse"),
    "gptq": dict(method="gptq", calibration=X),
    "zero points": dict(method="gptq", calibration=X, symmetric=False),
    "act order": dict(method="gptq", calibration=X, act_order=True, group_size=32),
    "nvfp4": dict(format="nvfp4"),
}


@pytest.mark.parametrize("made", MADE)
def test_the_error_of_the_outputs_is_that_of_the_outputs(made):
    q = nm.quantize(W, **MADE[made])
    x = X.astype(np.float64)
    changed = dequantize(q, np.float64)
    expected = np.linalg.norm(x @ (changed - W)) / np.linalg.norm(x @ W)
    h = nm.Hessian(128).add(X[:100]).add(X[100:])
    for each in (q, changed) if made == "nvfp4" else (q, changed, nm.pack(q)):
        assert h.output_error(W, each) == pytest.approx(expected, rel=1e-5)


def test_with_correlated_inputs_gptq_beats_rounding_to_nearest():
    seen, others = correlated(2000, 128), correlated(2000, 128, 0)[1000:]
    h = nm.Hessian(128).add(seen[:1000])
    unseen = nm.Hessian(128).add(others)
    for judge in (h, unseen):  # also on inputs of the same kind that it was not calibrated on
        rtn, mse, gptq = (
            judge.output_error(W, nm.quantize(W, method=method, **options))
            for method, options in (("rtn", {}), ("mse", {}), ("gptq", {"calibration": h}))
        )
        assert gptq < 0.7 * min(rtn, mse) and max(rtn, mse) < 0.5


def test_the_error_of_the_outputs_is_taken_in_blocks(monkeypatch):
    q, h = nm.quantize(W), nm.Hessian(128).add(X)
    expected = h.output_error(W, q)
    monkeypatch.setattr(hessian, "_BLOCK", 7)
    assert nm.Hessian(128).add(X).output_error(W, q) == pytest.approx(expected, rel=1e-6)


def test_outputs_of_zeros_have_no_error_and_no_infinite_one_is_hidden():
    h = nm.Hessian(4).add(np.float32([[1, 0, 0, 0]]))
    w = np.float64([[0.0], [1], [1], [1]])
    assert h.output_error(w, 2 * w) == 0.0
    assert h.output_error(w, w + 1) == float("inf")
    assert nm.Hessian(4).add(np.zeros((3, 4), np.float32)).output_error(w, w + 1) == 0.0


@pytest.mark.parametrize(
    ("w", "changed", "message"),
    [
        (np.ones((64, 3)), np.ones((64, 3)), r"w.shape=\(64, 3\) must be \(128, 3\).*k=128"),
        (np.ones((128, 3)), np.ones((128, 2)), r"quantized.shape=\(128, 2\) must be \(128, 3\)"),
        (np.ones(128), np.ones(128), r"w.shape=\(128,\) must be \(128, n\)"),
    ],
)
def test_weights_of_other_shapes_are_refused(w, changed, message):
    with pytest.raises(ValueError, match=message):
        nm.Hessian(128).add(X).output_error(w, changed)
    with pytest.raises(ValueError, match="holds no rows"):
        nm.Hessian(128).output_error(W, W)


def test_a_triangle_is_the_hessian_bit_for_bit():
    h = nm.Hessian(128).add(X)
    again = hessian.Hessian.of_triangle(128, h.triangle(), h.rows)
    assert again.rows == 500 and np.array_equal(again.mean(), h.mean())
    assert np.array_equal(again.add(X[:9]).mean(), h.add(X[:9]).mean())


def test_a_copy_goes_its_own_way(tmp_path):
    for spill in (None, tmp_path):
        h = nm.Hessian(128, spill).add(X)
        before = h.mean()
        other = h.copy().add(2 * X)
        assert np.array_equal(h.mean(), before) and other.rows == 1000 and h.rows == 500


def changed_triangle(place, value):
    values = nm.Hessian(4).add(np.arange(1, 13, dtype=np.float32).reshape(3, 4)).triangle()
    values[place] = value
    return values


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, -1.0, r"squares \[0, 0\]=-1 must be 0 to"),
        (4, np.nan, r"squares \[1, 1\]=nan"),
        (9, np.inf, r"squares \[3, 3\]=inf"),
        (9, 1e300, r"squares \[3, 3\]=1e\+300"),
        (2, 1e9, r"products \[0, 2\]=1e\+09 must be at most"),
        (6, np.nan, r"products \[1, 3\]=nan"),
    ],
)
def test_sums_that_no_inputs_have_are_refused(place, value, message):
    with pytest.raises(ValueError, match=message):
        hessian.Hessian.of_triangle(4, changed_triangle(place, value), 3)


def test_a_spilled_hessian_lies_in_a_file_without_a_name(tmp_path):
    h = nm.Hessian(128, spill=tmp_path).add(X)
    assert not list(tmp_path.iterdir())
    base = h._sum
    while not isinstance(base, np.memmap):
        base = base.base
    assert base.nbytes == 8 * 128**2
    assert np.array_equal(h.mean(), nm.Hessian(128).add(X).mean())
    with pytest.raises(FileNotFoundError):
        nm.Hessian(8, spill=tmp_path / "gone")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk_is_an_error_when_the_space_is_taken(tmp_path, monkeypatch):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError):
            nm.Hessian(128, spill=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
