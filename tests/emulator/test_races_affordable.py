"""Contract under test: races are looked for where their records stay small, which is reckoned
before any is made, and a run says why it did not look."""

import numpy as np
import pytest

from numba_marlin.emulator import Listener, Machine, Race
from numba_marlin.emulator.ordering import affordable
from tests.emulator.ptx_cases import frame
from tests.emulator.race_programs import ORDERED, RACING


def machine(body, races):
    made = Machine(frame(body, 1), races=races)
    return made, made.memory.buffer(np.zeros(64, np.int32)).address


def test_the_machine_looks_where_it_is_affordable(monkeypatch):
    made, address = machine(RACING, None)
    with pytest.raises(Race):
        made.run(block=64, args=[address])
    made, address = machine(ORDERED, None)
    assert made.run(block=64, args=[address]).unraced == ""
    made, address = machine(ORDERED, False)
    assert made.run(block=64, args=[address]).unraced == affordable.NOT_ASKED
    monkeypatch.setattr(affordable, "MOST_BYTES", 1 << 14)
    made, address = machine(RACING, None)
    assert "GiB" in made.run(block=64, args=[address]).unraced


def test_records_have_room_for_so_many_threads(monkeypatch):
    monkeypatch.setattr(affordable, "MOST_THREADS", 63)
    made, address = machine(ORDERED, True)
    with pytest.raises(ValueError, match="races=True: they can be looked for in .* 63 threads"):
        made.run(block=64, args=[address])
    made, address = machine(ORDERED, None)
    assert "63 threads at most, not in" in made.run(block=64, args=[address]).unraced


@pytest.mark.parametrize("threads", (64, 512))
def test_the_records_take_no_more_than_was_reckoned(threads):
    """Every thread comes to know something of its own: it acquires a word that is its own."""
    body = """mad.wide.u32 %rd1, %t, 4, %p0; atom.global.release.gpu.add.u32 %r1, [%rd1], 1;
    bar.warp.sync -1; xor.b32 %r2, %t, 33; mad.wide.u32 %rd2, %r2, 4, %p0;
    atom.global.acquire.gpu.add.u32 %r3, [%rd2], 1;"""
    made = Machine(frame(body, 1), races=True)
    address = made.memory.buffer(np.zeros(threads, np.uint32)).address
    seen = []
    made.run(block=threads, args=[address], listener=Listener(started=seen.append))
    races = seen[0].races
    shadows = [races.shared, *races.buffers.values()]
    taken = races.clocks.own.nbytes + sum(each.nbytes for each in shadows)
    assert taken <= affordable.records(seen[0], threads) + races.clocks.own.shape[0] * 4 * 64


def records_of(body, blocks, threads=64):
    made, seen = Machine(frame(body, 1), races=True), []
    address = made.memory.buffer(np.zeros(blocks * threads, np.uint32)).address
    made.run(grid=blocks, block=threads, args=[address], listener=Listener(started=seen.append))
    return seen[0]


# Thread i of the grid writes word i; threads of a block exchange theirs in shared memory.
OWN = """.shared .align 16 .b8 s[256]; mov.u32 %r0, %ctaid.x; mad.lo.u32 %r0, %r0, 64, %t;
mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %r0; bar.sync 0;
mov.u32 %r2, s; mad.lo.u32 %r2, %t, -4, %r2; ld.shared.u32 %r3, [%r2+252]; {}
mad.wide.u32 %rd1, %r0, 4, %p0; st.global.u32 [%rd1], %r3; bar.warp.sync -1; bar.sync 0;"""


def test_memory_grows_with_blocks_that_do_not_talk():
    few, many = (records_of(OWN.format(""), blocks) for blocks in (8, 64))
    taken = [each.races.clocks.own.nbytes for each in (few, many)]
    assert not many.races.clocks.others and taken[1] <= 16 * taken[0]
    reckoned = [affordable.records(each, each.races.clocks.threads) for each in (few, many)]
    assert reckoned[1] <= 8 * reckoned[0]


@pytest.mark.parametrize(
    "words", ["fence.acq_rel.gpu;", "membar.gl;", "red.acquire.gpu", "cluster"]
)
def test_blocks_that_talk_are_reckoned_with(words):
    options = {}
    if words == "cluster":
        words, options = "", {"cluster": 2}
    if words.startswith("red"):
        words = "setp.eq.u32 %q0, %t, 99; @%q0 atom.acquire.gpu.global.add.u32 %r5, [%p0], 1;"
    made, seen = Machine(frame(OWN.format(words), 1), races=True), []
    address = made.memory.buffer(np.zeros(128, np.uint32)).address
    listener = Listener(started=seen.append)
    made.run(grid=2, block=64, args=[address], listener=listener, **options)
    assert affordable.talks(seen[0])
    assert not affordable.talks(records_of(OWN.format(""), 2))
