"""Contract under test: the Marlin layout is its closed form, loses nothing, and refuses what it
cannot hold. (8 bits, zero points and columns that do not fill a block: test_marlin_kinds.)"""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings

from numba_marlin import testing
from numba_marlin.formats import FORMATS, PackedWeight, QuantizedWeight, find_format, marlin
from numba_marlin.formats.marlin_order import locate
from numba_marlin.layout.fragments import MMA_M16N8K16_A, MMA_M16N8K16_B


def closed_form_pack(codes):
    """The layout as documented, one code at a time: shares no line with the implementation."""
    k, n = codes.shape
    words = np.zeros((k // 16, 2 * n), dtype=np.int64)
    for block_row in range(k // 16):
        for block in range(n // 64):
            for lane in range(32):
                for j in range(4):
                    word = 0
                    for p in range(8):
                        row = 2 * (lane % 4) + (p >> 2) + 8 * (p & 1)
                        column = 16 * j + lane // 4 + 8 * ((p >> 1) & 1)
                        word |= int(codes[16 * block_row + row, 64 * block + column]) << 4 * p
                    words[block_row, 128 * block + 4 * lane + j] = word
    return words.astype(np.uint32).view(np.int32)


def golden_codes():
    """Fixed without a random generator, so that no NumPy version can change it."""
    position = np.arange(32 * 128, dtype=np.uint64)
    return (
        ((position * np.uint64(2654435761) >> np.uint64(13)) % np.uint64(16))
        .astype(np.uint8)
        .reshape(32, 128)
    )


def test_derived_permutation_is_the_closed_form():
    for lane in range(32):
        for j in range(4):
            for p in range(8):
                k = 2 * (lane % 4) + (p >> 2) + 8 * (p & 1)
                n = 16 * j + lane // 4 + 8 * ((p >> 1) & 1)
                assert marlin.WEIGHT_PERM[(4 * lane + j) * 8 + p] == 64 * k + n


def test_derived_scale_permutations_are_the_closed_form():
    group = np.empty(64, dtype=int)
    for i in range(8):
        for j in range(8):
            group[8 * i + j] = i + 8 * j
    assert marlin.GROUP_SCALE_PERM.tolist() == group.tolist()
    per_column = [2 * i + offset for i in range(4) for offset in (0, 1, 8, 9, 16, 17, 24, 25)]
    assert marlin.COLUMN_SCALE_PERM.tolist() == per_column


@pytest.mark.parametrize("perm", ["WEIGHT_PERM", "GROUP_SCALE_PERM", "COLUMN_SCALE_PERM"])
def test_permutations_are_bijective(perm):
    perm = getattr(marlin, perm)
    assert np.array_equal(np.sort(perm), np.arange(perm.size))


def test_packed_bytes_are_frozen():
    qweight = marlin.pack_codes(golden_codes())
    assert np.array_equal(qweight, closed_form_pack(golden_codes()))
    digest = hashlib.sha256(qweight.astype("<i4").tobytes()).hexdigest()
    assert digest == "3fb580b7d0717841bdd20cdfb0f67ce9274588db46ca98a96a33684939c6e4e2"


def test_packed_scales_are_frozen():
    plain = np.arange(2 * 128, dtype=np.uint16).reshape(2, 128).view(np.float16)
    digests = [
        hashlib.sha256(marlin.pack_scales(scales).astype("<f2").tobytes()).hexdigest()
        for scales in (plain, plain[:1])
    ]
    assert digests == [
        "73fec21b9cff0cda07d4e102834f70f1ecd00d2152fdefda2b4b0a50c0905090",
        "e51be7a7f796d225e94ee06bc4e6b9a8e8e801fefca8e9dbca52f6613943021d",
    ]


@given(testing.quantized_weights())
@settings(max_examples=40, deadline=None)
def test_unpack_inverts_pack(weight):
    packed = marlin.pack(weight)
    assert (
        packed.qweight.shape == (weight.k // 16, 2 * weight.n) and packed.qweight.dtype == np.int32
    )
    back = marlin.unpack(packed)
    assert np.array_equal(back.codes, weight.codes)
    assert np.array_equal(back.scales.view(np.uint16), weight.scales.view(np.uint16))
    assert (back.k, back.n, back.group_size, back.zeros) == (
        weight.k,
        weight.n,
        weight.group_size,
        None,
    )


def test_pack_inverts_unpack():
    """Every int32 matrix is a valid packed weight."""
    words = (
        np.random.default_rng(0)
        .integers(-(1 << 31), 1 << 31, (3, 384), dtype=np.int64)
        .astype(np.int32)
    )
    assert np.array_equal(marlin.pack_codes(marlin.unpack_codes(words)), words)


def test_locate_finds_every_code():
    weight = QuantizedWeight(testing.make_codes("ramp", 32, 128, 0), np.ones((1, 128), np.float16))
    qweight = marlin.pack(weight).qweight.view(np.uint32)
    for k_index in range(0, 32, 3):
        for n_index in range(0, 128, 5):
            row, column, nibble = locate(k_index, n_index)
            assert int(qweight[row, column]) >> 4 * nibble & 15 == weight.codes[k_index, n_index]


def dequantise_word(words):
    """A kernel's dequantisation in NumPy: uint32 [...] -> float16 [..., 4 registers, 2 halves],
    before scaling.

    lop3 puts a nibble under the exponent of 1024, where it counts ones (low nibble) or sixteens
    (the next one).
    """
    results = []
    for shifted in (words, words >> np.uint32(8)):
        low = (shifted & np.uint32(0x000F000F)) | np.uint32(0x64006400)
        high = (shifted & np.uint32(0x00F000F0)) | np.uint32(0x64006400)
        low, high = (
            np.ascontiguousarray(each)[..., None].view(np.uint16).view(np.float16)
            for each in (low, high)
        )
        results += [low - np.float16(1032), np.float16(1 / 16) * high + np.float16(-72)]
    return np.stack(results, axis=-2)


def test_dequantisation_of_every_half_word_is_exact():
    """All 2**16 halves, in the low and in the high half of a word; 1/16 * x is exact, so one
    rounding is none."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    for shift in (0, 16):
        decoded = dequantise_word(halves << np.uint32(shift))
        for decoded_register, nibble in zip(range(4), range(4)):
            expected = (halves >> np.uint32(4 * nibble) & np.uint32(15)).astype(np.float16) - 8
            assert np.array_equal(decoded[:, decoded_register, shift // 16], expected)


def test_dequantised_words_are_b_fragments():
    """The purpose of the order: registers (0, 1) and (2, 3) of word j are the B fragments of n8
    tiles 2j and 2j + 1."""
    codes = testing.make_codes("uniform", 16, 64, 3)
    words = marlin.pack_codes(codes).view(np.uint32).reshape(32, 4)
    registers = dequantise_word(words).reshape(32, 4, 2, 4)
    for j in range(4):
        for tile in range(2):
            first = 16 * j + 8 * tile
            expected = MMA_M16N8K16_B.gather(codes[:, first : first + 8].astype(np.float16) - 8)
            assert np.array_equal(registers[:, j, tile], expected)


def test_dequantised_words_are_a_fragments_of_the_transposed_product():
    """Design: (d0, d2, d1, d3) of word j is the A fragment of rows n = 16j .. 16j + 15."""
    codes = testing.make_codes("uniform", 16, 64, 4)
    registers = dequantise_word(marlin.pack_codes(codes).view(np.uint32).reshape(32, 4))
    for j in range(4):
        expected = MMA_M16N8K16_A.gather(codes[:, 16 * j : 16 * j + 16].T.astype(np.float16) - 8)
        assert np.array_equal(registers[:, j, [0, 2, 1, 3]].reshape(32, 8), expected)


def test_a_lane_finds_its_group_scales_in_16_bytes():
    plain = np.arange(2 * 64, dtype=np.float16).reshape(2, 64)
    packed = marlin.pack_scales(plain)
    for lane in range(32):
        columns = [8 * tile + MMA_M16N8K16_B.coords(lane, 0)[1] for tile in range(8)]
        start = 8 * (lane // 4)
        assert np.array_equal(packed[1, start : start + 8], plain[1, columns])


def test_registry_knows_marlin():
    weight = QuantizedWeight(
        testing.make_codes("ramp", 128, 64, 0), np.ones((2, 64), np.float16), group_size=64
    )
    packed = FORMATS["marlin"].pack(weight)
    assert find_format("marlin").unpack(packed).group_size == 64
    facts = find_format("marlin").describe(packed)
    assert facts["bits_per_weight"] == 4.25 and facts["qweight_shape"] == [8, 128]
    with pytest.raises(ValueError, match="layout='nope' must be one of"):
        find_format("nope")
    with pytest.raises(ValueError, match="registered already"):
        from numba_marlin.formats import register

        register(FORMATS["marlin"])


def make(k=32, n=64, groups=1, group_size=-1, zeros=None):
    return QuantizedWeight(
        np.zeros((k, n), np.uint8), np.ones((groups, n), np.float16), zeros, group_size=group_size
    )


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (make(k=24), "k=24 must be a positive multiple of 16"),
        (make(n=36), "n=36 must be a positive multiple of 8"),
        (make(k=48, groups=2, group_size=24), "group_size=24 must be -1 .* or a multiple of 16"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        marlin.pack(weight)


def test_pack_wants_a_quantized_weight():
    with pytest.raises(TypeError, match="weight is a ndarray"):
        marlin.pack(np.zeros((16, 64)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"layout": "nope"}, ValueError, "layout='nope'"),
        (
            {"qweight": np.zeros((2, 64), np.int32)},
            ValueError,
            r"\(2, 64\) must be \(k/16, n_packed \* bits/2\)=\(2, 128\)",
        ),
        ({"qweight": np.zeros((2, 128), np.int64)}, TypeError, "qweight.dtype=int64 must be int32"),
        ({"scales": np.ones((1, 32), np.float16)}, ValueError, "scales.shape"),
        ({"scales": np.ones((1, 64), np.float32)}, TypeError, "scales.dtype=float32"),
        ({"k": 0}, ValueError, "k=0 must be a positive integer"),
        ({"n": 65}, ValueError, "n=65 must be a positive multiple of 8"),
        ({"n": 72}, ValueError, r"qweight.shape=\(2, 128\)"),
        ({"bits": 3}, ValueError, "bits=3"),
        ({"bits": 8}, ValueError, r"qweight.shape=\(2, 128\) must be .*=\(2, 256\)"),
        (
            {"zeros": np.zeros((1, 64), np.int32)},
            ValueError,
            r"zeros.shape=\(1, 64\) must be .*=\(1, 8\)",
        ),
        (
            {"zeros": np.zeros((2, 64), np.float16)},
            ValueError,
            r"zeros.shape=\(2, 64\) must be \(groups, n_packed\)=\(1, 64\)",
        ),
        (
            {"zeros": np.zeros((1, 8), np.uint8)},
            TypeError,
            "zeros.dtype=uint8 must be int32 or float16",
        ),
        (
            {"zeros": np.full((1, 64), np.inf, np.float16)},
            ValueError,
            r"zeros\[0, 0\]=inf must be finite",
        ),
        ({"group_size": 5}, ValueError, "group_size=5 must divide k=32"),
    ],
)
def test_packed_weights_are_checked_when_made(changes, error, message):
    fields = dict(
        layout="marlin",
        qweight=np.zeros((2, 128), np.int32),
        scales=np.ones((1, 64), np.float16),
        bits=4,
        group_size=-1,
        k=32,
        n=64,
    )
    PackedWeight(**fields)
    with pytest.raises(error, match=message):
        PackedWeight(**{**fields, **changes})
