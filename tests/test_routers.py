"""Contract under test: ``nm.route`` chooses experts as the models' own routers do, written down
here once more, token by token, with loops."""

import math

import numpy as np
import pytest

import numba_marlin as nm

RNG = np.random.default_rng(5)
LOGITS = RNG.standard_normal((6, 16)).astype(np.float32) * 2
BIAS = RNG.standard_normal(16).astype(np.float32)

ROUTERS = {
    "Mixtral": {"top_k": 2, "normalize": True},
    "not normalised": {"top_k": 3},
    "sigmoid": {"top_k": 4, "scoring": "sigmoid", "scale": 2.5, "normalize": True},
    "DeepSeek-V3": {
        "top_k": 4,
        "scoring": "sigmoid",
        "bias": BIAS,
        "normalize": True,
        "scale": 2.5,
        "groups": 4,
        "top_groups": 2,
    },
}


def by_hand(logits, top_k, scoring="softmax", bias=None, normalize=False, scale=1.0, groups=1,
            top_groups=1):  # fmt: skip
    """One token -> [(expert, weight)]"""
    if scoring == "softmax":
        total = sum(math.exp(float(each)) for each in logits)
        scores = [math.exp(float(each)) / total for each in logits]
    else:
        scores = [1 / (1 + math.exp(-float(each))) for each in logits]
    ranked = scores if bias is None else [s + float(b) for s, b in zip(scores, bias)]
    size = len(ranked) // groups
    allowed = range(len(ranked))
    if groups > 1:
        best = [sum(sorted(ranked[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
        held = sorted(range(groups), key=lambda g: -best[g])[:top_groups]
        allowed = [e for e in allowed if e // size in held]
    experts = sorted(allowed, key=lambda e: -ranked[e])[:top_k]
    weights = [scores[e] for e in experts]
    if normalize:
        weights = [each / sum(weights) for each in weights]
    return [(e, scale * each) for e, each in zip(experts, weights)]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("library", ("numpy", "torch"))
def test_experts_and_weights_are_those_of_the_models_router(router, library):
    options = dict(ROUTERS[router])
    logits = LOGITS
    if library == "torch":
        torch = pytest.importorskip("torch")
        logits = torch.from_numpy(LOGITS)
        if "bias" in options:
            options["bias"] = torch.from_numpy(BIAS)
    routing = nm.route(logits, **options).on_host()
    for token, row in enumerate(LOGITS):
        wanted = by_hand(row, **ROUTERS[router])
        assert routing.ids[token].tolist() == [expert for expert, _ in wanted]
        assert routing.weights[token] == pytest.approx([each for _, each in wanted], rel=1e-5)


def test_a_softmax_of_the_chosen_logits_is_a_normalised_softmax():
    """gpt-oss's router."""
    routing = nm.route(LOGITS, 4, normalize=True)
    chosen = np.take_along_axis(LOGITS, routing.ids, 1).astype(np.float64)
    wanted = np.exp(chosen) / np.exp(chosen).sum(axis=1, keepdims=True)
    assert routing.weights == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("library", ("numpy", "torch"))
def test_of_equal_scores_the_lower_numbers_are_chosen(library):
    logits = np.zeros((2, 9), np.float32)
    if library == "torch":
        logits = pytest.importorskip("torch").from_numpy(logits)
    assert nm.route(logits, 3).on_host().ids.tolist() == [[0, 1, 2]] * 2


def test_extreme_logits_have_finite_weights():
    logits = np.array([[-200.0, -210.0, -220.0]], np.float32)
    routing = nm.route(logits, 2, scoring="sigmoid", normalize=True)
    assert np.isfinite(routing.weights).all()
    assert nm.route(-logits, 1).weights[0, 0] == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
    "logits, options, error, match",
    (
        (LOGITS, {"top_k": 17}, ValueError, "top_k=17 must be 1 to 16"),
        (LOGITS, {"top_k": True}, ValueError, "top_k=True must be 1 to 16"),
        (LOGITS, {"top_k": 2, "scoring": "max"}, ValueError, "scoring='max' must be one of"),
        (LOGITS, {"top_k": 2, "groups": 3}, ValueError, "groups=3 must divide the 16 experts"),
        (LOGITS, {"top_k": 9, "groups": 4, "top_groups": 2}, ValueError, "must be 1 to 8"),
        (LOGITS, {"top_k": 2, "bias": BIAS[:3]}, ValueError, r"bias.shape=\(3,\) must be"),
        (LOGITS[0], {"top_k": 2}, ValueError, r"logits.shape=\(16,\) must be \(m, experts\)"),
        ([[1.0]], {"top_k": 1}, TypeError, "logits is a list, must be of NumPy or torch"),
        (LOGITS * np.nan, {"top_k": 1}, ValueError, r"logits\[0, 0\]=nan must be finite"),
    ),
)
def test_wrong_arguments_name_the_rule(logits, options, error, match):
    with pytest.raises(error, match=match):
        nm.route(logits, **options)
