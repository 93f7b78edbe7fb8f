"""Contract under test: what a tensor copy moves, and where its bytes lie in shared memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin.layout.tensor_map import (
    ELEMENT_BYTES,
    TensorMap,
    chunk_order,
    clip,
    decode,
    load_box,
    store_box,
    swizzled,
)


def plain(shape, box, dtype="float16", swizzle=0, pitch=0):
    size = ELEMENT_BYTES[dtype]
    strides = [size]
    for count in reversed(shape[1:]):
        strides.append(
            -(-strides[0] * count // 16) * 16 + pitch if len(strides) == 1 else strides[-1] * count
        )
    return TensorMap(dtype, shape, tuple(reversed(strides)), box, swizzle)


@pytest.mark.parametrize(
    "swizzle, pattern",
    [
        (0, [[0, 1, 2, 3, 4, 5, 6, 7]] * 8),
        (32, [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]] * 4),
        (
            64,
            [
                [0, 1, 2, 3, 4, 5, 6, 7],
                [1, 0, 3, 2, 5, 4, 7, 6],
                [2, 3, 0, 1, 6, 7, 4, 5],
                [3, 2, 1, 0, 7, 6, 5, 4],
            ]
            * 2,
        ),
        (128, [[c ^ r for c in range(8)] for r in range(8)]),
    ],
)
def test_swizzles_are_the_published_pictures(swizzle, pattern):
    """Chunk c of 128-byte line r; the CUDA programming guide, "TMA swizzle", and CUTLASS's
    Swizzle<log2(swizzle / 16), 4, 3>."""
    address = np.arange(0, 2048, 16)
    found = (
        swizzled(address, swizzle).reshape(2, 8, 8) // 16
        - np.arange(2)[:, None, None] * 64
        - np.arange(8)[:, None] * 8
    )
    assert found.tolist() == [pattern] * 2
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    every = np.arange(4096)
    assert np.array_equal(swizzled(every, swizzle), every ^ (every >> 3 & ((1 << bits) - 1) << 4))
    assert np.array_equal(swizzled(swizzled(every, swizzle), swizzle), every)


def test_a_swizzle_depends_on_the_shared_address_not_on_the_row():
    tensor_map = plain((64, 64), (8, 64), swizzle=128)
    assert chunk_order(tensor_map, 0x400)[:8].tolist() == list(range(8))
    assert chunk_order(tensor_map, 0x480)[:8].tolist() == [c ^ 1 for c in range(8)]


SHAPES = st.integers(1, 3).flatmap(
    lambda rank: st.tuples(
        st.tuples(*[st.integers(1, 20)] * rank),
        st.tuples(*[st.integers(1, 9)] * rank),
        st.tuples(*[st.integers(-12, 24)] * rank),
    )
)


@given(SHAPES, st.sampled_from(["uint8", "float16", "float32"]), st.sampled_from([0, 16, 48]))
def test_boxes_against_indexing_with_padding(case, dtype, pitch):
    """Out of bounds is zero when loaded, and untouched when stored, but for the rest of the 16
    bytes in the middle of which a row ends: those between rows."""
    shape, box, at = case
    size = ELEMENT_BYTES[dtype]
    box = (*box[:-1], 16 // size)
    tensor_map = plain(shape, box, dtype, pitch=pitch if len(shape) > 1 else 0)
    pitched = np.zeros(tensor_map.strides_bytes[0] * shape[0] + 64, np.uint8)
    tensor = np.lib.stride_tricks.as_strided(
        pitched.view(f"u{size}"), shape, tensor_map.strides_bytes
    )
    tensor[...] = 1 + np.arange(tensor.size).reshape(shape) % 250
    padded = np.zeros([count + 96 for count in shape], tensor.dtype)
    padded[tuple(slice(32, 32 + count) for count in shape)] = tensor
    wanted = padded[tuple(slice(32 + a, 32 + a + b) for a, b in zip(at, box))]
    loaded = load_box(tensor_map, pitched, at, 0x400)
    assert loaded.size == tensor_map.box_bytes and np.array_equal(
        loaded.view(tensor.dtype).reshape(box), wanted
    )

    at = (*(max(0, a) for a in at[:-1]), max(0, at[-1]) // box[-1] * box[-1])  # what can be stored
    loaded = load_box(tensor_map, pitched, at, 0x400)
    target = np.full_like(pitched, 0xEE)
    store_box(tensor_map, target, at, 0x400, loaded)
    seen = np.lib.stride_tricks.as_strided(target.view(f"u{size}"), shape, tensor_map.strides_bytes)
    inside = np.zeros_like(padded, bool)
    inside[tuple(slice(32 + a, 32 + a + b) for a, b in zip(at, box))] = True
    inside = inside[tuple(slice(32, 32 + count) for count in shape)]
    assert (
        np.array_equal(seen[inside], tensor[inside])
        and (seen[~inside] == int.from_bytes([0xEE] * size, "little")).all()
    )
    assert np.count_nonzero(target != 0xEE) <= inside.any(axis=-1).sum() * tensor_map.row_bytes


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("address", [0x400, 0x480, 0x580, 0x800])
def test_a_swizzled_box_holds_chunk_c_of_row_r_where_the_closed_form_says(swizzle, address):
    columns = swizzle // 2
    tensor = np.arange(40 * 128, dtype=np.uint16).reshape(40, 128)
    tensor_map = TensorMap("float16", (40, 128), (256, 2), (24, columns), swizzle)
    shared = np.zeros(0x2000, np.uint8)
    loaded = load_box(tensor_map, tensor.view(np.uint8).reshape(-1), (5, 16), address)
    shared[address : address + loaded.size] = loaded
    for row in range(24):
        for chunk in range(swizzle // 16):
            linear = address + row * swizzle + 16 * chunk
            place = linear ^ (linear >> 7 & swizzle // 16 - 1) << 4
            assert np.array_equal(
                shared[place : place + 16].view(np.uint16),
                tensor[5 + row, 16 + 8 * chunk : 24 + 8 * chunk],
            )
    back = np.zeros_like(tensor)
    store_box(tensor_map, back.view(np.uint8).reshape(-1), (5, 16), address, loaded)
    assert (
        np.array_equal(back[5:29, 16 : 16 + columns], tensor[5:29, 16 : 16 + columns])
        and np.count_nonzero(back) == 24 * columns
    )


def test_encode_and_decode_are_inverse_and_fit_the_hardware_size():
    tensor_map = TensorMap("bfloat16", (3, 100, 64), (25600, 256, 2), (1, 128, 32), 64, 256)
    encoded = tensor_map.encode(0x7_0000_0010)
    assert len(encoded) == 128 and decode(encoded) == (tensor_map, 0x7_0000_0010)
    with pytest.raises(ValueError, match="no tensor map"):
        decode(bytes(128))
    for rank, kind, ways in ((9, 0, 0), (1, 99, 0), (1, 0, 255)):
        broken = bytearray(encoded)
        broken[12:15] = rank, kind, ways
        with pytest.raises(ValueError, match="something else has overwritten"):
            decode(bytes(broken))
    with pytest.raises(ValueError, match="0x7 must be a multiple of 16"):
        tensor_map.encode(7)


GOOD = dict(
    dtype="float16",
    shape=(100, 64),
    strides_bytes=(128, 2),
    box=(64, 64),
    swizzle=128,
    l2_promotion=0,
)
BAD = [
    (dict(dtype="float8"), "dtype='float8'"),
    (dict(shape=(100,)), "must have one length"),
    (dict(shape=(0, 64)), "1 to 2^32"),
    (dict(strides_bytes=(128, 4)), "the last must be 2"),
    (dict(strides_bytes=(130, 2)), "multiples of 16"),
    (dict(box=(257, 64)), "1 to 256"),
    (dict(box=(64, 60), swizzle=0), "innermost 120 bytes"),
    (dict(swizzle=16), "swizzle=16"),
    (dict(box=(64, 128)), "must be the swizzle=128"),
    (dict(l2_promotion=32), "l2_promotion=32"),
    (dict(strides_bytes=(1 << 40, 2)), "below 2^40"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_what_the_driver_would_refuse_is_refused_with_the_rule(change, message):
    TensorMap(**GOOD)
    with pytest.raises(ValueError) as caught:
        TensorMap(**{**GOOD, **change})
    assert message in str(caught.value)


def test_clip_counts_rows_and_bytes():
    tensor_map = TensorMap("float16", (10, 64), (128, 2), (8, 32))
    part = clip(tensor_map, (6, -3))
    assert (
        part.counts == (4, 58)
        and part.inside == (slice(0, 4), slice(6, 64))
        and part.start == 6 * 128
    )
    assert (
        clip(tensor_map, (10, 0)).empty
        and clip(tensor_map, (0, -32)).empty
        and not clip(tensor_map, (-7, 63)).empty
    )
