"""Contract under test: tallies add up, and a report says their sums, shares and reuse."""

from types import SimpleNamespace

import pytest

from numba_marlin import counts
from numba_marlin.counts import report, transactions
from numba_marlin.counts.instructions import tensor_bits
from numba_marlin.counts.phases import LAMBDA, phases
from numba_marlin.counts.report import PhaseCounts
from numba_marlin.counts.tally import GlobalTally, SharedTally, Tally
from numba_marlin.emulator import Machine
from tests.emulator.ptx_cases import frame


@pytest.mark.parametrize(
    "address, nbytes, touched, needed",
    [
        (0, 32, 1, 1),
        (0, 33, 2, 2),
        (16, 32, 2, 1),
        (31, 1, 1, 1),
        (31, 2, 2, 1),
        (96, 64, 2, 2),
    ],
)
def test_a_contiguous_copy_touches_the_sectors_that_it_lies_in(address, nbytes, touched, needed):
    assert transactions.span(address, nbytes) == (touched, needed)


def test_tallies_add_up_but_for_the_largest_number_of_registers():
    one = Tally(
        2,
        {"math": 2},
        GlobalTally(1, 128, 4, 4),
        GlobalTally(1, 4, 1, 1),
        SharedTally(1, 128, 3, 1),
        copied={"bulk": 16},
        atomics=1,
        local_bytes=8,
        flops=4096,
        registers=40,
    )
    two = Tally(3, {"math": 1, "move": 2}, GlobalTally(1, 64, 4, 2), registers=24)
    found = one + two
    assert (found.executed, found.classes) == (5, {"math": 3, "move": 2})
    assert found.reads == GlobalTally(2, 192, 8, 6) and found.writes == one.writes
    assert found.shared.conflicts == 2 and found.copied == {"bulk": 16}
    assert (found.atomics, found.local_bytes, found.flops, found.registers) == (1, 8, 4096, 40)
    assert found.reads.coalescing == 75 and found.reads.traffic == 256
    assert GlobalTally().coalescing is None


def test_reuse_is_requests_by_sector_and_blocks_by_sector():
    tally = Tally(reads=GlobalTally(1, 1, 12, 1), writes=GlobalTally(1, 1, 4, 1))
    found = PhaseCounts("p", tally, 8, 2, 4, 1)
    assert (found.asked, found.l1_reuse, found.l2_reuse) == (16, 2, 4)
    nothing = PhaseCounts("p", Tally(), 0, 0, 0, 0)
    assert nothing.l1_reuse is None and nothing.l2_reuse is None


def test_a_table_leaves_out_what_nobody_has():
    said = report.table(("name", "none", "n"), [("a", "", "1,000"), ("long", "", "2")])
    assert said.splitlines() == ["name      n", "-----------", "a     1,000", "long      2"]
    assert report.table(("name", "n"), [("", "1")]).splitlines()[0] == "name  n"


@pytest.mark.parametrize("value, said", [(None, "none"), (1.5, "1.50"), (2, "2.00")])
def test_reuse_has_two_digits(value, said):
    assert report.ratio(value) == said


def test_shares_are_in_per_cent_and_nothing_is_blank():
    tallies = GlobalTally(1, 1, 3, 2), GlobalTally(1, 1, 4, 4), GlobalTally()
    assert [report.percent(each) for each in tallies] == ["66.7%", "100%", ""]
    assert report.number(0) == "" and report.number(12_345) == "12,345"


def test_the_most_frequent_class_is_said_first_with_its_share():
    machine = Machine(frame("mov.u32 %r1, 1;\nmov.u32 %r2, 1;\nadd.u32 %r3, %r1, %r2;", 0))
    _, counted = counts.count(machine, "k", grid=1, block=32)
    said = str(counted)
    executed = counted.total.tally.executed
    shares = sorted(counted.total.tally.classes.items(), key=lambda item: -item[1])
    expected = ", ".join(f"{name} {100 * each / executed:.1f}%" for name, each in shares)
    assert f"instructions: {expected}" in " ".join(said.split())


def test_bits_of_a_factor_follow_from_the_kind_of_the_product():
    kinds = {
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale": 4,
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale": 4,
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale": 8,
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 16,
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {%r1}": 8,
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {%f1}": 8,
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": 8,
        "cvt.rn.satfinite.e4m3x2.f32": 16,
    }
    assert {text: tensor_bits(["mov.b32", text]) for text in kinds} == kinds
    assert tensor_bits([]) == 16


def test_a_lambda_belongs_to_who_calls_it():
    """Instructions of a verb at line 5, of a lambda that line 5 calls, and of one that nobody is
    seen to call."""
    strings = {"verb": "_ZN6kernel8multiplyE", "lambda": f"_ZN6kernel12{LAMBDA}E"}
    instructions = [
        SimpleNamespace(source=(1, 5), inlined=("verb", (1, 90))),
        SimpleNamespace(source=(1, 7), inlined=("lambda", (1, 5))),
        SimpleNamespace(source=(1, 8), inlined=("lambda", (1, 6))),
        SimpleNamespace(source=(1, 90), inlined=None),
    ]
    kernel = SimpleNamespace(
        name="marlin_tiled",
        instructions=instructions,
        source_of=lambda ins: f"numba_marlin/kernels/tiled.py:{ins.source[1]}",
    )
    found = phases(SimpleNamespace(strings=strings), kernel)
    assert found == ["multiply", "multiply", "lambda at tiled.py:8", "tiled"]
