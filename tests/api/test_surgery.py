"""Contract under test: the products of a weight's parts are the weight's product, however it is
cut, activation order included; what cannot be cut or joined is refused by name, value and rule.
tests/formats/test_surgery.py compares the bytes."""

from dataclasses import replace

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.formats import BlockWeight, QuantizedWeight

K, N, GROUP = 128, 72, 32


def weight_of(seed=0, k=K, n=N, group=GROUP, ordered=False, **kinds):
    """Small integers: no sum below rounds, in float16 either."""
    rng = np.random.default_rng(seed)
    groups = k // group
    return QuantizedWeight(
        rng.integers(0, 16, (k, n), dtype=np.uint8),
        rng.choice([0.5, 1.0], (groups, n)).astype(np.float16),
        group_size=group,
        permutation=rng.permutation(k).astype(np.int32) if ordered else None,
        **kinds,
    )


def product(x, p):
    """float64, after the exact rounding to float16"""
    y = nm.matmul(np.ascontiguousarray(x), p, backend="reference")
    exact = x.astype(np.float64) @ nm.dequantize(p, "float64")
    assert np.array_equal(y, exact)
    return exact


def activations(k=K, m=3):
    return np.random.default_rng(7).integers(-1, 2, (m, k)).astype(np.float16)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("sizes", [None, (16, 80, 32), (48, 64, 16)])
def test_products_of_parts_along_k_add_up(sizes, ordered):
    """(16, 80, 32) and (48, 64, 16) divide groups of 32."""
    p, x = nm.pack(weight_of(ordered=ordered)), activations()
    world = 4 if sizes is None else len(sizes)
    total = 0
    for rank in range(world):
        part, columns = nm.shard(p, rank, world, "k", sizes=sizes, return_columns=True)
        assert part.permutation is None
        total = total + product(x[:, columns], part)
    assert np.array_equal(total, product(x, p))


@pytest.mark.parametrize("ordered", [False, True])
def test_products_of_parts_along_n_lie_side_by_side(ordered):
    p, x = nm.pack(weight_of(ordered=ordered)), activations()
    parts = [nm.shard(p, rank, 3, 1) for rank in range(3)]
    assert [part.n for part in parts] == [24, 24, 24]
    beside = np.concatenate([product(x, part) for part in parts], axis=1)
    assert np.array_equal(beside, product(x, p))


def test_a_layer_before_can_put_its_columns_in_the_activation_order():
    """The recipe of ``shard``'s docstring: two ranks, up along n and down along k, and neither
    needs columns of the other's."""
    up, down = weight_of(1, k=32, n=K), nm.pack(weight_of(2, ordered=True))
    order, x = down.permutation, np.eye(5, 32, dtype=np.float16)
    turned = nm.pack(replace(up, codes=up.codes[:, order], scales=up.scales[:, order]))
    total = 0
    for rank in range(2):
        hidden = product(x, nm.shard(turned, rank, 2, "n"))
        part, _ = nm.shard(down, rank, 2, "k", return_columns=True)
        total = total + hidden @ nm.dequantize(part, "float64")
    whole = product(x, nm.pack(up)) @ nm.dequantize(down, "float64")
    assert np.array_equal(total, whole)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind, sizes", [("nvfp4", (16, 48, 32)), ("mxfp4", (48, 16, 32))])
def test_products_of_fp4_parts_add_up(kind, sizes, dtype):
    x = activations(96)
    p = nm.pack(testing.make_blocks(kind, 96, 40, 5, ordinary=True), dtype=dtype)
    total, start = 0, 0
    for rank, size in enumerate(sizes):
        part = nm.shard(p, rank, 3, "k", sizes=sizes)
        total = total + x[:, start : start + size].astype(np.float64) @ nm.dequantize(
            part, "float64"
        )
        start += size
    assert np.array_equal(total, x.astype(np.float64) @ nm.dequantize(p, "float64"))


@pytest.mark.parametrize("dim, axis", [("n", 1), ("k", 0)])
def test_one_part_is_the_weight(dim, axis):
    p = nm.pack(weight_of(ordered=True))
    part = nm.shard(p, 0, 1, dim)
    assert np.array_equal(part.permutation, p.permutation)
    back = nm.merge([part], np.int64(axis))
    assert np.array_equal(back.qweight, p.qweight)
    assert np.array_equal(back.permutation, p.permutation)


