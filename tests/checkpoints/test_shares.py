"""Contract under test: the stored tensors that an engine cuts by ``Share.held`` for a rank are read
as what ``numba_marlin.shard`` and ``concat`` make of the packed whole."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.checkpoints.scheme import Scheme
from numba_marlin.checkpoints.shares import UNKNOWN, Share
from numba_marlin.formats.files import find_stored

K, GROUP = 128, 32
FORMATS = ("gptq", "gptq_v2", "awq", "pack-quantized")
INDEX = {"gptq": "g_idx", "gptq_v2": "g_idx", "pack-quantized": "weight_g_idx"}


def weight(n, seed=0, k=K, order=None, **options):
    w = np.random.default_rng(seed).standard_normal((k, n), np.float32)
    q = nm.quantize(w, **({"group_size": GROUP} | options))
    return q if order is None else replace(q, permutation=order)


def order_of(seed):
    """Rows sorted by group, as readers find them."""
    groups = np.random.default_rng(seed).permutation(np.arange(K) // GROUP)
    return np.argsort(groups, kind="stable").astype(np.int32)


def scheme_of(form, q):
    index = INDEX.get(form)
    return Scheme(
        form,
        q.bits,
        q.group_size,
        form != "pack-quantized" or q.zeros is not None,
        index,
        q.permutation is not None,
    )


def loaded(share, form, weights, rank, world):
    """What an engine puts into a rank's tensors: along n the rank's part of each weight, side by
    side; along k its rows of a single one; and g_idx."""
    files = [find_stored(form).write(each) for each in weights]
    found = {}
    for name, held in share.held("float16").items():
        pieces = []
        for file in files:
            piece = file[name]
            if share.world == 1:
                piece = np.split(piece, world, axis=held.columns)[rank]
            elif held.rows is not None:
                piece = np.split(piece, world, axis=held.rows)[rank]
            pieces.append(piece)
        found[name] = np.concatenate(pieces, axis=held.columns)
        assert (found[name].shape, found[name].dtype) == (held.shape, held.dtype)
    index, unknown = INDEX.get(form), np.full(share.k, UNKNOWN, np.int32)
    return found, None if index is None else np.stack([f.get(index, unknown) for f in files])


def assert_same(p, other):
    assert (p.k, p.n, p.bits, p.group_size) == (other.k, other.n, other.bits, other.group_size)
    for name in ("qweight", "scales", "zeros", "permutation"):
        one, two = getattr(p, name), getattr(other, name)
        assert (one is None) == (two is None), name
        assert one is None or np.array_equal(one, two), name


@pytest.mark.parametrize("world", (1, 2, 4))
@pytest.mark.parametrize("symmetric", (True, False))
@pytest.mark.parametrize("form", FORMATS)
def test_columns_of_fused_layers(form, symmetric, world):
    order = order_of(1) if form in INDEX else None
    weights = [weight(n, n, order=order, symmetric=symmetric) for n in (96, 32, 64)]
    scheme = scheme_of(form, weights[0])
    for rank in range(world):
        share = Share("qkv", scheme, K, tuple(each.n // world for each in weights))
        (found,) = share.read(*loaded(share, form, weights, rank, world))
        parts = [nm.shard(nm.pack(each), rank, world, "n") for each in weights]
        assert_same(nm.pack(found), nm.concat(parts))


@pytest.mark.parametrize("world", (2, 4))
@pytest.mark.parametrize("group", (GROUP, 128, -1))
@pytest.mark.parametrize("form", FORMATS)
def test_rows_of_a_layer(form, group, world):
    """Groups of 128 rows are cut, and a scale for all rows is the same on all ranks."""
    q = weight(64, k=384 if group == 128 else 256, group_size=group, symmetric=False)
    scheme = replace(scheme_of(form, q), ordered=False)
    whole = nm.pack(q)
    for rank in range(world):
        share = Share("down", scheme, q.k, (q.n,), rank, world)
        assert share.whole == (group == 128)
        (found,) = share.read(*loaded(share, form, [q], rank, world))
        if share.whole:
            assert_same(nm.pack(found), whole)
        else:
            assert_same(nm.pack(found), nm.shard(whole, rank, world, "k"))


@pytest.mark.parametrize("form", sorted(INDEX))
def test_rows_in_activation_order_are_loaded_as_a_whole(form):
    q = weight(64, order=order_of(3))
    share = Share("down", scheme_of(form, q), K, (64,), 1, 2)
    assert share.whole and all(each.rows is None for each in share.held("float16").values())
    (found,) = share.read(*loaded(share, form, [q], 1, 2))
    assert_same(nm.pack(found), nm.pack(q))


@pytest.mark.parametrize("form", sorted(INDEX))
def test_fused_layers_of_different_orders_are_read_one_by_one(form):
    weights = [weight(32, 1, order=order_of(1)), weight(64, 2, order=order_of(2)), weight(8, 3)]
    scheme = scheme_of(form, weights[0])
    share = Share("qkv", scheme, K, (32, 64, 8))
    files = [find_stored(form).write(each) for each in weights]
    assert not np.array_equal(files[0][INDEX[form]], files[1][INDEX[form]])
    found = share.read(*loaded(share, form, weights, 0, 1))
    assert len(found) == 3
    for one, q in zip(found, weights):
        assert_same(nm.pack(one), nm.pack(q))


def test_an_index_that_files_do_not_have():
    q = weight(64)
    for world in (1, 2):
        share = Share("up", scheme_of("gptq", q), K, (64,), 0, world)
        tensors, index = loaded(share, "gptq", [q], 0, world)
        expected = nm.shard(nm.pack(q), 0, world, "k")
        (found,) = share.read(tensors, np.full_like(index, UNKNOWN))
        assert_same(nm.pack(found), expected)
        (found,) = share.read(tensors)
        assert_same(nm.pack(found), expected)


def test_an_order_that_never_came_is_refused():
    q = weight(64, order=order_of(3))
    share = Share("l.0.up", scheme_of("gptq", q), K, (64,))
    tensors, index = loaded(share, "gptq", [q], 0, 1)
    with pytest.raises(ValueError, match="layer 'l.0.up': g_idx was not loaded"):
        share.read(tensors, np.full_like(index, UNKNOWN))


def test_scales_of_the_files_keep_their_type():
    scheme = Scheme("awq", 4, GROUP)
    for activations in ("float16", "bfloat16"):
        assert Share("up", scheme, K, (64,)).held(activations)["scales"].dtype == activations
        kept = Share("up", replace(scheme, scale_dtype="float16"), K, (64,)).held(activations)
        assert kept["scales"].dtype == "float16"


@pytest.mark.parametrize(
    "options, said",
    (
        ({"parts": (64, 12)}, "n=12 of a rank must be a positive multiple of 8"),
        ({"world": 3}, "k=128 over 3 ranks must be a multiple of 16 on each"),
        ({"scheme": Scheme("awq", 4, 48)}, "group_size=48 must divide k=128"),
        ({"scheme": Scheme("awq", 4, 8)}, "group_size=8 must be .* a multiple of 16"),
        ({"scheme": Scheme("awq", 4, 32, k=256)}, "k=128 in the model must be 256"),
    ),
)
def test_what_no_kernel_multiplies_is_refused_by_name(options, said):
    given = {"name": "l.0.up", "scheme": Scheme("awq", 4, GROUP), "k": K, "parts": (64,)}
    with pytest.raises(ValueError, match=f"layer 'l.0.up': {said}"):
        Share(**given | options)


def test_an_order_that_the_configuration_denies_is_refused():
    """Its rows were cut by their place: another weight."""
    q = weight(64, order=order_of(3))
    share = Share("l.0.down", replace(scheme_of("gptq", q), ordered=False), K, (64,), 0, 2)
    tensors, index = loaded(share, "gptq", [q], 0, 2)
    with pytest.raises(ValueError, match="layer 'l.0.down': g_idx is in activation order, which"):
        share.read(tensors, index)


def test_impossible_values_are_refused_by_name():
    q = weight(64)
    share = Share("l.0.up", scheme_of("gptq", q), K, (64,))
    tensors, index = loaded(share, "gptq", [q], 0, 1)
    scales = tensors["scales"].copy()
    scales[0, 3] = np.nan
    with pytest.raises(ValueError, match="layer 'l.0.up': .*scales"):
        share.read(tensors | {"scales": scales}, index)
    index = index.copy()
    index[0, 5] = 3
    with pytest.raises(ValueError, match="layer 'l.0.up': g_idx gives"):
        share.read(tensors, index)
