"""shfl, vote, match, redux, activemask against the pseudo-code of the ISA, with whole and with
partial warps."""

import numpy as np
import pytest

from tests.emulator.ptx_cases import launch, words


def per_lane(body, *inputs, threads=64, outputs=1, **options):
    """Lane values %a, %b ... from inputs; results in %r0 ... are stored."""
    arrays = {f"in{i}": x for i, x in enumerate(inputs)}
    loads = "".join(
        f".reg .b32 %{'abc'[i]}; mad.wide.u32 %rd0, %t, 4, %p{i}; ld.global.b32 %{'abc'[i]},"
        " [%rd0];\n"
        for i in range(len(inputs))
    )
    out = np.zeros((threads, outputs), np.uint32)
    stores = f"mad.wide.u32 %rd0, %t, {4 * outputs}, %p{len(inputs)};" + "".join(
        f"st.global.b32 [%rd0+{4 * i}], %r{i};" for i in range(outputs)
    )
    # lanes that their masks do not name are computed too: as on chips, not by the ISA
    checks = "strict,lane-outside-mask=off"
    launch(loads + body + stores, {**arrays, "out": out}, block=threads, checks=checks, **options)
    return out


def shuffle(mode, values, b, c):
    """One warp, by the loop of the ISA: (values, predicates)."""
    out, inside = [], []
    for lane in range(32):
        by, clamp, segment = b[lane] & 31, c & 31, c >> 8 & 31
        high, low = lane & segment | clamp & ~segment & 31, lane & segment
        j = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": low | by & ~segment & 31,
        }[mode]
        p = j >= high if mode == "up" else j <= high
        out.append(values[j if p else lane])
        inside.append(int(p))
    return out, inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(mode, width):
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    values, by = words(64, seed=1), np.random.default_rng(2).integers(0, 32, 64).astype(np.uint32)
    by[:32] = 1
    body = f"shfl.sync.{mode}.b32 %r0|%q0, %a, %b, {clamp}, -1; selp.u32 %r1, 1, 0, %q0;"
    out = per_lane(body, values, by, outputs=2)
    for warp in (slice(0, 32), slice(32, 64)):
        expected, inside = shuffle(mode, values[warp].tolist(), by[warp].tolist(), clamp)
        assert out[warp, 0].tolist() == expected and out[warp, 1].tolist() == inside


def test_butterfly_sum():
    values = np.arange(64, dtype=np.uint32)
    steps = "".join(
        f"shfl.sync.bfly.b32 %r5, %r0, {16 >> i}, 31, -1; add.u32 %r0, %r0, %r5;" for i in range(5)
    )
    out = per_lane(f"mov.u32 %r0, %a; {steps}", values)
    assert out[:32, 0].tolist() == [496] * 32 and out[32:, 0].tolist() == [496 + 1024] * 32


def test_shuffle_within_a_divergent_arm():
    values = words(64)
    body = """and.b32 %r9, %t, 16; setp.ne.u32 %q0, %r9, 0; mov.u32 %r0, 0; @%q0 bra HIGH;
    shfl.sync.idx.b32 %r0, %a, 3, 31, 0xffff; bra END; HIGH:
    shfl.sync.idx.b32 %r0, %a, 20, 31, 0xffff0000; END:"""
    out = per_lane(body, values)[:, 0]
    lane = np.arange(64)
    assert np.array_equal(out, values[np.where(lane & 16, 20, 3) + lane // 32 * 32])


def test_votes():
    values = words(64) % 4
    body = """setp.lt.u32 %q0, %a, 2; vote.sync.ballot.b32 %r0, %q0, -1;
    vote.sync.any.pred %q1, %q0, 0xff; vote.sync.all.pred %q2, %q0, 0x3;
    vote.sync.uni.pred %q3, %q0, 0x3; selp.u32 %r1, 1, 0, %q1; selp.u32 %r2, 1, 0, %q2;
    selp.u32 %r3, 1, 0, %q3;"""
    out = per_lane(body, values, outputs=4)
    for warp in (0, 1):
        yes = values[32 * warp : 32 * warp + 32] < 2
        mine = out[32 * warp : 32 * warp + 32]
        assert (mine[:, 0] == sum(1 << i for i in range(32) if yes[i])).all()
        assert (mine[:, 1] == yes[:8].any()).all() and (mine[:, 2] == yes[:2].all()).all()
        assert (mine[:, 3] == (yes[0] == yes[1])).all()


def test_votes_and_reductions_of_part_of_a_warp():
    """Lanes 5.. vote among themselves; the block ends in a warp of 16 threads."""
    body = """mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; setp.lt.u32 %q0, %t, 5; @%q0 bra END;
    activemask.b32 %r1; setp.lt.u32 %q1, %a, 9;
    vote.sync.ballot.b32 %r0, %q1, %r1; redux.sync.add.u32 %r2, %a, %r1; END:"""
    values = np.arange(48, dtype=np.uint32)
    out = per_lane(body, values, threads=48, outputs=3)
    assert (
        (out[5:32, 0] == 0b111100000).all()
        and (out[5:32, 1] == 0xFFFFFFE0).all()
        and (out[32:, 1] == 0xFFFF).all()
    )
    assert (out[5:32, 2] == sum(range(5, 32))).all() and (out[32:, 2] == sum(range(32, 48))).all()


@pytest.mark.parametrize(
    "name, kind, function",
    [
        ("add", "u32", lambda x: sum(x) & 0xFFFFFFFF),
        ("min", "s32", min),
        ("max", "u32", max),
        ("and", "b32", lambda x: int(np.bitwise_and.reduce(x))),
        ("xor", "b32", lambda x: int(np.bitwise_xor.reduce(x))),
    ],
)
def test_redux(name, kind, function):
    values = words(64)
    typed = values.view(np.int32) if kind == "s32" else values
    out = per_lane(f"redux.sync.{name}.{kind} %r0, %a, 0xff0;", values)[:, 0]
    for warp in (0, 32):
        assert (
            out[warp : warp + 32] == function(typed[warp + 4 : warp + 12].tolist()) % 2**32
        ).all()


def test_match():
    values = words(64) % 3
    body = (
        "match.any.sync.b32 %r0, %a, -1; match.all.sync.b32 %r1|%q0, %a, 0x1; selp.u32 %r2, 1, 0,"
        " %q0;"
    )
    out = per_lane(body, values, outputs=3)
    for t in range(64):
        warp = values[t // 32 * 32 : t // 32 * 32 + 32]
        assert out[t, 0] == sum(1 << i for i in range(32) if warp[i] == values[t])


def test_elect():
    out = per_lane(
        "mov.u32 %r0, 0; elect.sync %r1|%q0, 0xff00; @%q0 mov.u32 %r0, 1;", threads=64, outputs=2
    )
    assert np.flatnonzero(out[:, 0]).tolist() == [8, 40] and (out[:, 1] == 8).all()
