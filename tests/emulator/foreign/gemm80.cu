// C[m,n] = A[m,k] B[n,k]^T with mma.sync, ldmatrix and a two-stage cp.async pipeline: 64 x 32 of C a block of four warps, k in steps of 32.
#include <cuda_fp16.h>
#define ROW 80  // bytes of a row in shared memory: 64, padded
__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(unsigned to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)); }

extern "C" __global__ void __launch_bounds__(128) gemm80(const half* a, const half* b, float* c, int m, int n, int k) {
    extern __shared__ __align__(16) char tiles[];  // two stages of 64 rows of A and 32 of B
    const unsigned base = address(tiles), stage_bytes = 96 * ROW;
    const int row = blockIdx.y * 64, col = blockIdx.x * 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto fetch = [&](int step) {
        unsigned stage = base + (step & 1) * stage_bytes;
        for (int i = threadIdx.x; i < 96 * 4; i += 128) {
            int r = i / 4, chunk = i % 4;
            const half* from = r < 64 ? a + (row + r) * k : b + (col + r - 64) * k;
            copy16(stage + r * ROW + chunk * 16, from + step * 32 + chunk * 8);
        }
        asm volatile("cp.async.commit_group;");
    };
    float acc[4][4] = {};
    const int steps = k / 32;
    fetch(0);
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) fetch(step + 1); else asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        unsigned stage = base + (step & 1) * stage_bytes;
        for (int kk = 0; kk < 2; ++kk) {
            unsigned x[4], y[4][2];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                         : "r"(stage + (warp * 16 + lane % 16) * ROW + kk * 32 + lane / 16 * 16));
            for (int j = 0; j < 4; ++j)
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(y[j][0]), "=r"(y[j][1])
                             : "r"(stage + (64 + j * 8 + lane % 8) * ROW + kk * 32 + lane / 8 % 2 * 16));
            for (int j = 0; j < 4; ++j)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(acc[j][0]), "+f"(acc[j][1]), "+f"(acc[j][2]), "+f"(acc[j][3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[j][0]), "r"(y[j][1]));
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; ++j) {
        float* out = c + (row + warp * 16 + lane / 4) * n + col + j * 8 + lane % 4 * 2;
        *(float2*)out = make_float2(acc[j][0], acc[j][1]);
        *(float2*)(out + 8 * n) = make_float2(acc[j][2], acc[j][3]);
    }
}
