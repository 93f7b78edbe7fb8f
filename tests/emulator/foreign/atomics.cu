// Every kind of atomic; a lock; a struct by value, indexed by threads; the last block to finish does the rest.
#include <cuda_fp16.h>
struct Scale { float by[4]; long long offset; unsigned char mask[3]; };

extern "C" __global__ void atomics(const int* x, int* ints, unsigned long long* longs, float* floats, double* doubles, half2* halves, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    atomicAdd(&ints[0], v); atomicSub(&ints[1], v); atomicMin(&ints[2], v); atomicMax(&ints[3], v); atomicAnd(&ints[4], v); atomicOr(&ints[5], v); atomicXor(&ints[6], v);
    atomicInc((unsigned*)&ints[7], 9); atomicDec((unsigned*)&ints[8], 9);
    atomicExch(&ints[16 + i % 8], i);
    atomicAdd(&longs[0], (unsigned long long)v << 30); atomicMax((long long*)&longs[1], (long long)v << 33);
    atomicAdd(floats, v * 0.5f); atomicAdd(doubles, v * 0.25); atomicAdd(halves, __floats2half2_rn(1.f, v & 1));
    unsigned long long old = longs[2], assumed;  // a product by compare-and-swap
    do { assumed = old; old = atomicCAS(&longs[2], assumed, assumed * (2 * (unsigned long long)i + 3)); } while (old != assumed);
}
extern "C" __global__ void scaled(const float* x, float* out, Scale s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * s.by[i & 3] + s.offset + s.mask[i % 3];
}
__device__ unsigned finished;
extern "C" __global__ void last_block(const float* x, volatile float* part, float* out, int n) {
    __shared__ float sums[128];
    __shared__ bool last;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    sums[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) { __syncthreads(); if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half]; }
    if (threadIdx.x == 0) { part[blockIdx.x] = sums[0]; __threadfence(); last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1; }
    __syncthreads();
    if (last && threadIdx.x == 0) { float total = 0; for (int b = 0; b < gridDim.x; ++b) total += part[b]; *out = total; }
}
