"""PTX as the compilers really emit it: a pipelined tensor-core product of 64 threads, from Python
to the machine and back."""

from dataclasses import dataclass

import numpy as np
import pytest

from numba_marlin.emulator import Machine, PendingCopyRead, UninitializedRead
from numba_marlin.kernels.language.definition import KernelDefinition

pytest.importorskip("numba")
compiler = pytest.importorskip("numba_marlin.compiler")

WARPS, STEP, STAGES = 2, 32, 2
A_BYTES, B_BYTES = WARPS * 16 * 2 * STEP, 8 * 2 * STEP
STAGE_BYTES = A_BYTES + B_BYTES


@dataclass(frozen=True)
class ProductConfig:
    """No choices."""


def make(lang, config):
    """c [32, 8] = a [32, k] @ b [8, k].T; two stages of k = 32 by cp.async; k a multiple of 32."""
    cuda, ptx, uint32, uint64, float32 = lang.cuda, lang.ptx, lang.uint32, lang.uint64, lang.float32
    wait_for_all_but_one, shared_base = ptx.cp_async_wait_group(n=STAGES - 1), lang.shared_base

    @lang.device
    def fetch(stage, a, b, row_bytes, step, steps, thread):
        if step < steps:
            for i in range(2):
                chunk = thread + uint32(64 * i)
                source = (
                    a
                    + uint64(chunk // uint32(4)) * uint64(row_bytes)
                    + uint64(step * uint32(64) + chunk % uint32(4) * uint32(16))
                )
                ptx.cp_async_16(stage + chunk * uint32(16), source)
            source = (
                b
                + uint64(thread // uint32(4)) * uint64(row_bytes)
                + uint64(step * uint32(64) + thread % uint32(4) * uint32(16))
            )
            ptx.cp_async_16_pred(
                stage + uint32(A_BYTES) + thread * uint32(16), source, uint32(thread < uint32(32))
            )
        ptx.cp_async_commit_group()

    def product(a, b, c, k):
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        base, row_bytes, steps = shared_base(), uint32(k) * uint32(2), uint32(k) // uint32(STEP)
        acc = cuda.local.array(4, float32)
        for i in range(4):
            acc[i] = float32(0)
        fetch(base, a, b, row_bytes, uint32(0), steps, thread)
        for step in range(steps):
            here, there = uint32(step) % uint32(2), (uint32(step) + uint32(1)) % uint32(2)
            fetch(
                base + there * uint32(STAGE_BYTES),
                a,
                b,
                row_bytes,
                uint32(step) + uint32(1),
                steps,
                thread,
            )
            wait_for_all_but_one()
            cuda.syncthreads()
            tile = base + here * uint32(STAGE_BYTES)
            columns = ptx.ldmatrix_x4(
                tile
                + uint32(A_BYTES)
                + lane % uint32(8) * uint32(64)
                + lane // uint32(8) * uint32(16)
            )
            for half in range(2):
                rows = ptx.ldmatrix_x4(
                    tile
                    + (warp * uint32(16) + lane % uint32(16)) * uint32(64)
                    + uint32(32 * half)
                    + lane // uint32(16) * uint32(16)
                )
                out = ptx.mma_m16n8k16_f32_f16(
                    rows,
                    (columns[2 * half], columns[2 * half + 1]),
                    (acc[0], acc[1], acc[2], acc[3]),
                )
                for i in range(4):
                    acc[i] = out[i]
            cuda.syncthreads()
        at = c + uint64(
            (warp * uint32(16) + lane // uint32(4)) * uint32(32) + lane % uint32(4) * uint32(8)
        )
        ptx.st_global_v2_f32(at, (acc[0], acc[1]))
        ptx.st_global_v2_f32(at + uint64(256), (acc[2], acc[3]))

    return product


PRODUCT = KernelDefinition(
    name="product",
    config_type=ProductConfig,
    parameters=(("a", "u64"), ("b", "u64"), ("c", "u64"), ("k", "i32")),
    make=make,
    threads=lambda config: 32 * WARPS,
    shared_bytes=lambda config: STAGES * STAGE_BYTES,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
)


@pytest.fixture(scope="module", params=["numba-cuda", "numba-cuda-mlir"])
def compiled(request):
    if request.param not in compiler.available_compilers():
        pytest.skip(f"{request.param} is not installed")
    return compiler.build(PRODUCT, ProductConfig(), compiler=request.param, cache=False)


def run(compiled, ptx, k, **options):
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((32, k), (8, k)))
    c = np.full((32, 8), np.nan, np.float32)
    machine = Machine(ptx)
    addresses = [
        machine.memory.buffer(x, name, readonly=name != "c").address
        for name, x in (("a", a), ("b", b), ("c", c))
    ]
    result = machine.run(
        compiled.entry,
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
        args=[*addresses, k],
        **options,
    )
    return c, a.astype(np.float64) @ b.astype(np.float64).T, result


@pytest.mark.parametrize("k", [32, 64, 160])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_pipelined_product_is_exact(compiled, k, seed):
    got, expected, result = run(compiled, compiled.ptx, k, seed=seed)
    assert np.array_equal(got, expected)
    assert result.opcodes["mma"] == 2 * WARPS * k // STEP and result.opcodes[
        "cp.async.commit_group"
    ] == WARPS * (k // STEP + 1)


def test_waiting_for_one_group_less_is_caught(compiled):
    broken = compiled.ptx.replace("cp.async.wait_group 1;", "cp.async.wait_group 2;")
    assert broken != compiled.ptx
    with pytest.raises(PendingCopyRead, match="ldmatrix.*in flight|in flight[\\s\\S]*ldmatrix"):
        run(compiled, broken, 96)


def test_a_copy_that_is_left_out_is_caught(compiled):
    lines = compiled.ptx.splitlines()
    copies = [i for i, line in enumerate(lines) if "cp.async.cg" in line and "@" not in line]
    broken = "\n".join(line for i, line in enumerate(lines) if i != copies[0])
    with pytest.raises(UninitializedRead, match="ldmatrix"):
        run(compiled, broken, 96)
