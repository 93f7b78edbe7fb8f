"""Contract under test: experiment 32 multiplies by what its layers round, smoothing changes no
product that is not rounded, and its tables have the rows that were measured."""

import numpy as np
import pytest

from tests import experiment_results

FOLDER = experiment_results.FOLDER / "32_activations"


@pytest.fixture
def smoothing(monkeypatch):
    return experiment_results.module("32_activations", "smoothing", monkeypatch)


@pytest.fixture
def problem():
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 128)).astype(np.float32)
    x[:, 5] *= 30.0
    return x, random.standard_normal((128, 32)).astype(np.float32)


def test_smoothing_leaves_the_product_and_moves_outliers_into_the_weight(smoothing, problem):
    x, w = problem
    inputs = smoothing.Inputs()
    inputs.add(x.reshape(4, 16, 128))
    s = smoothing.divisors(inputs, w)
    np.testing.assert_allclose((x / s) @ (w * s[:, None]), x @ w, rtol=1e-4, atol=1e-3)
    assert s.argmax() == 5
    before, after = (np.abs(each).max(axis=0) for each in (x, x / s))
    assert after.max() / np.median(after) < 0.5 * before.max() / np.median(before)


@pytest.mark.parametrize("kind, least, most", (("16 bits", 0, 1e-3), ("int8", 2e-3, 0.1)))
def test_a_layer_rounds_its_inputs_and_nothing_else(smoothing, problem, kind, least, most):
    x, w = problem
    layer = smoothing.Layer(w, np.ones(128, np.float32), kind)
    assert least <= smoothing.output_error(layer, w, x) < most
    assert layer.apply(x.reshape(4, 16, 128)).shape == (4, 16, 32)


def test_smoothing_makes_int8_nearer_where_there_is_an_outlier(smoothing, problem):
    x, w = problem
    inputs = smoothing.Inputs()
    inputs.add(x)
    s = smoothing.divisors(inputs, w)
    plain = smoothing.Layer(w, np.ones_like(s), "int8")
    smooth = smoothing.Layer(w * s[:, None], s, "int8")
    errors = [smoothing.output_error(each, w, x) for each in (plain, smooth)]
    assert errors[1] < 0.7 * errors[0]


def test_a_channel_that_is_never_used_is_not_divided(smoothing, problem):
    x, w = problem
    x[:, 7], w[9] = 0, 0
    inputs = smoothing.Inputs()
    inputs.add(x)
    assert smoothing.divisors(inputs, w)[[7, 9]].tolist() == [1, 1]


@pytest.mark.parametrize("model", ("synthetic", "sentences"))
def test_the_readme_shows_the_recorded_rows(model, monkeypatch):
    report = experiment_results.module("32_activations", "report", monkeypatch)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = text.split(f"<!-- {model}: begin -->")[1].split(f"<!-- {model}: end -->")[0]
    assert shown.strip() == report.body(FOLDER, model)
    assert len(report.newest(FOLDER, model)) >= 18
