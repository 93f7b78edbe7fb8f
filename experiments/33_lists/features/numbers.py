"""Floats: narrow types and their conversions, directed rounding, what does not fit."""

from fractions import Fraction

import numpy as np

from features.feature import D, F, Feature, H, I, P, X, of

FEATURES: list[Feature] = []
feature = of("numbers", FEATURES)
HALF, BF16, FP8 = "#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#include <cuda_fp8.h>"
THIRDS = F / np.float32(3)
P16 = P.astype(np.float16)
LONG = (X.astype(np.int64) << 40) + 12345


def bf16(values) -> np.ndarray:
    """Rounded to bfloat16, ties to even, as float32."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def narrow(values, mantissa: int, lowest: int, most: float) -> np.ndarray:
    """Rounded to a float of so many bits of mantissa, whose exponent is at least ``lowest``; ties
    to even, what is too large becomes the largest."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))), lowest)
    unit = 2.0 ** (exponent - mantissa)
    return np.clip(np.round(values / unit) * unit, -most, most).astype(np.float32)


def square_and_twice(h: np.ndarray) -> np.ndarray:
    """fma(h, h, h + h * h), of halves."""
    exact = h.astype(np.float64)
    return (exact * exact + (h + h * h).astype(np.float64)).astype(np.float16)


