"""cvt and mov: every pair of integer sizes, floats in and out, edges of every range."""

from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.number_cases import ALL, canonical, floats, pack, round32, wrap
from tests.emulator.ptx_cases import compute, launch, words

INTEGERS = [f"{s}{b}" for s in "us" for b in (8, 16, 32, 64)]


def dtype_of(kind):
    return np.dtype(kind.replace("u", "uint").replace("s", "int"))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("to", INTEGERS)
def test_integers_truncate_extend_and_saturate(to, kind):
    """Registers narrower than 16 bits do not exist: an 8-bit value lies in the low byte of a 16-bit
    register."""
    a = words(24, dtype_of(kind))
    held = a.astype(np.int16 if kind == "s8" else np.uint16) if a.itemsize == 1 else a
    out = dtype_of(to) if to[1:] != "8" else np.dtype("int16" if to[0] == "s" else "uint16")
    info = np.iinfo(dtype_of(to))
    got = compute(f"cvt.{to}.{kind} %d, %a;", held, out=out)
    assert got.tolist() == [wrap(int(x), dtype_of(to)) for x in a]
    got = compute(f"cvt.sat.{to}.{kind} %d, %a;", held, out=out)
    assert got.tolist() == [min(max(int(x), int(info.min)), int(info.max)) for x in a]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_float32_rounds_once(kind, mode):
    a = words(200, dtype_of(kind))
    # values around ties of float32 that a detour over float64 would round twice
    if a.itemsize == 8:
        a[:64] = (1 << 62) + (1 << 38) + np.arange(-32, 32)
    elif a.itemsize == 4:
        a[:64] = (1 << 30) + (1 << 6) + np.arange(-32, 32)
    got = compute(f"cvt.{mode}.f32.{kind} %d, %a;", a, out=np.float32)
    assert got.tolist() == [round32(Fraction(int(x)), mode) for x in a]


@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64", "s16", "u16"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_to_integer_rounds_and_clamps(to, mode, kind):
    a = floats(200)
    with np.errstate(all="ignore"):
        a = np.concatenate(
            [
                a,
                np.array(
                    [0.5, 1.5, -0.5, -1.5, 2.5, 2**31, -(2**31), 2**32, 2**63, 2**64, 3e9, -1],
                    np.float32,
                ),
            ]
        )
        a = a.astype(np.float64 if kind == "f64" else np.float32)
    a = a[~np.isnan(a)]
    info = np.iinfo(dtype_of(to))
    got = compute(f"cvt.{mode}.{to}.{kind} %d, %a;", a, out=dtype_of(to))
    for x, y in zip(a.tolist(), got.tolist()):
        if np.isinf(x):
            expected = int(info.max) if x > 0 else int(info.min)
        else:
            exact = Fraction(x)
            whole = {
                "rni": round(exact),
                "rzi": int(exact),
                "rmi": exact // 1,
                "rpi": -(-exact // 1),
            }[mode]
            expected = min(max(whole, int(info.min)), int(info.max))
        assert y == expected, (x, y, expected)


def test_nan_to_integer():
    """Zero, but the sign bit alone where f64 or 64-bit integers take part."""
    nan = np.array([np.nan], np.float32)
    assert compute("cvt.rzi.s32.f32 %d, %a;", nan, out=np.uint32)[0] == 0
    assert compute("cvt.rzi.s64.f32 %d, %a;", nan, out=np.uint64)[0] == 1 << 63
    assert compute("cvt.rzi.s32.f64 %d, %a;", nan.astype(np.float64), out=np.uint32)[0] == 1 << 31


def test_fp16_to_fp32_is_exact_for_every_half():
    got = compute("cvt.f32.f16 %d, %a;", ALL, out=np.float32)
    nan = np.isnan(ALL.view(np.float16))
    assert np.array_equal(got[~nan], ALL.view(np.float16).astype(np.float32)[~nan])
    assert (got[nan].view(np.uint32) == 0x7FFFFFFF).all()


def halfway_values():
    """Every midpoint of neighbouring positive halves, and the float32 beside it on either side."""
    with np.errstate(all="ignore"):
        values = ALL[:0x7C00].view(np.float16).astype(np.float32)
    middle = (values[:-1] + values[1:]) / 2
    return middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))


