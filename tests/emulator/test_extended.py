"""Contract under test: carries, and dot products of the parts of a word."""

import numpy as np

from tests.emulator.ptx_cases import compute, words


def big(*parts):
    return sum(part.astype(object) << 32 * i for i, part in enumerate(parts))


def test_carries_make_long_numbers():
    a, b, c = words(256, seed=1), words(256, seed=2), words(256, seed=3)
    a1, b1 = words(256, seed=4), words(256, seed=5)
    total, difference, product = (
        big(a, a1) + big(b, b1),
        big(a, a1) - big(b, b1),
        big(a) * big(b) + big(c, a1),
    )
    add, sub = (
        "add.cc.u32 %r0, %a, %b;\naddc.cc.u32 %r1, %c, %e;\naddc.u32 %r2, 0, 0;\n",
        "sub.cc.u32 %r0, %a, %b;\nsubc.cc.u32 %r1, %c, %e;\nsubc.u32 %r2, 0, 0;\n",
    )
    for body, expected in ((add, total), (sub, difference)):
        for i in range(3):
            assert (
                compute(f"{body}mov.u32 %d, %r{i};", a, b, a1, b1, out=np.uint32)
                == (expected >> 32 * i & 0xFFFFFFFF).astype(np.uint32)
            ).all()
    multiply = (
        "mad.lo.cc.u32 %r0, %a, %b, %c;\nmadc.hi.cc.u32 %r1, %a, %b, %e;\naddc.u32 %r2, 0, 0;\n"
    )
    for i in range(3):
        assert (
            compute(f"{multiply}mov.u32 %d, %r{i};", a, b, c, a1, out=np.uint32)
            == (product >> 32 * i & 0xFFFFFFFF).astype(np.uint32)
        ).all()
    # a flag survives what does not write it
    assert (
        compute(
            "add.cc.u32 %r0, %a, %b;\nadd.u32 %r1, %a, %a;\naddc.u32 %r2, 0, 0;\naddc.u32 %d,"
            " 0, 0;",
            a,
            b,
            out=np.uint32,
        )
        == ((big(a) + big(b)) >> 32).astype(np.uint32)
    ).all()


def test_the_flag_behind_a_subtraction_is_a_carry():
    """As a + ~b + 1 carries, whoever reads it: addc as well as subc."""
    a, b = words(256, seed=1), words(256, seed=2)
    a[:8], b[:8] = [0, 0, 5, 5, 5, 2**32 - 1, 0, 2**31], [0, 1, 4, 5, 6, 0, 2**32 - 1, 2**31 - 1]
    for body, expected in (
        ("sub.cc.u32 %r0, %a, %b;\naddc.u32 %d, 0, 0;", big(a) >= big(b)),
        ("sub.cc.s32 %r0, %a, %b;\naddc.s32 %d, 0, 0;", big(a) >= big(b)),
        ("sub.cc.u32 %r0, %a, %b;\nmadc.lo.u32 %d, 0, 0, 0;", big(a) >= big(b)),
        ("add.cc.u32 %r0, %a, %b;\nsubc.u32 %d, 0, 0;", (big(a) + big(b) >> 32) - 1),
        ("add.cc.u32 %r0, %a, 0;\nsubc.u32 %d, %a, %b;", big(a) - big(b) - 1),
    ):
        assert (
            compute(body, a, b, out=np.uint32) == (expected & 0xFFFFFFFF).astype(np.uint32)
        ).all(), body
    wide_a, wide_b = words(64, np.uint64, 3), words(64, np.uint64, 4)
    assert (
        compute("sub.cc.u64 %rd0, %a, %b;\naddc.u64 %d, 0, 0;", wide_a, wide_b, out=np.uint64)
        == (wide_a >= wide_b)
    ).all()


def test_long_carries_of_64_bits():
    a, b = words(128, np.uint64, 1), words(128, np.uint64, 2)
    total = a.astype(object) + b.astype(object)
    assert (
        compute("add.cc.u64 %rd0, %a, %b;\naddc.u64 %d, 0, 0;", a, b, out=np.uint64)
        == (total >> 64).astype(np.uint64)
    ).all()


def test_dot_products_of_bytes_and_halves():
    a, b, c = words(256, seed=6), words(256, seed=7), words(256, seed=8)
    for kinds, views in (
        ("u32.u32", "uu"),
        ("s32.s32", "ii"),
        ("u32.s32", "ui"),
        ("s32.u32", "iu"),
    ):
        left, halves, right = (
            a.view(f"{views[0]}1").reshape(-1, 4).astype(np.int64),
            a.view(f"{views[0]}2").reshape(-1, 2).astype(np.int64),
            b.view(f"{views[1]}1").reshape(-1, 4).astype(np.int64),
        )
        for body, total in (
            ("dp4a", (left * right).sum(1)),
            ("dp2a.lo", (halves * right[:, :2]).sum(1)),
            ("dp2a.hi", (halves * right[:, 2:]).sum(1)),
        ):
            assert (
                compute(f"{body}.{kinds} %d, %a, %b, %c;", a, b, c, out=np.uint32)
                == (total + c).astype(np.uint32)
            ).all(), (body, kinds)
