"""Contract under test: a Python kernel feeds wgmma through a tensor map that is its parameter,
holds wide accumulators in registers, and gives the same bits on the machine whichever compiler made
it, with nothing serialised."""

from dataclasses import dataclass

import numpy as np
import pytest

from numba_marlin.compiler import build, gates
from numba_marlin.compiler.builder import COMPILERS
from numba_marlin.emulator import Machine
from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.layout import wgmma
from numba_marlin.layout.tensor_map import TensorMap

DEPTH = 64  # of a stage: 128 bytes


@dataclass(frozen=True)
class Config:
    """columns: of b; pipelined: a product is in flight while the next registers are loaded;
    whole: unsigned by signed bytes and sums of 32 bits, else fp16."""

    columns: int
    pipelined: bool = False
    whole: bool = False


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    columns, half, pipelined = config.columns, config.columns // 2, config.pipelined
    tile_bytes = columns * 128
    stride = wgmma.Descriptor(0, 1024).encode()
    zeros, product, wait = (
        (ptx.zero_i32, ptx.wgmma_m64k32_s32_u8_s8_rs, ptx.wgmma_wait_group_i32)
        if config.whole
        else (ptx.zero_f32, ptx.wgmma_m64k16_f32_f16_rs, ptx.wgmma_wait_group_f32)
    )
    zero, multiply, keep = zeros(width=half), product(n=columns), ptx.keep_u32(width=4)
    wait_all, wait_but_one = wait(n=0, width=half), wait(n=1, width=half)

    @lang.device
    def wait_for(barrier, parity):
        while ptx.mbarrier_try_wait_parity(barrier, parity) == uint32(0):
            pass

    @lang.device
    def descriptor(tile, step):
        return uint64(stride) | uint64((tile + uint32(32) * step) >> uint32(4))

    @lang.device
    def multiply_stage(acc, words, tile):
        """Four products; at most one in flight while the next registers are loaded."""
        before = ptx.ld_global_v4_b32(words)
        for step in range(4):
            now = ptx.ld_global_v4_b32(words + uint64(2048 * step))
            ptx.wgmma_fence()
            acc = multiply(acc, now, descriptor(tile, uint32(step)), uint32(1))
            ptx.wgmma_commit_group()
            if pipelined:
                acc = wait_but_one(acc)
                keep(before)
                before = now
            else:
                acc = wait_all(acc)
                keep(now)
        acc = wait_all(acc)
        keep(before)
        return acc

    def kernel(a, b_map, out, stages):
        tile = lang_shared_base()
        barrier = tile + uint32(tile_bytes)
        thread = uint32(cuda.threadIdx.x)
        if thread == uint32(0):
            ptx.mbarrier_init(barrier, uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        acc = zero()
        stage = int32(0)
        while stage < stages:
            if thread == uint32(0):
                ptx.mbarrier_arrive_expect_tx(barrier, uint32(tile_bytes))
                ptx.cp_async_bulk_tensor_2d_g2s(tile, b_map, stage * int32(64), int32(0), barrier)
            wait_for(barrier, uint32(stage & int32(1)))
            words = a + uint64(uint32(stage)) * uint64(8192) + uint64(thread) * uint64(16)
            acc = multiply_stage(acc, words, tile)
            cuda.syncthreads()
            stage += int32(1)
        store(acc, out + uint64(thread) * uint64(4 * half))

    def storing(width, offset):
        if width == 4 and config.whole:

            @lang.device
            def put(values, address):
                words = uint32(values[0]), uint32(values[1]), uint32(values[2]), uint32(values[3])
                ptx.st_global_v4_b32(address + uint64(offset), words)

        elif width == 4:

            @lang.device
            def put(values, address):
                ptx.st_global_v4_f32(address + uint64(offset), values)

        else:
            middle = width // 8 * 4
            first, second = storing(middle, offset), storing(width - middle, offset + 4 * middle)

            @lang.device
            def put(values, address):
                first(values[:middle], address)
                second(values[middle:], address)

        return put

    store, lang_shared_base = storing(half, 0), lang.shared_base
    return kernel


KERNEL = KernelDefinition(
    name="wgmma_probe",
    config_type=Config,
    parameters=(("a", "u64"), ("b_map", "tensormap"), ("out", "u64"), ("stages", "i32")),
    make=make,
    threads=lambda config: 128,
    shared_bytes=lambda config: config.columns * 128 + 8,
    grid=lambda config, m, n, k, sms: (1, 1, 1),
    min_arch="sm_90a",
)


def run(compiled, a, b, sums, seed=None):
    """a, b: rows as 16-bit elements; sums: their type."""
    columns, stages = b.shape[0], b.shape[1] // DEPTH
    fragment = wgmma.accumulator(columns)
    # step, lane, element
    held = np.ascontiguousarray(
        wgmma.A_REGISTERS.gather(a.view(np.uint16).reshape(64, -1, 16).swapaxes(0, 1))
    )
    out = np.full((128, columns // 2), -1, sums)
    machine = Machine(compiled.ptx)
    buffers = [
        machine.memory.buffer(array, name).address
        for name, array in (("a", held), ("b", b), ("out", out))
    ]
    b_map = TensorMap("float16", b.shape, b.strides, (columns, DEPTH), 128).encode(buffers[1])
    machine.run(
        block=128,
        shared_bytes=compiled.shared_bytes,
        args=[buffers[0], b_map, buffers[2], stages],
        seed=seed,
    )
    return fragment.scatter(out)


@pytest.mark.parametrize(
    "config",
    [
        Config(8),
        Config(64, True),
        pytest.param(Config(16, True, whole=True), marks=pytest.mark.thorough),
        pytest.param(Config(128), marks=pytest.mark.thorough),
        pytest.param(Config(256, True), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_compiled_kernel_multiplies(config):
    generator = np.random.default_rng(config.columns)
    if config.whole:
        a, b = (
            generator.integers(0, 256, (rows, 4 * DEPTH)).astype(np.uint8)
            for rows in (64, config.columns)
        )
        expected = a.astype(np.int64) @ b.view(np.int8).astype(np.int64).T
        a, b, sums = a.view(np.uint16), b.view(np.float16), np.int32
    else:
        a, b = (
            generator.integers(-8, 9, (rows, 2 * DEPTH)).astype(np.float16)
            for rows in (64, config.columns)
        )
        expected, sums = a.astype(np.float64) @ b.astype(np.float64).T, np.float32
    results = []
    for compiler in COMPILERS:
        if compiler == "numba-cuda-mlir":
            pytest.importorskip("numba_cuda_mlir")
        compiled = build(KERNEL, config, target="sm_90a", compiler=compiler)
        assert gates.broken_promises(compiled) == []
        assert gates.opcode_count(compiled, "wgmma.mma_async") % 4 == 0
        results += [run(compiled, a, b, sums, seed) for seed in (None, 1)]
    assert all(np.array_equal(result, expected) for result in results)
