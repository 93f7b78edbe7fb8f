"""Contract under test: programs that other compilers made and that multiply matrices, add up, scan
and sort run on the PTX machine as on a GPU."""

import numpy as np

from numba_marlin import counts
from numba_marlin.emulator import Machine
from numba_marlin.layout.tensor_map import TensorMap
from tests.emulator.foreign_programs import RANDOM, fixed, run
from tests.emulator.nvrtc import SOURCES, ptx_of


def test_a_padded_transposition_with_ragged_edges():
    w, h = 70, 45
    x, out = fixed(RANDOM.standard_normal((h, w)).astype(np.float32)), np.zeros((w, h), np.float32)
    run("vec", "transpose", [x, out, w, h], grid=(3, 2), block=(32, 8))
    assert (out == x.T).all()


def exact_operands(m, n, k):
    a, b = (RANDOM.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    return fixed(a), fixed(b), (a.astype(np.float32) @ b.astype(np.float32).T)


def test_a_matrix_product_with_wmma():
    a, b, expected = exact_operands(32, 48, 64)
    c = np.full((32, 48), np.nan, np.float32)
    run("wmma", "wmma_gemm", [a, b, c, 32, 48, 64], grid=(3, 2))
    assert (c == expected).all()


def test_a_matrix_product_of_ampere_in_inline_assembly():
    m, n, k = 128, 64, 160
    a, b, expected = exact_operands(m, n, k)
    c = np.full((m, n), np.nan, np.float32)
    machine = Machine(ptx_of("gemm80"))
    addresses = [
        machine.memory.buffer(each, name).address for each, name in ((a, "a"), (b, "b"), (c, "c"))
    ]
    _, counted = counts.count(
        machine,
        "gemm80",
        grid=(2, 2),
        block=128,
        shared_bytes=2 * 96 * 80,
        args=[*addresses, m, n, k],
    )
    assert (c == expected).all()
    total = counted.total.tally
    assert total.flops == 2 * m * n * k and total.reads.coalescing == 100
    # Rows of 80 bytes suit ldmatrix; eight lanes of cp.async, though, write parts of two rows,
    # which share four banks.
    assert {row.text.split()[0] for row in counted.instructions if row.tally.shared.conflicts} == {
        "cp.async.cg.shared.global"
    }
    assert total.shared.conflicts == 96 * 4 // 8 * (k // 32) * 4
    assert total.copied == {"cp.async": 2 * (m * k * (n // 32) + n * k * (m // 64))}


def test_a_matrix_product_of_hopper_in_inline_assembly():
    m, n, k = 128, 128, 192
    a, b, expected = exact_operands(m, n, k)
    c = np.full((m, n), np.nan, np.float32)
    machine = Machine(ptx_of("gemm90", "sm_90a"))
    x, y, z = (machine.memory.buffer(each, name) for each, name in ((a, "a"), (b, "b"), (c, "c")))
    maps = [
        TensorMap("float16", each.array.shape, each.array.strides, (64, 64), 128).encode(
            each.address
        )
        for each in (x, y)
    ]
    result = machine.run("gemm90", (2, 2), 128, 2 * 16384 + 1024, [*maps, z.address, n, k])
    assert (c == expected).all() and result.opcodes["wgmma.mma_async"] == 4 * 4 * 3 * 4


def test_the_last_block_sums_up_whatever_the_order():
    for seed in (None, 1, 2):
        x, out = fixed(RANDOM.integers(-9, 9, 777).astype(np.float32)), np.zeros(1, np.float32)
        machine = run(
            "atomics",
            "last_block",
            [x, np.zeros(5, np.float32), out, 777],
            grid=5,
            block=64,
            seed=seed,
            resident_blocks=3,
        )
        assert out[0] == x.sum() and not machine.globals["finished"].array.any()


def test_softmax_scan_and_sort():
    x, out = (
        fixed(RANDOM.standard_normal((3, 200)).astype(np.float32)),
        np.zeros((3, 200), np.float32),
    )
    run("blocks", "softmax", [x, out, 200], grid=3, block=128)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.allclose(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    numbers, sums = fixed(RANDOM.integers(-100, 100, 256).astype(np.int32)), np.zeros(256, np.int32)
    run("blocks", "scan", [numbers, sums], block=256)
    assert (sums == np.cumsum(numbers)).all()
    keys = RANDOM.integers(-(2**15), 2**15, 128).astype(np.int16)
    expected = np.sort(keys)
    run("blocks", "bitonic", [keys], block=128, shared_bytes=256)
    assert (keys == expected).all()


def test_tiled_ptx_with_guarded_inline_assembly_and_debug_tables():
    machine = Machine((SOURCES / "tiled.ptx").read_text(encoding="utf-8"))
    x, out = fixed(RANDOM.integers(-9, 9, (3, 400)).astype(np.float32)), np.zeros(3, np.float32)
    addresses = [machine.memory.buffer(x, "x").address, machine.memory.buffer(out, "out").address]
    _, counted = counts.count(machine, grid=3, block=128, shared_bytes=16, args=[*addresses, 400])
    assert (out == x.sum(axis=1)).all()
    assert {phase.name for phase in counted.phases} == {"row_sums", "sum"} and counted.buffer(
        "x"
    ).reads.coalescing == 100
    assert counted.instructions[-2].source == "/home/somebody/sums.py:10"
