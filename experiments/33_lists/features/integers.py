"""Integers: intrinsics of bits and bytes, products of many bits, division."""

import numpy as np

from features.feature import Feature, I, U, X, of

FEATURES: list[Feature] = []
feature = of("integers", FEATURES)
WORDS = [int(u) for u in U]
WRAP = 1 << 32
BYTES, HALVES = U.view(np.uint8).reshape(-1, 4), U.view(np.uint16).reshape(-1, 2)


def signed(word: int) -> int:
    return (word + WRAP // 2) % WRAP - WRAP // 2


def words(values) -> np.ndarray:
    return np.array([value % WRAP for value in values], np.uint32)


def quotient(a: int, b: int) -> int:
    """Towards zero, as in C."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def divided(a: int, b: int) -> int:
    return quotient(a, b) + (a - quotient(a, b) * b)


def shifts(v: int, i: int) -> int:
    """i:v and v:i of 64 bits, by 7 and 9; by 40, what is clamped to 32."""
    left, right = (i << 32 | v) << 7 >> 32, (i << 32 | v) >> 9
    return left ^ right ^ v ^ i


def packed(v: int) -> int:
    """Of four bytes: wrapped sums, signed maxima, comparisons; of two halves: differences."""
    found = []
    for byte, more, least in zip(v.to_bytes(4, "little"), (0x80, 0x7F, 0xFE, 1), (51, 34, 17, 0)):
        largest = max((byte + 128) % 256 - 128, least) % 256
        found.append((byte + more) % 256 ^ largest ^ (255 if byte > 128 else 0))
    halves = (v - 2) % 65536 | ((v >> 16) - 1) % 65536 << 16
    return int.from_bytes(bytes(found), "little") ^ halves


feature(
    "__popc, __clz, __ffs, __brev",
    "unsigned v = x[i]; y[i] = __popc(v) + 100 * __clz(v) + 10000 * __ffs(v) + __brev(v);",
    words(
        v.bit_count()
        + 100 * (32 - v.bit_length())
        + 10000 * (v & -v).bit_length()
        + int(f"{v:032b}"[::-1], 2)
        for v in WORDS
    ),
    given=U,
)
feature(
    "__popcll, __clzll, __ffsll",
    "unsigned long long v = (unsigned long long)x[i] << 20;"
    " y[i] = __popcll(v) + 100 * __clzll(v) + 10000 * __ffsll(v);",
    words(
        v.bit_count()
        + 100 * (64 - (v << 20).bit_length())
        + 10000 * ((v << 20) & -(v << 20)).bit_length()
        for v in WORDS
    ),
    given=U,
)
feature(
    "__byte_perm",
    "y[i] = __byte_perm(x[i], 0x11223344, 0x5140);",
    words(v % 256 | 0x44 << 8 | (v >> 8) % 256 << 16 | 0x33 << 24 for v in WORDS),
    given=U,
)
feature(
    "__funnelshift_l, _r, _lc, _rc",
    "unsigned v = x[i]; y[i] = __funnelshift_l(v, i, 7) ^ __funnelshift_r(v, i, 9)"
    " ^ __funnelshift_lc(v, i, 40) ^ __funnelshift_rc(v, i, 40);",
    words(shifts(v, i) for v, i in zip(WORDS, range(64))),
    given=U,
)
feature(
    "__mulhi, __umulhi, __mul64hi, __umul64hi",
    "int v = x[i]; y[i] = __mulhi(v, 77777777) + __umulhi(x[i], 77777777u)"
    " + __mul64hi((long long)v << 30, 1ll << 50) + __umul64hi(x[i] * 1ull << 30, 1ull << 50);",
    words(
        (signed(v) * 77777777 >> 32) + (v * 77777777 >> 32) + (signed(v) << 80 >> 64) + (v << 16)
        for v in WORDS
    ),
    given=U,
)
feature(
    "__mul24, __umul24, __sad, __usad",
    "y[i] = __mul24(x[i], 1000) + __umul24(i, 99) + __sad(x[i], i, 5) + __usad(i, 40u, 1u);",
    X * 1000 + I * 99 + np.abs(X - I) + 5 + np.abs(I - 40) + 1,
)
feature(
    "__hadd, __rhadd, __uhadd",
    "y[i] = __hadd(x[i], i) * 10000 + __rhadd(x[i], i) * 100 + __uhadd(i, 3u);",
    (X + I >> 1) * 10000 + (X + I + 1 >> 1) * 100 + (I + 3 >> 1),
)
feature(
    "__dp4a, __dp2a_lo",
    "y[i] = __dp4a((int)x[i], 0x01020304, 7) + __dp2a_lo((int)x[i], 0x0102, 3);",
    BYTES.view(np.int8) @ np.array([4, 3, 2, 1], np.int32)
    + HALVES.view(np.int16) @ np.array([2, 1], np.int32)
    + np.int32(10),
    given=U,
)
feature(
    "SIMD in a word: __vadd4, __vmaxs4, __vcmpgtu4, __vsub2",
    "unsigned v = x[i]; y[i] = __vadd4(v, 0x01fe7f80) ^ __vmaxs4(v, 0x00112233)"
    " ^ __vcmpgtu4(v, 0x80808080) ^ __vsub2(v, 0x00010002);",
    words(map(packed, WORDS)),
    given=U,
)
feature(
    "division and remainder, of 32 and 64 bits",
    "long long a = (long long)x[i] << 35; int b = x[63 - i] | 1;"
    " y[i] = a / b + a % b + x[i] / b + x[i] % b;",
    np.array(
        [divided(a << 35, b | 1) + divided(a, b | 1) for a, b in zip(X.tolist(), X[::-1].tolist())],
        np.int64,
    ),
)
feature(
    "shifts by as much as the type has bits, by inline PTX",
    'int v; unsigned w; asm("shr.s32 %0, %1, 40;" : "=r"(v) : "r"(x[i]));'
    ' asm("shl.b32 %0, %1, 32;" : "=r"(w) : "r"(x[i])); y[i] = v * 10 + w;',
    np.where(X < 0, -10, 0).astype(np.int32),
)
