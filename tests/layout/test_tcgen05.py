"""Contract under test: descriptors say what the ISA's tables say, bit for bit, and nothing that
they do not say; every scale has a place of its own."""

import numpy as np
import pytest

from numba_marlin.layout import block_scales, tcgen05
from numba_marlin.layout.tcgen05 import KINDS, InstructionDescriptor
from numba_marlin.layout.wgmma import Descriptor

NVFP4 = KINDS["mxf4nvf4", "4X"]


def test_instruction_descriptor_of_nvfp4_by_hand():
    """M = 128 is 1 in bits 27-28, n = 192 is 24 in bits 17-22, e2m1 is 1 in bits 7-9 and 10-11,
    ue4m3 is 0 in bit 23."""
    assert InstructionDescriptor(192).encode(NVFP4) == 1 << 27 | 24 << 17 | 1 << 10 | 1 << 7
    mx = InstructionDescriptor(8, scale="e8m0", sfa_id=2, negate_b=True)
    assert (
        mx.encode(KINDS["mxf4", "2X"])
        == 2 << 29 | 1 << 27 | 1 << 23 | 1 << 17 | 1 << 14 | 1 << 10 | 1 << 7
    )
    assert (
        InstructionDescriptor(256, "e4m3", "e4m3", "e8m0", 3, 1).encode(KINDS["mxf8f6f4", "1X"])
        == 3 << 29 | 1 << 27 | 1 << 23 | 32 << 17 | 1 << 4
    )


@pytest.mark.parametrize("key", KINDS)
def test_instruction_descriptors_come_back(key):
    kind = KINDS[key]
    for n in range(8, 257, 8):
        for scale in kind.scales.values():
            for ids in [(a, b) for a in kind.scale_ids for b in kind.scale_ids]:
                for element in kind.elements.values():
                    made = InstructionDescriptor(
                        n, element, element, scale, *ids, negate_a=n % 16 == 0, negate_b=n % 24 == 0
                    )
                    assert tcgen05.decode_instruction(made.encode(kind), kind) == made


@pytest.mark.parametrize("bit", [b for b in range(32) if b not in (*range(17, 23), 13, 14)])
def test_no_other_bit_of_an_instruction_descriptor_may_change(bit):
    good = InstructionDescriptor(128).encode(NVFP4)
    if bit == 23:
        assert tcgen05.decode_instruction(good | 1 << 23, NVFP4).scale == "e8m0"
        return
    with pytest.raises(ValueError, match="instruction descriptor|_id="):
        tcgen05.decode_instruction(good ^ 1 << bit, NVFP4)


@pytest.mark.parametrize(
    "made, match",
    [
        (InstructionDescriptor(0), "n=0"),
        (InstructionDescriptor(264), "n=264"),
        (InstructionDescriptor(12), "n=12"),
        (InstructionDescriptor(8, sfb_id=2), "sfb_id=2"),
        (InstructionDescriptor(8, a="e4m3"), "'e4m3' must be one of e2m1"),
    ],
)
def test_what_cannot_be_said_is_refused(made, match):
    with pytest.raises(ValueError, match=match):
        made.encode(NVFP4)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_matrix_descriptors_come_back_and_are_not_those_of_wgmma(swizzle):
    made = Descriptor(0x3ABC0, 1024, 16, swizzle)
    bits = tcgen05.encode(made)
    assert tcgen05.decode(bits) == made and bits >> 46 & 7 == 1
    assert (
        bits >> 61 == {0: 0, 32: 6, 64: 4, 128: 2}[swizzle]
        and bits & 0x3FFF == 0x3ABC
        and bits >> 32 & 0x3FFF == 64
    )
    with pytest.raises(ValueError, match="0b001"):
        tcgen05.decode(made.encode())


@pytest.mark.parametrize("bit", [14, 15, 30, 31, *range(52, 61)])
def test_bits_that_mean_nothing_are_refused(bit):
    with pytest.raises(ValueError, match="mean nothing"):
        tcgen05.decode(tcgen05.encode(Descriptor(0, 1024)) | 1 << bit)
    with pytest.raises(ValueError, match="swizzle mode 3"):
        tcgen05.decode(tcgen05.encode(Descriptor(0, 1024)) | 3 << 61)


def test_a_copied_tile_puts_every_scale_where_a_product_looks_for_it():
    """tcgen05.cp brings 16 bytes to a lane, four to a column; the product finds row r in lane r %
    32, column r // 32."""
    cells = np.arange(512).reshape(32, 4, 4)  # lane, column, byte
    lanes, columns = tcgen05.scale_cells(128)
    assert len(set(zip(lanes.tolist(), columns.tolist()))) == 128 and columns.max() == 3
    for number in range(4):
        assert np.array_equal(
            cells[lanes, columns, number], block_scales.place(np.arange(128), number, 4)
        )
    assert tcgen05.columns_of_scales(256) == 8 and tcgen05.columns_of_scales(8) == 1


def test_addresses_have_a_lane_and_a_column():
    assert (
        tcgen05.fields_of(tcgen05.address_of(96, 511)) == (96, 511)
        and tcgen05.address_of(1, 0) == 1 << 16
    )
