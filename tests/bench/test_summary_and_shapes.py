"""Contract under test: one disturbed round moves neither median nor spread, and names resolve to
the layers that a model has."""

import pytest

from numba_marlin.bench import shapes
from numba_marlin.bench.summary import summarise
from numba_marlin.heuristics import Problem


def test_the_summary_is_median_quartiles_and_extremes():
    found = summarise([5, 1, 4, 2, 3])
    assert (found.median, found.low, found.high, found.least, found.most, found.count) == (
        3,
        2,
        4,
        1,
        5,
        5,
    )
    assert summarise([7]) == type(found)(7, 7, 7, 7, 7, 1)


def test_one_disturbed_round_changes_little():
    calm = summarise([10, 11, 12, 13, 14, 15, 16, 17, 18])
    disturbed = summarise([10, 11, 12, 13, 14, 15, 16, 17, 1800])
    assert (disturbed.median, disturbed.low, disturbed.high) == (
        calm.median,
        calm.low,
        calm.high,
    ) and disturbed.most == 1800


@pytest.mark.parametrize("values", [[], [1, 0], [1, -1], [float("nan")], [float("inf")]])
def test_what_is_no_time_is_refused(values):
    with pytest.raises(ValueError, match="values must"):
        summarise(values)


def test_layers_of_a_model_follow_from_its_sizes():
    found = {each.name: (each.k, each.n) for each in shapes.resolve("llama-3-8b")}
    assert found == {
        "llama-3-8b qkv": (4096, 6144),
        "llama-3-8b o": (4096, 4096),
        "llama-3-8b gate_up": (4096, 28672),
        "llama-3-8b down": (14336, 4096),
    }


@pytest.mark.parametrize("name", shapes.names())
def test_every_named_shape_is_a_problem(name):
    for layer in shapes.resolve(name):
        Problem(1, layer.n, layer.k, 128 if layer.k % 128 == 0 else -1)


def test_heads_and_hidden_sizes_agree_where_the_model_says_so():
    """Query heads make up the hidden size, in most models; those that break the rule are known."""
    other = {
        name
        for name, model in shapes.MODELS.items()
        if model.heads * model.head_size != model.hidden
    }
    assert other == {
        "mistral-nemo-12b",
        "mistral-small-24b",
        "qwen-3-32b",
        "gemma-2-9b",
        "gemma-2-27b",
    }


def test_key_and_value_heads_serve_as_many_query_heads_each():
    assert all(model.heads % model.kv_heads == 0 for model in shapes.MODELS.values())


def test_sizes_are_k_by_n_and_come_once():
    found = shapes.resolve(" 8192x28672, Table ,8192x8192")
    assert found[0] == shapes.Layer("8192x28672", n=28672, k=8192)
    assert len({(each.k, each.n) for each in found}) == len(found) == 6


@pytest.mark.parametrize(
    "text, message",
    [
        ("qwen-2.5-7b/tp8", "'qwen-2.5-7b/tp8': 8 GPUs do not divide heads=28"),
        ("llama-3-70b/tp16", "16 GPUs do not divide kv_heads=8"),
        ("llama-3-8b/tp0", "0 GPUs do not divide"),
        ("llama-3-8b/tp", "'llama-3-8b/tp' must be KxN, MODEL/tpN"),
        ("ideal/tp2", "'ideal/tp2' must be KxN, MODEL/tpN"),
        ("llama-9", "'llama-9' must be KxN, MODEL/tpN or one of table"),
        ("", "names none"),
        ("8192", "must be KxN"),
        ("8x", "must be KxN"),
    ],
)
def test_unknown_shapes_are_refused(text, message):
    with pytest.raises(ValueError, match=message.replace("table", "ideal")):
        shapes.resolve(text)


def test_parts_of_tensor_parallelism_make_up_the_whole():
    """qkv and gate_up are cut along n, o and down along k."""
    whole = shapes.resolve("llama-3-70b")
    for parallel in (2, 4, 8):
        parts = shapes.resolve(f"llama-3-70b/tp{parallel}")
        assert [(each.k * parallel, each.n) for each in parts[1::2]] == [
            (each.k, each.n) for each in whole[1::2]
        ]
        assert [(each.k, each.n * parallel) for each in parts[::2]] == [
            (each.k, each.n) for each in whole[::2]
        ]
