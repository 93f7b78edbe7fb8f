"""Contract under test: Marlin's words of 4 bits, as they are, are operands of 8-bit products with
an x whose k is permuted within 16."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.formats import marlin
from numba_marlin.formats.marlin_order import code_order
from numba_marlin.layout import w4a8
from numba_marlin.layout.fragments import MMA_M16N8K32_A


def words_of(codes):
    """uint8 [32, 64] -> the words of its two k16 rows, uint32 [2, 32 lanes, 4 strips]"""
    return marlin.pack_codes(codes).view(np.uint32).reshape(2, 32, 4)


def fragments(codes, take_apart):
    """uint8 [strip, lane, 16 bytes] that the instructions make of two k16 rows of words."""
    rows = [w4a8.halves(*take_apart(words)) for words in words_of(codes)]
    registers = np.stack([register for row in rows for register in row], -1)  # [lane, strip, 4]
    return np.ascontiguousarray(registers.swapaxes(0, 1)).view(np.uint8)


CODES = np.random.default_rng(4).integers(0, 16, (32, 64), dtype=np.uint8)
STORED = w4a8.permuted(CODES.T)  # [n, k], k in the order in which x is stored


def test_every_nibble_is_where_the_product_wants_it():
    made = fragments(CODES, w4a8.unsigned_words)
    for strip in range(4):
        wanted = MMA_M16N8K32_A.gather(STORED[16 * strip : 16 * strip + 16])
        assert np.array_equal(made[strip], wanted)


def test_signed_bytes_are_sixteen_times_the_symmetric_weight():
    made = fragments(CODES, w4a8.signed_words).view(np.int8).astype(int)
    for strip in range(4):
        wanted = MMA_M16N8K32_A.gather(STORED[16 * strip : 16 * strip + 16].astype(int))
        assert np.array_equal(made[strip], w4a8.UNIT * (wanted - 8))


def test_the_order_of_k_follows_from_marlins():
    """Byte b of a column's register: the b-th k of the lane's word, in the order of its nibbles."""
    order = code_order(4)
    for lane in (0, 1, 2, 3, 31):
        word = 4 * lane
        of_column = [order.row[word, nibble] for nibble in (0, 4, 1, 5)]
        assert of_column == list(w4a8.K_ORDER[4 * (lane % 4) : 4 * (lane % 4) + 4])
        assert {int(order.column[word, nibble]) for nibble in (0, 4, 1, 5)} == {lane // 4}


@given(st.integers(1, 3), st.integers(1, 4))
def test_stored_rows_are_permuted_within_sixteen(m, steps):
    x = np.arange(m * 16 * steps).reshape(m, -1)
    assert np.array_equal(w4a8.restored(w4a8.permuted(x)), x)
    assert np.array_equal(w4a8.permuted(x) // 16, x // 16)
