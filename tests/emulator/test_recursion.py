"""Contract under test: functions that call themselves, or each other in a circle, compute what they
should for lanes of different depths; each call has its own registers and local variables; a stack
that is full is an error with advice."""

import numpy as np
import pytest

from numba_marlin.emulator import LimitExceeded, Machine, UnknownInstruction
from tests.cli.verbs import run as run_verb
from tests.emulator.nvrtc import SOURCES, compiled
from tests.emulator.ptx_cases import frame, launch

LANES = np.arange(32)
SEEDS = pytest.mark.parametrize("seed", [None, 1])

FIBONACCI = """
.func (.param .b32 result) fib(.param .b32 n)
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
ld.param.u32 %r1, [n];
setp.lt.u32 %p1, %r1, 2;
@%p1 bra SMALL;
sub.u32 %r2, %r1, 1;
{
.param .b32 param0;
st.param.b32 [param0], %r2;
.param .b32 retval0;
call.uni (retval0), fib, (param0);
ld.param.b32 %r3, [retval0];
}
sub.u32 %r2, %r1, 2;
{
.param .b32 param0;
st.param.b32 [param0], %r2;
.param .b32 retval0;
call.uni (retval0), fib, (param0);
ld.param.b32 %r4, [retval0];
}
add.u32 %r5, %r3, %r4;
st.param.b32 [result], %r5;
ret;
SMALL:
st.param.b32 [result], %r1;
ret;
}
"""

# n! with the parameter and the result in registers
FACTORIAL = """
.func (.reg .b32 result) factorial(.reg .b32 n)
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
mov.b32 result, 1;
setp.eq.u32 %p1, n, 0;
@%p1 ret;
sub.u32 %r2, n, 1;
call (%r3), factorial, (%r2);
mul.lo.u32 result, %r3, n;
ret;
}
"""

# is n even? by way of odd, which asks even
CIRCLE = """
.func (.reg .b32 yes) odd(.reg .b32 n);
.func (.reg .b32 yes) even(.reg .b32 n)
{
.reg .pred %p; .reg .b32 %m;
mov.b32 yes, 1;
setp.eq.u32 %p, n, 0;
@%p ret;
sub.u32 %m, n, 1;
call (yes), odd, (%m);
ret;
}
.func (.reg .b32 yes) odd(.reg .b32 n)
{
.reg .pred %p; .reg .b32 %m;
mov.b32 yes, 0;
setp.eq.u32 %p, n, 0;
@%p ret;
sub.u32 %m, n, 1;
call (yes), even, (%m);
ret;
}
"""

# Sum of 0 ... n, each call adding its own local variable by the address it got from its caller.
POINTERS = """
.func total(.param .b32 n, .param .b64 place)
{
.local .align 8 .b32 own[2];
.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<9>;
ld.param.u32 %r1, [n];
ld.param.u64 %d1, [place];
st.local.u32 [own], 0;
setp.eq.u32 %p, %r1, 0;
@%p bra DONE;
sub.u32 %r2, %r1, 1;
mov.u64 %d2, own;
{
.param .b32 param0; .param .b64 param1;
st.param.b32 [param0], %r2;
st.param.b64 [param1], %d2;
call.uni total, (param0, param1);
}
DONE:
ld.local.u32 %r3, [own];
add.u32 %r3, %r3, %r1;
st.local.u32 [%d1], %r3;
ret;
}
"""


def run(body, before, **options):
    out = np.zeros(32, np.uint32)
    store = "mad.wide.u32 %rd1, %t, 4, %p0;\nst.global.u32 [%rd1], %r2;"
    launch(body + store, {"out": out}, before=before, **options)
    return out


def call(name, argument="%r1"):
    return f"""{{ .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], {argument};
    call.uni (retval0), {name}, (param0); ld.param.b32 %r2, [retval0]; }}\n"""


@SEEDS
def test_a_function_that_calls_itself_twice(seed):
    numbers = [0, 1]
    for _ in range(8):
        numbers.append(numbers[-1] + numbers[-2])
    found = run("rem.u32 %r1, %t, 9;\n" + call("fib"), FIBONACCI, seed=seed)
    assert (found == np.array(numbers)[LANES % 9]).all()


@SEEDS
def test_parameters_and_results_in_registers(seed):
    body = "and.b32 %r1, %t, 7;\ncall (%r2), factorial, (%r1);\n"
    products = np.cumprod([1, 1, 2, 3, 4, 5, 6, 7])
    assert (run(body, FACTORIAL, seed=seed) == products[LANES % 8]).all()


@SEEDS
def test_functions_that_call_each_other(seed):
    assert (run("call (%r2), even, (%t);\n", CIRCLE, seed=seed) == (LANES + 1) % 2).all()