def test_fp32_to_fp16_rounds_to_nearest_even_at_every_tie():
    middle, below, above = halfway_values()
    index = np.arange(len(middle))
    assert np.array_equal(
        compute("cvt.rn.f16.f32 %d, %a;", middle, out=np.uint16), index + index % 2
    )
    assert np.array_equal(compute("cvt.rn.f16.f32 %d, %a;", below, out=np.uint16), index)
    assert np.array_equal(compute("cvt.rn.f16.f32 %d, %a;", above, out=np.uint16), index + 1)
    assert np.array_equal(compute("cvt.rz.f16.f32 %d, %a;", above, out=np.uint16), index)
    edge = np.array([65519.996, 65520, 1e9, -65520, np.nan, -0.0, 2**-25, 2**-26], np.float32)
    expected = [0x7BFF, 0x7C00, 0x7C00, 0xFC00, 0x7FFF, 0x8000, 0, 0]
    assert compute("cvt.rn.f16.f32 %d, %a;", edge, out=np.uint16).tolist() == expected


def test_packed_conversion_puts_the_first_operand_in_the_upper_half():
    middle, below, above = halfway_values()
    word = compute("cvt.rn.f16x2.f32 %d, %a, %b;", above, middle, out=np.uint32)
    index = np.arange(len(middle))
    assert np.array_equal(word >> 16, index + 1) and np.array_equal(
        word & 0xFFFF, index + index % 2
    )
    a = np.array([-2.0, 3.0], np.float32)
    assert compute(
        "cvt.rn.relu.f16x2.f32 %d, %a, %b;", a, a[::-1].copy(), out=np.uint32
    ).tolist() == [0x4200, 0x42000000]


def test_bf16_conversions():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = floats(3000)
    with np.errstate(all="ignore"):
        expected = a.astype(ml_dtypes.bfloat16).view(np.uint16)
    expected = np.where(np.isnan(a), np.uint16(0x7FFF), expected)
    assert np.array_equal(compute("cvt.rn.bf16.f32 %d, %a;", a, out=np.uint16), expected)
    word = compute("cvt.rn.bf16x2.f32 %d, %a, %a;", a, out=np.uint32)
    assert np.array_equal(word, pack(expected, expected))
    back = compute("cvt.f32.bf16 %d, %a;", ALL, out=np.uint32)
    nan = (ALL & 0x7FFF) > 0x7F80
    assert np.array_equal(back[~nan], ALL[~nan].astype(np.uint32) << 16)


def test_float64_to_float32_in_every_mode():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(400) * 2.0 ** rng.integers(-150, 120, 400)
    for mode in ("rn", "rz", "rm", "rp"):
        got = compute(f"cvt.{mode}.f32.f64 %d, %a;", a, out=np.float32)
        assert got.tolist() == [round32(Fraction(x), mode) for x in a]
    assert np.array_equal(
        compute("cvt.f64.f32 %d, %a;", a.astype(np.float32), out=np.float64), a.astype(np.float32)
    )


def test_round_to_integral_float():
    a = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -0.25], np.float32)
    assert compute("cvt.rni.f32.f32 %d, %a;", a, out=np.float32).tolist() == [
        0,
        2,
        2,
        0,
        -2,
        1e10,
        0,
    ]
    assert compute("cvt.rmi.f32.f32 %d, %a;", a, out=np.float32).tolist() == [
        0,
        1,
        2,
        -1,
        -2,
        1e10,
        -1,
    ]


