"""Contract under test: where lanes meet at an address, atomics give what lanes that come one after
the other would, in the order of warps and lanes, bit for bit: what is found and what is left."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin.emulator.instructions import atomics
from numba_marlin.emulator.instructions.contention import Turns, in_turn
from numba_marlin.emulator.state.registers import DTYPES
from tests.emulator.ptx_cases import launch

INTEGERS = [
    (name, kind)
    for name in ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")
    for kind in ("u32", "s32", "u64", "b64")
]
FLOATS = [("add", kind) for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")]
SPECIAL = {  # zeros, subnormals, infinities, NaN with a payload, and what rounds
    2: [0, 0x8000, 1, 0x8003, 0x7C00, 0x7E01, 0x3C00, 0x3C01, 0x7BFF],
    4: [0, 0x80000000, 1, 0x80000003, 0x7F800000, 0x7FC00001, 0x3F800000, 0x34000000, 0x00800000],
    8: [0, 1 << 63, 1, 0x7FF << 52, (0x7FF << 52) + 7, 0x3FF << 52, 1 << 52, 0x3FE << 52, 3],
}


def functions(name, kind):
    """What the handler of atom.name.kind makes of them: (function, associative, cas)."""
    if kind == "f32":
        return lambda old, b: atomics.sum32(old, b, np.True_), False, False
    function = atomics.OPERATIONS[name]
    if kind in atomics.HALVES:
        function = atomics.half_function(SimpleNamespace(modifiers=()), kind, name)
    return function, kind not in atomics.FLOATS and function in atomics.ASSOCIATIVE, name == "cas"


def by_hand(place, found, operands, function):
    memory, old, after = {}, np.empty_like(found), np.empty_like(found)
    for lane, where in enumerate(place.tolist()):
        one = slice(lane, lane + 1)
        old[one] = memory.get(where, found[one])
        after[one] = function(old[one], *(value[one] for value in operands))
        memory[where] = after[one].copy()
    return old, after


@pytest.mark.parametrize("name, kind", INTEGERS + FLOATS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 5, 64, 300]), st.sampled_from([1, 2, 7, 200]))
def test_lanes_that_meet_come_one_after_the_other(name, kind, seed, lanes, places):
    rng, dtype = np.random.default_rng(seed), np.dtype(DTYPES[kind])
    function, associative, cas = functions(name, kind)
    counts = name if name in ("inc", "dec") else ""
    place = 16 * rng.integers(0, places, lanes)
    if seed % 3 == 0:
        place.sort()
    shape = (lanes, 2) if kind.endswith("x2") else (lanes,)
    words = np.array(SPECIAL[dtype.itemsize][: 9 if seed % 2 else 3], f"u{dtype.itemsize}")
    if kind in ("f32", "f64") and seed % 5:  # ordinary numbers, whose sums round
        values = rng.standard_normal((3, *shape)).astype(dtype)
    else:
        values = rng.choice(words, (3, *shape)).view(dtype)
    found, operands = values[0][place // 16 % lanes], list(values[1 : 2 + cas])
    if seed % 7 == 0:
        operands = [np.broadcast_to(value[:1], shape) for value in operands]
    turns = Turns(place)
    assert turns.distinct == (len(set(place.tolist())) == lanes)
    if turns.distinct:
        return

    def compute(*given):
        return np.asarray(function(*given)).astype(dtype)

    with np.errstate(all="ignore"):
        wanted = by_hand(place, found, operands, compute)
        given = in_turn(turns, found, operands, compute, associative, cas, counts)
    for each, other in zip(given, wanted):
        assert each.dtype == other.dtype and each.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", ["inc", "dec"])
@pytest.mark.parametrize("limit", [0, 1, 9, 2**32 - 1])
def test_counters_that_wrap_around(name, limit):
    place, function = np.tile([16, 32, 48], 40), atomics.OPERATIONS[name]
    limits = np.full(120, limit, np.uint32)
    for first in (0, 1, limit // 2, limit, min(limit + 2, 2**32 - 1), 2**32 - 1):
        found = np.array([0, first, limit], np.uint32)[place // 16 - 1]
        wanted = by_hand(place, found, [limits], function)
        given = in_turn(Turns(place), found, [limits], function, False, False, name)
        assert all((each == other).all() for each, other in zip(given, wanted))


def test_shared_words_of_two_blocks_are_not_one():
    out = np.zeros(4, np.uint32)
    body = """.shared .u32 n; setp.eq.u32 %q0, %t, 0; @%q0 st.shared.u32 [n], 0; bar.sync 0;
    atom.shared.add.u32 %r0, [n], 1; bar.sync 0; ld.shared.u32 %r1, [n]; mov.u32 %r2, %ctaid.x;
    mad.wide.u32 %rd0, %r2, 4, %p0; @%q0 st.global.u32 [%rd0], %r1;"""
    launch(body, {"out": out}, grid=4, block=48)
    assert out.tolist() == [48] * 4


def test_one_place_of_a_cluster_under_two_addresses_is_one():
    """Block 0 adds by its own address, block 1 by that of rank 0, in one step."""
    out = np.zeros(2, np.uint32)
    body = """.shared .u32 n; mov.u32 %r3, %cluster_ctarank; st.shared.u32 [n], 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r1, n; mapa.shared::cluster.u32 %r2, %r1, 0; setp.eq.u32 %q1, %r3, 0;
    selp.u32 %r2, %r1, %r2, %q1; atom.shared::cluster.add.u32 %r0, [%r2], 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.wide.u32 %rd0, %r3, 4, %p0; st.global.u32 [%rd0], %r0;"""
    launch(body, {"out": out}, grid=2, block=1, cluster=2)
    assert out.tolist() == [0, 1]


def test_generic_addresses_of_both_windows():
    out = np.zeros(2, np.uint32)
    body = """.shared .u32 n; setp.eq.u32 %q0, %t, 0; @%q0 st.shared.u32 [n], 0; bar.sync 0;
    mov.u64 %rd1, n; cvta.shared.u64 %rd1, %rd1; and.b32 %r0, %t, 1; setp.eq.u32 %q1, %r0, 0;
    selp.b64 %rd2, %rd1, %p0, %q1; atom.add.u32 %r3, [%rd2], 1; bar.sync 0;
    ld.shared.u32 %r1, [n]; @%q0 st.global.u32 [%p0+4], %r1;"""
    launch(body, {"out": out}, block=64)
    assert out.tolist() == [32, 32]
