"""Contract under test: 8-bit codes, zero points and columns that do not fill a block stand where
the closed forms say, and come back."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings

from numba_marlin import testing
from numba_marlin.formats import PackedWeight, QuantizedWeight, marlin
from numba_marlin.formats.marlin_order import code_order, code_source, locate
from numba_marlin.layout.fragments import MMA_M16N8K16_A, MMA_M16N8K16_B
from numba_marlin.quantizers import dequantize


def closed_form_pack_8(codes):
    """The 8-bit layout as documented, one code at a time: shares no line with the
    implementation."""
    k, n = codes.shape
    words = np.zeros((k // 16, 4 * n), dtype=np.int64)
    for block_row in range(k // 16):
        for block in range(n // 64):
            for lane in range(32):
                for j in range(4):
                    for h in range(2):
                        word = 0
                        for p in range(4):
                            row = 2 * (lane % 4) + (p >> 1) + 8 * (p & 1)
                            column = 16 * j + lane // 4 + 8 * h
                            word |= int(codes[16 * block_row + row, 64 * block + column]) << 8 * p
                        words[block_row, 256 * block + 8 * lane + 2 * j + h] = word
    return words.astype(np.uint32).view(np.int32)


def vllm_permutation(bits):
    """How vLLM's test utilities spell the order of a 16 x 64 block that was cut in four 16 x 16
    tiles: rows of the tiles' flat positions."""
    order = []
    for lane in range(32):
        fragment = [
            16 * row + lane // 4 + 8 * half
            for half in (0, 1)
            for row in (2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4) + 8, 2 * (lane % 4) + 9)
        ]
        order += [position + 256 * tile for tile in range(4) for position in fragment]
    interleave = {4: [0, 2, 4, 6, 1, 3, 5, 7], 8: [0, 2, 1, 3]}[bits]
    return np.array(order).reshape(-1, len(interleave))[:, interleave].ravel()


def golden_bytes():
    """Fixed without a random generator, so that no NumPy version can change it."""
    position = np.arange(32 * 128, dtype=np.uint64)
    return (position * np.uint64(2654435761) >> np.uint64(13)).astype(np.uint8).reshape(32, 128)


def digest(array):
    return hashlib.sha256(
        np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    ).hexdigest()


@pytest.mark.parametrize("bits", [4, 8])
def test_derived_order_is_that_of_vllm(bits):
    tile, inside = np.divmod(vllm_permutation(bits), 256)
    row, column = np.divmod(inside, 16)
    assert np.array_equal(code_order(bits).perm, 64 * row + 16 * tile + column)


