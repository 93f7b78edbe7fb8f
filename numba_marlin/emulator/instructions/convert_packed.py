"""cvt of several numbers at once: pairs of halves and of floats of 4 to 8 bits, powers of two
(ue8m0), tf32, and integers packed with saturation (cvt.pack).

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt

.rs, rounding by random bits, is refused: the text does not say what they are added to where a
result is subnormal, and no chip that has it was measured.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.state import numerics, small_floats
from numba_marlin.emulator.text.program import TYPE_BITS

HALF_ENCODERS = {"f16": numerics.half_bits_directed, "bf16": numerics.brain_bits}
LARGEST_HALF = {"f16": 0x7BFF, "bf16": 0x7F7F}
HALF_DECODERS = {"f16": numerics.half_values, "bf16": numerics.brain_values}


def rectified(values):
    """.relu: what is negative becomes 0; NaN stays."""
    return np.where(values < 0, values.dtype.type(0), values)


def half_encoder(ins, kind: str, mode: str):
    """float64 -> bits of f16 or bf16, with .relu and .satfinite."""
    relu, finite = "relu" in ins.modifiers, "satfinite" in ins.modifiers
    largest = np.uint16(LARGEST_HALF[kind])

    def encode(values):
        values = np.asarray(values)
        bits = HALF_ENCODERS[kind](rectified(values) if relu else values, mode)
        if finite:
            sign, size = bits & np.uint16(0x8000), bits & np.uint16(0x7FFF)
            bits = np.where((size > largest) & (values == values), sign | largest, bits)
        return bits

    return encode


def mode_of(ins, *modes: str) -> str:
    found = [modifier for modifier in ins.modifiers if modifier in modes]
    if len(found) != 1:
        raise unsupported(ins, f"needs one rounding: {', '.join(f'.{mode}' for mode in modes)}")
    return found[0]


def pair(ins, m):
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper, b the lower half."""
    to, kind = ins.types
    if kind != "f32":
        raise unsupported(ins, f"{to} from {kind} is not implemented")
    allow(ins, "rn", "rz", "relu", "satfinite")
    write = half_encoder(ins, to[:-2], mode_of(ins, "rn", "rz"))
    d, a, b = m.bind(ins, to, "f32", "f32")

    def step(lanes):
        s = lanes.sel
        for half, source in ((1, a), (0, b)):
            d[(s, slice(None), half) if isinstance(s, slice) else index_half(s, half)] = write(
                np.asarray(source[s]).astype(np.float64)
            )

    return step


def index_half(sel, half: int):
    """Index of one half of a packed register for array selections."""
    return (*sel, half) if isinstance(sel, tuple) else (sel, slice(None), half)


def small_pair(ins, m, kind: str):
    """cvt.rn.satfinite.e4m3x2.f32 d, a, b: a becomes the upper, b the lower code; the same of the
    halves of a word (.f16x2, 8-bit floats only); cvt.rn.f16x2.e4m3x2 d, a: halves in the same
    order. Codes of 6 bits take a byte each, of 4 bits a byte together."""
    name, small = f"{kind}x2", small_floats.KINDS[kind]
    word, gap = ("u8", 4) if small.bits == 4 else ("u16", 8)
    relu = "relu" in ins.modifiers
    plain = tuple(modifier for modifier in ins.modifiers if modifier != "relu")
    if plain == ("rn", "f16x2", name):
        operands(ins, 2)
        d, a = m.bind(ins, "u32", word)
        halves = small_floats.HALVES[kind].astype(np.uint32)
        if relu:
            halves = np.where(
                (halves & 0x8000 != 0) & (halves & 0x7FFF != 0x7FFF), np.uint32(0), halves
            )
        mask, shift = np.uint16((1 << small.bits) - 1), np.uint16(gap)

        def widen(lanes):
            s = lanes.sel
            codes = np.asarray(a[s]).astype(np.uint16)
            d[s] = halves[codes & mask] | halves[codes >> shift & mask] << np.uint32(16)

        return widen
    of_halves = plain == ("rn", "satfinite", name, "f16x2") and small.bits == 8
    if not of_halves and plain != ("rn", "satfinite", name, "f32"):
        raise unsupported(
            ins,
            f"{name} is implemented from .f32{' and .f16x2' if small.bits == 8 else ''} with"
            " .rn.satfinite{.relu}, and to .f16x2 with .rn{.relu}",
        )
    given = operands(ins, 2 if of_halves else 3)
    d = m.extended(ins, given[0], word)
    sources = [m.source(ins, operand, "f16x2" if of_halves else "f32") for operand in given[1:]]

    def narrow(lanes):
        s = lanes.sel
        if of_halves:
            both = numerics.half_values(sources[0][s])
            high, low = both[..., 1], both[..., 0]
        else:
            high, low = (np.asarray(source[s]) for source in sources)
        if relu:
            high, low = rectified(high), rectified(low)
        d[s] = small_floats.codes_of(high, kind) << np.uint16(gap) | small_floats.codes_of(
            low, kind
        )

    return narrow


