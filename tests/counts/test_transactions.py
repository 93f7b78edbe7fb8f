"""Contract under test: wavefronts, conflicts and sectors are those of the rules, for hand-made
patterns, for any pattern, and as the machine sees them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_marlin import counts
from numba_marlin.counts import transactions
from numba_marlin.counts.observer import by_space
from numba_marlin.emulator import Machine
from numba_marlin.emulator.state import memory
from numba_marlin.layout.tensor_map import swizzled
from tests.emulator.ptx_cases import frame

LANE = np.arange(32)
# of an ldmatrix.x4: matrix 0 is the first 16 bytes of eight rows, matrix 1 the next
ROW, CHUNK = LANE % 8, LANE // 8
ALL = np.ones((1, 32), bool)
SHARED_BYTES = 16384

# name: (addresses, bytes a lane, wavefronts, conflicts)
PATTERNS = {
    "consecutive words": (4 * LANE, 4, 1, 0),
    "every second word": (8 * LANE, 4, 2, 1),
    "every third word": (12 * LANE, 4, 1, 0),
    "every fourth word": (16 * LANE, 4, 4, 3),
    "a column of 32 words": (128 * LANE, 4, 32, 31),
    "a column of 32 words, padded by one": (132 * LANE, 4, 1, 0),
    "one word for all": (0 * LANE, 4, 1, 0),
    "two words of one bank": (128 * (LANE % 2), 4, 2, 1),
    "backwards": (4 * (31 - LANE), 4, 1, 0),
    "bytes": (LANE, 1, 1, 0),
    "bytes of one word": (LANE % 4, 1, 1, 0),
    "halves": (2 * LANE, 2, 1, 0),
    "halves in a column": (128 * LANE, 2, 32, 31),
    "consecutive pairs": (8 * LANE, 8, 2, 0),
    "every second pair": (16 * LANE, 8, 4, 2),
    "one pair for all": (0 * LANE, 8, 2, 0),
    "a column of pairs": (256 * (LANE % 16), 8, 32, 30),
    "halves of the warp in different pairs of the same banks": (
        8 * (LANE % 16) + 128 * (LANE // 16),
        8,
        2,
        0,
    ),
    "consecutive vectors": (16 * LANE, 16, 4, 0),
    "every second vector": (32 * LANE, 16, 8, 4),
    "one vector for all": (0 * LANE, 16, 4, 0),
    "a column of vectors": (128 * LANE, 16, 32, 28),
    "a column of vectors, padded by one": (144 * LANE, 16, 4, 0),
    "rows of 128 bytes": (128 * ROW + 16 * CHUNK, 16, 32, 28),
    "rows of 128 bytes, swizzled": (swizzled(128 * ROW + 16 * CHUNK, 128), 16, 4, 0),
    "rows of 128 bytes, swizzled too little": (swizzled(128 * ROW + 16 * CHUNK, 32), 16, 16, 12),
    "rows of 64 bytes": (64 * ROW + 16 * CHUNK, 16, 16, 12),
    "rows of 64 bytes, swizzled": (swizzled(64 * ROW + 16 * CHUNK, 64), 16, 4, 0),
    "rows of 32 bytes": (32 * ROW + 16 * (CHUNK % 2) + 256 * (CHUNK // 2), 16, 8, 4),
    "rows of 32 bytes, swizzled": (
        swizzled(32 * ROW + 16 * (CHUNK % 2) + 256 * (CHUNK // 2), 32),
        16,
        4,
        0,
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_conflicts_of_known_patterns(name):
    address, nbytes, expected, conflicts = PATTERNS[name]
    wavefronts, ideal = transactions.wavefronts(address[None].astype(np.int64), ALL, nbytes)
    assert (wavefronts[0], wavefronts[0] - ideal[0]) == (expected, conflicts)


def test_lanes_that_are_elsewhere_take_no_wavefront():
    address, half = np.array([128 * LANE]), np.array([LANE < 3])
    assert [int(x[0]) for x in transactions.wavefronts(address, half, 4)] == [3, 1]
    # one quarter of the warp only
    assert [int(x[0]) for x in transactions.wavefronts(address, half, 16)] == [3, 1]
    assert [int(x[0]) for x in transactions.wavefronts(address, ~ALL, 4)] == [0, 0]


def test_atomics_take_turns_at_one_word():
    one, many = np.zeros((1, 32), np.int64), np.array([4 * LANE])
    assert transactions.wavefronts(one, ALL, 4, serial=True)[0] == 32
    assert transactions.wavefronts(many, ALL, 4, serial=True)[0] == 1


def by_hand(address, active, nbytes):
    """The rule, one lane after the other."""
    together = 32 if nbytes <= 4 else 128 // nbytes
    waves = ideal = 0
    for first in range(0, 32, together):
        banks = {}
        for lane in range(first, first + together):
            for word in range(max(nbytes // 4, 1)) if active[lane] else ():
                number = address[lane] // 4 + word
                banks.setdefault(number % 32, set()).add(number)
        waves += max(map(len, banks.values()), default=0)
        ideal += bool(banks)
    return waves, ideal


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([4, 64, 1024])
)
def test_any_pattern_is_counted_as_by_hand(seed, nbytes, spread):
    random = np.random.default_rng(seed)
    address = nbytes * random.integers(0, spread, (3, 32))
    active = random.random((3, 32)) < random.random()
    counted = transactions.wavefronts(address, active, nbytes)
    assert [tuple(int(x[i]) for x in counted) for i in range(3)] == [
        by_hand(address[i], active[i], nbytes) for i in range(3)
    ]
    asked, needed, used = transactions.sectors(address, active, nbytes)
    for i in range(3):
        wanted = {byte for a in address[i][active[i]] for byte in range(a, a + nbytes)}
        assert (asked[i], used[i]) == (
            len({byte // 32 for byte in wanted}),
            len(wanted),
        ) and needed[i] == -(-len(wanted) // 32)


@pytest.mark.parametrize(
    "address, nbytes, asked, needed",
    [
        (4 * LANE, 4, 4, 4),
        (4 * LANE + 4, 4, 5, 4),
        (8 * LANE, 4, 8, 4),
        (128 * LANE, 4, 32, 4),
        (0 * LANE, 4, 1, 1),
        (16 * LANE, 16, 16, 16),
        (32 * LANE, 16, 32, 16),
        (2 * LANE, 2, 2, 2),
    ],
)
def test_sectors_of_known_patterns(address, nbytes, asked, needed):
    assert [int(x[0]) for x in transactions.sectors(address[None], ALL, nbytes)[:2]] == [
        asked,
        needed,
    ]


SUFFIX = {1: "b8", 2: "b16", 4: "b32", 8: "b64", 16: "v2.b64"}


def on_machine(operation, address, nbytes, block=32):
    """``operation`` at %rd2 (shared) for every lane, the address from a table."""
    body = f"""
