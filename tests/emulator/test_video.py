"""Contract under test: video instructions work element by element, with .sat and .add; pairs, fns
and packed comparisons as the ISA says."""

import numpy as np
import pytest

from tests.emulator.ptx_cases import compute, words

A, B, C = words(256, seed=11), words(256, seed=12), words(256, seed=13)
OPERATIONS = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


def elements(x, kind, count):
    return (
        x.view(f"{'i' if kind == 's32' else 'u'}{4 // count}").reshape(-1, count).astype(np.int64)
    )


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_video_instructions(name, count):
    bits = 32 // count
    for to, kind_a, kind_b in (("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32")):
        result = OPERATIONS[name](elements(A, kind_a, count), elements(B, kind_b, count))
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to == "s32" else (0, (1 << bits) - 1)
        for sat, values in (("", result), (".sat", result.clip(low, high))):
            opcode = f"{name}{count}.{to}.{kind_a}.{kind_b}{sat}"
            merged = (
                ((values & (1 << bits) - 1) << bits * np.arange(count))
                .sum(axis=1)
                .astype(np.uint32)
            )
            assert (compute(f"{opcode} %d, %a, %b, %c;", A, B, C, out=np.uint32) == merged).all(), (
                opcode
            )
            assert (
                compute(f"{opcode}.add %d, %a, %b, %c;", A, B, C, out=np.uint32)
                == (values.sum(axis=1) + C).astype(np.uint32)
            ).all(), opcode


def test_pairs_of_16_bits():
    for kind in ("u16x2", "s16x2"):
        x, y = (each.view(np.int16 if kind[0] == "s" else np.uint16) for each in (A, B))
        for opcode, expected in (
            ("add", x + y),
            ("min", np.minimum(x, y)),
            ("max", np.maximum(x, y)),
        ):
            assert (
                compute(f"{opcode}.{kind} %d, %a, %b;", A, B, out=np.uint32)
                == expected.view(np.uint32)
            ).all()
    assert (
        compute("max.relu.s16x2 %d, %a, %b;", A, B, out=np.uint32)
        == np.maximum(np.maximum(A.view(np.int16), B.view(np.int16)), 0).view(np.uint32)
    ).all()


def by_hand(mask, base, offset):
    """The ISA's own program."""
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    position, step, left = base, 1 if offset > 0 else -1, abs(offset)
    while 0 <= position < 32:
        left -= mask >> position & 1
        if left == 0:
            return position
        position += step
    return 0xFFFFFFFF


def test_the_nth_set_bit():
    base, offset = np.arange(256, dtype=np.uint32) % 32, (np.arange(256) % 9 - 4).astype(np.int32)
    found = compute("fns.b32 %d, %a, %b, %c;", A, base, offset, out=np.uint32)
    assert list(found) == [
        by_hand(*each) for each in zip(A.tolist(), base.tolist(), offset.tolist())
    ]


def test_set_of_halves():
    x, y = (words(512, np.uint16, seed).view(np.float16) for seed in (1, 2))
    with np.errstate(invalid="ignore"):
        holds = x < y
    for to, kind, yes, dtype in (
        ("u32", "f16", 0xFFFFFFFF, np.uint32),
        ("f16", "f16", 0x3C00, np.uint16),
    ):
        assert (
            compute(
                f"set.lt.{to}.{kind} %d, %a, %b;", x.view(np.uint16), y.view(np.uint16), out=dtype
            )
            == np.where(holds, yes, 0)
        ).all()
    for to, yes in (("u32", 0xFFFF), ("f16x2", 0x3C00)):
        found = compute(
            f"set.lt.{to}.f16x2 %d, %a, %b;", x.view(np.uint32), y.view(np.uint32), out=np.uint32
        )
        assert (found.view(np.uint16) == np.where(holds, yes, 0)).all()


def test_functions_of_halves():
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    with np.errstate(all="ignore"):  # signalling NaN among them
        values = x.view(np.float16).astype(np.float64)
        for opcode, exact in (
            ("ex2.approx.f16", np.exp2(values)),
            ("tanh.approx.f16", np.tanh(values)),
        ):
            found, expected = (
                compute(f"{opcode} %d, %a;", x, out=np.uint16).view(np.float16),
                exact.astype(np.float16),
            )
            assert ((found == expected) | np.isnan(found) & np.isnan(expected)).all()
    with np.errstate(all="ignore"):
        expected = np.tanh((x[::7].astype(np.uint32) << 16).view(np.float32).astype(np.float64))
        found = (
            compute("tanh.approx.bf16 %d, %a;", x[::7].copy(), out=np.uint16).astype(np.uint32)
            << 16
        ).view(np.float32)
        assert (
            np.isclose(found, expected, rtol=2**-8, atol=1e-45)
            | np.isnan(expected) & np.isnan(found)
        ).all()
        flushed = compute(
            "ex2.approx.ftz.bf16 %d, %a;",
            np.array([0x0001, 0x8001, 0xC301], np.uint16),
            out=np.uint16,
        )
    assert list(flushed) == [0x3F80, 0x3F80, 0]  # 2**-129 is a subnormal
