"""Contract under test: atomics on vectors, reductions of floats over a warp, transposed
matrices."""

import math

import numpy as np
import pytest

from numba_marlin.emulator import DivergentCollective, Misaligned, UnknownInstruction
from tests.emulator.ptx_cases import compute, fails, launch, words


def test_vector_sums_of_colliding_lanes_lose_nothing():
    data = np.arange(8, dtype=np.float32)
    before = np.zeros((64, 4), np.float32)
    body = """and.b32 %r0, %t, 1; mad.wide.u32 %rd0, %r0, 16, %p0; cvt.rn.f32.u32 %f0, %t;
    mul.f32 %f1, %f0, 0f40000000; mov.f32 %f2, 0f3F800000; neg.f32 %f3, %f0;
    atom.relaxed.gpu.global.add.v4.f32 {%f4, %f5, %f6, %f7}, [%rd0], {%f0, %f1, %f2, %f3};
    mad.wide.u32 %rd1, %t, 16, %p1; st.global.v4.f32 [%rd1], {%f4, %f5, %f6, %f7};"""
    launch(body, {"data": data, "before": before}, block=64)
    assert data.tolist() == [992, 1985, 34, 3 - 992, 4 + 1024, 5 + 2048, 38, 7 - 1024]
    for start in (0, 1):  # of each lane, what the lanes before it left
        lanes = np.arange(start, 64, 2, dtype=np.float32)
        earlier = np.concatenate([[0], np.cumsum(lanes)[:-1]])
        first = np.arange(4) + 4 * start
        assert before[start::2, 0].tolist() == (first[0] + earlier).tolist()
        assert before[start::2, 3].tolist() == (first[3] - earlier).tolist()


@pytest.mark.parametrize("length", [2, 4, 8])
@pytest.mark.parametrize("name", ["add", "min", "max"])
def test_vectors_of_halves(name, length):
    data = words(8, np.uint16, 3) & 0xBFFF  # no NaN
    start = data.view(np.float16).copy()
    given = (words(8, np.uint16, 4) & 0xBFFF)[:length]
    loads = "".join(f"mov.b16 %h{i}, {value};\n" for i, value in enumerate(given))
    names = ", ".join(f"%h{i}" for i in range(length))
    launch(
        f"{loads}red.global.{name}.noftz.v{length}.f16 [%p0], {{{names}}};", {"d": data}, block=1
    )
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[name]
    expected = start.copy()
    expected[:length] = function(start[:length], given.view(np.float16))
    assert data.view(np.float16).tolist() == expected.tolist()


def test_vectors_of_pairs_and_the_hint():
    data = np.array([1, 2, 3, 4, -5, 6, 7, 8], np.float16)
    body = """mov.b32 %r0, 0x3C003C00; mov.b32 %r1, 0x40004900;
    red.global.max.noftz.L2::cache_hint.v4.f16x2 [%p0], {%r0, %r1, %r0, %r1}, %rd0;"""
    launch(body, {"data": data}, block=1)
    assert data.tolist() == [1, 2, 10, 4, 1, 6, 10, 8]
    brains = np.array([0x3F80, 0x4000, 0x4040, 0x4080], np.uint16)
    body = "mov.b32 %r0, 0x40003F80; atom.global.add.noftz.v2.bf16x2 {%r2, %r3}, [%p0], {%r0, %r0};"
    launch(body + "st.global.v2.b32 [%p0], {%r2, %r3};", {"brains": brains}, block=1)
    assert brains.tolist() == [0x3F80, 0x4000, 0x4040, 0x4080]  # what was there came back


def test_vectors_are_aligned_as_a_whole():
    body = "mov.f32 %f0, 0f00000000; "
    body += "red.global.add.v4.f32 [%p0+8], {%f0, %f0, %f0, %f0}; // BAD"
    error = fails(Misaligned, body)
    assert "multiple of 16" in str(error)


@pytest.mark.parametrize(
    "statement",
    [
        "red.global.add.v2.u32 [%rd0], {%r0, %r1};",
        "red.global.min.v2.f32 [%rd0], {%f0, %f1};",
        "red.global.add.v8.f32 [%rd0], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7};",
        "red.global.add.v4.f32 [%rd0], {%f0, %f1};",
        "red.global.max.noftz.f16 [%rd0], %h0;",
        "redux.sync.add.f32 %f0, %f1, -1;",
        "redux.sync.min.abs.s32 %r0, %r1, -1;",
        "movmatrix.sync.aligned.m8n8.b16 %r0, %r1;",
    ],
)
def test_what_there_is_not(statement):
    with pytest.raises(UnknownInstruction):
        launch(statement)


def chosen(name: str, options: str, values: list) -> float:
    values = [abs(value) if ".abs" in options else value for value in values]
    numbers = [value for value in values if value == value]
    if not numbers or ".NaN" in options and len(numbers) < len(values):
        return math.nan
    return {"min": min, "max": max}[name](numbers, key=lambda x: (x, math.copysign(1, x)))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("options", ["", ".abs", ".NaN", ".abs.NaN"])
def test_reductions_of_floats(name, options):
    rng = np.random.default_rng(4)
    specials = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3.5, -3.5, np.nan], np.float32)
    values = np.concatenate(
        [
            rng.standard_normal(32),
            rng.choice([0.0, -0.0], 32),
            rng.choice(specials, 32),
            np.full(32, np.nan),
            rng.choice(specials[:-1], 32),
        ]
    ).astype(np.float32)
    for mask in (0xFFFFFFFF, 0x0F0F1234):
        lanes = [i for i in range(32) if mask >> i & 1]
        body = f"redux.sync.{name}{options}.f32 %d, %a, {mask};"
        if mask != 0xFFFFFFFF:
            body = f"mov.b32 %d, 0; shr.u32 %r0, {mask}, %t; and.b32 %r0, %r0, 1;"
            body = body.replace("%t;", "%r1;").replace("shr", "mov.u32 %r1, %laneid; shr")
            body += f"setp.ne.u32 %q0, %r0, 0;@!%q0 bra E; redux.sync.{name}{options}.f32 %d, %a,"
            body += f" {mask}; E:"
        got = compute(body, values, out=np.float32).reshape(-1, 32)[:, lanes]
        for row, warp in zip(got, values.reshape(-1, 32)[:, lanes].tolist()):
            expected = np.float32(chosen(name, options, warp))
            bits = 0x7FFFFFFF if expected != expected else int(expected.view(np.uint32))
            assert (row.view(np.uint32) == bits).all(), warp


def test_a_matrix_is_transposed():
    matrices = words(128, np.uint16, 7).reshape(2, 8, 8)
    words_of = matrices.reshape(2, 64).view(np.uint32).reshape(-1)
    got = compute("movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;", words_of, out=np.uint32)
    assert np.array_equal(got.view(np.uint16).reshape(2, 8, 8), matrices.swapaxes(1, 2))
    fails(
        DivergentCollective,
        "setp.eq.u32 %q0, %t, 3;\n@%q0 movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1; // BAD",
    )