.shared .align 128 .b8 tile[{SHARED_BYTES}];
mad.wide.u32 %rd1, %t, 8, %p0;
ld.global.u64 %rd1, [%rd1];
mov.u64 %rd2, tile;
add.u64 %rd2, %rd2, %rd1;
mov.u32 %r1, 0;
mov.b64 %rd3, 0;
mov.b64 %rd4, 0;
{operation}
"""
    machine = Machine(frame(body, 1))
    table = machine.memory.buffer(np.resize(address, block).astype(np.uint64), "table")
    _, counted = counts.count(machine, "k", block=block, args=[table.address])
    return (
        next(
            row.tally
            for row in counted.instructions
            if row.text == operation.strip().splitlines()[-1].strip()
        ),
        counted,
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_the_machine_counts_loads_and_stores(name):
    address, nbytes, expected, conflicts = PATTERNS[name]
    value = {1: "%h1", 2: "%h1", 4: "%r1", 8: "%rd3", 16: "{%rd3, %rd4}"}[nbytes]
    setup = "mov.b16 %h1, 0;\n" if nbytes < 4 else ""
    stored = f"{setup}st.shared.{SUFFIX[nbytes]} [%rd2], {value};"
    for operation in (stored, f"{stored}\nld.shared.{SUFFIX[nbytes]} {value}, [%rd2];"):
        tally, _ = on_machine(operation, address, nbytes, block=64)
        assert (
            tally.shared.wavefronts,
            tally.shared.conflicts,
            tally.shared.requests,
            tally.shared.bytes,
        ) == (2 * expected, 2 * conflicts, 2, 64 * nbytes)


@pytest.mark.parametrize("name", [name for name in PATTERNS if name.startswith("rows of")])
def test_matrices_are_eight_rows_to_a_wavefront(name):
    address, nbytes, expected, conflicts = PATTERNS[name]
    stored = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%rd2], {%r1, %r1, %r1, %r1};"
    for operation in (
        stored,
        f"{stored}\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r1, %r2, %r3, %r4}}, [%rd2];",
    ):
        tally, _ = on_machine(operation, address, nbytes)
        assert (tally.shared.wavefronts, tally.shared.conflicts) == (expected, conflicts)


def test_atomics_count_once_whether_lanes_meet_or_not():
    for address, waves in ((4 * LANE, 1), (0 * LANE, 32), (4 * (LANE // 4), 4)):
        for spelling in ("shared.", ""):
            zero = "st.shared.b32 [%rd2], %r1;\n" + (
                "" if spelling else "cvta.shared.u64 %rd2, %rd2;\n"
            )
            tally, _ = on_machine(f"{zero}red.{spelling}add.u32 [%rd2], 1;", address, 4)
            assert (tally.atomics, tally.shared.requests, tally.shared.wavefronts) == (32, 1, waves)


def test_buffers_directions_and_reuse():
    """Two blocks of two warps read the same 256 bytes twice, and write every second word of another
    buffer."""
    machine = Machine(
        frame(
            """