def test_mov_packs_and_unpacks():
    a, b = words(50, np.uint16, 1), words(50, np.uint16, 2)
    word = pack(a, b)
    assert np.array_equal(compute("mov.b32 %d, {%a, %b};", a, b, out=np.uint32), word)
    assert np.array_equal(compute("mov.b32 {%h0, %d}, %a;", word, out=np.uint16), b)
    assert np.array_equal(compute("mov.b32 {%d, _}, %a;", word, out=np.uint16), a)
    wide = words(50, np.uint64, 3)
    swapped = compute("mov.b64 {%r0, %r1}, %a; mov.b64 %d, {%r1, %r0};", wide, out=np.uint64)
    assert np.array_equal(swapped, wide >> 32 | wide << 32)
    four = compute(
        "mov.b64 {%h0,%h1,%h2,%h3}, %a; mov.b64 %d, {%h3,%h2,%h1,%h0};", wide, out=np.uint64
    )
    assert np.array_equal(
        four.view(np.uint16).reshape(-1, 4), wide.view(np.uint16).reshape(-1, 4)[:, ::-1]
    )


def test_canonical_helper_sees_nans():
    assert canonical(np.array([0x7E00, 0x7C00, 0xFC01], np.uint16)).tolist() == [
        0x7FFF,
        0x7C00,
        0x7FFF,
    ]


def test_special_registers():
    out = np.zeros((3 * 2 * 40, 8), np.uint32)
    body = """
    mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
    mov.u32 %r4, %laneid;
    mov.u32 %r5, %ntid.x; mov.u32 %r6, %nctaid.x; mov.u32 %r7, %lanemask_lt;
    mad.lo.u32 %r10, %r1, 20, %r0; mad.lo.u32 %r11, %r3, 3, %r2; mad.lo.u32 %r10, %r11, 40, %r10;
    mad.wide.u32 %rd0, %r10, 32, %p0;
    st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};
    st.global.v4.u32 [%rd0+16], {%r4, %r5, %r6, %r7};"""
    launch(body, {"out": out}, grid=(3, 2), block=(20, 2))
    index = np.arange(240)
    thread, block = index % 40, index // 40
    lane = thread % 32
    columns = [thread % 20, thread // 20, block % 3, block // 3, lane, 20, 3, (1 << lane) - 1]
    for i, expected in enumerate(columns):
        assert np.array_equal(out[:, i], np.broadcast_to(expected, 240)), i


@pytest.mark.parametrize("kind, name", (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")))
def test_pairs_of_8_bit_floats_are_those_of_ml_dtypes(kind, name):
    """Every code to a half; every half, and both its neighbours in float32, to a code; cut off, NaN
    as 0x7f."""
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    codes = np.arange(256, dtype=np.uint16)
    halves = compute(
        f"cvt.rn.f16x2.{kind}x2 %d, %a;", codes | codes[::-1] << np.uint16(8), out=np.uint32
    )
    expected = codes.astype(np.uint8).view(dtype).astype(np.float16)
    for shift, numbers in ((0, expected), (16, expected[::-1])):
        assert np.array_equal(
            (halves >> shift).astype(np.uint16).view(np.float16), numbers, equal_nan=True
        )
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        values = np.concatenate(
            [
                values,
                np.nextafter(values, np.float32(np.inf)),
                np.nextafter(values, np.float32(-np.inf)),
            ]
        )
    got = compute(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", values, -values, out=np.uint16)
    largest = (
        float(np.nan_to_num(np.arange(0x7C, dtype=np.uint8).view(dtype).astype(np.float32)).max())
        if kind == "e5m2"
        else 448.0
    )
    for shift, numbers in ((8, values), (0, -values)):
        clipped = np.clip(np.nan_to_num(numbers), -largest, largest).astype(dtype).view(np.uint8)
        assert np.array_equal(
            (got >> shift & 0xFF).astype(np.uint8), np.where(np.isnan(numbers), 0x7F, clipped)
        )
