"""mma and ldmatrix against float64 products and plain indexing, through fragment maps written out
here from the ISA."""

from functools import partial

import numpy as np
import pytest

from numba_marlin.emulator import Machine, UninitializedRead
from numba_marlin.emulator.tensor.tensor_sums import adder_of
from tests.emulator import ptx_cases
from tests.emulator.number_cases import product
from tests.emulator.ptx_cases import fails, launch

LANE = np.arange(32)[:, None]
GROUP, THREAD = LANE // 4, LANE % 4


def a_place(i):
    """Row and column of element i of the A fragment (m16n8k16; the first four elements are
    m16n8k8's)."""
    return GROUP + 8 * (i // 2 % 2), 2 * THREAD + i % 2 + 8 * (i // 4)


def b_place(i):
    return 2 * THREAD + i % 2 + 8 * (i // 2), GROUP + 0 * i


def c_place(i):
    return GROUP + 8 * (i // 2), 2 * THREAD + i % 2


def run_mma(name, a, b, c, out):
    """a [w, 16, k], b [w, k, 8], c [w, 16, 8]: one product a warp."""
    warps, depth = a.shape[0], a.shape[2]
    parts = [
        np.ascontiguousarray(x[:, rows, cols])
        for x, (rows, cols) in (
            (a, a_place(np.arange(depth // 2))),
            (b, b_place(np.arange(depth // 4))),
            (c, c_place(np.arange(4))),
        )
    ]
    counts = [depth // 4, depth // 8, 4 if c.dtype == np.float32 else 2]
    loads, groups, base = "", [], 0
    for i, count in enumerate(counts):
        names = [
            f"%{'f' if i == 2 and c.dtype == np.float32 else 'r'}{base + j}" for j in range(count)
        ]
        loads += f"mad.wide.u32 %rd0, %t, {4 * count}, %p{i};" + "".join(
            f"ld.global.b32 {n}, [%rd0+{4 * j}];" for j, n in enumerate(names)
        )
        groups.append("{" + ", ".join(names) + "}")
        base += count
    d = groups[2]
    result = np.zeros((warps, 32, 4), out)
    width = result.itemsize * 4
    store = f"mad.wide.u32 %rd0, %t, {width}, %p3;" + "".join(
        f"st.global.b32 [%rd0+{4 * j}], {n.strip()};" for j, n in enumerate(d[1:-1].split(","))
    )
    arrays = {"a": parts[0], "b": parts[1], "c": parts[2], "d": result}
    launch(
        f"{loads} {name} {d}, {groups[0]}, {groups[1]}, {groups[2]}; {store}",
        arrays,
        block=32 * warps,
    )
    matrix = np.zeros((warps, 16, 8), out)
    matrix[:, c_place(np.arange(4))[0], c_place(np.arange(4))[1]] = result
    return matrix


@pytest.mark.parametrize("depth", [8, 16])
def test_mma_of_small_integers_is_exact(depth):
    rng = np.random.default_rng(depth)
    a, b = (
        rng.integers(-8, 9, shape).astype(np.float16) for shape in ((3, 16, depth), (3, depth, 8))
    )
    c = rng.integers(-100, 100, (3, 16, 8)).astype(np.float32)
    got = run_mma(f"mma.sync.aligned.m16n8k{depth}.row.col.f32.f16.f16.f32", a, b, c, np.float32)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64) + c)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("adds_like", ["sm_70", "sm_80", "sm_90", None])
def test_mma_adds_as_the_chip_does_that_was_asked_for(target, adds_like, monkeypatch):
    """Products of warps lie where fragment maps say, and are added by the adder that the user
    chooses, an H200's if he chooses none, whatever the target: test_tensor_sums."""
    monkeypatch.setattr(ptx_cases, "HEADER", ptx_cases.HEADER.replace("sm_90a", target))
    if adds_like is not None:
        monkeypatch.setattr(ptx_cases, "Machine", partial(Machine, adds_like=adds_like))
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((4, 16, 16), (4, 16, 8)))
    c = rng.standard_normal((4, 16, 8)).astype(np.float32)
    got = run_mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", a, b, c, np.float32)
    assert np.array_equal(
        got,
        product(
            "f16",
            a.view(np.uint16),
            b.view(np.uint16),
            c.view(np.uint32),
            adder_of(adds_like or "sm_90"),
        ).view(np.float32),
    )


def test_mma_with_identity_shows_each_element_of_b():
    b = np.arange(128, dtype=np.float16).reshape(1, 16, 8)
    got = run_mma(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        np.eye(16, dtype=np.float16)[None],
        b,
        np.zeros((1, 16, 8), np.float32),
        np.float32,
    )
    assert np.array_equal(got, b.astype(np.float32))


def test_mma_bf16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(2)
    a, b = (
        rng.integers(-8, 9, shape).astype(ml_dtypes.bfloat16) for shape in ((2, 16, 16), (2, 16, 8))
    )
    c = rng.integers(-100, 100, (2, 16, 8)).astype(np.float32)
    got = run_mma(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        a.view(np.uint16),
        b.view(np.uint16),
        c,
        np.float32,
    )
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64) + c)


def test_mma_with_half_accumulators():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, shape).astype(np.float16) for shape in ((2, 16, 16), (2, 16, 8)))
    c = rng.integers(-100, 100, (2, 16, 8)).astype(np.float16)
    got = run_mma("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", a, b, c, np.float16)
    assert np.array_equal(got, a.astype(np.float64) @ b.astype(np.float64) + c)


def test_mma_with_half_accumulators_cuts_terms_off_and_rounds_the_sum():
    """25 bits below the largest a term is lost, even where it would break a tie."""
    a, b = np.zeros((1, 16, 16), np.float16), np.ones((1, 16, 8), np.float16)
    c = np.ones((1, 16, 8), np.float16)
    opcode = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
    a[:, :, 3] = 2.0**-11
    assert (run_mma(opcode, a, b, c, np.float16) == 1).all()  # a tie, to even
    for left, right, expected in ((2.0**-12, 2.0**-13, 1 + 2.0**-10), (2.0**-13, 2.0**-13, 1)):
        a[:, :, 5], b[:, 5] = left, right
        assert (run_mma(opcode, a, b, c, np.float16) == expected).all()


def test_mma_propagates_nan_and_infinity():
    a, b = np.ones((1, 16, 16), np.float16), np.ones((1, 16, 8), np.float16)
    c = np.zeros((1, 16, 8), np.float32)
    a[0, 3, 4], a[0, 5, 5], b[0, 7, 2] = np.nan, np.inf, -np.inf
    got = run_mma("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", a, b, c, np.float32)[0]
    assert (
        (got[3].view(np.uint32) == 0x7FFFFFFF).all()
        and np.isinf(got[5, 0])
        and np.isnan(got[5, 2])
        and got[0, 2] == -np.inf
    )
    assert got[0, 0] == 16


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_hands_out_rows_or_columns(count, trans):
    """Rows of 16 bytes lie in scrambled order; addresses of lanes beyond the last matrix are
    garbage."""
    rng = np.random.default_rng(count)
    warps = 2
    matrices = rng.integers(0, 1 << 16, (warps, count, 8, 8)).astype(np.uint16)
    order = np.array([rng.permutation(8 * count) for _ in range(warps)])
    stored = np.zeros((warps, 32, 8), np.uint16)
    rows = np.full((warps, 32), 1 << 20, np.uint32)
    for w in range(warps):
        stored[w, order[w]] = matrices[w].reshape(-1, 8)
        rows[w, : 8 * count] = 512 * w + 16 * order[w]
    out = np.zeros((warps, 32, count), np.uint32)
    names = ", ".join(f"%r{10 + i}" for i in range(count))
    body = f""".shared .align 16 .b8 s[1024]; mov.u32 %r0, s; mad.lo.u32 %r1, %t, 16, %r0;
    mad.wide.u32 %rd0, %t, 16, %p0;
    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%rd0]; st.shared.v4.u32 [%r1], {{%r2, %r3, %r4, %r5}};
    bar.sync 0;
    mad.wide.u32 %rd1, %t, 4, %p1; ld.global.u32 %r6, [%rd1]; add.u32 %r6, %r6, %r0;
    ldmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 {{{names}}}, [%r6];
    mad.wide.u32 %rd2, %t, {4 * count}, %p2;
    {"".join(f"st.global.u32 [%rd2+{4 * i}], %r{10 + i};" for i in range(count))}"""
    launch(body, {"stored": stored, "rows": rows, "out": out}, block=64)
    halves = out.view(np.uint16).reshape(warps, 32, count, 2)
    source = matrices.swapaxes(2, 3) if trans else matrices
    for lane in range(32):
        for i in range(2):
            assert np.array_equal(
                halves[:, lane, :, i], source[:, :, lane // 4, 2 * (lane % 4) + i]
            )


def test_ldmatrix_reads_only_what_was_written():
    body = """.shared .align 16 .b8 s[512]; mov.u32 %r0, s; mad.lo.u32 %r0, %t, 16, %r0;
    setp.ne.u32 %q0, %t, 9;
    @%q0 st.shared.v4.u32 [%r0], {%t, %t, %t, %t};
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r0]; // BAD
    """
    error = fails(UninitializedRead, body)
    assert error.lanes == (9,) and "s[byte 144]" in str(error)