def down_and_up(exact: np.ndarray, kind: type) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of a number among those of ``kind``."""
    near = exact.astype(kind)
    down = np.where(near > exact, np.nextafter(near, kind(-np.inf)), near)
    return down, np.where(near < exact, np.nextafter(near, kind(np.inf)), near)


def lost(d: float) -> float:
    """What rounding takes from a square."""
    return float(Fraction(d) ** 2 - Fraction(d * d))


DOWN, UP = down_and_up(THIRDS, np.float16)
FLOOR, CEILING = down_and_up(F.astype(np.float64) + np.float32(1e-6), np.float32)

feature(
    "__half: + - * /",
    "__half a = x[i], b = x[63 - i]; y[i] = (a + b) * (a - b) / __float2half(3);",
    (H + H[::-1]) * (H - H[::-1]) / np.float16(3),
    given=H,
)
feature(
    "__half2: __hadd2, __hmul2, __hfma2",
    "__half2 a = __halves2half2(x[i], x[63 - i]);"
    " __half2 b = __hfma2(a, a, __hadd2(a, __hmul2(a, a))); y[i] = i & 1 ? b.x : b.y;",
    square_and_twice(np.where(I & 1, H, H[::-1])),
    given=H,
)
feature(
    "__half: comparisons, __hmax, __hmin, __habs",
    "__half a = x[i], b = x[63 - i]; y[i] = a > b ? __hmax(a, __habs(b)) : __hmin(a, b);",
    np.where(H > H[::-1], np.maximum(H, np.abs(H[::-1])), np.minimum(H, H[::-1])),
    given=H,
)
feature(
    "__half: from and to float, double, int",
    "y[i] = float(__double2half(x[i] / 3.0)) + __half2int_rn(__float2half(x[i]))"
    " + float(__int2half_rn(i));",
    (F / 3.0).astype(np.float16) + np.rint(F) + I.astype(np.float32),
    given=F,
    before=HALF,
)
feature(
    "__half: __float2half_rd, _ru, _rz",
    "y[i] = float(__float2half_rd(x[i])) + 2 * float(__float2half_ru(x[i]))"
    " + 4 * float(__float2half_rz(x[i]));",
    DOWN + 2 * UP.astype(np.float32) + 4 * np.where(F < 0, UP, DOWN).astype(np.float32),
    given=THIRDS,
    before=HALF,
)
feature(
    "__half: hsqrt, hfloor, hrint",
    "y[i] = hfloor(hsqrt(x[i])) + hrint(x[i]);",
    np.floor(np.sqrt(P16)) + np.rint(P16),
    given=P16,
)
feature(
    "__nv_bfloat16: + *",
    "__nv_bfloat16 a = x[i]; y[i] = float(a * a + a);",
    bf16(bf16(bf16(F) ** 2) + bf16(F)),
    given=F,
    before=BF16,
)
feature(
    "__nv_bfloat162",
    "__nv_bfloat162 a = __floats2bfloat162_rn(x[i], x[63 - i]);"
    " float2 f = __bfloat1622float2(__hmul2(a, a)); y[i] = f.x + f.y;",
    bf16(bf16(THIRDS) ** 2) + bf16(bf16(THIRDS[::-1]) ** 2),
    given=THIRDS,
    before=BF16,
)
feature(
    "__nv_fp8_e4m3",
    "y[i] = float(__nv_fp8_e4m3(x[i] * 3));",
    narrow(F * 3.0, 3, -6, 448),
    given=F,
    before=FP8,
)
feature(
    "__nv_fp8_e5m2",
    "y[i] = float(__nv_fp8_e5m2(x[i] * 3));",
    narrow(F * 3.0, 2, -14, 57344),
    given=F,
    before=FP8,
)
feature(
    "__nv_fp6_e2m3, in software",
    "y[i] = float(__nv_fp6_e2m3(x[i]));",
    narrow(F, 3, 0, 7.5),
    given=F,
    before="#include <cuda_fp6.h>",
)
feature(
    "__nv_fp4_e2m1, in software",
    "y[i] = float(__nv_fp4_e2m1(x[i]));",
    narrow(F, 1, 0, 6),
    given=F,
    before="#include <cuda_fp4.h>",
)
feature(
    "__nv_fp4x2_e2m1, of sm_100a",
    "float2 f = float2(__nv_fp4x2_e2m1(make_float2(x[i], x[63 - i]))); y[i] = f.x + 100 * f.y;",
    narrow(F, 1, 0, 6) + 100 * narrow(F[::-1], 1, 0, 6),
    given=F,
    before="#include <cuda_fp4.h>",
    arch="compute_100a",
)
feature(
    "tf32, by inline PTX",
    'unsigned v; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(v) : "f"(x[i])); y[i] = __uint_as_float(v);',
    ((THIRDS.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32),
    given=THIRDS,
)
feature(
    "float to int: _rn, _rz, _ru, _rd",
    "y[i] = __float2int_rn(x[i]) + 1000 * __float2int_rz(x[i]) + 100000 * __float2int_ru(x[i])"
    " + 10000000 * __float2int_rd(x[i]);",
    np.rint(F).astype(np.int32)
    + 1000 * np.trunc(F).astype(np.int32)
    + 100000 * np.ceil(F).astype(np.int32)
    + 10000000 * np.floor(F).astype(np.int32),
    given=F,
)
feature(
    "float to int, which does not fit, and a NaN",
    "y[i] = int(x[i] * 1e9f) / 2 + int(__int_as_float(0x7fffffff));",
    np.trunc(np.clip((F * np.float32(1e9)).astype(np.int64), -(2**31), 2**31 - 1) / 2),
    given=F,
)
feature(
    "int to float, of 64 bits, unsigned",
    "y[i] = double(x[i]) + float(x[i]) + double((unsigned long long)x[i]);",
    LONG.astype(np.float64) + LONG.astype(np.float32) + LONG.view(np.uint64).astype(np.float64),
    given=LONG,
)
feature(
    "directed rounding: __fadd_ru, __fadd_rd",
    "y[i] = __fadd_ru(x[i], 1e-6f) - __fadd_rd(x[i], 1e-6f);",
    CEILING - FLOOR,
    given=F,
)
feature(
    "double: + * / fma",
    "y[i] = fma(x[i], x[i], -(x[i] * x[i])) + x[i] / 3;",
    np.array([lost(d) + d / 3 for d in D.tolist()]),
    given=D,
    options=("-fmad=false",),
)
feature(
    "__saturatef, fminf and fmaxf of a NaN",
    'y[i] = __saturatef(x[i]) + fminf(x[i], nanf("")) + fmaxf(nanf(""), x[i]);',
    np.clip(F, 0, 1) + F + F,
    given=F,
)
feature(
    "__hiloint2double, __float_as_int",
    "y[i] = __hiloint2double(__double2hiint(x[i]) ^ 0x80000000, __double2loint(x[i]))"
    " + __int_as_float(__float_as_int(1.0f) + i % 2 * 0x800000);",
    -D + (1 + I % 2),
    given=D,
)
feature(
    "subnormal floats",
    "float a = x[i] * 1e-40f; y[i] = a * 1e20f;",
    (F * np.float32(1e-40)) * np.float32(1e20),
    given=F,
)
