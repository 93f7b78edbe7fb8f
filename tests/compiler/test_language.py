"""Contract under test: the kernel language is the same for both compilers. Unsigned numbers
calculate as in C, in their own width and no other; records and namespaces cost nothing."""

import operator
import re

import numpy as np
import pytest

from numba_marlin.compiler.builder import COMPILERS, backend
from numba_marlin.hardware.targets import target_named
from numba_marlin.testing.launches import machine_of

THREADS = 32
PARAMETERS = (("out", "u64"), ("words", "u64"), ("count", "i32"))
WIDE = re.compile(r"\.(?:[us]64|b64|f64)\b")
INTERESTING = (0, 1, 2, 3, 7, 8, 31, 100, 2**31 - 1, 2**31, 2**32 - 9, 2**32 - 1)


@pytest.fixture(params=COMPILERS)
def compiler(request):
    if request.param == "numba-cuda-mlir":
        pytest.importorskip("numba_cuda_mlir")
    return request.param


def compiled(compiler, make):
    """PTX of the kernel make(lang)."""
    body = make(backend(compiler).language())
    return backend(compiler).to_ptx(body, PARAMETERS, target_named("sm_80"), THREADS)


def run(ptx, words=(), count=0, size=THREADS):
    """What the kernel leaves in ``out``."""
    machine, out, words = machine_of(ptx, False), np.zeros(size, np.uint32), np.uint32(words or [0])
    for buffer in machine.memory.buffers:  # of the run before
        machine.memory.release(buffer)
    addresses = [machine.memory.buffer(a, n).address for a, n in ((out, "out"), (words, "words"))]
    machine.run(block=THREADS, args=(*addresses, count))
    return out.tolist()


def wide_arithmetic(ptx):
    """The instructions on 64 bits or in double precision, but for those of an address: parameters,
    a widened offset, and one sum."""
    body = ptx[ptx.index("{") :]
    of_addresses = ("ld.param", "cvt.u64.u32", "add.s64", "mul.wide.u32", "mov.u64", ".reg")
    return [
        line.strip()
        for line in body.splitlines()
        if WIDE.search(line) and not line.strip().startswith(of_addresses)
    ]


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.mark.parametrize("sign", [*BINARY, "min", "max"])
def test_an_operator_calculates_as_in_c(sign, compiler):
    """Of two numbers, of a number and a literal on either side, of a number and a constant, and in
    place: 32 bits, wrapped around."""
    shift = sign in ("<<", ">>")
    literal, constant = (5, 3) if shift else (8, 2**32 - 2)
    call = f"{sign}({{}}, {{}})" if sign in ("min", "max") else f"{{}} {sign} {{}}"
    calls = [call.format(*c) for c in ("xy", ("x", literal), (literal, "y"), ("x", "CONSTANT"))]
    in_place = sign in list(BINARY)[:10]
    source = "\n".join(
        [
            "def kernel(out, words, count):",
            "    x, y = ptx.ld_global_b32(words), ptx.ld_global_b32(words + 4)",
            *(f"    ptx.st_global_b32(out + {4 * i}, {call})" for i, call in enumerate(calls)),
            *([f"    x {sign}= y", "    ptx.st_global_b32(out + 16, x)"] if in_place else []),
        ]
    )

    def make(lang):
        scope = {"ptx": lang.ptx, "CONSTANT": constant}
        exec(source, scope)
        return scope["kernel"]

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx)
    python = {"min": min, "max": max, **BINARY}[sign]
    values = [v for v in INTERESTING if v or sign not in ("//", "%")]
    for x in values:
        for y in [v for v in values if not shift or v < 32]:
            pairs = [(x, y), (x, literal), (literal, y), (x, constant)]
            expected = [int(python(a, b)) % 2**32 for a, b in pairs]
            expected += [expected[0]] if in_place else []
            assert run(ptx, (x, y))[: len(expected)] == expected, (x, y)


def test_signs_and_conditions(compiler):
    def make(lang):
        ptx = lang.ptx

        def kernel(out, words, count):
            x = ptx.ld_global_b32(words)
            ptx.st_global_b32(out, -x)
            ptx.st_global_b32(out + 4, ~x)
            ptx.st_global_b32(out + 8, +x)
            ptx.st_global_b32(out + 12, 7 if x else 9)
            ptx.st_global_b32(out + 16, 7 if not x else 9)
            ptx.st_global_b32(out + 20, x if count else 0)
            ptx.st_global_b32(out + 24, 3 if x > 8 and x % 2 == 0 else x)

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx)
    for x in INTERESTING:
        mask = 2**32 - 1
        assert run(ptx, (x,), count=x % 3)[:7] == [
            -x & mask,
            ~x & mask,
            x,
            7 if x else 9,
            9 if x else 7,
            x if x % 3 else 0,
            3 if x > 8 and x % 2 == 0 else x,
        ]


