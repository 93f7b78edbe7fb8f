"""Contract under test: vprintf prints what C's printf would, lane by lane; where its text goes."""

import numpy as np
import pytest

from numba_marlin.emulator import Listener, Machine
from numba_marlin.emulator.instructions.system_calls import formatted

TEXT = """
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) vprintf(.param .b64 form, .param .b64 arguments);
.global .align 1 .b8 form[20] = {
105, 61, 37, 100, 32, 120, 61, 37, 46, 49, 102, 32, 37, 115, 10, 0};
.global .align 1 .b8 word[4] = {97, 98, 99, 0};
.visible .entry k(.param .u64 out)
{
.local .align 8 .b8 frame[24];
.reg .pred %p<2>;
.reg .b32 %r<6>;
.reg .b64 %rd<10>;
.reg .f64 %fd<2>;
mov.u32 %r1, %tid.x;
setp.gt.u32 %p1, %r1, 1;
@%p1 bra END;
mov.u64 %rd1, frame;
cvta.local.u64 %rd2, %rd1;
sub.u32 %r2, 0, %r1;
st.u32 [%rd2], %r2;
cvt.rn.f64.u32 %fd1, %r1;
st.f64 [%rd2+8], %fd1;
mov.u64 %rd3, word;
cvta.global.u64 %rd4, %rd3;
st.u64 [%rd2+16], %rd4;
mov.u64 %rd5, form;
cvta.global.u64 %rd6, %rd5;
{
.param .b64 param0;
st.param.b64 [param0], %rd6;
.param .b64 param1;
st.param.b64 [param1], %rd2;
.param .b32 retval0;
call.uni (retval0), vprintf, (param0, param1);
ld.param.b32 %r3, [retval0];
}
ld.param.u64 %rd7, [out];
mad.wide.u32 %rd8, %r1, 4, %rd7;
st.global.u32 [%rd8], %r3;
END:
ret;
}
"""


def test_vprintf_prints_for_each_lane_that_calls_it(capsys):
    machine, said, counts = Machine(TEXT, races=True), [], np.zeros(2, np.int32)
    out = machine.memory.buffer(counts, "counts")
    machine.run("k", args=[out.address], listener=Listener(printed=said.append))
    assert "".join(said) == "i=0 x=0.0 abc\ni=-1 x=1.0 abc\n" and counts.tolist() == [3, 3]
    machine.run("k", args=[out.address])
    assert capsys.readouterr().out == "".join(said)


class Given:
    """Arguments as a lane's memory has them."""

    def __init__(self, *values):
        self.values = list(values)

    def next(self, size):
        return self.values.pop(0)

    def string(self, address):
        return address


HALF = int(np.float64(0.5).view(np.uint64))


@pytest.mark.parametrize(
    "form, given, text",
    (
        ("%d%%", (0xFFFFFFFF,), "-1%"),
        ("%u", (0xFFFFFFFF,), "4294967295"),
        ("%lld", ((1 << 64) - 2,), "-2"),
        ("%llu|%5.2f", (1 << 63, HALF), f"{1 << 63}| 0.50"),
        ("%x %#X %o", (255, 255, 8), "ff 0XFF 10"),
        ("%c%s", (65, "bc"), "Abc"),
        ("%*d", (4, 7), "   7"),
        ("%-4d|%+d|%04d", (7, 7, 7), "7   |+7|0007"),
        ("%e %g", (HALF, HALF), "5.000000e-01 0.5"),
        ("%p", (255,), "0xff"),
    ),
)
def test_conversions_are_those_of_c(form, given, text):
    assert formatted(form, Given(*given))[0] == text
