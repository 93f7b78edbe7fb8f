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
