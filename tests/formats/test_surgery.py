"""Contract under test: a part of a packed weight is, byte for byte, what packing the same rows and
columns of the unpacked weight gives; joining the parts gives the weight back, byte for byte. A few
cases by default, some hundreds with --thorough, and 40 times 2500 in the nightly profile, some
twenty minutes of one core."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin import testing
from numba_marlin.formats import PackedBlocks, marlin_tiles
from numba_marlin.formats.marlin_order import code_order

pytest.importorskip("ml_dtypes")
USUAL, THOROUGH, NIGHTLY = 12, 150, 2500  # cases a share
STEPS = {"k": 16, "n": 8}
INTEGERS = testing.quantized_weights(
    testing.problems(max_n=168, max_k=256, **testing.EVERY_SHAPE),
    **testing.EVERY_TYPE,
    permuted=(False, True),
)


@st.composite
def block_weights(draw):
    """FP4 weights with many blocks, and halves of blocks, of zeros."""
    weight = draw(testing.block_weights(most=15))
    if draw(st.booleans()) and weight.scale_grid == "e4m3" and weight.k >= 32:
        scales = weight.scales[: -(-weight.k // 32)]  # no file has such blocks; the layout does
        weight = replace(weight, scales=scales, block=(32, 1))
    zero = np.random.default_rng(draw(testing.seeds())).random((weight.k // 16, weight.n)) < 0.3
    return replace(
        weight, codes=weight.codes & np.where(zero, 8, 15).astype(np.uint8).repeat(16, 0)
    )


BLOCKS = block_weights()


@st.composite
def sizes_of(draw, whole, step):
    """Parts of a dimension, each a multiple of ``step``."""
    cuts = draw(st.sets(st.integers(1, max(1, whole // step - 1)), max_size=4))
    ends = sorted({step * cut for cut in cuts if step * cut < whole} | {whole})
    return [end - start for start, end in zip([0, *ends], ends)]


def packed(weight, dtype="float16"):
    return nm.pack(weight, dtype=dtype if hasattr(weight, "grid") else None)


def repacked(p, weight, rows, columns, group_size):
    """The definition: what ``p``, unpacked, holds there, in groups of ``group_size``, packed
    anew."""
    these = slice(*rows), slice(*columns)
    k = rows[1] - rows[0]
    group = k if group_size == -1 else group_size

    def per_group(values, size):
        of_rows = np.repeat(values, size, axis=0)[these]
        taken = of_rows[::group]
        assert np.array_equal(np.repeat(taken, group, axis=0)[:k], of_rows)
        return taken

    codes = weight.codes[these]
    if isinstance(p, PackedBlocks):
        scales = per_group(weight.scales, weight.block[0])
        part = replace(weight, codes=codes, scales=scales, block=(group, 1))
        return nm.pack(part, dtype=p.dtype)
    size = weight.rows_per_group
    return nm.pack(
        replace(
            weight,
            codes=codes,
            scales=per_group(weight.scales, size),
            zeros=None if weight.zeros is None else per_group(weight.zeros, size),
            group_size=group_size,
            permutation=weight.permutation if k == weight.k else None,
        )
    )


def largest_group(p, start, stop):
    """The definition: all rows if they share their scales, else the largest divisor of the group
    size whose groups lie in one of p's each. Blocks of FP4 are 16 or 32 rows, the last may be
    shorter."""
    group = p.k if p.group_size == -1 else p.group_size
    if isinstance(p, PackedBlocks):
        candidates = [size for size in (16, 32) if group % size == 0 and size <= stop - start]
    else:
        if start // group == (stop - 1) // group:
            return -1
        candidates = [size for size in range(16, group + 1, 16) if group % size == 0]
    return max(
        size
        for size in candidates
        if (isinstance(p, PackedBlocks) or (stop - start) % size == 0)
        and all(
            row // group == (min(row + size, stop) - 1) // group for row in range(start, stop, size)
        )
    )


def check_same_bytes(found, expected):
    assert type(found) is type(expected)
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if not isinstance(other, np.ndarray):
            assert one == other, field.name
            continue
        assert one.dtype == other.dtype and one.shape == other.shape, field.name
        assert one.tobytes() == other.tobytes(), field.name


def check_parts(p, dim, sizes):
    orders = {} if isinstance(p, PackedBlocks) or dim == "n" else {"permutation": p.permutation}
    ends, weight = np.cumsum(sizes), nm.unpack(p)
    parts = []
    for rank, (stop, size) in enumerate(zip(ends.tolist(), sizes)):
        part, columns = nm.shard(p, rank, len(sizes), dim, sizes=sizes, return_columns=True)
        start = stop - size
        whole = {"k": (0, p.k), "n": (0, p.n)}
        rows, taken = (whole | {dim: (start, stop)}).values()
        group = p.group_size if dim == "n" else largest_group(p, start, stop)
        expected = repacked(p, weight, rows, taken, group)
        if orders and expected.permutation is not None:  # all rows are a part, too
            expected = expected.sorted_rows
        check_same_bytes(part, expected)
        assert columns.dtype == np.int32
        order = orders.get("permutation")
        assert (
            columns.tolist()
            == (np.arange(p.k if dim == "k" else p.n) if order is None else order)[
                start:stop
            ].tolist()
        )
        assert not any(
            np.shares_memory(one, other)
            for one in vars(part).values()
            for other in vars(p).values()
            if isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            if one is not p.permutation
        )
        parts.append(part)
    groups = {} if dim == "n" else {"group_size": p.group_size}
    check_same_bytes(nm.merge(parts, dim, **groups, **orders), p)
    if dim == "n":
        check_same_bytes(nm.concat(parts), p)
    else:  # in the smallest groups that there are
        smallest = repacked(p, weight, (0, p.k), (0, p.n), 16)
        check_same_bytes(nm.merge(parts, dim, group_size=16, **orders), smallest)


def shares(count):
    """The first share runs always, the others in the nightly profile, in which each draws cases of
    its own: together 100,000."""
    return pytest.mark.parametrize("share", range(count))


def try_out(check, strategy, share, thorough, nightly):
    if share and not nightly:
        pytest.skip("more cases of the same property: HYPOTHESIS_PROFILE=nightly")

    @settings(
        max_examples=NIGHTLY if nightly else THOROUGH if thorough else USUAL,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def holds(case):
        check(*case)

    holds()


@pytest.mark.parametrize("weights", [INTEGERS, BLOCKS], ids=["integers", "fp4"])
@pytest.mark.parametrize("dim", ["n", "k"])
@shares(8)
def test_parts_are_what_packing_them_gives_and_merging_them_gives_all(
    weights, dim, share, thorough, nightly
):
    @st.composite
    def cases(draw):
        p = packed(draw(weights), draw(st.sampled_from(("float16", "bfloat16"))))
        return p, dim, draw(sizes_of(getattr(p, dim), STEPS[dim]))

    try_out(check_parts, cases(), share, thorough, nightly)


def check_concat(weight, sizes, dtype):
    """A weight's columns as weights of their own."""
    ends = np.cumsum(sizes)
    stored = ("codes", "scales") if hasattr(weight, "grid") else ("codes", "scales", "zeros")
    parts = []
    for stop, size in zip(ends, sizes):
        taken = {
            name: getattr(weight, name)[:, stop - size : stop]
            for name in stored
            if getattr(weight, name) is not None
        }
        parts.append(packed(replace(weight, **taken), dtype))
    whole = nm.concat(parts)
    check_same_bytes(whole, packed(weight, dtype))
    for number, part in enumerate(parts):
        check_same_bytes(nm.shard(whole, number, len(sizes), "n", sizes=sizes), part)


@pytest.mark.parametrize("weights", [INTEGERS, BLOCKS], ids=["integers", "fp4"])
@shares(4)
def test_weights_side_by_side_are_what_packing_them_together_gives(
    weights, share, thorough, nightly
):
    @st.composite
    def cases(draw):
        weight = draw(weights)
        dtype = draw(st.sampled_from(("float16", "bfloat16")))
        return weight, draw(sizes_of(weight.n, 8)), dtype

    try_out(check_concat, cases(), share, thorough, nightly)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_byte_of_a_tile_holds_the_same_place_in_every_tile(bits):
    """So bytes can move from tile to tile."""
    order, places = code_order(bits), marlin_tiles.tile_bytes(bits)
    assert np.array_equal(np.sort(places.ravel()), np.arange(64 * 16 * bits // 8))
    rows, columns = (each.reshape(-1, 8 // bits)[places] for each in (order.row, order.column))
    assert (rows == rows[:1]).all()
    assert (columns - 8 * np.arange(8)[:, None, None] == columns[:1]).all()
    assert (columns[0] == np.tile(np.arange(8), len(places[0]) // 8)[:, None]).all()