mad.wide.u32 %rd1, %t, 4, %p0;
ld.global.u32 %r1, [%rd1];
ld.global.u32 %r2, [%rd1];
mov.u32 %r3, %ctaid.x;
mad.lo.u32 %r3, %r3, 64, %t;
mad.wide.u32 %rd1, %r3, 8, %p1;
st.global.u32 [%rd1], %r1;
""",
            2,
        )
    )
    source, target = (
        machine.memory.buffer(np.zeros(64, np.uint32), "source"),
        machine.memory.buffer(np.zeros(256, np.uint32), "target"),
    )
    result, counted = counts.count(
        machine, "k", grid=2, block=64, args=[source.address, target.address]
    )
    read, written = counted.buffer("source"), counted.buffer("target")
    assert (
        read.reads.requests,
        read.reads.bytes,
        read.reads.sectors,
        read.reads.coalescing,
        read.read_distinct,
    ) == (8, 1024, 32, 100, 256)
    assert (
        written.writes.bytes,
        written.writes.sectors,
        written.writes.coalescing,
        written.written_distinct,
    ) == (512, 32, 50, 1024)
    total = counted.total
    assert (total.block_sectors, total.sectors, total.block_lines, total.lines) == (
        16 + 32,
        8 + 32,
        4 + 8,
        2 + 8,
    )
    assert total.l1_reuse == 64 / 48 and total.l2_reuse == 48 / 40
    assert (
        total.tally.executed == result.instructions
        and sum(total.tally.classes.values()) == result.instructions
    )


def test_who_is_not_asked_pays_nothing(monkeypatch):
    machine = Machine(frame("st.global.u32 [%p0], %t;\nred.global.add.u32 [%p0], 1;", 1))
    address = machine.memory.buffer(np.zeros(1, np.uint32), "x").address
    counts.count(machine, "k", args=[address])
    monkeypatch.setattr(memory, "Access", None)  # whoever makes one now fails
    machine.run("k", args=[address])
    with pytest.raises(TypeError):
        counts.count(machine, "k", args=[address])


def test_the_first_byte_of_a_window_is_in_its_space():
    address = np.array([[at + d for at in memory.WINDOWS.values() for d in (-1, 0)]])
    active = np.array([[True, True, True, True]])
    found = {name: lanes.tolist() for name, lanes in by_space("generic", address, active)}
    assert found == {
        "global": [[True, False, False, False]],
        "shared": [[False, True, True, False]],
        "local": [[False, False, False, True]],
    }
