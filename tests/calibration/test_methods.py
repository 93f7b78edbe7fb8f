"""Contract under test: methods are compared by the error of the layer's outputs, each quantised as
``nm.quantize`` does it, in one table."""

import numpy as np
import pytest

import numba_marlin as nm


def correlated(rows, k, seed):
    random = np.random.default_rng(seed)
    directions = random.standard_normal((k, k)) * np.arange(1, k + 1)[:, None] ** -0.7
    return (random.standard_normal((rows, k)) @ directions).astype(np.float32)


K, N = 64, 24
X = {"a": correlated(400, K, 0), "b": correlated(300, K, 1)}
W = {
    name: 0.02 * np.random.default_rng(seed).standard_normal((K, N)).astype(np.float32)
    for seed, name in enumerate(X)
}


def hessians():
    return {name: nm.Hessian(K).add(x) for name, x in X.items()}


def test_every_method_is_judged_by_the_outputs():
    found = nm.compare_methods(W, hessians(), group_size=32)
    assert list(found.errors) == ["a", "b"] and found.methods == ["rtn", "mse", "gptq"]
    for name, errors in found.errors.items():
        x, w = X[name].astype(np.float64), W[name]
        for method, error in errors.items():
            options = {"calibration": X[name]} if method == "gptq" else {}
            q = nm.dequantize(nm.quantize(w, group_size=32, method=method, **options), np.float64)
            expected = np.linalg.norm(x @ (q - w)) / np.linalg.norm(x @ w)
            assert error == pytest.approx(expected, rel=1e-5)
        assert errors["gptq"] < 0.7 * min(errors["rtn"], errors["mse"])
    assert found.means["rtn"] == pytest.approx(
        (found.errors["a"]["rtn"] + found.errors["b"]["rtn"]) / 2
    )


def test_methods_may_be_anything_that_quantize_takes():
    methods = {
        "8 bits": {"bits": 8},
        "act order": {"method": "gptq", "act_order": True},
        "nvfp4": {"format": "nvfp4"},
    }
    found = nm.compare_methods({"a": W["a"]}, hessians(), methods)
    assert found.methods == list(methods) and found.errors["a"]["8 bits"] < 0.01
    q = nm.quantize(W["a"], format="nvfp4")
    assert found.errors["a"]["nvfp4"] == hessians()["a"].output_error(W["a"], q)


def test_one_table_for_terminal_notebook_and_program():
    found = nm.compare_methods(W, hessians(), ("rtn", "mse"))
    lines = str(found).splitlines()
    assert lines[0].split() == ["layer", "k", "x", "n", "rtn", "mse"]
    assert lines[1].split() == [
        "a",
        "64",
        "x",
        "24",
        *map("{:.2%}".format, found.errors["a"].values()),
    ]
    assert lines[-1].split() == ["mean", *map("{:.2%}".format, found.means.values())]
    html = found._repr_html_()
    assert html.count("<tr>") == 4 and "{:.2%}".format(found.errors["b"]["mse"]) in html
    shown = repr(found)
    assert shown.startswith("<MethodComparison of 2 layers, mean output error: rtn ")
    assert len(shown) < 100
    data = found.to_dict()
    assert data["layers"]["a"] == {"k": K, "n": N, "output_error": found.errors["a"]}


@pytest.mark.parametrize(
    ("weights", "methods", "error", "message"),
    [
        (W, ("rtm",), ValueError, r"layer 'a', rtm: method='rtm' must be one of"),
        (W, (), ValueError, "2 layers and 0 methods"),
        ({}, ("rtn",), ValueError, "0 layers and 1 methods"),
        ({"c": W["a"]}, ("rtn",), KeyError, "c"),
        ({"a": W["a"][:32]}, ("rtn",), ValueError, r"layer 'a', rtn: w.shape=\(32, 24\).*k=64"),
        (
            {"a": W["a"][:32]},
            "gptq",
            ValueError,
            "layer 'a', gptq: calibration is a Hessian of k=64",
        ),
        (
            {"a": np.float32([[np.nan]] * 64)},
            ("rtn",),
            ValueError,
            r"layer 'a', rtn: w\[0, 0\]=nan",
        ),
    ],
)
def test_what_cannot_be_compared_is_named(weights, methods, error, message):
    with pytest.raises(error, match=message):
        nm.compare_methods(weights, hessians(), methods, group_size=-1)


def test_layers_of_a_torch_model_are_compared_where_they_have_a_hessian():
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleDict({name: torch.nn.Linear(K, N) for name in ("a", "b", "c")})
    model["b"] = model["b"].bfloat16()
    with torch.no_grad():
        for name, w in W.items():
            model[name].weight.copy_(torch.from_numpy(w.T.copy()))
    found = nm.compare_methods(model, hessians(), "rtn", group_size=32)
    stored = W | {"b": model["b"].weight.detach().float().numpy().T}
    assert found.errors == nm.compare_methods(stored, hessians(), "rtn", group_size=32).errors
    assert list(found.errors) == ["a", "b"]
    with pytest.raises(KeyError, match="no layer 'aa', which has a Hessian.*did you mean 'a'"):
        nm.compare_methods(model, {"aa": hessians()["a"]})