def test_rows_and_chunks_need_no_cast(compiler):
    """What kernels do all day: places from a thread's number, indices of unrolled loops, arrays."""
    rows = 4

    def make(lang):
        ptx, cuda, uint32 = lang.ptx, lang.cuda, lang.uint32

        def kernel(out, words, count):
            thread = ptx.tid_x()
            row, chunk = thread // 8, thread % 8
            places = cuda.local.array(rows, uint32)
            for i in range(rows):
                places[i] = (row + rows * i) * 40 + (chunk ^ (row + i) % 8)
            total = 0
            for i in range(rows):
                total += min(places[i], 600) * (i + 1)
            ptx.st_global_b32(out + 4 * thread, total)

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx) and ".local" not in ptx
    assert run(ptx) == [
        sum(
            min((t // 8 + 4 * i) * 40 + (t % 8 ^ (t // 8 + i) % 8), 600) * (i + 1) for i in range(4)
        )
        for t in range(THREADS)
    ]


def test_a_counter_that_begins_with_a_literal_has_32_bits(compiler):
    def make(lang):
        ptx, uint32 = lang.ptx, lang.uint32

        def kernel(out, words, count):
            steps, i, total = uint32(count), 0, 0
            while i < steps:
                total += ptx.ld_global_b32(words + 4 * i) if i != 2 else 1000
                i += 1
            for j in range(steps):
                total += j
            for j in range(1, steps, 2):
                total ^= j
            ptx.st_global_b32(out + 4 * ptx.tid_x(), total)

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx)
    for count in range(6):
        total = sum(1000 if i == 2 else 10 + i for i in range(count)) + sum(range(count))
        for j in range(1, count, 2):
            total ^= j
        assert run(ptx, range(10, 16), count) == [total] * THREADS


def test_beside_64_bits_a_number_is_widened_with_zeros(compiler):
    def make(lang):
        ptx, uint64 = lang.ptx, lang.uint64

        def kernel(out, words, count):
            x = ptx.ld_global_b32(words)
            wide = uint64(x) * 16 + x
            high, low = wide >> 32, wide % 2**32
            ptx.st_global_b32(out, high)
            ptx.st_global_b32(out + 4, low)
            ptx.st_global_b32(out + 8, 1 if wide > x else 0)
            ptx.st_global_b32(out + 12, x * 16)
            ptx.st_global_b32(out + 16, uint64(x * 16) >> 32)

        return kernel

    ptx = compiled(compiler, make)
    for x in INTERESTING:
        wide = x * 17
        assert run(ptx, (x,))[:5] == [wide >> 32, wide % 2**32, wide > x, x * 16 % 2**32, 0]


def test_numbers_of_numba_join_in(compiler):
    """A parameter of 32 bits, a thread's index of Numba's own, a 16-bit word."""

    def make(lang):
        ptx, cuda, uint16 = lang.ptx, lang.cuda, lang.uint16

        def kernel(out, words, count):
            x = ptx.ld_global_b32(words)
            ptx.st_global_b32(out + 4 * ptx.tid_x(), x + cuda.threadIdx.x + count + uint16(x))

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx)
    assert run(ptx, (70000,), count=5) == [70005 + t + 70000 % 65536 for t in range(THREADS)]


MIXED = {"+": "x + f", "<": "f < x", "/": "x / 2", "**": "x ** 2", "if": "x if count else f"}


@pytest.mark.parametrize("sign", MIXED)
def test_floats_are_refused(sign, compiler):
    def make(lang):
        scope = {"ptx": lang.ptx, "float32": lang.float32}
        source = f"""
def kernel(out, words, count):
    x, f = ptx.ld_global_b32(words), float32(2)
    y = {MIXED[sign]}
    ptx.st_global_b32(out, 1 if y else 0)
"""
        exec(source, scope)
        return scope["kernel"]

    with pytest.raises(Exception, match="convert one of them explicitly|Cannot unify"):
        compiled(compiler, make)