def powers(ins, m):
    """cvt.rz.ue8m0x2.f32 d, a, b and of the halves of a word (.bf16x2); cvt.rn.bf16x2.ue8m0x2."""
    if ins.modifiers == ("rn", "bf16x2", "ue8m0x2"):
        d, a = m.bind(ins, "bf16x2", "u16")

        def widen(lanes):
            s = lanes.sel
            codes = np.asarray(a[s])[..., None] >> np.array([0, 8], np.uint16) & np.uint16(0xFF)
            d[s] = small_floats.brains_of_powers(codes)

        return widen
    if ins.modifiers[-2:] not in (("ue8m0x2", "f32"), ("ue8m0x2", "bf16x2")):
        raise unsupported(ins, "ue8m0x2 is implemented from .f32 and .bf16x2, and to .bf16x2")
    allow(ins, "rz", "rp", "satfinite", "ue8m0x2")
    up, finite = mode_of(ins, "rz", "rp") == "rp", "satfinite" in ins.modifiers
    packed = ins.type == "bf16x2"
    d, *sources = m.bind(ins, "u16", *(("bf16x2",) if packed else ("f32", "f32")))

    def narrow(lanes):
        s = lanes.sel
        if packed:
            both = numerics.brain_values(sources[0][s])
            high, low = both[..., 1], both[..., 0]
        else:
            high, low = (np.asarray(source[s]) for source in sources)
        high, low = (small_floats.powers_of(each, up, finite) for each in (high, low))
        d[s] = high << np.uint16(8) | low

    return narrow


DROPPED32 = 13  # bits of a float32 that tf32 has not


def tf32(ins, m):
    """cvt.rna.tf32.f32: ties away from zero; .rn and .rz; the bits that tf32 does not have are 0.
    NaN is canonical."""
    allow(ins, "rna", "rn", "rz", "relu", "satfinite", "tf32")
    mode = mode_of(ins, "rna", "rn", "rz")
    if ins.modifiers[-2:] != ("tf32", "f32") or mode == "rna" and "relu" in ins.modifiers:
        raise unsupported(ins, "tf32 is made from .f32; .relu goes with .rn and .rz")
    d, a = m.bind(ins, "b32", "f32")
    half = np.uint32(1 << DROPPED32 - 1)

    def step(lanes):
        s = lanes.sel
        values = np.asarray(a[s])
        word = (
            rectified(values).view(np.uint32) if "relu" in ins.modifiers else values.view(np.uint32)
        )
        if mode == "rna":
            word = word + half
        elif mode == "rn":
            word = word + (half - np.uint32(1)) + (word >> np.uint32(DROPPED32) & np.uint32(1))
        word = word >> np.uint32(DROPPED32) << np.uint32(DROPPED32)
        if "satfinite" in ins.modifiers:
            sign, size = word & np.uint32(1 << 31), word & np.uint32(0x7FFFFFFF)
            word = np.where(size >= 0x7F800000, sign | np.uint32(0x7F7FE000), word)
        d[s] = np.where(values != values, numerics.NAN32.view(np.uint32), word)

    return step


@instruction("cvt.pack")
def pack(ins, m):
    """#data-movement-and-conversion-instructions-cvt-pack: cvt.pack.sat.u8.s32.b32 d, a, b, c: c
    moved up, then a, then b, both cut off to the type; 16 bits take no c."""
    kinds = {f"{sign}{bits}": bits for sign in "us" for bits in (2, 4, 8, 16)}
    rest = ("s32",) if ins.modifiers[1:2] in (("u16",), ("s16",)) else ("s32", "b32")
    if ins.modifiers[:1] != ("sat",) or ins.modifiers[1] not in kinds or ins.modifiers[2:] != rest:
        raise unsupported(
            ins, "must be .sat.u16.s32 or .s16, or .sat.u8.s32.b32, s8, u4, s4, u2, s2"
        )
    kind, bits = ins.modifiers[1], kinds[ins.modifiers[1]]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    d, a, b, *c = m.bind(ins, "b32", "s32", "s32", *(("b32",) if len(rest) == 2 else ()))
    mask = np.uint32((1 << bits) - 1)

    def step(lanes):
        s = lanes.sel
        upper, lower = (
            np.clip(source[s], np.int32(low), np.int32(high)).view(np.uint32) & mask
            for source in (a, b)
        )
        word = upper << np.uint32(bits) | lower
        d[s] = word | c[0][s] << np.uint32(2 * bits) if c else word

    return step


def special_form(ins, m):
    """The step of a cvt to or from a type that only this module has; None for any other."""
    small = [kind for kind in small_floats.KINDS if f"{kind}x2" in ins.modifiers]
    if small:
        return small_pair(ins, m, small[0])
    if "ue8m0x2" in ins.modifiers:
        return powers(ins, m)
    if "tf32" in ins.modifiers:
        return tf32(ins, m)
    if len(ins.types) == 2 and ins.types[0].endswith("x2") and TYPE_BITS[ins.types[0]] == 32:
        return pair(ins, m)
    return None
