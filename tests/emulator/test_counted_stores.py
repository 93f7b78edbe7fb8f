"""Contract under test: what else an mbarrier counts: cp.async, stores and reductions in other
blocks' shared memory, copies from block to block; and bulk copies that reduce."""

import numpy as np
import pytest

from numba_marlin.emulator import (
    BarrierMisuse,
    Deadlock,
    PendingCopyRead,
    ProxyHazard,
    Race,
    UnknownInstruction,
)
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator import ptx_cases
from tests.emulator.async_ptx import COMMIT, FENCE, SEEDS, WAIT_ALL, buffers, spin, start
from tests.emulator.bulk_copy_programs import ONE, SHARED, s2g
from tests.emulator.nvrtc import ptx_of
from tests.emulator.ptx_cases import Machine, fails, frame, launch, snippet, words

COPY = """mad.lo.u32 %r51, %t, 16, %r50; mad.wide.u32 %rd1, %t, 16, %p0;
cp.async.cg.shared.global [%r51], [%rd1], 16;
"""
READ = """sub.u32 %r52, 31, %t; mad.lo.u32 %r51, %r52, 16, %r50;
ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r51]; mad.wide.u32 %rd9, %r52, 16, %p1;
st.global.v4.u32 [%rd9], {%r1, %r2, %r3, %r4};
"""
INIT = ".shared .align 8 .b64 bar; mov.u32 %r40, bar; setp.ne.u32 %q0, %t, 0;\n"


def racing(monkeypatch):
    monkeypatch.setattr(
        ptx_cases, "Machine", lambda text, **options: Machine(text, races=True, **options)
    )


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(
    "arrivals, arrive",
    [
        (32, snippet("cp_async_mbarrier_arrive_noinc", "%r40")),
        (
            32,
            "cp.async.mbarrier.arrive.shared::cta.b64 [%r40];"
            " mbarrier.arrive.shared.b64 _, [%r40];",
        ),
        (
            32,
            "cvt.u64.u32 %rd2, %r40; cvta.shared.u64 %rd2, %rd2;"
            "cp.async.mbarrier.arrive.noinc.b64 [%rd2];",
        ),
    ],
)
def test_an_mbarrier_waits_for_cp_async(arrivals, arrive, races, seed, monkeypatch):
    """No other wait for the copies; every lane reads what another one has copied."""
    if races:
        racing(monkeypatch)
    x, y = words(128), np.zeros(128, np.uint32)
    body = start(arrivals) + SHARED + COPY + arrive + "\n" + spin("W", "%r40", "0") + READ
    launch(body, {"x": x, "y": y}, seed=seed)
    assert np.array_equal(x, y)


def test_the_arrival_stands_behind_copies_before_it_only():
    x, y = words(128), np.zeros(128, np.uint32)
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r40];\n"
    body = start(32) + SHARED + arrive + COPY + spin("W", "%r40", "0") + READ
    with pytest.raises(PendingCopyRead):
        launch(body, {"x": x, "y": y})


def test_who_has_waited_for_the_arrival_can_fence_for_the_asynchronous_proxy():
    """One warp copies, another one waits and passes the bytes on in bulk: with a fence in between,
    not with one before the wait."""
    x, y = words(128), np.zeros(128, np.uint32)
    copy = COPY + snippet("cp_async_mbarrier_arrive_noinc", "%r40") + "\nbra.uni END;\n"
    begin = start(32) + SHARED + "setp.gt.u32 %q3, %t, 31; @%q3 bra OTHER;\n" + copy + "OTHER:\n"
    one = "setp.ne.u32 %q1, %t, 32; @%q1 bra END;\n"
    end = one + s2g("%p1") + COMMIT + WAIT_ALL + "END:"
    wait = spin("W", "%r40", "0")
    launch(begin + wait + FENCE + end, {"x": x, "y": y}, block=64)
    assert np.array_equal(x, y)
    for hazard in (wait, FENCE + wait):
        fails(ProxyHazard, begin + hazard + end, {"x": x, "y": y}, block=64)


def test_arrivals_that_the_count_does_not_have_delay_the_phase():
    """Without .noinc an arrival adds one to what is waited for: 32 arrivals are still missing."""
    x, y = words(128), np.zeros(128, np.uint32)
    arrive = "cp.async.mbarrier.arrive.shared.b64 [%r40];\n"
    with pytest.raises(Deadlock, match="lacks 32 of 32 arrivals"):
        launch(start(32) + SHARED + COPY + arrive + spin("W", "%r40", "0"), {"x": x, "y": y})


