// C[m,n] = A[m,k] B[n,k]^T with wgmma on tiles that TMA copies: 64 x 64 of C a block of one warpgroup, k in steps of 64, two stages.
#include <cuda_fp16.h>
struct alignas(64) TensorMap { char bytes[128]; };
__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned long long descriptor(unsigned shared) {  // 128-byte swizzle, rows of 128 bytes, k contiguous
    return (unsigned long long)((shared & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void load(unsigned to, const TensorMap* map, int k, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"((unsigned long long)map), "r"(k), "r"(row), "r"(barrier) : "memory");
}
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

extern "C" __global__ void __launch_bounds__(128) gemm90(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int k) {
    extern __shared__ __align__(1024) char raw[];
    __shared__ alignas(8) unsigned long long full[2];
    const unsigned tiles = (address(raw) + 1023) & ~1023u;
    const int row = blockIdx.y * 64, col = blockIdx.x * 64, thread = threadIdx.x, steps = k / 64;
    if (thread == 0) {
        for (int s = 0; s < 2; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    auto fetch = [&](int step) {
        unsigned stage = tiles + (step & 1) * 16384, barrier = address(&full[step & 1]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" ::"r"(barrier) : "memory");
        load(stage, &a, step * 64, row, barrier);
        load(stage + 8192, &b, step * 64, col, barrier);
    };
    if (thread == 0) fetch(0);
    float d[32];
    for (int i = 0; i < 32; ++i) d[i] = 0;
    for (int step = 0; step < steps; ++step) {
        if (thread == 0 && step + 1 < steps) fetch(step + 1);
        wait(address(&full[step & 1]), step >> 1 & 1);
        unsigned stage = tiles + (step & 1) * 16384;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; ++i)
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                         "%32, %33, p, 1, 1, 0, 0;\n}"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                           "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                           "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                         : "l"(descriptor(stage + 32 * i)), "l"(descriptor(stage + 8192 + 32 * i)), "r"(1));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
    float* out = c + (row + thread / 32 * 16 + thread % 32 / 4) * n + col + thread % 4 * 2;
    for (int j = 0; j < 8; ++j) {
        *(float2*)(out + 8 * j) = make_float2(d[4 * j], d[4 * j + 1]);
        *(float2*)(out + 8 * n + 8 * j) = make_float2(d[4 * j + 2], d[4 * j + 3]);
    }
}
