"""Contract under test: video instructions work element by element, with .sat and .add; pairs, fns
and packed comparisons as the ISA says."""

import operator

import numpy as np
import pytest

from tests.emulator.ptx_cases import compute, words

A, B, C = words(256, seed=11), words(256, seed=12), words(256, seed=13)
OPERATIONS = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": lambda x, y: (x + y + 1 - (x + y < 0)) // 2,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
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


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons_element_by_element(name, count):
    a = np.where(np.arange(256) % 3, A, B)  # some alike
    for kind_a, kind_b in (("u32", "u32"), ("s32", "s32"), ("s32", "u32")):
        holds = COMPARE[name](elements(a, kind_a, count), elements(B, kind_b, count))
        merged = (holds.astype(np.uint64) << 32 // count * np.arange(count, dtype=np.uint64)).sum(1)
        opcode = f"vset{count}.{kind_a}.{kind_b}.{name}"
        assert (compute(f"{opcode} %d, %a, %b, %c;", a, B, C, out=np.uint32) == merged).all()
        total = (holds.sum(axis=1) + C).astype(np.uint32)
        assert (compute(f"{opcode}.add %d, %a, %b, %c;", a, B, C, out=np.uint32) == total).all()


def typed(x, kind):
    return [int(value) for value in x.view(np.int32 if kind == "s32" else np.uint32)]


SCALAR = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}
SECOND = {"": None, ".add": lambda x, c: x + c, ".min": min, ".max": max}
KINDS = [("u32", "u32", "u32"), ("s32", "s32", "s32"), ("s32", "u32", "s32"), ("u32", "s32", "u32")]
LIMITS = {"u32": (0, 2**32 - 1), "s32": (-(2**31), 2**31 - 1)}


def check_words(opcode, expected, second, to):
    """``expected``: exact values before the second operation with C."""
    if SECOND[second] is not None:
        expected = [SECOND[second](x, c) for x, c in zip(expected, typed(C, to))]
    operands = "%d, %a, %b, %c;" if SECOND[second] is not None else "%d, %a, %b;"
    got = compute(f"{opcode}{second} {operands}", A, B, C, out=np.uint32)
    assert got.tolist() == [x & 0xFFFFFFFF for x in expected], opcode


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("sat", ["", ".sat"])
def test_scalar_video_instructions(sat, second):
    for to, kind_a, kind_b in KINDS:
        low, high = LIMITS[to]
        pairs = list(zip(typed(A, kind_a), typed(B, kind_b)))
        for name, function in SCALAR.items():
            exact = [function(x, y) for x, y in pairs]
            exact = [min(max(x, low), high) for x in exact] if sat else exact
            check_words(f"{name}.{to}.{kind_a}.{kind_b}{sat}", exact, second, to)
        if kind_b != "u32":
            continue
        for mode in ("clamp", "wrap"):
            amounts = [min(y, 32) if mode == "clamp" else y % 32 for y in typed(B % 40, "u32")]
            left = [x << n for x, n in zip(typed(A, kind_a), amounts)]
            right = [x >> n for x, n in zip(typed(A, kind_a), amounts)]
            for name, exact in (("vshl", left), ("vshr", right)):
                exact = [min(max(x, low), high) for x in exact] if sat else exact
                opcode = f"rem.u32 %b, %b, 40;{name}.{to}.{kind_a}.u32{sat}.{mode}"
                check_words(opcode, exact, second, to)


@pytest.mark.parametrize("second", SECOND)
def test_scalar_comparisons_and_products(second):
    for _, kind_a, kind_b in KINDS:
        for name, holds in COMPARE.items():
            exact = [int(holds(x, y)) for x, y in zip(typed(A, kind_a), typed(B, kind_b))]
            check_words(f"vset.{kind_a}.{kind_b}.{name}", exact, second, "u32")
        final = "s32" if "s32" in (kind_a, kind_b) else "u32"
        low, high = LIMITS[final]
        for more, shift, sat in ((0, 0, ""), (1, 7, ".sat"), (0, 15, ".sat"), (1, 15, "")):
            exact = [
                x * y + z + more >> shift
                for x, y, z in zip(typed(A, kind_a), typed(B, kind_b), typed(C, final))
            ]
            exact = [min(max(x, low), high) for x in exact] if sat else exact
            opcode = (
                f"vmad.u32.{kind_a}.{kind_b}{'.po' * more}{sat}{f'.shr{shift}' if shift else ''}"
            )
            got = compute(f"{opcode} %d, %a, %b, %c;", A, B, C, out=np.uint32)
            assert got.tolist() == [x & 0xFFFFFFFF for x in exact], opcode


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
        for last, combine in ((1, "and"), (0, "and"), (1, "xor")):
            found = compute(
                f"setp.ne.u32 %q0, {last}, 0; set.lt.{combine}.{to}.f16x2 %d, %a, %b, %q0;",
                x.view(np.uint32),
                y.view(np.uint32),
                out=np.uint32,
            )
            both = holds & bool(last) if combine == "and" else holds ^ bool(last)
            assert (found.view(np.uint16) == np.where(both, yes, 0)).all()


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