def test_each_call_has_local_variables_of_its_own():
    body = """.local .b32 sum; mov.u64 %rd2, sum;
    { .param .b32 a; .param .b64 b; st.param.b32 [a], %t; st.param.b64 [b], %rd2;
    call.uni total, (a, b); } ld.local.u32 %r2, [sum];"""
    assert (run(body, POINTERS) == LANES * (LANES + 1) // 2).all()


def test_registers_of_the_caller_are_as_they_were():
    body = """mov.u32 %r9, %t; setp.lt.u32 %q3, %t, 9; mov.u64 %rd9, 0x100000005;
    rem.u32 %r1, %t, 9; """ + call("fib")
    body += "@%q3 add.u32 %r2, %r9, 1000; cvt.u32.u64 %r4, %rd9; add.u32 %r2, %r2, %r4;"
    fib = np.array([0, 1, 1, 2, 3, 5, 8, 13, 21])[LANES % 9]
    assert (run(body, FIBONACCI) == np.where(LANES < 9, LANES + 1000, fib) + 5).all()


@SEEDS
def test_some_lanes_call_and_all_meet_behind_it(seed):
    body = """mov.u32 %r2, 100; setp.lt.u32 %q1, %t, 5;
    @%q1 call (%r2), factorial, (%t);
    mov.u32 %r9, %r2; shfl.sync.bfly.b32 %r2, %r9, 1, 31, 0xffffffff;"""
    expected = np.array([1, 1, 2, 6, 24] + [100] * 27)
    assert (run(body, FACTORIAL, seed=seed) == expected[LANES ^ 1]).all()


def test_blocks_that_follow_have_a_fresh_stack():
    out = np.zeros(9, np.uint32)
    body = (
        call("fib", "5")
        + "mov.u32 %r7, %ctaid.x; mad.wide.u32 %rd1, %r7, 4, %p0; st.global.u32 [%rd1], %r2;"
    )
    launch(body, {"out": out}, before=FIBONACCI, grid=9, resident_blocks=2, block=48)
    assert (out == 5).all()


def test_a_full_stack_names_the_option():
    machine = Machine(frame(call("fib", "100000"), 0, FIBONACCI))
    with pytest.raises(LimitExceeded, match="fib calls itself.*8192.*stack_bytes.*loop") as caught:
        machine.run()
    assert caught.value.line and "fib" in caught.value.text and caught.value.lanes
    deep = "and.b32 %r1, %t, 1; mul.lo.u32 %r1, %r1, 700;\ncall (%r2), even, (%r1);\n"
    with pytest.raises(LimitExceeded, match="stack_bytes"):
        run(deep, CIRCLE)
    assert (run(deep, CIRCLE, stack_bytes=1 << 14) == 1).all()


def test_the_command_line_has_a_stack(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(frame("call (%r2), even, (700);", 0, CIRCLE))
    command = "machine", "run", tmp_path / "k.ptx"
    code, _, said = run_verb(capsys, *command)
    assert code != 0 and "--stack" in said
    assert run_verb(capsys, *command, "--stack", 1 << 14)[0] == 0
    code, _, said = run_verb(capsys, *command, "--stack", -1)
    assert code == 2 and "stack_bytes=-1" in said


def test_what_a_recursive_function_may_not_do():
    with pytest.raises(UnknownInstruction, match="exit in factorial.*return to the kernel"):
        launch("call (%r2), factorial, (%r1);", before=FACTORIAL.replace("@%p1 ret;", "@%p1 exit;"))
    with pytest.raises(UnknownInstruction, match="passed as it is declared"):
        launch(call("factorial"), before=FACTORIAL)


def test_a_function_by_its_address_that_may_be_itself():
    """What calls through a register may call itself."""
    apply = """
.func (.reg .b32 result) down(.reg .b32 n, .reg .b64 f)
{
.reg .pred %p; .reg .b32 %m;
mov.b32 result, 7;
setp.eq.u32 %p, n, 0;
@%p ret;
sub.u32 %m, n, 1;
P: .callprototype (.reg .b32 _) _ (.reg .b32 _, .reg .b64 _);
call (result), f, (%m, f), P;
add.u32 result, result, 10;
ret;
}
"""
    body = "and.b32 %r1, %t, 3; mov.u64 %rd3, down;\ncall (%r2), down, (%r1, %rd3);\n"
    assert (run(body, apply) == 7 + 10 * (LANES % 4)).all()


def test_a_function_called_from_the_kernel_and_from_a_frame():
    """Its local variable is the kernel's once, and each frame's: the frames begin behind it."""
    before = """
    .func (.reg .b32 r) keep(.reg .b32 a)
    { .local .b32 place; st.local.u32 [place], a; ld.local.u32 r, [place]; ret; }
    .func (.reg .b32 r) down(.reg .b32 n)
    { .reg .pred %p; .reg .b32 %m; .local .b32 mine; st.local.u32 [mine], n;
    mov.b32 r, 0; setp.eq.u32 %p, n, 0; @%p ret; sub.u32 %m, n, 1; call (r), down, (%m);
    call (%m), keep, (n); add.u32 r, r, %m; ld.local.u32 %m, [mine]; add.u32 r, r, %m; ret; }
    """
    body = "call (%r1), keep, (%t); call (%r2), down, (%r1); call (%r1), keep, (%r2);"
    assert (run(body + "mov.u32 %r2, %r1;", before) == LANES * (LANES + 1)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("-lineinfo",), ("-G",)], ids=" ".join)
def test_what_nvrtc_makes_of_them(options):
    """Debug builds too: they keep every variable in local memory."""
    source = (SOURCES / "recursion.cu").read_text(encoding="utf-8")
    machine = Machine(compiled(source, "--gpu-architecture=sm_80", *options))
    out = np.zeros(64, np.int32)
    address = machine.memory.buffer(out, "out").address

    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def ackermann(m, n):
        if m == 0:
            return n + 1
        return ackermann(m - 1, ackermann(m, n - 1) if n else 1)

    for seed in (None, 1):
        machine.run("recursive", args=[address], seed=seed)
        assert out[::2].tolist() == [fibonacci(t % 8) for t in range(32)]
        assert out[1::2].tolist() == [ackermann(t % 3, t % 4) for t in range(32)]
        machine.run("pointers", args=[address], seed=seed)
        assert (out[:32] == 15 * LANES).all()
        machine.run("chosen", args=[address, 1], seed=seed)
        functions = np.stack([LANES + 7, LANES * 7, LANES - 7])
        methods = np.where(LANES % 2, LANES + 5, LANES * 3)
        assert (out[:32] == functions[(LANES + 1) % 3, LANES] + 1000 * methods).all()