def test_merging_without_a_group_size():
    """Whole groups keep their size; groups that are parts come back; a scale per column too."""
    p = nm.pack(weight_of())
    for world in (2, 4):
        parts = [nm.shard(p, rank, world, "k") for rank in range(world)]
        assert nm.merge(parts, "k").group_size == GROUP
    column = nm.pack(weight_of(group=K))
    parts = [nm.shard(column, rank, 4, "k") for rank in range(4)]
    whole = nm.merge(iter(parts), 0)
    assert whole.group_size == -1 and np.array_equal(whole.scales, column.scales)
    cut = [nm.shard(p, rank, 2, "k", sizes=(80, 48)) for rank in range(2)]
    assert [part.group_size for part in cut] == [16, 16]
    assert nm.merge(cut, "k").group_size == 16 and nm.merge(
        cut, "k", group_size=32
    ).scales.shape == (
        4,
        128,
    )


P = nm.pack(weight_of())
ORDERED = nm.pack(weight_of(ordered=True))
FP4 = nm.pack(testing.make_blocks("nvfp4", 64, 48, 0, 2.0))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: nm.shard(weight_of(), 0, 2, "n"),
            TypeError,
            "p is a QuantizedWeight, must be packed",
        ),
        (lambda: nm.shard(P, 2, 2, "n"), ValueError, "rank=2 must be from 0 to world - 1 = 1"),
        (lambda: nm.shard(P, -1, 2, "n"), ValueError, "rank=-1 must be from 0"),
        (lambda: nm.shard(P, True, 2, "n"), TypeError, "rank=True must be an integer"),
        (lambda: nm.shard(P, 0, 0, "n"), ValueError, "world=0 must be at least 1"),
        (lambda: nm.shard(P, 0, 2.0, "n"), TypeError, r"world=2\.0 must be an integer"),
        (
            lambda: nm.shard(P, 0, 2, "m"),
            ValueError,
            r"dim='m' must be 'k' \(or 0\) or 'n' \(or 1\)",
        ),
        (lambda: nm.shard(P, 0, 2, 2), ValueError, "dim=2 must be"),
        (lambda: nm.shard(P, 0, 2, True), ValueError, "dim=True must be"),
        (lambda: nm.shard(P, 0, 2, ["n"]), ValueError, "dim=.* must be"),
        (
            lambda: nm.shard(P, 0, 2, "n"),
            ValueError,
            r"n=72 in world=2 equal parts must be a multiple of 2 x 8: .* such as \(40, 32\)",
        ),
        (
            lambda: nm.shard(P, 0, 3, "k"),
            ValueError,
            r"k=128 in world=3 equal parts must be a multiple of 3 x 16: .* \(48, 48, 32\)",
        ),
        (lambda: nm.shard(P, 0, 9, "k"), ValueError, "world=9 must be at most 8: k=128 has 8"),
        (
            lambda: nm.shard(P, 0, 2, "n", sizes=(12, 60)),
            ValueError,
            r"sizes\[0\]=12 must be a positive multiple of 8",
        ),
        (lambda: nm.shard(P, 0, 2, "n", sizes=(0, 72)), ValueError, r"sizes\[0\]=0 must be a pos"),
        (lambda: nm.shard(P, 0, 2, "n", sizes=(64,)), ValueError, "must be world=2 numbers"),
        (lambda: nm.shard(P, 0, 2, "n", sizes=(64, 16)), ValueError, "add up to n=72, not 80"),
        (lambda: nm.shard(P, 0, 2, "n", sizes=64), TypeError, "sizes=64 must be a sequence"),
        (lambda: nm.shard(P, 0, 2, "n", sizes=(8.0, 64)), TypeError, r"sizes\[0\]=8.0 must be an"),
        (
            lambda: nm.shard(ORDERED, 0, 2, "k"),
            ValueError,
            r"p has an activation order .* pass return_columns=True, and multiply x\[:, columns\]",
        ),
        (lambda: nm.merge([], "n"), ValueError, "parts must not be empty"),
        (lambda: nm.merge(P, "n"), TypeError, "parts is a PackedWeight, must be a list"),
        (lambda: nm.concat(5), TypeError, "parts is a int, must be a list"),
        (
            lambda: nm.merge([P, P], "k", group_size=8),  # what no kernel reads
            ValueError,
            r"group_size=8 must be -1 \(or k\) or a multiple of 16",
        ),
        (
            lambda: nm.concat([P, weight_of()]),
            TypeError,
            r"parts\[1\] is a QuantizedWeight, must be",
        ),
        (
            lambda: nm.merge([P, P], "n", group_size=32),
            ValueError,
            "group_size must be None along n",
        ),
        (
            lambda: nm.merge([ORDERED, P], "k"),
            ValueError,
            r"parts\[0\] has an activation order of its own: pass its sorted_rows",
        ),
        (
            lambda: nm.merge([P, P], "k", permutation=np.arange(128, dtype=np.int32)),
            ValueError,
            r"permutation.shape=\(128,\) must be \(k,\)=\(256,\)",
        ),
        (
            lambda: nm.merge([FP4, FP4], "k", permutation=np.arange(128, dtype=np.int32)),
            ValueError,
            "permutation must be None: FP4",
        ),
        (
            lambda: nm.merge([P, nm.pack(weight_of(k=48, group=16))], "k"),
            ValueError,
            r"parts\[0\] has groups of 32 rows and parts\[1\] of 16: pass group_size=",
        ),
        (
            lambda: nm.merge([P, P], "k", group_size=64),
            ValueError,
            r"group_size=64 cannot be: scales of column \d+ differ between rows \d+ and \d+ of the",
        ),
        (
            lambda: nm.merge([P, P], "k", group_size=96),
            ValueError,
            "group_size=96 must divide k=256",
        ),
        (
            lambda: nm.merge([FP4, FP4], "k", group_size=64),
            ValueError,
            r"group_size=64 must be one of \(16, 32\)",
        ),
        (
            lambda: nm.merge([P, nm.shard(P, 0, 1, "n", sizes=(72,)), FP4], "n"),
            ValueError,
            r"parts\[0\] and parts\[2\] must agree .* along n: a PackedWeight and a PackedBlocks",
        ),
    ],
)
def test_what_cannot_be_cut_or_joined_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "other, message",
    [
        (weight_of(k=64), "k=128 and 64"),
        (weight_of(group=64), "group_size=32 and 64"),
        (weight_of(bits=8), "bits=4 and 8"),
        (weight_of(zeros=np.zeros((4, N), np.uint8)), "zeros_kind=None and 'integer'"),
        (weight_of(ordered=True), r"activation orders \(permutation\) differ"),
    ],
)
def test_weights_that_differ_are_not_put_side_by_side(other, message):
    with pytest.raises(
        ValueError, match=rf"parts\[0\] and parts\[1\] must agree .* n: .*{message}"
    ):
        nm.concat([P, nm.pack(other)])
    if "permutation" in message:
        last = nm.pack(weight_of(seed=1, ordered=True))
        with pytest.raises(ValueError, match=rf"parts\[0\] and parts\[1\] .*{message}"):
            nm.concat([nm.pack(other), last])


@pytest.mark.parametrize(
    "change, dtype, message",
    [
        ({"global_scale": 3.0}, "float16", r"global_scale=2\.0 and 3\.0 .*one by one"),
        ({"divides": True}, "float16", "divides=False and True"),
        ({"input_scale": 0.5}, "float16", r"input_scale=None and 0\.5"),
        ({}, "bfloat16", "dtype='float16' and 'bfloat16'"),
    ],
)
def test_fp4_weights_that_differ_are_not_put_side_by_side(change, dtype, message):
    weight = nm.unpack(FP4)
    assert isinstance(weight, BlockWeight)
    with pytest.raises(ValueError, match=message):
        nm.concat([FP4, nm.pack(replace(weight, **change), dtype=dtype)])


def test_a_weight_of_another_librarys_arrays_is_cut_and_joined_too():
    torch = pytest.importorskip("torch")
    p = nm.pack(nm.quantize(np.random.default_rng(0).standard_normal((64, 128)), group_size=32))
    q = p.to("cpu", "torch")
    assert isinstance(q.qweight, torch.Tensor)
    parts = [nm.shard(q, rank, 2, "n") for rank in range(2)]
    assert np.array_equal(nm.concat(parts).qweight, p.qweight)