def test_arrivals_end_with_their_block():
    x, y = words(128), np.zeros(128, np.uint32)
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r40]; cp.async.wait_all;\n"
    skip = "mov.u32 %r33, %ctaid.x; setp.eq.u32 %q4, %r33, 0; @%q4 bra END;\n"
    body = start(32) + SHARED + COPY + arrive + skip + spin("W", "%r40", "0") + READ + "END:"
    launch(body, {"x": x, "y": y}, grid=2, resident_blocks=1)
    assert np.array_equal(x, y)


def test_bytes_can_be_counted_by_hand():
    out = np.zeros(32, np.uint32)
    body = (
        start(1)
        + """@%q0 bra WAIT; mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r40], 48;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r40], 16;
    mbarrier.test_wait.parity.shared.b64 %q1, [%r40], 0; selp.u32 %r1, 100, 0, %q1;
    mbarrier.complete_tx.shared::cta.b64 [%r40], 32; WAIT: mov.u32 %r2, 1;
    """
        + spin("W", "%r40", "0")
        + """mad.wide.u32 %rd1, %t, 4, %p0;
    @!%q0 add.u32 %r2, %r2, %r1; st.global.u32 [%rd1], %r2;"""
    )
    launch(body, {"out": out})
    assert out.tolist() == [1] * 32


def test_dropped_arrivals_are_not_waited_for_again():
    """Three arrive, of which two leave; one arrival completes the phase after."""
    out = np.zeros(32, np.uint32)
    body = (
        start(3)
        + ONE
        + """mbarrier.arrive_drop.shared.b64 %rd0, [%r40], 2;
    mbarrier.arrive.shared.b64 %rd0, [%r40]; mbarrier.test_wait.shared.b64 %q1, [%r40], %rd0;
    mbarrier.arrive_drop.release.cta.shared::cta.b64 %rd1, [%r40];
    mbarrier.test_wait.shared.b64 %q2, [%r40], %rd1; selp.u32 %r1, 1, 0, %q1;
    selp.u32 %r2, 2, 0, %q2; add.u32 %r1, %r1, %r2; st.global.u32 [%p0], %r1; END:"""
    )
    launch(body, {"out": out})
    assert out[0] == 3
    fails(
        BarrierMisuse,
        start(1) + ONE + "mbarrier.arrive_drop.shared.b64 %rd0, [%r40], 2; // BAD\nEND:",
    )


def test_a_state_says_how_many_arrivals_were_missing():
    """Before the arrival, lane after lane; it still names the phase."""
    out = np.zeros((32, 2), np.uint32)
    body = (
        start(20)
        + """mbarrier.arrive.shared.b64 %rd0, [%r40];
    mbarrier.pending_count.b64 %r1, %rd0; setp.ge.u32 %q1, %t, 20; @%q1 bra KEEP;
    mbarrier.test_wait.shared.b64 %q2, [%r40], %rd0; selp.u32 %r2, 1, 0, %q2;
    KEEP: mad.wide.u32 %rd1, %t, 8, %p0; @%q1 mov.u32 %r2, 7;
    st.global.v2.u32 [%rd1], {%r1, %r2};"""
    )
    launch(body, {"out": out})
    assert out[:, 0].tolist() == [*range(20, 0, -1), *range(20, 8, -1)]
    assert out[:, 1].tolist() == [1] * 20 + [7] * 12


def test_an_arrival_that_promises_not_to_complete_must_not():
    keep = "mbarrier.arrive.noComplete.shared.b64 %rd0, [%r40], 1;"
    launch(start(2) + ONE + keep + "END:", {"x": np.zeros(1)})
    error = fails(BarrierMisuse, start(2) + ONE + keep + f"\n{keep} // BAD\nEND:")
    assert ".noComplete completes the phase" in str(error)


def peers(count: int) -> str:
    """%r10: own rank, %r11: the next one's, %r12 and %r13: s and bar there."""
    return f"""mov.u32 %r10, %cluster_ctarank; add.u32 %r11, %r10, 1;
    and.b32 %r11, %r11, {count - 1};
    mapa.shared::cluster.u32 %r12, %r50, %r11; mapa.shared::cluster.u32 %r13, %r40, %r11;
    """


MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
EXPECT = "@!%q0 mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r40], {};\n"


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(
    "value, nbytes", [("u32 [%r14], %t", 4), ("v2.b64 [%r14], {%rd5, %rd6}", 16)]
)
def test_stores_in_another_blocks_memory_are_counted_there(value, nbytes, races, seed, monkeypatch):
    if races:
        racing(monkeypatch)
    out = np.zeros((4, 32), np.uint32)
    head, rest = value.split(" ", 1)
    body = start(1) + SHARED + peers(4) + EXPECT.format(32 * nbytes) + MEET
    body += f"""mad.lo.u32 %r14, %t, {nbytes}, %r12; mad.lo.u32 %r15, %r10, 1000, %t;
    cvt.u64.u32 %rd5, %r15; mov.u64 %rd6, 7;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{head} {rest}, [%r13];
    """
    body += spin("W", "%r40", "0")
    body += f"""mad.lo.u32 %r16, %t, {nbytes}, %r50; ld.shared.u32 %r1, [%r16];
    mad.wide.u32 %rd7, %r10, 128, %p0; mad.wide.u32 %rd7, %t, 4, %rd7; st.global.u32 [%rd7], %r1;
    {MEET}"""
    launch(body, {"out": out}, grid=4, cluster=4, seed=seed)
    rank = 0 if nbytes == 4 else 1000 * (np.arange(4)[:, None] + 3) % 4000
    assert np.array_equal(out, np.arange(32) + rank + np.zeros((4, 1), np.uint32))


def test_stores_that_nobody_waits_for_are_not_there():
    body = (
        start(1)
        + SHARED
        + """st.async.shared::cluster.mbarrier::complete_tx::bytes.b32
    [%r50], %t, [%r40];\nld.shared.u32 %r0, [%r50]; // BAD"""
    )
    fails(PendingCopyRead, body.replace("b32\n", "b32"), block=1)


