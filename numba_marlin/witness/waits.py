"""Pieces of hand-written probes: barriers in shared memory, filling and dumping it, and waits that
give up.

Barriers are the first words of dynamic shared memory, data begins ``DATA`` bytes in. A wait tries a
bounded number of times; who gave up leaves 1 in %r63, which every probe stores beside its results,
so that nothing hangs on a GPU and a failure shows.
"""

from __future__ import annotations

DATA = 1024
TRIES = 10000


def barriers(put, *counts: int) -> str:
    """mbarrier i for counts[i] arrivals at %r(40 + i), made by thread 0; %q0: not thread 0. All
    threads of the block meet behind it."""
    text = (
        "mov.u32 %r63, 0; setp.ne.u32 %q0, %t, 0;\n"
        + "".join(f"add.u32 %r{40 + i}, %s, {8 * i};\n" for i in range(len(counts)))
        + "@%q0 bra READY;\n"
    )
    return (
        text
        + "".join(put("mbarrier_init", f"%r{40 + i}", str(count)) for i, count in enumerate(counts))
        + put("fence_mbarrier_init")
        + "READY: bar.sync 0;\n"
    )


def wait(put, label: str, barrier: str, parity: str, name: str = "mbarrier_try_wait_parity") -> str:
    return f"""mov.u32 %r62, 0;
{label}: {put(name, "%r61", barrier, parity)} setp.ne.u32 %q14, %r61, 0; @%q14 bra {label}_DONE;
add.u32 %r62, %r62, 1; setp.lt.u32 %q15, %r62, {TRIES}; @%q15 bra {label}; mov.u32 %r63, 1;
{label}_DONE:
"""


def fill(nbytes: int, parameter: int, block: int) -> str:
    """Every block copies its ``nbytes`` of a buffer to its data, the ordinary way."""
    return _walk(
        "FILL",
        nbytes,
        parameter,
        block,
        "ld.global.v4.b32 {%r57, %r58, %r59, %r60}, [%rd61]; st.shared.v4.b32 [%r55], {%r57, %r58,"
        " %r59, %r60};",
    )


def dump(nbytes: int, parameter: int, block: int) -> str:
    """Every block copies its data to its ``nbytes`` of a buffer."""
    return _walk(
        "DUMP",
        nbytes,
        parameter,
        block,
        "ld.shared.v4.b32 {%r57, %r58, %r59, %r60}, [%r55]; st.global.v4.b32 [%rd61], {%r57, %r58,"
        " %r59, %r60};",
    )


def _walk(label, nbytes, parameter, block, move):
    if nbytes % (16 * block):
        raise ValueError(f"nbytes={nbytes} must be a multiple of {16 * block}, 16 a thread")
    return f"""mad.wide.u32 %rd60, %c, {nbytes}, %p{parameter}; mov.u32 %r56, %t;
{label}: mad.wide.u32 %rd61, %r56, 16, %rd60; mad.lo.u32 %r55, %r56, 16, %s; \
add.u32 %r55, %r55, {DATA}; {move}
add.u32 %r56, %r56, {block}; setp.lt.u32 %q13, %r56, {nbytes // 16}; @%q13 bra {label};
"""


def status(parameter: int) -> str:
    """Every thread stores whether it gave up."""
    return f"mad.wide.u32 %rd62, %g, 4, %p{parameter}; st.global.b32 [%rd62], %r63;\n"
