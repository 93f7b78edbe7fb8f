"""Contract under test: block-scaled FP4 weights are packed so that the closed forms of
``fp4_words`` give every number back, exactly, and unpacked as they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.formats import BlockWeight, find_format, fp4_words, marlin
from numba_marlin.formats.fp4_marlin import SCALE_ROWS, canonical
from numba_marlin.formats.fp4_words import (
    MASKS,
    SCALE_PAIR,
    WIDE_EXPONENT,
    WIDE_SCALE_PAIR,
    expand,
    scale_words,
    turn_codes,
    unscale_words,
    unturn_codes,
)
from numba_marlin.formats.small_floats import table
from numba_marlin.quantizers import dequantize
from numba_marlin.testing import KINDS_OF_BLOCKS, make_blocks

FP4 = find_format("marlin-fp4")
U = np.uint32


def float16s(words):
    """uint32 [...] -> float64 [..., 2 halves]"""
    return (
        np.stack([words & U(0xFFFF), words >> U(16)], axis=-1)
        .astype(np.uint16)
        .view(np.float16)
        .astype(np.float64)
    )


def bfloat16s(words):
    return (
        np.stack([words << U(16), words & U(0xFFFF0000)], axis=-1)
        .view(np.float32)
        .astype(np.float64)
    )


NUMBERS = {
    "float16": lambda words: float16s(words) * 2.0**14,
    "bfloat16": lambda words: bfloat16s(words) * 2.0**126,
}


@pytest.mark.parametrize("dtype", MASKS)
@pytest.mark.parametrize("position", range(8))
def test_a_turned_word_expands_to_its_codes_whatever_stands_beside_them(position, dtype):
    words = np.random.default_rng(position).integers(0, 2**32, 16 * 512, dtype=U)
    codes = np.arange(words.size, dtype=U) % U(16)
    words = words & ~(U(15) << U(4 * position)) | codes << U(4 * position)
    register, half = position % 4, position // 4
    numbers = NUMBERS[dtype](expand(turn_codes(words, dtype), dtype))[:, register, half]
    assert (numbers == table("e2m1")[codes]).all() and (np.signbit(numbers) == (codes >= 8)).all()
    assert (unturn_codes(turn_codes(words, dtype), dtype) == words).all()
    assert (turn_codes(unturn_codes(words, dtype), dtype) == words).all()


def test_the_last_two_registers_of_float16_are_the_bytes_of_one_sum():
    """Eight instructions instead of nine: what the kernels do (``kernels.expand_fp4``)."""
    words = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=U)
    both = (words >> U(3) ^ words << U(7)) & U(0x8E8E8E8E)
    assert (
        np.stack([both & U(0xFF00FF00), both << U(8) & U(0xFF00FF00)], axis=-1)
        == expand(words, "float16")[:, 2:]
    ).all()


def test_registers_that_do_not_say_all_of_a_word_have_no_inverse(monkeypatch):
    monkeypatch.setitem(fp4_words.SHIFTS, "float16", ((0,), (8,), (-3, 7), (5, 14)))
    with pytest.raises(ValueError, match="do not determine the word"):
        fp4_words._byte_tables.__wrapped__("float16", True)
    with pytest.raises(ValueError, match="dtype='float32' must be one of float16, bfloat16"):
        turn_codes(np.zeros(1, U), "float32")


def test_every_byte_of_scales_comes_out_as_float16_and_as_bfloat16():
    # from 0xf8 on it is infinite
    stored = (
        np.random.default_rng(0)
        .permutation(np.tile(np.arange(0xF8, dtype=np.uint8), 8))
        .reshape(2, -1, 2)
    )
    words = scale_words(*stored)
    for pair, taken in zip(stored, (words, words << U(8) | words >> U(24))):
        numbers = (pair.astype(np.uint16) << 7).view(np.float16).astype(np.float64)
        assert (float16s(taken & U(SCALE_PAIR)) == numbers).all()
        wide = bfloat16s(taken >> U(3) & U(WIDE_SCALE_PAIR) | U(WIDE_EXPONENT))
        normal = pair >= 8
        assert (wide == numbers * 2.0**112)[normal].all() and np.isfinite(wide).all()
    assert all((left == right).all() for left, right in zip(unscale_words(words), stored))


def numbers_in(packed):
    """float64 [k, n_packed] of the packed bytes, by the closed forms alone: ``marlin_order``'s
    places, registers, scales, factors."""
    order = marlin.code_order(4)
    k, columns = packed.k, packed.n_packed
    words = packed.qweight.view(U).reshape(k // 16, columns // 64, 128)
    # code p: half p // 4 of register p % 4
    codes = (
        NUMBERS[packed.dtype](expand(words, packed.dtype))
        .swapaxes(-1, -2)
        .reshape(k // 16, columns // 64, 128, 8)
    )
    plain = np.empty((k // 16, columns // 64, 16, 64))
    plain[:, :, order.row, order.column] = codes
    plain = plain.transpose(0, 2, 1, 3).reshape(k, columns)
    each = SCALE_ROWS // packed.group_size
    lanes = packed.scales.view(U).reshape(columns // 64, -1, 8, 2 * each).swapaxes(0, 1)
    pairs = np.stack(
        [
            float16s(lanes & U(SCALE_PAIR)),
            float16s((lanes << U(8) | lanes >> U(24)) & U(SCALE_PAIR)),
        ],
        axis=-2,
    )
    scales = np.empty((k + SCALE_ROWS, columns))
    for row in range(k):
        for g in range(8):
            for j in range(4):
                word, which = (j, row // 16 % 2) if each == 2 else (j // 2, j % 2)
                for h in range(2):
                    scales[row, 16 * j + 8 * h + g :: 64] = pairs[
                        row // SCALE_ROWS, :, g, word, which, h
                    ]
    factors = np.empty(columns)
    for g in range(8):
        for h in range(2):
            factors[8 * h + g :: 16] = packed.factors[2 * g + h :: 16]
    return plain * scales[:k] * 2.0**-14 * factors


@pytest.mark.parametrize("kind", KINDS_OF_BLOCKS)
@pytest.mark.parametrize(
    "k, n, dtype", [(16, 8, "float16"), (48, 72, "bfloat16"), (96, 64, "float16")]
)
def test_packed_bytes_are_the_weights_numbers(kind, k, n, dtype):
    weight = make_blocks(kind, k, n, seed=3)
    packed = FP4.pack(weight, dtype)
    numbers = numbers_in(packed)
    assert np.array_equal(numbers[:, :n], dequantize(weight, "float64"))
    assert not numbers[:, n:].any()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS_OF_BLOCKS),
    st.integers(1, 7),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
    st.sampled_from((None, 2.0, 0.3, -5.0e-30)),
    st.booleans(),
    st.sampled_from(("float16", "bfloat16")),
)
def test_unpacking_gives_the_same_numbers_and_a_canonical_weight_itself(
    kind, k16, n8, seed, factor, divides, dtype
):
    # with e8m0 it could leave float32
    factor = None if factor is None or kind == "mxfp4" else float(np.float32(factor))
    weight = make_blocks(kind, 16 * k16, 8 * n8, seed, factor, divides)
    back = FP4.unpack(FP4.pack(weight, dtype))
    same = canonical(weight)
    for each in ("codes", "scales"):
        assert np.array_equal(getattr(back, each), getattr(same, each)), each
    for each in ("grid", "scale_grid", "block", "global_scale", "divides", "input_scale"):
        assert getattr(back, each) == getattr(weight, each)
    assert np.array_equal(dequantize(back, "float64"), dequantize(weight, "float64"))
    assert np.array_equal(
        np.signbit(dequantize(back, "float64")), np.signbit(dequantize(weight, "float64"))
    )
    assert all(
        np.array_equal(getattr(canonical(same), each), getattr(same, each))
        for each in ("codes", "scales")
    )


def test_scales_may_lie_anywhere_as_long_as_those_of_a_column_are_near():
    codes = np.full((64, 8), 7, np.uint8)
    scales = np.array(
        [[0, 24], [254, 230], [100, 124], [0, 0], [1, 0], [127, 127], [50, 60], [60, 50]], np.uint8
    ).T.copy()
    weight = BlockWeight(codes, "e2m1", scales, "e8m0", (32, 1))
    assert np.array_equal(
        dequantize(FP4.unpack(FP4.pack(weight)), "float64"), dequantize(weight, "float64")
    )
    scales[0, 3], scales[1, 3] = 30, 5
    with pytest.raises(
        ValueError,
        match=(
            r"scales\[1, 3\]=2\*\*-122 must be 2\*\*-24 at least of the column's largest, 2\*\*-97"
        ),
    ):
        FP4.pack(weight)
    codes[32:, 3] = 8  # a block of zeros has no scale
    FP4.pack(weight)


def test_what_cannot_be_packed_is_named():
    weight = make_blocks("nvfp4", 32, 8, 0)
    cases = [
        (
            dict(codes=weight.codes[:, :4].copy(), scales=weight.scales[:, :4].copy()),
            "n=4 must be a positive multiple of 8",
        ),
        (dict(codes=weight.codes[:24].copy()), "k=24 must be a positive multiple of 16"),
        (dict(scales=np.ones((4, 8), np.uint8), block=(8, 1)), "blocks of 8 x 1, must be e2m1"),
        (dict(scales=np.ones((2, 8), np.float32), scale_grid=None), "scales float32 for blocks"),
        (
            dict(global_scale=float(np.float32(3e38))),
            "global_scale=3.0.* times 2.*7 must be in the range of float32",
        ),
    ]
    from dataclasses import replace

    for change, message in cases:
        with pytest.raises(ValueError, match=message):
            FP4.pack(replace(weight, **change))
    with pytest.raises(TypeError, match="weight is a int, must be a BlockWeight"):
        FP4.pack(3)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            lambda p: dict(qweight=p.qweight.astype(">i4")),
            TypeError,
            "qweight is >i4, must be a C-contiguous numpy.ndarray of int32",
        ),
        (lambda p: dict(qweight=p.qweight[:1]), ValueError, r"qweight.shape=\(1, 128\) must be"),
        (lambda p: dict(scales=p.scales[:, :8].copy()), ValueError, "scales.shape"),
        (lambda p: dict(factors=p.factors.astype(np.float64)), TypeError, "factors is float64"),
        (lambda p: dict(factors=p.factors * np.nan), ValueError, r"factors\[0\] must be finite"),
        (lambda p: dict(dtype="float32"), ValueError, "dtype='float32' must be one of"),
        (lambda p: dict(group_size=64), ValueError, "group_size=64 must be one of"),
        (lambda p: dict(n=12), ValueError, "n=12 must be a positive multiple of 8"),
    ],
)
def test_a_packed_weight_that_exists_is_valid(change, error, message):
    from dataclasses import replace

    packed = FP4.pack(make_blocks("nvfp4", 32, 64, 0))
    with pytest.raises(error, match=message):
        replace(packed, **change(packed))