def test_a_record_goes_round_a_loop(compiler):
    """Records of one type, of mixed types, of records and tuples; made with literals, with names,
    reassigned, passed on and unpacked."""

    def make(lang):
        ptx, uint32, float32 = lang.ptx, lang.uint32, lang.float32
        Place = lang.record("Place", "stage parity")
        State = lang.record("State", "place target scale pair")

        @lang.device
        def advance(place):
            stage = place.stage + 1
            around = stage == 3
            return Place(0 if around else stage, place.parity ^ 1 if around else place.parity)

        @lang.device
        def turned(state, i):
            return State(
                advance(state.place), state.target + 4, state.scale * float32(2), (state.pair[1], i)
            )

        def kernel(out, words, count):
            i = 0
            state = State(Place(0, parity=1), out, float32(1), (uint32(8), uint32(9)))
            while i < uint32(count):
                stage, parity = state.place
                ptx.st_global_b32(state.target, stage + 16 * parity)
                state = turned(state, i)
                i += 1
            ptx.st_global_b32(state.target, uint32(state.scale))
            ptx.st_global_b32(state.target + 4, state.pair[0] * 100 + state.pair[1])

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx) and ".local" not in ptx
    for count in range(8):
        places = [i % 3 + 16 * (1 ^ i // 3 % 2) for i in range(count)]
        pair = ([8, 9, *range(count)])[-2:]
        expected = [*places, 2**count, pair[0] * 100 + pair[1]]
        assert run(ptx, count=count)[: count + 2] == expected


def test_a_record_may_hold_an_array(compiler):
    def make(lang):
        ptx, cuda, uint32 = lang.ptx, lang.cuda, lang.uint32
        State = lang.record("Sums", "sums row")

        @lang.device
        def add(state):
            for i in range(4):
                state.sums[i] += state.row * (i + 1)

        def kernel(out, words, count):
            sums = cuda.local.array(4, uint32)
            for i in range(4):
                sums[i] = 0
            state = State(sums, ptx.tid_x())
            add(state)
            add(state)
            ptx.st_global_b32(out + 4 * state.row, state.sums[0] + state.sums[3])

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx) and ".local" not in ptx
    assert run(ptx) == [10 * t for t in range(THREADS)]


def test_integers_enter_a_record_without_a_sign(compiler):
    """A literal and a signed parameter as 32 bits, an address as it is."""

    def make(lang):
        ptx = lang.ptx
        Sizes = lang.record("Sizes", "m n at")

        def kernel(out, words, count):
            sizes = Sizes(count, 64, out)
            ptx.st_global_b32(sizes.at, (sizes.m + 15) // 16 * sizes.n)

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx)
    assert run(ptx, count=33)[0] == 3 * 64


def test_one_record_class_a_name(compiler):
    lang = backend(compiler).language()
    assert lang.record("Place", "stage parity") is lang.record("Place", "stage parity")
    assert lang.record("Place", "stage parity") is not lang.record("Place", "stage phase")
    with pytest.raises(ValueError, match="'index' is a method of tuples"):
        lang.record("Thread", "lane index")
    assert lang.record("Place", "stage parity")(1, 2)._asdict() == {"stage": 1, "parity": 2}


def test_a_namespace_is_looked_up_when_compiling(compiler):
    """Its functions are called, its constants are as good as literals: an array's size, a loop that
    is unrolled, a branch that disappears."""

    def make(lang, words=4, doubled=True):
        ptx, cuda, uint32 = lang.ptx, lang.cuda, lang.uint32
        sizes = lang.namespace("sizes", words=words, doubled=doubled)

        @lang.device
        def scale(x):
            return x * 3

        tools = lang.namespace("tools", scale=scale, load=ptx.ld_global_b32)

        def kernel(out, words, count):
            own = cuda.local.array(sizes.words, uint32)
            for i in range(sizes.words):
                own[i] = tools.load(words + 4 * i)
            total = 0
            for i in range(sizes.words):
                total += tools.scale(own[i])
            if sizes.doubled:
                total *= 2
            ptx.st_global_b32(out + 4 * ptx.tid_x(), total)

        return kernel

    ptx = compiled(compiler, make)
    assert not wide_arithmetic(ptx) and ".local" not in ptx and "bra" not in ptx
    assert run(ptx, (1, 2, 3, 4)) == [60] * THREADS


def test_numbas_own_numbers_stay_as_they_are(compiler):
    """In the same process, other kernels see Numba's rules: its uint32 grows to 64 bits."""

    def make(lang):
        ptx, types = lang.ptx, backend(compiler)._numba().types
        theirs = types.uint32

        def kernel(out, words, count):
            x = theirs(ptx.ld_global_b32(words))
            ptx.st_global_b32(out, (x * x) >> 32)

        return kernel

    assert run(compiled(compiler, make), (2**31,))[0] == 2**30
