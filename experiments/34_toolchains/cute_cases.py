"""Kernels in the CuTe DSL, each with its float64 result and the bound of its error."""

import cutlass
import cutlass.cute as cute
import ml_dtypes
import numpy as np
from cute_kit import run, tensor
from recording import bound, poisoned

CASES: list = []  # (name, targets, function that fills a Case)
BOTH = ("sm_80", "sm_90")


def case(name: str, targets=BOTH):
    def register(function):
        CASES.append((name, targets, function))
        return function

    return register


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(34).standard_normal(shape).astype(dtype)


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 128 + thread
    if at < cute.size(c):
        c[at] = a[at] + b[at]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    blocks = (cute.size(c) + 127) // 128
    add_kernel(a, b, c).launch(grid=(blocks, 1, 1), block=(128, 1, 1))


def add_sum(dtype):
    @case(f"add, {np.dtype(dtype).name}")
    def fill(case):
        a, b, c = normal(1000, dtype=dtype), normal(1000, dtype=dtype)[::-1].copy(), None
        c = poisoned(1000, dtype)
        run(case, add, *(tensor(case, each) for each in (a, b, c)))
        value = a.astype(np.float64) + b.astype(np.float64)
        case.expect(c, value, bound(value, dtype))


for dtype in (np.float32, np.float16):
    add_sum(dtype)


