"""Contract under test: a bulk copy is counted as the bytes and sectors that it moves, once a row,
in its own buffer and direction."""

import numpy as np
import pytest

from numba_marlin import counts
from numba_marlin.counts.observer import copy_kind
from numba_marlin.emulator import Machine
from tests.emulator.async_ptx import COMMIT, FENCE, WAIT_ALL, spin, start
from tests.emulator.bulk_copy_programs import ELECTED, ONE, SHARED, fill, g2s, s2g
from tests.emulator.ptx_cases import frame, snippet


def counted_of(body, grid=1):
    machine = Machine(frame(body, 2))
    names = ("other", "moved")
    buffers = {name: machine.memory.buffer(np.zeros(256, np.uint32), name) for name in names}
    args = [buffers["moved"].address, buffers["other"].address]
    return counts.count(machine, "k", grid=grid, block=32, args=args)[1]


def read(offset, nbytes):
    return (
        start(1)
        + SHARED
        + f"add.u64 %rd8, %p0, {offset};\n"
        + ELECTED
        + snippet("mbarrier_arrive_expect_tx", "%r40", str(nbytes))
        + g2s(source="%rd8", nbytes=str(nbytes))
        + "ISSUED:\n"
        + spin("W", "%r40", "0")
    )


# offset, bytes, sectors of 32 bytes that it lies in, those that its bytes would fill, lines of 128
COPIES = [(0, 512, 16, 16, 4), (16, 32, 2, 1, 1), (16, 48, 2, 2, 1), (112, 32, 2, 1, 2)]


@pytest.mark.parametrize("offset, nbytes, sectors, needed, lines", COPIES)
def test_a_load_in_bulk(offset, nbytes, sectors, needed, lines):
    counted = counted_of(read(offset, nbytes), grid=3)
    moved = counted.buffer("moved")
    assert [each.name for each in counted.buffers] == ["moved"]
    assert (moved.reads.requests, moved.reads.bytes) == (3, 3 * nbytes)
    assert (moved.reads.sectors, moved.reads.needed) == (3 * sectors, 3 * needed)
    assert (moved.read_distinct, moved.written_distinct) == (32 * sectors, 0)
    assert moved.writes.requests == 0
    total = counted.total
    assert (total.block_sectors, total.sectors) == (3 * sectors, sectors)
    assert (total.block_lines, total.lines) == (3 * lines, lines)
    assert total.tally.copied == {"bulk": 3 * nbytes} and total.l2_reuse == 3
    assert f"asynchronous copies: bulk {3 * nbytes:,} bytes" in str(counted)


def test_a_store_in_bulk():
    body = SHARED + fill() + FENCE + "bar.sync 0;\n" + ONE
    copy = "add.u64 %rd8, %p0, 16;\n" + s2g(target="%rd8", nbytes="48")
    counted = counted_of(body + copy + COMMIT + WAIT_ALL + "END:")
    moved = counted.buffer("moved")
    assert (moved.writes.requests, moved.writes.bytes, moved.writes.sectors) == (1, 48, 2)
    assert (moved.read_distinct, moved.written_distinct) == (0, 64) and moved.reads.requests == 0
    assert counted.total.sectors == 2 and counted.total.tally.copied == {"bulk": 48}


def test_a_reduction_in_bulk_is_a_copy_of_its_bytes():
    body = SHARED + fill() + FENCE + "bar.sync 0;\n" + ONE
    copy = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%p0], [%r50], 48;\n"
    counted = counted_of(body + copy + COMMIT + WAIT_ALL + "END:")
    total = counted.total.tally
    assert total.copied == {"bulk": 48} and total.classes["copy"] == 1
    assert counted.buffer("moved").writes.bytes == 48


@pytest.mark.parametrize("suffix, kind", [("", "bulk"), (".tensor", "tensor")])
def test_copies_of_every_opcode_have_a_kind(suffix, kind):
    for root in ("cp.async.bulk", "cp.reduce.async.bulk"):
        assert copy_kind(root + suffix) == kind
    assert copy_kind("cp.async") == "cp.async"


def test_nothing_copied_is_said():
    assert "asynchronous copies: none;" in str(counted_of(""))


def test_a_copy_of_no_bytes_touches_nothing():
    """Its address, in the middle of a sector, would count as one that is written."""
    copy = SHARED + ONE + "add.u64 %rd8, %p0, 16;\n" + s2g(target="%rd8", nbytes="0")
    counted = counted_of(copy + COMMIT + WAIT_ALL + "END:")
    written = counted.total.tally.writes
    assert (written.requests, written.sectors, counted.total.sectors) == (0, 0, 0)
