"""Contract under test: mma.sync with block scales multiplies the fragments and picks the scales
that the ISA says, and refuses selectors and scales that it does not have."""

import numpy as np
import pytest

from numba_marlin.emulator import BadDescriptor, DivergentCollective, UnknownInstruction
from numba_marlin.formats import small_floats
from tests.emulator.ptx_cases import launch, snippet

MULTIPLY = {"e4m3": "mma_m16n8k64_f32_mxf4nvf4_4x", "e8m0": "mma_m16n8k64_f32_mxf4_2x"}
VECTORS = {"e4m3": 4, "e8m0": 2}
LANES = [(lane, lane // 4, lane % 4) for lane in range(32)]


def registers(a, b, c, sfa, sfb, thread_a, thread_b, byte, seed):
    """What each lane holds, uint32 [warps, 32, 12]: 4 of a [16, 64], 2 of b [8, 64], 4 of c [16,
    8], a word of scales of each; what nobody looks at is random."""
    held = np.random.default_rng(seed).integers(0, 1 << 32, (len(a), 32, 12), dtype=np.uint32)
    for warp in range(len(a)):
        for lane, g, t in LANES:
            for register in range(4):
                row, k = g + 8 * (register % 2), 8 * t + 32 * (register // 2)
                held[warp, lane, register] = sum(
                    int(code) << 4 * i for i, code in enumerate(a[warp, row, k : k + 8])
                )
            for register in range(2):
                held[warp, lane, 4 + register] = sum(
                    int(code) << 4 * i
                    for i, code in enumerate(b[warp, g, 8 * t + 32 * register :][:8])
                )
            for register in range(4):
                held[warp, lane, 6 + register] = c[
                    warp, g + 8 * (register // 2), 2 * t + register % 2
                ].view(np.uint32)
            words = held[warp, lane, 10:].view(np.uint8).reshape(2, 4)
            if t // 2 == thread_a:
                words[0, byte : byte + sfa.shape[-1]] = sfa[warp, g + 8 * (t % 2)]
            if t == thread_b:
                words[1, byte : byte + sfb.shape[-1]] = sfb[warp, g]
    return held


def multiply(held, scale, edit=lambda text: text, **selectors):
    out = np.zeros((len(held), 32, 4), np.float32)
    body = "mad.wide.u32 %rd0, %t, 48, %p0;\n" + "".join(
        f"ld.global.b32 %r{i}, [%rd0 + {4 * i}];\n" for i in range(12)
    )
    body += "".join(f"mov.b32 %f{i}, %r{6 + i};\n" for i in range(4))
    d, a, b = (
        tuple(f"%f{8 + i}" for i in range(4)),
        tuple(f"%r{i}" for i in range(4)),
        ("%r4", "%r5"),
    )
    body += snippet(
        MULTIPLY[scale], d, a, b, tuple(f"%f{i}" for i in range(4)), "%r10", "%r11", **selectors
    )
    body += "mad.wide.u32 %rd1, %t, 16, %p1;\n" + "".join(
        f"st.global.f32 [%rd1 + {4 * i}], %f{8 + i};\n" for i in range(4)
    )
    launch(edit(body), {"held": held, "out": out}, block=32 * len(held))
    result = np.zeros((len(held), 16, 8), np.float32)
    for lane, g, t in LANES:
        for register in range(4):
            result[:, g + 8 * (register // 2), 2 * t + register % 2] = out[:, lane, register]
    return result


def draw(scale, seed, warps=3, exact=True):
    rng = np.random.default_rng(seed)
    values = (
        {"e4m3": [0x30, 0x38, 0x40], "e8m0": [126, 127, 128]}[scale]
        if exact
        else {"e4m3": range(0x7F), "e8m0": range(110, 140)}[scale]
    )
    a, b = (rng.integers(0, 16, (warps, rows, 64)).astype(np.uint8) for rows in (16, 8))
    sfa, sfb = (
        rng.choice(values, (warps, rows, VECTORS[scale])).astype(np.uint8) for rows in (16, 8)
    )
    c = rng.integers(-99, 99, (warps, 16, 8)).astype(np.float32)
    return a, b, c, sfa, sfb


def scaled(codes, scales, name):
    return small_floats.decode(codes, "e2m1").astype(np.float64) * np.repeat(
        small_floats.decode(scales, name).astype(np.float64), 64 // scales.shape[-1], axis=-1
    )


@pytest.mark.parametrize(
    "scale, byte, thread_a, thread_b",
    [
        ("e4m3", 0, 0, 0),
        ("e4m3", 0, 1, 3),
        ("e4m3", 0, 1, 1),
        ("e4m3", 0, 0, 2),
        ("e8m0", 0, 0, 0),
        ("e8m0", 2, 1, 2),
        ("e8m0", 2, 0, 3),
        ("e8m0", 0, 1, 1),
    ],
)
def test_products_are_exact_whoever_holds_the_scales(scale, byte, thread_a, thread_b):
    a, b, c, sfa, sfb = draw(scale, seed=byte + 2 * thread_a + thread_b)
    held = registers(a, b, c, sfa, sfb, thread_a, thread_b, byte, seed=1)
    if scale == "e4m3":
        held[..., 10:] &= 0x7F7F7F7F
    selectors = {
        "thread_a": thread_a,
        "thread_b": thread_b,
        **({"byte": byte} if scale == "e8m0" else {}),
    }
    got = multiply(held, scale, **selectors)
    assert np.array_equal(got, scaled(a, sfa, scale) @ scaled(b, sfb, scale).swapaxes(1, 2) + c)


@pytest.mark.parametrize("scale", VECTORS)
def test_any_scales_stay_within_fp32_rounding(scale):
    a, b, c, sfa, sfb = draw(scale, seed=7, exact=False)
    got = multiply(
        registers(a, b, c, sfa, sfb, 0, 0, 0, seed=2),
        scale,
        thread_a=0,
        thread_b=0,
        **({"byte": 0} if scale == "e8m0" else {}),
    )
    left, right = scaled(a, sfa, scale), scaled(b, sfb, scale).swapaxes(1, 2)
    assert (
        np.abs(got - (left @ right + c))
        <= 4 * 2.0**-24 * (np.abs(left) @ np.abs(right) + np.abs(c))
    ).all()


REFUSED = {
    "a third thread of A": (
        UnknownInstruction,
        {"thread_a": 2, "thread_b": 0},
        lambda text: text,
        "one below 2",
    ),
    "a fifth thread of B": (
        UnknownInstruction,
        {"thread_a": 0, "thread_b": 4},
        lambda text: text,
        "one below 4",
    ),
    "a byte of four": (
        UnknownInstruction,
        {"thread_a": 0, "thread_b": 0},
        lambda text: text.replace("%r10, {0,", "%r10, {2,"),
        r"\{2, 0\}",
    ),
    "scales of another type": (
        UnknownInstruction,
        {"thread_a": 0, "thread_b": 0},
        lambda text: text.replace("kind::mxf4nvf4", "kind::mxf4"),
        "with a type of scales that they have",
    ),
    "half a warp": (
        DivergentCollective,
        {"thread_a": 0, "thread_b": 0},
        lambda text: text.replace("mma.sync", "setp.lt.u32 %q0, %t, 16; @%q0 mma.sync"),
        "needs all 32 lanes",
    ),
    "a negative scale": (
        BadDescriptor,
        {"thread_a": 0, "thread_b": 0},
        lambda text: text.replace("mma.sync", "or.b32 %r11, %r11, 0x8000; mma.sync"),
        "scale of B has its highest bit set",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_isa_does_not_have_is_refused(name):
    kind, selectors, edit, pattern = REFUSED[name]
    held = registers(*draw("e4m3", seed=3, warps=1), 0, 0, 0, seed=4)
    held[..., 10:] &= 0x7F7F7F7F
    with pytest.raises(kind, match=pattern):
        multiply(held, "e4m3", edit, **selectors)
