"""Contract under test: vprintf, malloc and free as kernels call them."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine, MachineError, OutOfBounds, UnknownInstruction
from numba_marlin.emulator.instructions import runtime
from tests.emulator.nvrtc import ptx_of
from tests.emulator.ptx_cases import frame

DECLARED = """.extern .func (.param .b32 n) vprintf (.param .b64 t, .param .b64 v);
.extern .func (.param .b64 p) malloc (.param .b64 n);
.extern .func free (.param .b64 p);
.extern .func (.param .b64 p) cudaMallocManaged (.param .b64 n);
"""


def text(template: bytes, name: str = "said") -> str:
    values = ", ".join(map(str, template + b"\0"))
    return f".global .align 1 .b8 {name}[{len(template) + 1}] = {{{values}}};\n"


def call(name: str, result: str, *arguments: str) -> str:
    given = "".join(
        f".param .b64 a{i}; st.param.b64 [a{i}], {value};\n" for i, value in enumerate(arguments)
    )
    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    if not result:
        return f"{{ {given} call.uni {name}, ({names}); }}\n"
    kind = "b32" if name == "vprintf" else "b64"
    return f"""{{ {given} .param .{kind} out; call.uni (out), {name}, ({names});
    ld.param.{kind} {result}, [out]; }}
    """


def printed(template: bytes, stores: str, **options) -> str:
    body = f""".local .align 8 .b8 values[64]; {stores}
    mov.b64 %rd0, said; cvta.global.u64 %rd0, %rd0; mov.b64 %rd1, values;
    cvta.local.u64 %rd1, %rd1; {call("vprintf", "%r0", "%rd0", "%rd1")}"""
    machine = Machine(frame(body, 0, DECLARED + text(template)))
    return machine.run("k", **{"block": 1, **options}).printed


def test_what_is_printed():
    template = b"%d|%5u|%-6x|%lld|%.3f|%e|%c|%%|%s|%p|%+05d|%llx\n"
    stores = f"""{
        "".join(
            f"st.local.b32 [values+{at}], {value};" for at, value in [(0, -5), (4, 7), (8, 0xBEEF)]
        )
    }
    st.local.b64 [values+16], -1234567890123; st.local.f64 [values+24], 0d400921FB54442D18;
    st.local.f64 [values+32], 0d3FF8000000000000; st.local.b32 [values+40], 65;
    mov.b64 %rd3, word; cvta.global.u64 %rd3, %rd3; st.local.b64 [values+48], %rd3;
    """
    body = f""".local .align 8 .b8 values[96]; {stores}
    st.local.b64 [values+56], 4660; st.local.b32 [values+64], 42; st.local.b64 [values+72], -1;
    mov.b64 %rd0, said; cvta.global.u64 %rd0, %rd0; mov.b64 %rd1, values;
    cvta.local.u64 %rd1, %rd1; {call("vprintf", "%r0", "%rd0", "%rd1")}
    st.global.u32 [%p0], %r0;"""
    machine = Machine(frame(body, 1, DECLARED + text(template) + text(b"deep", "word")))
    count = np.zeros(1, np.uint32)
    result = machine.run("k", block=1, args=[machine.memory.buffer(count).address])
    assert result.printed == (
        "-5|    7|beef  |-1234567890123|3.142|1.500000e+00|A|%|deep|0x1234|+0042|" + "f" * 16 + "\n"
    )
    assert count[0] == 11


def test_lanes_print_one_after_the_other():
    said = printed(b"%d ", "st.local.b32 [values], %t;", block=32)
    assert said == "".join(f"{i} " for i in range(32))


def test_a_string_without_an_end_is_out_of_bounds():
    with pytest.raises(OutOfBounds):
        printed(b"%s", "st.local.b64 [values], 8;")


HEAP = f"""{call("malloc", "%rd0", "256")} cvta.to.global.u64 %rd1, %rd0;
mov.u32 %r0, 0; L: mad.wide.u32 %rd2, %r0, 4, %rd1; add.u32 %r1, %r0, %t;
st.global.u32 [%rd2], %r1; add.u32 %r0, %r0, 1; setp.lt.u32 %q0, %r0, 64; @%q0 bra L;
ld.u32 %r2, [%rd0+252]; mad.wide.u32 %rd3, %t, 4, %p0; st.global.u32 [%rd3], %r2;
"""


def run(body: str, out: np.ndarray, **options):
    machine = Machine(frame(body, 1, DECLARED))
    buffer = machine.memory.buffer(out)
    try:
        return machine.run("k", args=[buffer.address], **options)
    finally:
        assert set(machine.memory.buffers) == {buffer, *machine.heap.values()}


def test_each_lane_has_memory_of_its_own():
    for after in ("", call("free", "", "%rd0")):
        out = np.zeros(32, np.uint32)
        run(HEAP + after, out)
        assert out.tolist() == list(range(63, 95))


@pytest.mark.parametrize(
    "after, kind, said",
    [
        ("ld.u32 %r2, [%rd0+256];", OutOfBounds, "malloc"),
        (call("free", "", "%rd0") + "ld.u32 %r2, [%rd0];", OutOfBounds, "no buffer"),
        (2 * call("free", "", "%rd0"), MachineError, "or twice"),
        (call("free", "", "%p0"), MachineError, "malloc did not give"),
    ],
)
def test_misuse_of_the_heap(after, kind, said):
    with pytest.raises(kind, match=said):
        run(HEAP + after, np.zeros(32, np.uint32), block=1)


def test_a_full_heap_gives_null_and_null_may_be_freed():
    out = np.ones(32, np.uint32)
    large = runtime.HEAP_BYTES // 2 + 1
    body = call("malloc", "%rd0", str(large)) + call("malloc", "%rd1", str(large))
    body += call("free", "", "%rd1") + call("free", "", "%rd0") + call("malloc", "%rd2", str(large))
    body += "setp.eq.u64 %q0, %rd1, 0; setp.eq.u64 %q1, %rd2, 0; selp.u32 %r0, 1, 0, %q0;"
    body += "selp.u32 %r1, 2, 0, %q1; add.u32 %r0, %r0, %r1; st.global.u32 [%p0], %r0;"
    run(body, out, block=1)
    assert out[0] == 1


def test_what_one_kernel_allocates_the_next_may_use_and_free():
    """As on a device, where memory of malloc lives as long as the context."""
    keep = f"""{call("malloc", "%rd0", "256")} mov.u32 %r0, 7; st.u32 [%rd0+252], %r0;
    st.global.u64 [%p0], %rd0; ret;"""
    use = f"""ld.global.u64 %rd0, [%p0]; ld.u32 %r0, [%rd0+252]; st.global.u32 [%p0+8], %r0;
    {call("free", "", "%rd0")} ret;"""
    one, other = frame(keep, 1, DECLARED), frame(use, 1, "")
    other = other[other.index(".visible .entry") :].replace("entry k", "entry other", 1)
    machine, words = Machine(one + other), np.zeros(2, np.uint64)
    args = [machine.memory.buffer(words).address]
    machine.run("k", block=1, args=args)
    machine.run("other", block=1, args=args)
    assert words.tolist()[1] == 7 and not machine.heap
    with pytest.raises(OutOfBounds):
        machine.run("other", block=1, args=args)


def test_other_functions_are_refused_by_name():
    with pytest.raises(UnknownInstruction, match="cudaMallocManaged.*vprintf, malloc, free"):
        Machine(frame(call("cudaMallocManaged", "%rd0", "8"), 0, DECLARED))


def test_cuda_that_prints_and_allocates():
    """foreign/runtime.cu, by NVRTC."""
    machine, out = Machine(ptx_of("runtime")), np.zeros(3, np.int32)
    result = machine.run(args=[machine.memory.buffer(out).address], block=3)
    assert out.tolist() == [0, 6, 12]
    assert result.printed == "".join(
        f"thread {t}: {'big' if 3 * t > 3 else 'small'} {3 * t / 4:5.2f} {2 * t << 40}\n"
        for t in range(3)
    )
