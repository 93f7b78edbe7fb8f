"""Contract under test: experts in one buffer are the packed weights that they were made of, byte by
byte, whole, taken and cut; and a routing's lists have every pair once, by expert."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin.formats import surgery
from numba_marlin.formats.experts import PackedExperts
from numba_marlin.formats.residence import arrays_of
from numba_marlin.formats.routing import Routing
from numba_marlin.testing.contents import make_quantized

pytest.importorskip("ml_dtypes")


def integers(seed, k=128, n=72, group_size=64, zeros=None, bits=4):
    options = {"zeros_kind": zeros, "bits": bits}
    return nm.pack(make_quantized("uniform", "ordinary", k, n, group_size, seed, **options))


KINDS = {
    "groups": lambda seed: integers(seed),
    "columns": lambda seed: integers(seed, group_size=-1),
    "zeros": lambda seed: integers(seed, zeros="integer"),
    "8 bits, float16 zeros": lambda seed: integers(seed, zeros="float16", bits=8),
}


def same(a, b):
    held = arrays_of(a)
    assert held.keys() == arrays_of(b).keys() and a.shape == b.shape
    return all(np.array_equal(array, getattr(b, name)) for name, array in held.items())


@pytest.mark.parametrize("kind", KINDS)
def test_each_expert_is_the_weight_that_was_given(kind):
    weights = [KINDS[kind](seed) for seed in range(4)]
    experts = PackedExperts.of(weights)
    assert len(experts) == 4 and experts.shape == (4, *weights[0].shape)
    assert experts.nbytes == sum(each.nbytes for each in weights)
    assert all(same(one, other) for one, other in zip(experts, weights))
    assert same(experts[-1], weights[3])
    assert experts[1].qweight.base is not None, "a view, not a copy"
    with pytest.raises(IndexError):
        experts[4]


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_them_and_parts_of_all_are_exact(kind):
    weights = [KINDS[kind](seed) for seed in range(4)]
    experts = PackedExperts.of(weights)
    assert all(same(*pair) for pair in zip(experts.taken(1, 2), weights[1:3]))
    parts = experts.cut(range(128), range(8, 40))
    wanted = [surgery.cut(each, range(128), range(8, 40)) for each in weights]
    assert all(same(*pair) for pair in zip(parts, wanted))


def test_it_says_what_it_is_and_lives_on_the_host():
    experts = PackedExperts.of([integers(seed) for seed in range(3)])
    assert repr(experts) == (
        "<PackedExperts of 3, each PackedWeight [k=128, n=72], layout marlin, 4 bits, groups of 64"
        " rows, symmetric, scales float16; 25.5 KiB on the host>"
    ), repr(experts)
    assert experts.to("cpu") is experts and experts.place == "cpu"
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = experts.colour


@pytest.mark.parametrize(
    "weights, error, match",
    (
        ([], ValueError, "weights must not be empty"),
        (3, TypeError, "weights is a int, must be a list of packed weights"),
        ([1], TypeError, r"weights\[0\] is a int, must be packed"),
        (integers(0), TypeError, "weights is a PackedWeight, must be a list"),
        ([integers(0), integers(1, n=80)], ValueError, r"weights\[1\].n=80 must be 72"),
        (
            [integers(0), integers(1, zeros="integer")],
            ValueError,
            r"weights\[1\].zeros_kind='integer' must be None",
        ),
    ),
)
def test_what_does_not_go_together_is_refused(weights, error, match):
    with pytest.raises(error, match=match):
        PackedExperts.of(weights)


# ---- routing

IDS = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**31))


@settings(max_examples=80, deadline=None)
@given(IDS)
def test_every_pair_is_in_its_experts_list_once_and_in_order(drawn):
    m, top_k, more, seed = drawn
    experts = top_k + more
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((m, experts)), axis=1)[:, :top_k]
    routing = Routing.of(ids, rng.random((m, top_k)), experts)
    assert sorted(routing.pairs) == list(range(m * top_k))
    assert routing.offsets[0] == 0 and routing.offsets[-1] == m * top_k
    for expert in range(experts):
        pairs = routing.pairs[routing.offsets[expert] : routing.offsets[expert + 1]]
        assert list(pairs) == list(np.flatnonzero(ids.ravel() == expert))


def test_a_local_routing_has_the_pairs_of_its_experts_alone():
    ids = np.array([[0, 3], [3, 1], [0, 1]])
    routing = Routing.of(ids, np.ones((3, 2)), 4)
    part = routing.local(1, 2)
    assert part.offsets.tolist() == [0, 2, 2] and part.pairs[:2].tolist() == [3, 5]
    assert not part.complete and routing.local(0, 4).complete
    with pytest.raises(ValueError, match="experts 3 to 4 must be among 0 to 3"):
        routing.local(3, 2)


@pytest.mark.parametrize(
    "ids, weights, error, match",
    (
        ([[0, 0]], [[1, 1]], ValueError, r"ids\[0\] names expert 0 twice"),
        ([[0, 4]], [[1, 1]], ValueError, r"ids\[0, 1\]=4 must be 0 to 3"),
        ([[0, -1]], [[1, 1]], ValueError, r"ids\[0, 1\]=-1 must be 0 to 3"),
        ([[0, 1]], [[1, np.nan]], ValueError, r"weights\[0, 1\]=nan must be finite"),
        ([[0, 1]], [[1]], ValueError, r"weights.shape=\(1, 1\) must be ids.shape=\(1, 2\)"),
        ([0, 1], [0, 1], ValueError, r"ids.shape=\(2,\) must be \(m, top_k\)"),
        (np.zeros((0, 2), int), np.zeros((0, 2)), ValueError, "both at least 1"),
        ([[0.5, 1.0]], [[1, 1]], TypeError, "ids.dtype=float64 must be an integer type"),
    ),
)
def test_routings_that_cannot_be_are_refused(ids, weights, error, match):
    with pytest.raises(error, match=match):
        Routing.of(np.array(ids), np.array(weights, float), 4)


def test_of_torch_it_is_the_same():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((20, 7)), axis=1)[:, :3]
    weights = rng.random((20, 3)).astype(np.float32)
    wanted = Routing.of(ids, weights, 7)
    found = Routing.of(torch.from_numpy(ids), torch.from_numpy(weights), 7)
    for held, of in ((found, wanted), (found.local(2, 3), wanted.local(2, 3))):
        host = held.on_host()
        end = of.offsets[-1]
        assert np.array_equal(host.offsets, of.offsets)
        assert np.array_equal(host.pairs[:end], of.pairs[:end])
        assert host.pairs.dtype == host.offsets.dtype == np.int32


def test_ids_and_weights_lie_together():
    """A kernel would take the address of what is elsewhere for one of its own."""
    torch = pytest.importorskip("torch")
    ids, weights = np.array([[0, 1]]), np.ones((1, 2), np.float32)
    for pair in (
        (torch.from_numpy(ids), weights),
        (ids, torch.from_numpy(weights)),
        (torch.from_numpy(ids), torch.from_numpy(weights).to("meta")),
    ):
        with pytest.raises(ValueError, match="weights is a .*, must be where ids is"):
            Routing.of(*pair, 4)


def test_of_torch_an_expert_that_does_not_exist_is_the_nearest_with_weight_0():
    """What a kernel counts of a token is whole whatever a router writes; a part drops others'."""
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[0, -1], [9, 2], [2**31, -(2**40)]])
    routing = Routing.of(ids, torch.ones(3, 2), 4)
    assert sorted(routing.pairs.tolist()) == list(range(6)) and routing.complete
    assert routing.offsets.tolist()[-1] == 6
    assert routing.ids.tolist() == [[0, 0], [3, 2], [3, 0]]
    assert routing.weights.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert routing.local(1, 3).offsets.tolist()[-1] == int((routing.ids > 0).sum())
