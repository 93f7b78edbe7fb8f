"""Mathematical functions. NumPy has them in double precision; ``ulps`` is what the CUDA C++
Programming Guide allows for each (Mathematical Functions, Intrinsic Functions)."""

import math

import numpy as np

from features.feature import D, F, Feature, I, P, of

FEATURES: list[Feature] = []
feature = of("functions", FEATURES)
P64 = P.astype(np.float64)
UNIT = (F / 8).astype(np.float32)  # within -1 and 1


def single(name: str, function, ulps: int, given=F) -> None:
    wanted = np.array([function(float(v)) for v in given]).astype(np.float32)
    feature(name, f"y[i] = {name}(x[i]);", wanted, given=given, ulps=ulps)


def double(name: str, function, ulps: int, given=D) -> None:
    wanted = np.array([function(float(v)) for v in given])
    feature(f"{name}, double", f"y[i] = {name}(x[i]);", wanted, given=given, ulps=ulps + 1)


for name, function, ulps, given in (
    ("sinf", math.sin, 2, F),
    ("cosf", math.cos, 2, F),
    ("tanf", math.tan, 4, F),
    ("asinf", math.asin, 2, UNIT),
    ("atanf", math.atan, 2, F),
    ("sinhf", math.sinh, 3, F),
    ("tanhf", math.tanh, 2, F),
    ("expf", math.exp, 2, F),
    ("exp2f", lambda v: 2.0**v, 2, F),
    ("expm1f", math.expm1, 1, F),
    ("logf", math.log, 1, P),
    ("log2f", math.log2, 1, P),
    ("log1pf", math.log1p, 1, P),
    ("sqrtf", math.sqrt, 0, P),
    ("rsqrtf", lambda v: v**-0.5, 2, P),
    ("cbrtf", np.cbrt, 1, F),
    ("erff", math.erf, 2, F),
    ("erfcf", math.erfc, 4, UNIT),
    ("tgammaf", math.gamma, 5, P),
    ("lgammaf", math.lgamma, 6, P + np.float32(3)),
    ("sinpif", lambda v: math.sin(math.pi * v), 1, UNIT),
):
    single(name, function, ulps, given)
for name, function, ulps, given in (
    ("sin", math.sin, 2, D),
    ("exp", math.exp, 1, D),
    ("log", math.log, 1, P64),
    ("tanh", math.tanh, 2, D),
    ("erf", math.erf, 2, D),
    ("sqrt", math.sqrt, 0, P64),
    ("cbrt", np.cbrt, 1, D),
):
    double(name, function, ulps, given)
feature(
    "powf, hypotf, atan2f",
    "y[i] = i % 3 == 0 ? powf(x[i], 1.5f) : i % 3 == 1 ? hypotf(x[i], 2) : atan2f(x[i], 2);",
    np.choose(I % 3, [P64**1.5, np.hypot(P64, 2), np.arctan2(P64, 2)]).astype(np.float32),
    given=P,
    ulps=4,
)
feature(
    "sincosf",
    "float s, c; sincosf(x[i], &s, &c); y[i] = i & 1 ? s : c;",
    np.where(I & 1, np.sin(F.astype(float)), np.cos(F.astype(float))).astype(np.float32),
    given=F,
    ulps=2,
)
feature(
    "fmodf, remainderf",
    "y[i] = fmodf(x[i], 0.75f) + 16 * remainderf(x[i], 0.75f);",
    np.fmod(F, np.float32(0.75))
    + 16 * np.array([math.remainder(float(v), 0.75) for v in F], np.float32),
    given=F,
)
feature(
    "floorf, ceilf, truncf, rintf, roundf",
    "y[i] = floorf(x[i]) + 100 * ceilf(x[i]) + 10000 * truncf(x[i]) + rintf(x[i]) * 0.5f"
    " + roundf(x[i]) * 0.25f;",
    np.floor(F)
    + 100 * np.ceil(F)
    + 10000 * np.trunc(F)
    + np.rint(F) / 2
    + np.copysign(np.floor(np.abs(F) + np.float32(0.5)), F) / 4,
    given=F,
)
feature(
    "frexpf, ldexpf, modff",
    "int e; float whole, m = frexpf(x[i], &e), part = modff(x[i], &whole);"
    " y[i] = ldexpf(m, e) + whole + 64 * part + e * 4096;",
    F + np.trunc(F) + 64 * (F - np.trunc(F)) + 4096 * np.frexp(F)[1].astype(np.float32),
    given=F,
)
feature(
    "isnan, isinf, signbit, copysign",
    "float v = i % 4 ? i % 4 == 1 ? x[i] / 0.0f : sqrtf(-1.0f - i) : x[i];"
    " y[i] = isnan(v) + 2 * !!isinf(v) + 4 * (copysignf(1, x[i]) < 0) + 8 * !!signbit(x[i]);",
    np.where(I % 4 == 0, 0, np.where(I % 4 == 1, np.where(F == 0, 1, 2), 1)) + 12 * np.signbit(F),
    given=F,
)
feature(
    "__sinf, __expf, __logf, __fdividef",
    "float v = x[i]; y[i] = (fabsf(__sinf(v) - sinf(v)) < 1e-5f) + 2 * (__fdividef(v, 2) * 2 == v)"
    " + 4 * (fabsf(__expf(v) / expf(v) - 1) < 1e-5f) + 8 * (fabsf(__logf(v) - logf(v)) < 1e-5f);",
    0 * I + 15,
    given=P,
)
feature(
    "__frcp_rn, __fsqrt_rn, __fdiv_rn",
    "y[i] = __fdiv_rn(__frcp_rn(x[i]), __fsqrt_rn(x[i]));",
    np.float32(1) / P / np.sqrt(P),
    given=P,
)
feature(
    "h2exp, hlog, hsin of __half",
    "y[i] = i % 3 == 0 ? hexp(x[i]) : i % 3 == 1 ? hlog(x[i]) : hsin(x[i]);",
    np.choose(I % 3, [np.exp(P64), np.log(P64), np.sin(P64)]).astype(np.float16),
    given=P.astype(np.float16),
    ulps=2,
)
