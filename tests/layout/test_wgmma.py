"""Contract under test: wgmma's fragments, descriptors and tiles are what the PTX ISA draws, and
what tensor copies leave behind."""

import numpy as np
import pytest

from numba_marlin.layout import wgmma
from numba_marlin.layout.fragments import MMA_M16N8K16_A, MMA_M16N8K16_C
from numba_marlin.layout.tensor_map import TensorMap, load_box
from numba_marlin.layout.wgmma import Descriptor


@pytest.mark.parametrize("columns", [8, 16, 24, 128, 256])
def test_accumulators_are_those_of_mma_side_by_side_and_below_each_other(columns):
    fragment = wgmma.accumulator(columns)
    assert (fragment.lanes, fragment.elements, fragment.registers) == (
        128,
        columns // 2,
        columns // 2,
    )
    for lane, element in np.ndindex(128, columns // 2):
        row, col = MMA_M16N8K16_C.coords(lane % 32, element % 4)
        assert fragment.coords(lane, element) == (row + lane // 32 * 16, col + element // 4 * 8)


@pytest.mark.parametrize(
    "lane, element, expected",
    [(0, 0, (0, 0)), (0, 2, (8, 0)), (5, 3, (9, 3)), (37, 4, (17, 10)), (127, 63, (63, 127))],
)
def test_accumulators_are_those_of_the_figures(lane, element, expected):
    assert wgmma.accumulator(128).coords(lane, element) == expected


def test_a_in_registers_is_that_of_mma_for_each_warp():
    for lane, element in np.ndindex(128, 8):
        row, col = MMA_M16N8K16_A.coords(lane % 32, element)
        assert wgmma.A_REGISTERS.coords(lane, element) == (row + lane // 32 * 16, col)


@pytest.mark.parametrize(
    "lane, element, expected",
    [(0, 3, (0, 3)), (5, 4, (9, 4)), (6, 8, (1, 24)), (38, 13, (25, 25)), (127, 15, (63, 31))],
)
def test_a_of_bytes_is_that_of_the_figures(lane, element, expected):
    """PTX ISA, fragments of mma.m16n8k32: 4 of k to a register, rows, then 16 of k on."""
    assert wgmma.A_BYTES.coords(lane, element) == expected


def test_a_row_of_bytes_lies_as_half_as_many_halves_do():
    """So that k is contiguous in 32 bytes of either."""
    pairs = wgmma.A_BYTES.col_of.reshape(128, 8, 2) // 2
    assert (pairs == wgmma.A_REGISTERS.col_of[..., None]).all()
    assert (wgmma.A_BYTES.row_of[:, ::2] == wgmma.A_REGISTERS.row_of).all()


@pytest.mark.parametrize("columns", [0, 4, 12, 264])
def test_columns_come_in_eights(columns):
    with pytest.raises(ValueError, match=f"columns={columns}"):
        wgmma.accumulator(columns)


def test_the_measured_descriptor():
    """(address >> 4) | 1 << 16 | 64 << 32 | 1 << 62: what ran on an H200."""
    assert Descriptor(0x2400, 1024).encode() == 0x240 | 1 << 16 | 64 << 32 | 1 << 62


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_decode_inverts_encode(swizzle):
    for address, stride, leading in ((0, 16, 0), (0x3FFF0, 1024, 0x3FFF0), (0x400, 0x3FFF0, 128)):
        descriptor = Descriptor(address, stride, leading, swizzle)
        assert wgmma.decode(descriptor.encode()) == descriptor


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": 8},
        {"address": 1 << 18},
        {"stride_bytes": -16},
        {"leading_bytes": 4},
        {"swizzle": 16},
        {"base_offset": 1},
    ],
)
def test_what_a_descriptor_cannot_say_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        Descriptor(**{"address": 0, "stride_bytes": 1024, **wrong}).encode()


@pytest.mark.parametrize("bit", [14, 15, 30, 46, 48, 52, 61])
def test_bits_without_a_meaning_are_refused(bit):
    with pytest.raises(ValueError, match="mean nothing"):
        wgmma.decode(1 << bit)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("rows", [8, 24, 128])
def test_a_swizzled_tile_is_what_a_tensor_copy_leaves(swizzle, rows):
    matrix = np.random.default_rng(rows).integers(0, 1 << 16, (rows, swizzle // 2), dtype=np.uint16)
    box = TensorMap("uint16", matrix.shape, matrix.strides, matrix.shape, swizzle)
    tile, descriptors = wgmma.store_tile(matrix, swizzle)
    assert np.array_equal(tile, load_box(box, matrix.view(np.uint8).reshape(-1), (0, 0), 0x2000))
    assert len(descriptors) == swizzle // 32


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("rows, depth", [(8, 16), (16, 64), (256, 128)])
@pytest.mark.parametrize("at", [0, 0x2000])
def test_descriptors_find_every_element_of_a_tile_once(swizzle, rows, depth, at):
    matrix = np.arange(rows * depth, dtype=np.uint16).reshape(rows, depth)
    tile, descriptors = wgmma.store_tile(matrix, swizzle)
    seen = set()
    for step, descriptor in enumerate(descriptors):
        here = Descriptor(
            descriptor.address + at, descriptor.stride_bytes, descriptor.leading_bytes, swizzle
        )
        addresses = wgmma.chunk_addresses(wgmma.decode(here.encode()), rows) - at
        found = tile.reshape(-1, 16)[addresses // 16].view(np.uint16).reshape(rows, 16)
        assert np.array_equal(found, matrix[:, 16 * step : 16 * step + 16])
        seen |= set(addresses.ravel().tolist())
    assert len(seen) == rows * depth // 8 and tile.size >= rows * depth * 2


def test_core_matrices_without_a_swizzle_are_128_contiguous_bytes():
    addresses = wgmma.chunk_addresses(Descriptor(0x400, 128, 4096, 0), 16)
    assert addresses[:, 0].tolist() == [0x400 + 16 * row for row in range(16)]
    assert (addresses[:, 1] - addresses[:, 0] == 4096).all()


@pytest.mark.parametrize("shape", [(12, 16), (8, 24)])
def test_a_tile_is_made_of_whole_pieces(shape):
    with pytest.raises(ValueError, match="must be"):
        wgmma.store_tile(np.zeros(shape, np.uint16), 0)
