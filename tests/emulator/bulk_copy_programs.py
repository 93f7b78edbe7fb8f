"""Pieces of programs that copy in bulk, for tests."""

from tests.emulator.ptx_cases import snippet

SHARED = ".shared .align 128 .b8 s[1024]; mov.u32 %r50, s;\n"


ONE = "setp.ne.u32 %q1, %t, 0; @%q1 bra END;\n"


def g2s(target="%r50", source="%p0", nbytes="512", barrier="%r40"):
    return snippet("cp_async_bulk_g2s", target, source, nbytes, barrier)


def s2g(target="%p0", source="%r50", nbytes="512"):
    return snippet("cp_async_bulk_s2g", target, source, nbytes)


def fill(value="%t"):
    """Every lane of one warp writes 16 bytes, 512 in all."""
    return (
        f"mad.lo.u32 %r51, %t, 16, %r50; st.shared.v4.u32 [%r51], {{{value}, {value}, {value},"
        f" {value}}};\n"
    )


EXPECT = snippet("mbarrier_arrive_expect_tx", "%r40", "512")


LOAD = (
    "mad.lo.u32 %r51, %t, 16, %r50; ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r51]; mad.wide.u32"
    " %rd9, %t, 16, %p1;\n"
)


KEEP = "st.global.v4.u32 [%rd9], {%r1, %r2, %r3, %r4};\n"


ELECTED = snippet("elect_sync", "%r20") + "setp.eq.u32 %q2, %r20, 0; @%q2 bra ISSUED;\n"
