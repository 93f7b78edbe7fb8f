"""Contract under test: what the experiment on quantisers calls a model, and what it does to one."""

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parents[2] / "experiments" / "07_quantisers"


@pytest.fixture(scope="module")
def rooms():
    sys.path.insert(0, str(HERE))
    import model
    import transformer

    yield model, transformer
    sys.path.remove(str(HERE))


@pytest.fixture
def small(rooms):
    shape = rooms[1].Shape(layers=2, width=64, heads=2, hidden=128, vocabulary=96, outliers=2)
    return rooms[1].build(shape), rooms[1].texts(shape, 16, 24, 1)


def test_a_token_sees_none_that_come_after_it(small):
    net, tokens = small
    changed = tokens.copy()
    changed[:, 12:] = (changed[:, 12:] + 1) % 96
    before, after = net.logits(tokens), net.logits(changed)
    assert np.allclose(before[:, :12], after[:, :12], atol=1e-4) and not np.allclose(
        before[:, 12:], after[:, 12:], atol=1e-2
    )


def test_a_hook_sees_every_layer_once_and_may_answer_for_it(small):
    net, tokens = small
    seen = []
    logits = net.logits(tokens, hook=lambda name, x, w: seen.append(name) or x @ w)
    assert seen == net.names() and np.array_equal(logits, net.logits(tokens))


def test_sequential_calibration_hears_quantised_layers(rooms, small):
    """Every layer is quantised once, in order, with the inputs that the model of quantised layers
    before it gives."""
    net, tokens = small
    heard, weights = {}, {}

    def quantiser(name, w, hessian):
        import numba_marlin as nm

        heard[name] = hessian.mean()
        result = nm.quantize(w, group_size=32)
        weights[name] = nm.dequantize(result, np.float32)
        return result

    done = rooms[0].quantise(net, tokens, quantiser)
    assert list(heard) == net.names() and all(
        np.array_equal(done[name], weights[name]) for name in heard
    )

    def check(name, x, w):
        flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
        assert np.allclose(
            heard[name], flat.T @ flat / len(flat), rtol=1e-2, atol=1e-3 * np.abs(heard[name]).max()
        ), name

    net.logits(tokens, done, check)
