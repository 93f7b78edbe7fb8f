"""Contract under test: what is linked with a kernel becomes one PTX text with it."""

import numpy as np
import pytest

from numba_marlin.emulator import Machine
from numba_marlin.on_cpu.linking import GRID, HEAP, joined

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"
CALLER = (
    HEADER
    + """
.extern .func (.param .b32 result) f
(
.param .b32 x
)
;
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<3>;
.reg .b64 %rd<2>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, 20;
{
.param .b32 param0;
st.param.b32 [param0], %r1;
.param .b32 retval0;
call.uni (retval0), f, (param0);
ld.param.b32 %r2, [retval0];
}
st.global.u32 [%rd1], %r2;
ret;
}
"""
)
FUNCTION = (
    HEADER
    + """
.visible .func (.param .b32 result) f(.param .b32 x)
{
.reg .b32 %r<2>;
ld.param.b32 %r1, [x];
add.u32 %r1, %r1, 1;
st.param.b32 [result], %r1;
ret;
}
"""
)


def test_texts_are_joined_to_one():
    text = joined([CALLER, FUNCTION])
    assert text.count(".version") == 1 and ".extern" not in text
    machine, out = Machine(text), np.zeros(1, np.uint32)
    machine.run("k", block=1, args=[machine.memory.buffer(out).address])
    assert out[0] == 21
    assert joined([CALLER]) == CALLER  # nothing to join: as it was


def test_lines_stay_those_of_their_own_files():
    caller = CALLER.replace(".visible", '.file 1 "caller.py"\n.visible').replace(
        "mov.u32 %r1, 20;", ".loc 1 7 0\nmov.u32 %r1, 20;"
    )
    function = FUNCTION.replace(".visible", '.file 1 "f.cu"\n.visible').replace(
        "add.u32", ".loc 1 9 0\nadd.u32"
    )
    (kernel,) = Machine(joined([caller, function])).module.kernels.values()
    sources = {ins.opcode: kernel.source_of(ins) for ins in kernel.instructions}
    assert (sources["mov.u32"], sources["add.u32"]) == ("caller.py:7", "f.cu:9")


def test_the_runtime_comes_only_where_it_is_wanted():
    assert GRID not in joined([CALLER]) and HEAP not in joined([CALLER])
    wants = CALLER.replace(" f\n", " malloc\n").replace("f, (", "malloc, (")
    assert HEAP in joined([wants]) and ".extern" not in joined([wants])


@pytest.mark.thorough
def test_cuda_c_is_compiled_and_called(gpu):
    source = """
    extern "C" __device__ int thrice(int *result, int x) { *result = 3 * x; return 0; }
    """
    thrice = gpu.declare_device("thrice", "int32(int32)", link=gpu.CUSource(source))

    @gpu.jit
    def calls(x):
        i = gpu.grid(1)
        x[i] = thrice(x[i])

    x = np.arange(8, dtype=np.int32)
    calls[1, 8](x)
    assert (x == 3 * np.arange(8)).all()


@pytest.mark.thorough
def test_cuda_c_that_is_wrong_says_where(gpu):
    wrong = gpu.declare_device("f", "int32(int32)", link=gpu.CUSource("not C", name="wrong.cu"))

    @gpu.jit
    def calls(x):
        x[0] = wrong(x[0])

    with pytest.raises(Exception, match=r"wrong.cu\(1\): error"):
        calls[1, 1](np.zeros(1, np.int32))
