"""Running a program under many schedules and looking for races, for tests."""

import pytest

from numba_marlin.emulator import Machine, Race, Schedule
from numba_marlin.emulator.ordering.race_report import MISSING
from tests.emulator.ptx_cases import frame

SCHEDULES = (
    None,
    Schedule(1),
    Schedule(2, "slowest warp", "late"),
    Schedule(3, "one block ahead", "early"),
    Schedule(4, "reverse"),
)


def run(body, arrays=None, seed=None, before="", **options):
    arrays = arrays or {}
    machine = Machine(frame(body, len(arrays), before), races=True)
    args = [machine.memory.buffer(array, name).address for name, array in arrays.items()]
    return machine.run("k", args=args, seed=seed, **options)


def race(body, kind, arrays=None, schedules=SCHEDULES, **options) -> Race:
    """The Race that ``body`` must raise under all schedules; it must be of ``kind``."""
    assert kind in MISSING
    for seed in schedules:
        with pytest.raises(Race) as caught:
            run(
                body,
                {name: array.copy() for name, array in (arrays or {}).items()},
                seed,
                **options,
            )
        assert caught.value.kind == kind, f"{seed}: {caught.value}"
    return caught.value


def fine(body, arrays=None, **options):
    for seed in SCHEDULES:
        run(body, {name: array.copy() for name, array in (arrays or {}).items()}, seed, **options)


# Takes a while, and orders nothing.
HURRY = "mov.u32 %r9, 0; WAIT: add.u32 %r9, %r9, 1; setp.lt.u32 %q9, %r9, 100; @%q9 bra WAIT;"

# Thread t of two warps writes word t of shared memory, reads word 63 - t, and writes that.
EXCHANGE = """.shared .align 16 .b8 s[256]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 4, %r1;
st.shared.u32 [%r1], %t; bar.sync 0;
mov.u32 %r2, s; mad.lo.u32 %r3, %t, -4, %r2; ld.shared.u32 %r4, [%r3+252]; {}
st.shared.u32 [%r1], %r4;
mad.wide.u32 %rd1, %t, 4, %p0; st.global.u32 [%rd1], %r4;"""
RACING, ORDERED = EXCHANGE.format(""), EXCHANGE.format("bar.sync 0;")