@pytest.mark.parametrize("bits", [4, 8])
def test_orders_are_bijective(bits):
    order = code_order(bits)
    assert np.array_equal(np.sort(order.perm), np.arange(1024)) and np.array_equal(
        np.sort(order.zeros_perm), np.arange(64)
    )
    sources = [code_source(code, bits) for code in range(order.codes_per_word)]
    assert sorted(sources) == [(tile, element) for tile in range(8 // bits) for element in range(4)]


def test_packed_bytes_of_8_bits_are_frozen():
    qweight = marlin.pack_codes(golden_bytes(), 8)
    assert qweight.shape == (2, 512) and np.array_equal(qweight, closed_form_pack_8(golden_bytes()))
    assert digest(qweight) == "4d7d397ee5fe435d31c24a17ebc4fd00ebbc8046bf730d20fc958077dacfb54f"


def test_packed_zeros_are_frozen():
    """4 bits: nibble p of word g belongs to column g + 8 (2 (p & 3) + (p >> 2)); 8 bits: byte p of
    word 2 g + h to column g + 8 (4 h + 2 (p & 1) + (p >> 1)); floats: number 8 g + i to column g +
    8 i."""
    zeros = golden_bytes()[:3]
    packed = {bits: marlin.pack_zeros(zeros >> (8 - bits), bits) for bits in (4, 8)}
    for group, block, g in np.ndindex(3, 2, 8):
        columns = zeros[group, 64 * block + g : 64 * block + 64 : 8].astype(int)
        nibbles = sum(int(columns[2 * (p & 3) + (p >> 2)] >> 4) << 4 * p for p in range(8))
        assert packed[4].view(np.uint32)[group, 8 * block + g] == nibbles
        for h in range(2):
            word = sum(int(columns[4 * h + 2 * (p & 1) + (p >> 1)]) << 8 * p for p in range(4))
            assert packed[8].view(np.uint32)[group, 16 * block + 2 * g + h] == word
        floats = marlin.pack_zeros(zeros.astype(np.float16), 8)
        assert np.array_equal(floats[group, 64 * block + 8 * g : 64 * block + 8 * g + 8], columns)
    assert (digest(packed[4]), digest(packed[8])) == (
        "c46e2fa84a12904e45471708ed34833e3cb57ebfe98c0d04578062b4c6d4362f",
        "b0e64d76dc7c2f7cd6ad063ff538ab0075b7b0c824ad774770a96045aadb83db",
    )


def test_zeros_of_one_group_stand_in_the_order_of_groups():
    """A scale per column waits for the accumulators, a zero point does not: it is subtracted from
    the codes, in both cases."""
    zeros = golden_bytes()[:1] >> 4
    assert np.array_equal(
        marlin.pack_zeros(zeros), marlin.pack_zeros(np.repeat(zeros, 2, axis=0))[:1]
    )


def dequantise_bytes(words):
    """A kernel's dequantisation of 8-bit codes in NumPy: uint32 [...] -> float16 [..., 2 registers,
    2 halves], prmt with 0x64 above each byte."""
    halves = [
        [(words >> np.uint32(8 * byte) & np.uint32(255)) | np.uint32(0x6400) for byte in pair]
        for pair in ((0, 2), (1, 3))
    ]
    stacked = np.stack([np.stack(pair, axis=-1) for pair in halves], axis=-2)
    return stacked.astype(np.uint16).view(np.float16) - np.float16(1024 + 128)


def test_dequantised_words_of_bytes_are_b_fragments_and_transposed_a_fragments():
    """Words 2j and 2j + 1 of a lane are the B fragments of n8 tiles 2j and 2j + 1, and together,
    with the middle registers exchanged, the A fragment of the transposed product's rows n = 16j ..
    16j + 15: what the 4-bit word j is."""
    codes = testing.make_codes("uniform", 16, 64, 3, bits=8)
    registers = dequantise_bytes(marlin.pack_codes(codes, 8).view(np.uint32).reshape(32, 8))
    values = codes.astype(np.float16) - 128
    for tile in range(8):
        assert np.array_equal(
            registers[:, tile].reshape(32, 4),
            MMA_M16N8K16_B.gather(values[:, 8 * tile : 8 * tile + 8]),
        )
    for j in range(4):
        both = registers[:, 2 * j : 2 * j + 2].reshape(32, 4, 2)
        assert np.array_equal(
            both[:, [0, 2, 1, 3]].reshape(32, 8),
            MMA_M16N8K16_A.gather(values[:, 16 * j : 16 * j + 16].T),
        )


@pytest.mark.parametrize("bits", [4, 8])
def test_dequantised_zeros_go_with_pairs_of_scales(bits):
    """Register r of a lane's dequantised zero points belongs to the r-th pair of its 8 group
    scales."""
    zeros = testing.make_codes("uniform", 1, 64, 5, bits=bits)
    words = marlin.pack_zeros(zeros, bits).view(np.uint32).reshape(8, -1)
    ordered = marlin.pack_scales(np.repeat(zeros, 2, axis=0).astype(np.float16))[0].reshape(8, 4, 2)
    registers = 16 // bits
    for word in range(words.shape[1]):
        for register in range(registers):
            for half in range(2):
                value = words[:, word] >> np.uint32(
                    bits * (register + registers * half)
                ) & np.uint32((1 << bits) - 1)
                assert np.array_equal(value, ordered[:, word * registers + register, half])


@given(testing.quantized_weights(testing.problems(**testing.EVERY_SHAPE), **testing.EVERY_TYPE))
@settings(max_examples=60, deadline=None)
def test_unpack_inverts_pack_for_every_type_and_shape(weight):
    packed = marlin.pack(weight)
    assert packed.n_packed % 64 == 0 and 0 <= packed.n_packed - weight.n < 64
    back = marlin.unpack(packed)
    assert np.array_equal(back.codes, weight.codes)
    assert np.array_equal(back.scales.view(np.uint16), weight.scales.view(np.uint16))
    assert (
        (back.zeros is None) if weight.zeros is None else np.array_equal(back.zeros, weight.zeros)
    )
    for name in ("k", "n", "bits", "group_size", "scale_dtype", "zeros_kind"):
        assert getattr(back, name) == getattr(packed, name) == getattr(weight, name), name


@pytest.mark.parametrize("zeros_kind", [None, "integer", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_columns_beyond_n_decode_to_zero(bits, zeros_kind):
    weight = testing.make_quantized(
        "uniform", "ordinary", 32, 72, 16, seed=1, bits=bits, zeros_kind=zeros_kind
    )
    packed = marlin.pack(weight)
    wide = PackedWeight("marlin", packed.qweight, packed.scales, bits, 16, 32, 128, packed.zeros)
    values = dequantize(wide)
    assert np.array_equal(values[:, :72], dequantize(weight)) and not values[:, 72:].any()
    whole = marlin.unpack(wide)
    middle = 1 << (bits - 1)
    assert (whole.codes[:, 72:] == middle).all() and not whole.scales[:, 72:].any()
    assert zeros_kind is None or (whole.zeros[:, 72:] == middle).all()


def test_locate_finds_every_byte():
    weight = QuantizedWeight(
        testing.make_codes("ramp", 32, 128, 0, bits=8), np.ones((1, 128), np.float16), bits=8
    )
    qweight = marlin.pack(weight).qweight.view(np.uint32)
    for k_index in range(0, 32, 3):
        for n_index in range(0, 128, 5):
            row, column, byte = locate(k_index, n_index, 8)
            assert int(qweight[row, column]) >> 8 * byte & 255 == weight.codes[k_index, n_index]


def test_describe_counts_what_is_there():
    weight = testing.make_quantized(
        "uniform", "ordinary", 128, 64, 64, seed=0, bits=8, zeros_kind="integer"
    )
    facts = marlin.MARLIN.describe(marlin.pack(weight))
    assert (
        facts["bits_per_weight"] == 8 + (16 + 8) / 64
        and facts["zeros"] == "integer"
        and facts["n_packed"] == 64
    )
