"""Contract under test: GPTQ is the algorithm of the paper, beats rounding to nearest by far where
inputs are correlated, and refuses what it cannot use.

``plain_gptq`` is that algorithm once more, from the paper's equations: float64, one row after the
other, the inverse Hessian downdated by elimination; no Cholesky factor, no blocks, no tiles.
Weights are float64 here, so that both compute in float64 and codes must be equal.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.quantizers import dequantize, gptq, hessian, mse, rtn
from numba_marlin.quantizers.grid import GridRule
from numba_marlin.quantizers.hessian import Hessian


def correlated(rows, k, seed, outliers=4):
    """Inputs as layers see them: a few strong directions, a few channels ten times the others.
    Small integers: sums of their products are exact."""
    random = np.random.default_rng(seed)
    directions = random.standard_normal((k, k)) * np.arange(1, k + 1)[:, None] ** -0.7
    x = random.standard_normal((rows, k)) @ directions * np.exp(0.5 * random.standard_normal(k))
    x[:, random.choice(k, min(outliers, k), replace=False)] *= 10
    return np.clip(np.rint(8 * x), -255, 255).astype(np.float32)


def normal(k, n, seed):
    return 0.02 * np.random.default_rng(seed).standard_normal((k, n))


def output_error(weight, w, x):
    """Mean square of what the product loses."""
    return np.mean(np.square(x.astype(np.float64) @ (dequantize(weight, np.float64) - w)))


def damped_hessian(x, damping):
    x = x.astype(np.float64)
    h = x.T @ x / len(x)
    return h + damping * np.mean(np.diagonal(h)) * np.eye(len(h))


def plain_gptq(w, x, group_size, bits, symmetric, damping, order):
    """Codes [k, n], scales and zeros [groups, n] of the rows in ``order``: the paper's greedy
    rounding, groups gridded when they come up."""
    k, n = w.shape
    rows = k if group_size == -1 else group_size
    left = w[order].astype(np.float64)
    inverse = np.linalg.inv(damped_hessian(x, damping)[np.ix_(order, order)])
    top, half = 2**bits - 1, 2 ** (bits - 1)
    codes, scales, zeros = (
        np.empty((k, n), np.uint8),
        np.empty((k // rows, n)),
        np.full((k // rows, n), half),
    )
    for i in range(k):
        group = i // rows
        if i % rows == 0:
            part = left[i : i + rows]
            low, high = np.minimum(part.min(axis=0), 0), np.maximum(part.max(axis=0), 0)
            span = 2 * np.maximum(-low, high) if symmetric else high - low
            scales[group] = np.maximum(span / top, 2.0**-24).astype(np.float16)
            scales[group, span == 0] = 1
            if not symmetric:
                zeros[group] = np.clip(np.rint(-low / scales[group]), 0, top)
        codes[i] = np.clip(np.rint(left[i] / scales[group]) + zeros[group], 0, top)
        error = (left[i] - (codes[i] - zeros[group]) * scales[group]) / inverse[i, i]
        left[i:] -= np.outer(inverse[i:, i], error)
        inverse[i:, i:] -= np.outer(inverse[i:, i], inverse[i, i:]) / inverse[i, i]
        inverse[i + 1 :, i + 1 :] = (inverse[i + 1 :, i + 1 :] + inverse[i + 1 :, i + 1 :].T) / 2
    return codes, scales, zeros


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("bits", "group_size", "k", "symmetric"),
    [
        (4, -1, 160, True),
        (4, -1, 160, False),
        (4, 32, 96, True),
        (4, 32, 96, False),
        (4, 128, 256, True),
        (8, 64, 128, False),
    ],
)
def test_gptq_is_the_algorithm_of_the_paper(bits, group_size, k, symmetric, act_order):
    w, x = normal(k, 24, k), correlated(3 * k, k, bits + group_size)
    order = (
        np.argsort(-np.diagonal(damped_hessian(x, 0.01)), kind="stable")
        if act_order
        else np.arange(k)
    )
    codes, scales, zeros = plain_gptq(w, x, group_size, bits, symmetric, 0.01, order)
    weight = gptq.quantize(
        w, bits, group_size, symmetric, calibration=x, clip=False, act_order=act_order
    )
    if act_order and group_size == -1:
        codes = codes[np.argsort(order)]
    assert np.array_equal(weight.scales, scales.astype(np.float16))
    assert np.array_equal(weight.codes, codes)
    assert symmetric or np.array_equal(weight.zeros, zeros)
    if act_order and group_size != -1:
        assert np.array_equal(weight.permutation, order)
    else:
        assert weight.permutation is None


def test_blocks_and_tiles_leave_no_seam(monkeypatch):
    monkeypatch.setattr(gptq, "CLIPS", (1, 0.8))
    w, calibration = normal(128, 40, 0), Hessian(128).add(correlated(300, 128, 1))
    options = [
        dict(group_size=-1),
        dict(group_size=64, act_order=True),
        dict(group_size=64, symmetric=False, static_groups=True, act_order=True),
    ]
    whole = [gptq.quantize(w, calibration=calibration, **each) for each in options]
    for block, columns in ((32, 2048), (1, 24), (50, 7)):
        monkeypatch.setattr(gptq, "BLOCK", block)
        monkeypatch.setattr(gptq, "_COLUMNS", columns)
        for expected, each in zip(whole, options):
            weight = gptq.quantize(w, calibration=calibration, **each)
            assert np.array_equal(weight.codes, expected.codes) and np.array_equal(
                weight.scales, expected.scales
            ), (block, columns, each)


@pytest.mark.parametrize(
    ("options", "margin"),
    [
        (dict(), 5),
        (dict(group_size=-1), 3),
        (dict(symmetric=False), 5),
        (dict(bits=8), 5),
        (dict(act_order=True), 10),
        (dict(act_order=True, static_groups=True), 8),
        (dict(clip=False), 3),
    ],
)
def test_gptq_beats_rounding_to_nearest_by_far(options, margin):
    """Also on inputs that it has not seen."""
    x = correlated(1500, 256, 3)
    w = normal(256, 48, 4).astype(np.float32)
    seen, unseen = x[:1000], x[1000:]
    grid = {
        name: value
        for name, value in options.items()
        if name in ("bits", "group_size", "symmetric")
    }
    nearest = rtn.quantize(w, **grid)
    weight = gptq.quantize(w, calibration=seen, **options)
    for inputs in (seen, unseen):
        assert margin * output_error(weight, w, inputs) < output_error(nearest, w, inputs)


def test_uncorrelated_inputs_leave_nothing_to_gain():
    """H a multiple of the identity: no feedback, so without clipping the codes are those of
    rounding to nearest."""
    w = normal(128, 64, 5)
    for act_order in (False, True):
        weight = gptq.quantize(
            w,
            group_size=32,
            calibration=np.eye(128, dtype=np.float32),
            clip=False,
            act_order=act_order,
        )
        expected = rtn.quantize(w, group_size=32)
        assert np.array_equal(dequantize(weight), dequantize(expected))


@given(
    testing.problems(max_n=16, max_k=160, **testing.EVERY_SHAPE),
    testing.seeds(),
    st.sampled_from([4, 8]),
    st.booleans(),
)
@settings(max_examples=10, deadline=None)
def test_clipping_never_enlarges_a_groups_loss(problem, seed, bits, symmetric):
    rows = problem.k if problem.group_size == -1 else problem.group_size
    x, w = (
        correlated(problem.k, problem.k, seed),
        testing.make_weights("heavy_tailed", problem.k, problem.n, seed, np.float64)[:rows],
    )
    back = gptq.feedback(damped_hessian(x, 0.01)[:rows, :rows], 0.01, np.float64)
    rule = GridRule(bits, symmetric)
    clips = gptq.CLIPS[::3]
    spanning, grid = gptq.round_group(w, back, rule, clips[:1], 0, 0)
    clipped, clipped_grid = gptq.round_group(w, back, rule, clips, 0, 0)
    assert (clipped.loss <= spanning.loss).all()
    # the loss is what it says: d^T H d of the codes and grid that are handed out
    for rounded, used in ((spanning, grid), (clipped, clipped_grid)):
        error = (rounded.codes - np.float64(1) * used.zeros) * used.scales.astype(np.float64) - w
        assert np.allclose(error, rounded.error, rtol=1e-12, atol=1e-12)
        assert np.allclose(
            np.einsum("ij,ij->j", error, damped_hessian(x, 0.01)[:rows, :rows] @ error),
            rounded.loss,
            rtol=1e-7,
        )


def test_clipping_pays_on_heavy_tails():
    x, w = correlated(400, 128, 6), np.random.default_rng(7).standard_t(3, (128, 64))
    plain, clipped = (gptq.quantize(w, calibration=x, clip=clip) for clip in (False, True))
    assert output_error(clipped, w, x) < 0.75 * output_error(plain, w, x)


@pytest.mark.parametrize(("symmetric", "gain"), [(True, 0.9), (False, 0.95)])
def test_searched_scales_never_square_worse_and_pay_on_heavy_tails(symmetric, gain):
    w = np.random.default_rng(8).standard_t(3, (256, 64))
    errors = [
        np.square(dequantize(room.quantize(w, 4, 64, symmetric), np.float64) - w)
        .reshape(4, 64, 64)
        .sum(axis=1)
        for room in (rtn, mse)
    ]
    assert (errors[1] <= errors[0] * (1 + 1e-12)).all()
    assert errors[1].sum() < gain * errors[0].sum()


def test_dead_inputs_change_nothing_for_the_others():
    """Rows whose inputs are always zero are rounded to nearest."""
    x, w = correlated(500, 128, 9), normal(128, 32, 10)
    dead = np.arange(5, 128, 9)
    x[:, dead] = 0
    weight = gptq.quantize(w, group_size=32, calibration=x, clip=False)
    scales = np.repeat(weight.scales.astype(np.float64), 32, axis=0)
    half_a_step = scales[dead] / 2
    assert (np.abs(dequantize(weight, np.float64) - w)[dead] <= half_a_step * (1 + 2.0**-9)).all()
    w[dead[0]] = -w[dead[0]]  # does not touch its group's largest
    again = gptq.quantize(w, group_size=32, calibration=x, clip=False)
    alive = np.setdiff1d(np.arange(32, 128), dead)
    assert np.array_equal(again.codes[alive], weight.codes[alive])


def test_fewer_rows_than_inputs_are_enough():
    x, w = correlated(7, 256, 11), normal(256, 64, 12)
    weight = gptq.quantize(w, calibration=x)
    assert output_error(weight, w, x) < 0.01 * output_error(rtn.quantize(w), w, x)
    with pytest.raises(ValueError, match="not positive definite with damping=0: use more"):
        gptq.quantize(w, calibration=x[:3], damping=0)


@pytest.mark.parametrize(
    "calibration",
    [
        lambda x: x,
        lambda x: [x[:100], x[100:101], x[101:]],
        lambda x: (part for part in np.split(x, 4)),
        lambda x: x.reshape(4, 75, 64),
        lambda x: Hessian(64).add(x),
        lambda x: [x.astype(np.float64)],
    ],
)
def test_calibration_may_come_in_any_pieces(calibration):
    x, w = correlated(300, 64, 13), normal(64, 16, 14)
    expected = gptq.quantize(w, group_size=32, calibration=x)
    weight = nm.quantize(w, group_size=32, method="gptq", calibration=calibration(x))
    assert np.array_equal(weight.codes, expected.codes) and np.array_equal(
        weight.scales, expected.scales
    )


@given(st.integers(1, 40), st.lists(st.integers(0, 9), min_size=1, max_size=5), testing.seeds())
@settings(max_examples=20, deadline=None)
def test_a_hessian_is_the_mean_of_all_rows(k, sizes, seed):
    random = np.random.default_rng(seed)
    batches = [random.standard_normal((size, k)).astype(np.float32) for size in sizes]
    total = Hessian(k)
    for batch in batches:
        total.add(batch)
    x = np.concatenate(batches).astype(np.float64)
    assert total.rows == len(x)
    if len(x):
        assert np.allclose(total.mean(), x.T @ x / len(x), rtol=1e-5, atol=1e-6)
        assert np.array_equal(total.mean(), total.mean().T)


def test_a_hessian_has_no_seams(monkeypatch):
    """Blocks of columns, and runs of rows."""
    x = correlated(50, 40, 15)
    monkeypatch.setattr(hessian, "_BLOCK", 16)
    monkeypatch.setattr(hessian, "_ROWS", 7)
    mean = Hessian(40).add(x).mean()
    assert np.array_equal(mean, mean.T)
    assert np.allclose(mean, x.astype(np.float64).T @ x / 50, rtol=1e-14)


@given(data=st.data(), problem=testing.problems(max_n=16, max_k=64, **testing.EVERY_SHAPE))
@settings(max_examples=12, deadline=None)
def test_every_shape_and_option_gives_a_weight_near_its_own(data, problem):
    w = data.draw(
        testing.weights(problem.k, problem.n, ("normal", "heavy_tailed", "tiny", "sparse", "zero"))
    )
    x = correlated(data.draw(st.integers(1, 200)), problem.k, data.draw(testing.seeds()))
    options = {
        name: data.draw(st.booleans())
        for name in ("symmetric", "clip", "act_order", "static_groups")
    }
    weight = gptq.quantize(
        w, data.draw(st.sampled_from([4, 8])), problem.group_size, calibration=x, **options
    )
    assert (weight.k, weight.n, weight.groups) == (problem.k, problem.n, problem.groups)
    assert (weight.permutation is not None) == (
        options["act_order"] and not options["static_groups"] and weight.groups > 1
    )
    values = dequantize(weight, np.float64)
    nearest = dequantize(
        rtn.quantize(w, weight.bits, problem.group_size, options["symmetric"]), np.float64
    )
    h = damped_hessian(x, 0.01)
    loss, loss_of_nearest = (
        np.einsum("ij,ij->", error, h @ error) for error in (values - w, nearest - w)
    )
    # Greedy, so not always better; but never far off, whatever is drawn (w in float32 is 2^-24 off
    # to begin with).
    assert loss <= 4 * loss_of_nearest + 1e-12 * np.einsum(
        "ij,ij->", w.astype(np.float64), h @ w.astype(np.float64)
    )


@pytest.mark.parametrize(
    ("calibration", "error", "message"),
    [
        (None, TypeError, "method 'gptq' needs calibration"),
        (np.ones((4, 63), np.float32), ValueError, r"x.shape=\(4, 63\) must end in k=64"),
        (np.ones((4, 64), np.int32), TypeError, "x.dtype=int32"),
        (np.ones((0, 64), np.float32), ValueError, "holds no rows"),
        ([], ValueError, "holds no rows"),
        (np.zeros((9, 64), np.float32), ValueError, r"nothing but zeros \(9 rows\).*method='mse'"),
        (Hessian(32), ValueError, "Hessian of k=32, must be k=64"),
        ({"a": Hessian(64)}, TypeError, r"holds 1 layers, must be of one: pass calibration\['a'\]"),
        (np.full((4, 64), 1e20), ValueError, "must be at most 2"),
    ],
)
def test_unusable_calibration_is_refused(calibration, error, message):
    with pytest.raises(error, match=message):
        nm.quantize(np.ones((64, 8)), group_size=32, method="gptq", calibration=calibration)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_numbers_are_named_and_nothing_is_added(value):
    x = np.ones((9, 64), np.float16)
    x[7, 3] = value
    total = Hessian(64).add(np.ones((2, 64), np.float16))
    with pytest.raises(ValueError, match=r"calibration: x\[7, 3\]=.* must be finite"):
        total.add(x)
    assert total.rows == 2 and (total.mean() == 1).all()
    w = np.ones((64, 8))
    w[40, 5] = value
    with pytest.raises(ValueError, match=r"w\[40, 5\]=.* must be finite"):
        nm.quantize(w, method="gptq", calibration=total)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            dict(method="rtn", calibration=np.ones((1, 64))),
            TypeError,
            "method 'rtn' takes no calibration",
        ),
        (dict(method="mse", damping=0.1), TypeError, "method 'mse' takes no damping"),
        (
            dict(method="gptq", calibration=np.ones((1, 64)), dampening=0.1),
            TypeError,
            "method 'gptq' takes no dampening; it takes calibration, damping, clip",
        ),
        (
            dict(method="gptq", calibration=np.ones((1, 64)), damping=-1),
            ValueError,
            "damping=-1 must be",
        ),
        (dict(method="best"), ValueError, "method='best' must be one of"),
    ],
)
def test_options_of_another_method_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        nm.quantize(np.ones((64, 8)), group_size=32, **arguments)
