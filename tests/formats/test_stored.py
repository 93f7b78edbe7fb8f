"""Contract under test: every stored format is its closed form, loses nothing either way, and
refuses what it cannot be. A format that is registered is tested: its geometries are its cases."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import hostloops, testing
from numba_marlin.formats import PackedWeight, QuantizedWeight, changes
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.gptq import AWQ_ORDER
from numba_marlin.formats.stored import PLAIN, register_stored
from numba_marlin.formats.streams import Stream
from numba_marlin.quantizers import dequantize
from tests.formats import layers
from tests.formats.layers import CASES, INTEGER

pytest.importorskip("ml_dtypes")

FORMS = [pytest.param(form, id=form.name) for form in STORED.values()]
CODECS = [PLAIN, hostloops.Compiled()]


@pytest.mark.parametrize("form", FORMS)
def test_a_format_says_where_it_comes_from_and_what_to_test(form):
    assert form.source.startswith("https://") and form.title and form.test_geometries
    assert {geometry.bits for geometry in form.test_geometries} == set(form.bits)
    assert {name for geometry in form.test_geometries for name in form.specs(geometry)} >= set(
        form.keys
    ) | set(form.optional) - {"g_idx_sort_indices", "input_scale", "input_global_scale"}
    assert find_stored(form.name) is form
    with pytest.raises(ValueError, match="registered already"):
        register_stored(form)


@pytest.mark.parametrize(("form", "geometry"), CASES)
def test_the_closed_form_is_a_bijection_and_what_is_packed(form, geometry):
    """Exhaustively: every bit of every code has a bit of the tensor of its own, none is left over,
    and both codecs put it there."""
    rng = np.random.default_rng(1)
    for name, spec in form.specs(geometry).items():
        if spec.packing is None:
            continue
        codes = rng.integers(0, 1 << geometry.bits, spec.matrix, dtype=np.uint8)
        expected, addresses = layers.place_bits(spec.packing, codes, geometry.bits)
        assert np.array_equal(
            np.sort(addresses), np.arange(expected.size * 8 * expected.itemsize)
        ), name
        for codec in CODECS:
            assert np.array_equal(codec.pack(spec.packing, codes, geometry.bits), expected), name
            assert np.array_equal(codec.unpack(spec.packing, expected, geometry.bits), codes), name


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_streams_are_the_specification(data):
    """Any stream, also those that no format has, of sizes that do and do not fill the loops' tiles
    and threads."""
    bits = data.draw(st.sampled_from([2, 3, 4, 8]), "bits")
    stream = Stream(
        data.draw(st.sampled_from("kn")),
        data.draw(st.sampled_from("kn")),
        data.draw(st.sampled_from(["int32", "uint8"])),
        data.draw(st.sampled_from([(0,), AWQ_ORDER, (3, 1, 0, 2)])),
    )
    k, n = (
        (
            32 * data.draw(st.integers(1, 3))
            if stream.along == axis
            else data.draw(st.sampled_from([1, 7, 64, 255, 256, 300]))
        )
        for axis in "kn"
    )
    if data.draw(st.integers(0, 9)) == 0:
        k, n = (1024 if stream.along == axis else 515 for axis in "kn")
    codes = np.random.default_rng(k + n).integers(0, 1 << bits, (k, n), dtype=np.uint8)
    expected = PLAIN.pack(stream, codes, bits)
    assert np.array_equal(CODECS[1].pack(stream, codes, bits), expected)
    assert np.array_equal(CODECS[1].unpack(stream, expected, bits), codes) and np.array_equal(
        PLAIN.unpack(stream, expected, bits), codes
    )


@pytest.mark.parametrize("codec", CODECS, ids=["plain", "compiled"])
@pytest.mark.parametrize(("form", "geometry"), CASES)
def test_reading_and_writing_gives_the_same_bytes(form, geometry, codec):
    for seed in range(3):
        tensors = layers.random_layer(form, geometry, seed)
        assert form.check(tensors) == geometry
        weight = form.read(tensors, codec)
        assert type(weight).__name__ == form.holds and form.losses(weight) == ()
        assert layers.same_layer(form.write(weight, codec), tensors)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_writing_and_reading_gives_the_same_weight(data):
    form = data.draw(st.sampled_from(INTEGER), "format")
    bits = data.draw(st.sampled_from(form.bits), "bits")
    symmetric = form.name == "marlin"
    weight = (
        data.draw(
            testing.quantized_weights(
                testing.problems(column_step=64 if "marlin" in form.name else 32, max_k=256),
                bits=(bits,),
                zeros_kinds=(None,) if symmetric else (None, "integer"),
                scale_dtypes=("float16",) if symmetric else ("float16", "bfloat16"),
            ),
            "weight",
        )
        if bits in (4, 8)
        else testing.make_quantized(
            "uniform", "ordinary", 64, 32, 32, data.draw(testing.seeds()), bits=4
        )
    )
    if bits not in (4, 8):
        weight = QuantizedWeight(
            weight.codes % np.uint8(1 << bits),
            weight.scales,
            weight.codes[:2] % np.uint8(1 << bits),
            bits,
            32,
        )
    if (
        weight.groups > 1
        and form.name in ("gptq", "gptq_v2", "vllm-marlin", "pack-quantized")
        and data.draw(st.booleans(), "act-order")
    ):
        shuffled = np.random.default_rng(0).permutation(weight.k).reshape(weight.groups, -1)
        weight = replace(weight, permutation=np.sort(shuffled, axis=1).ravel().astype(np.int32))
    back = form.read(form.write(weight))
    back = hostloops.unpack_marlin(back) if isinstance(back, PackedWeight) else back
    assert (back.bits, back.group_size) == (weight.bits, weight.group_size)
    for name in ("codes", "scales", "permutation"):
        left, right = getattr(back, name), getattr(weight, name)
        assert (left is None) == (right is None) and (
            left is None or left.tobytes() == right.tobytes()
        ), name
    assert np.array_equal(changes.explicit_zeros(back), changes.explicit_zeros(weight))


def golden(form, geometry):
    """Digest of what the format makes of a fixed weight; no random generator in it, so that no
    NumPy version can change it."""
    parts = []
    for name, spec in sorted(form.specs(geometry).items()):
        if spec.packing is not None:
            position = np.arange(spec.matrix[0] * spec.matrix[1], dtype=np.uint64)
            codes = (position * np.uint64(2654435761) >> np.uint64(13)) % np.uint64(
                1 << geometry.bits
            )
            packed = PLAIN.pack(
                spec.packing, codes.astype(np.uint8).reshape(spec.matrix), geometry.bits
            )
            parts.append(name.encode() + packed.astype(packed.dtype.newbyteorder("<")).tobytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


GOLDEN = {
    "modelopt-nvfp4": ["b6d6d82289ffbb26", "4e1902aeda6fa15b"],
    "nvfp4-pack-quantized": ["0a4df40952bdf621", "0df02fa7e1e81f95"],
    "mxfp4-pack-quantized": ["0a4df40952bdf621", "0e0d14288b14a748"],
    "fp8": ["c61b1aacaa46cc1a", "a0a80808c4719d85", "a345ca1f9beed9cf"],
    "fp8-block": ["a345ca1f9beed9cf", "c61b1aacaa46cc1a"],
    "gptq": [
        "8d7dc6af5ea5b74d",
        "1ab8feb388a171b2",
        "f51dbdbfc526ee73",
        "bd107695c8b6cb91",
        "16fec30939a6b156",
    ],
    "gptq_v2": [
        "8d7dc6af5ea5b74d",
        "1ab8feb388a171b2",
        "f51dbdbfc526ee73",
        "bd107695c8b6cb91",
        "16fec30939a6b156",
    ],
    "awq": ["73eec428f10de629", "73eec428f10de629", "ddf5827cce31e630"],
    "marlin": ["7e59237e22675188", "dfd7a3698a9ba65b"],
    "vllm-marlin": ["366a865e5a73144f", "4f4f8408a440f123", "acd939d2345a0a0f", "835afd94c9f2c332"],
    "pack-quantized": [
        "4697f0ac068f2cd8",
        "f4dfd5f58d331ee3",
        "60707bb17ac933dc",
        "4a629d0cbc468d36",
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_packed_bytes_are_frozen(form):
    assert [golden(form, geometry) for geometry in form.test_geometries] == GOLDEN[form.name]


def test_gptq_of_3_bits_straddles_words():
    """Written out from the description, one code at a time: rows 0..9 and the low bits of row 10 in
    word 0, and so on."""
    codes = np.random.default_rng(0).integers(0, 8, (32, 32), dtype=np.uint8)
    words = np.zeros((3, 32), np.uint64)
    for column in range(32):
        number = sum(int(codes[row, column]) << 3 * row for row in range(32))
        for word in range(3):
            words[word, column] = number >> 32 * word & 0xFFFFFFFF
    weight = QuantizedWeight(codes, np.ones((1, 32), np.float16), bits=3)
    tensors = find_stored("gptq").write(weight)
    assert np.array_equal(tensors["qweight"].view(np.uint32), words.astype(np.uint32))
    assert (tensors["qzeros"].view(np.uint32) == [0xDB6DB6DB, 0xB6DB6DB6, 0x6DB6DB6D]).all(), (
        "version 1 stores 4 - 1 = 0b011 in every field"
    )


def test_awq_orders_columns_and_stores_zero_points_as_they_are():
    codes = np.arange(16 * 8, dtype=np.uint8).reshape(16, 8) % 16
    zeros = np.arange(8, dtype=np.uint8)[None] + 3
    tensors = find_stored("awq").write(QuantizedWeight(codes, np.ones((1, 8), np.float16), zeros))
    for row in range(16):
        word = int(tensors["qweight"].view(np.uint32)[row, 0])
        assert [word >> 4 * i & 15 for i in range(8)] == [
            int(codes[row, column]) for column in (0, 2, 4, 6, 1, 3, 5, 7)
        ]
    assert int(tensors["qzeros"].view(np.uint32)[0, 0]) == 0xA8649753


def test_gptq_versions_differ_in_zero_points_alone():
    weight = testing.make_quantized("uniform", "ordinary", 64, 32, 32, 0, zeros_kind="integer")
    first, second = (find_stored(name).write(weight) for name in ("gptq", "gptq_v2"))
    assert np.array_equal(first["qweight"], second["qweight"])
    stored, true = (
        PLAIN.unpack(
            find_stored("gptq").specs(find_stored("gptq").check(first))["qzeros"].packing,
            each["qzeros"],
            4,
        )
        for each in (first, second)
    )
    assert np.array_equal((stored + 1) % 16, true) and (stored == 15).any(), "0 is stored as 15"


def test_activation_order_is_the_same_product():
    """Rows of a group lie apart in the file; sorted by group, with the permutation kept, it is the
    same weight."""
    rng = np.random.default_rng(0)
    form = find_stored("gptq_v2")
    geometry = form.test_geometries[0]
    tensors = layers.random_layer(form, geometry, 5)
    weight = form.read(tensors)
    assert weight.permutation is not None
    codes = PLAIN.unpack(form.specs(geometry)["qweight"].packing, tensors["qweight"], 4).astype(
        np.float64
    )
    zeros = PLAIN.unpack(form.specs(geometry)["qzeros"].packing, tensors["qzeros"], 4).astype(
        np.float64
    )
    plain = (codes - zeros[tensors["g_idx"]]) * tensors["scales"].astype(np.float64)[
        tensors["g_idx"]
    ]
    assert np.array_equal(dequantize(weight, np.float64), plain)
    x = rng.integers(-3, 4, (5, geometry.k)).astype(np.float64)
    assert np.array_equal(
        x[:, weight.permutation] @ dequantize(replace(weight, permutation=None), np.float64),
        x @ plain,
    )


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_widened_codes_are_the_same_weight(bits):
    rng = np.random.default_rng(bits)
    codes, scales = (
        rng.integers(0, 1 << bits, (64, 32), dtype=np.uint8),
        rng.uniform(-1, 1, (2, 32)).astype(np.float16),
    )
    for zeros in (
        None,
        rng.integers(0, 1 << bits, (2, 32), dtype=np.uint8),
        rng.uniform(0, 3, (2, 32)).astype(np.float16),
    ):
        weight = QuantizedWeight(codes, scales, zeros, bits, 32)
        for wider in (4, 8):
            assert np.array_equal(
                dequantize(changes.widen(weight, wider), np.float64), dequantize(weight, np.float64)
            )
    with pytest.raises(ValueError, match="fewer need quantising anew"):
        changes.widen(changes.widen(weight, 8), 4)