@pytest.mark.parametrize(
    "operation, initial, expected",
    [
        ("add.u32", 5, 5 + sum(range(32))),
        ("add.s32", 5, 5 + sum(range(32))),
        ("add.s64", 5, 5 + sum(range(32))),
        ("add.u64", 5, 5 + sum(range(32))),
        ("max.s32", -3, 31),
        ("min.u32", 9, 0),
        ("or.b32", 64, 95),
        ("and.b32", 127, 0),
        ("xor.b32", 1, 1),
        ("inc.u32", 0, 32 % 20),  # it wraps behind 19
    ],
)
def test_reductions_in_another_blocks_memory(operation, initial, expected):
    out = np.zeros(2, np.int32)
    value = "19" if operation.startswith("inc") else "%t"
    bits = int(operation[-2:])
    given = "%rd5" if bits == 64 else "%r17"
    body = start(1) + SHARED + peers(2) + EXPECT.format(32 * bits // 8)
    body += f"""@!%q0 st.shared.s{bits} [%r50], {initial}; {MEET} mov.u32 %r17, {value};
    cvt.u64.u32 %rd5, %r17;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}
    [%r12], {given}, [%r13];
    """
    body += (
        spin("W", "%r40", "0")
        + f"""ld.shared.s32 %r1, [%r50];
    mad.wide.u32 %rd7, %r10, 4, %p0; st.global.u32 [%rd7], %r1; {MEET}"""
    )
    launch(body, {"out": out}, grid=2, cluster=2)
    assert out.tolist() == [expected] * 2


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_copies_from_block_to_block(seed):
    out = np.zeros((2, 128), np.uint32)
    body = start(1) + SHARED + peers(2) + EXPECT.format(512)
    body += f"""mad.lo.u32 %r14, %t, 16, %r50; mad.lo.u32 %r15, %r10, 1000, %t;
    st.shared.v4.u32 [%r14], {{%r15, %r15, %r15, %r15}}; {FENCE} {MEET} add.u32 %r18, %r12, 512;
    @!%q0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r18], [%r50],
    512, [%r13];
    """
    body += spin("W", "%r40", "0")
    body += f"""ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r14+512];
    mad.wide.u32 %rd7, %r10, 512, %p0;
    mad.wide.u32 %rd7, %t, 16, %rd7; st.global.v4.u32 [%rd7], {{%r1, %r2, %r3, %r4}}; {MEET}"""
    launch(body, {"out": out}, grid=2, cluster=2, seed=seed)
    assert np.array_equal(out, np.repeat(np.arange(32), 4) + np.array([[1000], [0]]))
    with pytest.raises(ProxyHazard):
        launch(body.replace(FENCE, ""), {"out": out}, grid=2, cluster=2)


REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.{} [%p0], [%r50], 512;"
SINGLE = np.array([1.5, -2.25, 1e-40, 3e38, 0.0, -0.0, np.inf, 7.0], np.float32)


def reduced(operation: str, held: np.ndarray, given: np.ndarray, **options) -> np.ndarray:
    """What lies in memory behind a reduction of 512 bytes; each by its bits."""
    there, source = held.copy(), given.copy()
    body = (
        SHARED
        + """mad.lo.u32 %r51, %t, 16, %r50; mad.wide.u32 %rd1, %t, 16, %p1;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; st.shared.v4.u32 [%r51], {%r1, %r2, %r3, %r4};
    """
    )
    body += FENCE + "bar.sync 0;" + ONE + REDUCE.format(operation) + COMMIT + WAIT_ALL + "END:"
    launch(body, {"there": there, "source": source}, **options)
    return there


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "b32", "b64"])
def test_bulk_reductions_of_integers(kind):
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    held, given = words(512 // dtype.itemsize, dtype, 1), words(512 // dtype.itemsize, dtype, 2)
    operations = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    names = {"b": ("and", "or", "xor")}.get(kind[0], ("add", "min", "max"))
    for name in names if kind != "s64" else ("min", "max"):
        got = reduced(f"{name}.{kind}", held, given)
        assert np.array_equal(got, operations[name](held, given)), name


def test_bulk_reductions_of_floats():
    rng = np.random.default_rng(3)
    for kind, dtype in (("f64", np.float64), ("f16", np.float16)):
        held, given = (rng.standard_normal(512 // dtype().itemsize).astype(dtype) for _ in range(2))
        name = "add.noftz.f16" if kind == "f16" else "add.f64"
        exact = held.astype(np.float64) + given.astype(np.float64)
        assert np.array_equal(reduced(name, held, given), exact.astype(dtype))
        if kind == "f16":
            assert np.array_equal(reduced("max.f16", held, given), np.maximum(held, given))
    held, given = np.tile(SINGLE, 16), np.repeat(SINGLE, 16)
    flushed = [np.where(np.abs(x) < 2.0**-126, np.float32(0), x) for x in (held, given)]
    with np.errstate(all="ignore"):
        exact = flushed[0] + flushed[1]
    assert np.array_equal(reduced("add.f32", held, given), exact, equal_nan=True)
    brain = np.array([0x3F80, 0x4000], np.uint16).repeat(128)  # 1 and 2
    assert reduced("add.noftz.bf16", brain, brain).tolist() == [0x4000] * 128 + [0x4080] * 128


def test_blocks_may_reduce_into_the_same_place(monkeypatch):
    """No race: the elements are atomic. A plain copy into the same place is one."""
    racing(monkeypatch)
    held = np.zeros(128, np.uint32)
    given = np.arange(128, dtype=np.uint32)
    assert np.array_equal(reduced("add.u32", held, given, grid=4), 4 * given)
    monkeypatch.setattr(
        f"{__name__}.REDUCE",
        "cp.async.bulk.global.shared::cta.bulk_group [%p0], [%r50], 512;//{}\n",
    )
    with pytest.raises(Race):
        reduced("", held, given, grid=4)


def test_a_box_is_added_to_its_tensor():
    tensor = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    described = TensorMap("float32", (8, 16), (64, 4), (4, 8))
    arrays = buffers(described, tensor)
    expected = tensor.copy()
    expected[6:, 8:] += 5  # of the box's four rows two are outside
    body = (
        SHARED
        + """mad.lo.u32 %r51, %t, 4, %r50; st.shared.f32 [%r51], 0f40A00000;
    """
    )
    body += (
        FENCE
        + ONE
        + """mov.u32 %r1, 8; mov.u32 %r2, 6; add.u64 %rd0, %p0, 0;
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd0, {%r1, %r2}];
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd0, {%r1, %r2}],
    [%r50];
    """
    )
    launch(body + COMMIT + WAIT_ALL + "END:", arrays)
    assert np.array_equal(tensor, expected)


@pytest.mark.parametrize(
    "statement",
    [
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f32 [%p0], [%r0], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%p0], [%r0], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s64 [%p0], [%r0], 16;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32"
        " [%r0], [%r1], %r2, [%r3];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u16 [%r0], %h1, [%r2];",
        "st.async.mmio.release.sys.global.u32 [%rd0], %r1;",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.u64 [%r0],"
        " %rd1, [%r2];",
        "red.async.mmio.release.sys.global.add.u32 [%rd0], %r1;",
        "mbarrier.arrive_drop.acquire.cta.shared.b64 _, [%r0];",
    ],
)
def test_what_there_is_not(statement):
    with pytest.raises(UnknownInstruction):
        Machine(frame(f"bra END; {statement} END:")).run("k", args=[0])


@pytest.mark.thorough
@pytest.mark.parametrize("races", [False, True])
def test_cuda_barriers_and_their_copies(races):
    """foreign/barrier.cu for sm_80, where cuda::memcpy_async is cp.async and its arrival."""
    text = ptx_of("barrier")
    assert "cp.async.mbarrier.arrive" in text
    x, y = words(768), np.zeros(768, np.uint32)
    machine = Machine(text, races=races)
    machine.run(args=[machine.memory.buffer(each).address for each in (x, y)], block=256)
    assert np.array_equal(y.reshape(3, 256), x.reshape(3, 256)[:, ::-1])