@cute.kernel
def vector_kernel(a: cute.Tensor, b: cute.Tensor, tiled: cute.TiledCopy, tile: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    of = tiled.get_slice(thread)
    source = of.partition_S(cute.local_tile(a, (tile,), (block,)))
    target = of.partition_D(cute.local_tile(b, (tile,), (block,)))
    held = cute.make_fragment_like(source)
    cute.copy(tiled, source, held)
    held.store(held.load() * 3.0)
    cute.copy(tiled, held, target)


@cute.jit
def vector_copy(a: cute.Tensor, b: cute.Tensor):
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), a.element_type, num_bits_per_copy=128)
    tiled = cute.make_tiled_copy_tv(atom, cute.make_layout(64), cute.make_layout(4))
    vector_kernel(a, b, tiled, 256).launch(grid=(cute.size(a) // 256, 1, 1), block=(64, 1, 1))


@case("copies of 16 bytes by a tiled copy")
def _(case):
    a, b = normal(1024), poisoned(1024, np.float32)
    run(case, vector_copy, tensor(case, a), tensor(case, b))
    value = 3 * a.astype(np.float64)
    case.expect(b, value, bound(value, np.float32))


@cute.kernel
def transpose_kernel(a: cute.Tensor, b: cute.Tensor, layout: cute.Layout):
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    shared = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, layout, 16)
    x, y = thread % 32, thread // 32
    for step in cutlass.range_constexpr(0, 32, 4):
        shared[y + step, x] = a[row * 32 + y + step, column * 32 + x]
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(0, 32, 4):
        b[column * 32 + y + step, row * 32 + x] = shared[x, y + step]


@cute.jit
def transposed(a: cute.Tensor, b: cute.Tensor):
    padded = cute.make_layout((32, 32), stride=(33, 1))
    grid = (a.shape[0] // 32, a.shape[1] // 32, 1)
    transpose_kernel(a, b, padded).launch(grid=grid, block=(128, 1, 1), smem=33 * 32 * 4)


@case("transposed by way of shared memory")
def _(case):
    a, b = normal(64, 96), poisoned((96, 64), np.float32)
    run(case, transposed, tensor(case, a), tensor(case, b))
    case.expect(b, a.T)


@cute.kernel
def row_sum_kernel(a: cute.Tensor, b: cute.Tensor, n: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    total = cutlass.Float32(0.0)
    for step in cutlass.range(0, n, 128):
        total += a[row, step + thread]
    for distance in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, 16 >> distance)
    parts = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(4), 16)
    if thread % 32 == 0:
        parts[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        b[row] = parts[0] + parts[1] + parts[2] + parts[3]


@cute.jit
def row_sums(a: cute.Tensor, b: cute.Tensor):
    row_sum_kernel(a, b, a.shape[1]).launch(grid=(a.shape[0], 1, 1), block=(128, 1, 1), smem=64)


@case("sums of rows by shuffles and shared memory")
def _(case):
    a, b = normal(8, 512), poisoned(8, np.float32)
    run(case, row_sums, tensor(case, a), tensor(case, b))
    value = a.astype(np.float64).sum(1)
    case.expect(b, value, bound(value, np.float32, 0, 16, np.abs(a).sum(1)))


@cute.kernel
def softmax_kernel(a: cute.Tensor, b: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    value = a[row, lane].to(cutlass.Float32)
    most = cute.arch.warp_reduction_max(value)
    weight = cute.math.exp(value - most, fastmath=True)
    total = cute.arch.warp_reduction_sum(weight)
    b[row, lane] = (weight / total).to(b.element_type)


@cute.jit
def softmax(a: cute.Tensor, b: cute.Tensor):
    softmax_kernel(a, b).launch(grid=(a.shape[0], 1, 1), block=(32, 1, 1))


@case("softmax of rows of a warp, float16")
def _(case):
    a, b = normal(16, 32, dtype=np.float16), poisoned((16, 32), np.float16)
    run(case, softmax, tensor(case, a), tensor(case, b))
    value = np.exp(a.astype(np.float64))
    value /= value.sum(1, keepdims=True)
    case.expect(b, value, bound(value, np.float16, 2**-18))


@cute.kernel
def product_kernel(
    a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, tiled: cute.TiledMma, k: cutlass.Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    mine = tiled.get_slice(thread)
    left = mine.partition_A(cute.local_tile(a, (32, k), (row, 0)))
    right = mine.partition_B(cute.local_tile(b, (16, k), (column, 0)))
    out = mine.partition_C(cute.local_tile(c, (32, 16), (row, column)))
    x, y = tiled.make_fragment_A(left), tiled.make_fragment_B(right)
    total = tiled.make_fragment_C(out)
    total.fill(0.0)
    cute.autovec_copy(left, x)
    cute.autovec_copy(right, y)
    cute.gemm(tiled, total, x, y, total)
    cute.autovec_copy(total, out)


@cute.jit
def product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    atom = cute.nvgpu.warp.MmaF16BF16Op(a.element_type, cutlass.Float32, (16, 8, 16))
    tiled = cute.make_tiled_mma(atom, cute.make_layout((2, 2, 1)))
    grid = (c.shape[0] // 32, c.shape[1] // 16, 1)
    product_kernel(a, b, c, tiled, a.shape[1]).launch(grid=grid, block=(128, 1, 1))


def add_product(dtype):
    @case(f"a product by mma.sync from registers, {np.dtype(dtype).name}")
    def fill(case):
        a, b, c = normal(64, 64, dtype=dtype), normal(32, 64, dtype=dtype), None
        c = poisoned((64, 32), np.float32)
        run(case, product, *(tensor(case, each) for each in (a, b, c)))
        x, y = a.astype(np.float64), b.astype(np.float64)
        value = x @ y.T
        case.expect(c, value, bound(value, np.float32, 0, 64, np.abs(x) @ np.abs(y).T))


for dtype in (np.float16, ml_dtypes.bfloat16):
    add_product(dtype)


@cute.kernel
def async_kernel(a: cute.Tensor, b: cute.Tensor, tiled: cute.TiledCopy):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = cutlass.utils.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout(512), 16
    )
    of = tiled.get_slice(thread)
    cute.copy(tiled, of.partition_S(cute.local_tile(a, (512,), (block,))), of.partition_D(shared))
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(0, 512, 128):
        b[block * 512 + step + thread] = shared[511 - step - thread]


@cute.jit
def by_cp_async(a: cute.Tensor, b: cute.Tensor):
    atom = cute.make_copy_atom(
        cute.nvgpu.cpasync.CopyG2SOp(), a.element_type, num_bits_per_copy=128
    )
    tiled = cute.make_tiled_copy_tv(atom, cute.make_layout(128), cute.make_layout(4))
    async_kernel(a, b, tiled).launch(grid=(cute.size(a) // 512, 1, 1), block=(128, 1, 1), smem=2048)


@case("cp.async, and read in reverse")
def _(case):
    a, b = normal(2048), poisoned(2048, np.float32)
    run(case, by_cp_async, tensor(case, a), tensor(case, b))
    case.expect(b, a.reshape(4, 512)[:, ::-1])


@cute.kernel
def tma_kernel(
    load: cute.CopyAtom, source: cute.Tensor, store: cute.CopyAtom, target: cute.Tensor,
    layout: cute.ComposedLayout,
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    barrier = memory.allocate_array(cutlass.Int64, 1)
    shared = memory.allocate_tensor(cutlass.Float16, layout.outer, 1024, swizzle=layout.inner)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    here = cute.group_modes(shared, 0, 2)
    held, there = cute.nvgpu.cpasync.tma_partition(
        load, 0, cute.make_layout(1), here,
        cute.group_modes(cute.local_tile(source, (32, 64), (row, column)), 0, 2),
    )  # fmt: skip
    if cute.arch.warp_idx() == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 32 * 64 * 2)
        cute.copy(load, there, held, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    held, there = cute.nvgpu.cpasync.tma_partition(
        store, 0, cute.make_layout(1), here,
        cute.group_modes(cute.local_tile(target, (32, 64), (row, column)), 0, 2),
    )  # fmt: skip
    if cute.arch.warp_idx() == 0:
        cute.copy(store, held, there)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=False)


@cute.jit
def by_tma(a: cute.Tensor, b: cute.Tensor):
    atom = cute.nvgpu.warpgroup.make_smem_layout_atom(
        cute.nvgpu.warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.Float16
    )
    layout = cute.tile_to_shape(atom, (32, 64), order=(0, 1))
    ops = cute.nvgpu.cpasync
    load, source = ops.make_tiled_tma_atom(ops.CopyBulkTensorTileG2SOp(), a, layout, (32, 64))
    store, target = ops.make_tiled_tma_atom(ops.CopyBulkTensorTileS2GOp(), b, layout, (32, 64))
    tma_kernel(load, source, store, target, layout).launch(
        grid=(a.shape[0] // 32, a.shape[1] // 64, 1), block=(64, 1, 1), smem=8192
    )


@case("a tile by TMA, there and back", ("sm_90",))
def _(case):
    a, b = normal(64, 128, dtype=np.float16), poisoned((64, 128), np.float16)
    run(case, by_tma, tensor(case, a), tensor(case, b))
    case.expect(b, a)


@cute.kernel
def histogram_kernel(x: cute.Tensor, bins: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = bins.iterator + x[block * 128 + thread]
    cute.arch.atomic_add(at.llvm_ptr, cutlass.Int32(1))


@cute.jit
def histogram(x: cute.Tensor, bins: cute.Tensor):
    histogram_kernel(x, bins).launch(grid=(cute.size(x) // 128, 1, 1), block=(128, 1, 1))


@case("atomics: a histogram")
def _(case):
    x = np.random.default_rng(34).integers(0, 16, 512).astype(np.int32)
    bins = np.zeros(16, np.int32)
    run(case, histogram, tensor(case, x), tensor(case, bins))
    case.expect(bins, np.bincount(x, minlength=16))
