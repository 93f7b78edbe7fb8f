// Softmax of rows, an inclusive scan and a bitonic sort: loops, barriers, divergence, shared memory.
extern "C" __global__ void softmax(const float* x, float* out, int n) {
    __shared__ float parts[4];
    const float* row = x + blockIdx.x * n;
    float high = __int_as_float(0xff800000), sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) high = fmaxf(high, row[i]);
    for (int o = 16; o; o /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, o));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = high;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; ++w) high = fmaxf(high, parts[w]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(row[i] - high);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = __expf(row[i] - high) / sum;
}
extern "C" __global__ void scan(const int* x, int* out) {
    __shared__ int sums[32];
    int lane = threadIdx.x & 31, v = x[threadIdx.x];
    for (int o = 1; o < 32; o *= 2) { int u = __shfl_up_sync(~0u, v, o); if (lane >= o) v += u; }
    if (lane == 31) sums[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) { int s = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0; for (int o = 1; o < 32; o *= 2) { int u = __shfl_up_sync(~0u, s, o); if (lane >= o) s += u; } sums[lane] = s; }
    __syncthreads();
    out[threadIdx.x] = v + (threadIdx.x >= 32 ? sums[threadIdx.x / 32 - 1] : 0);
}
extern "C" __global__ void bitonic(short* data) {
    extern __shared__ short keys[];
    int i = threadIdx.x;
    keys[i] = data[i];
    for (int size = 2; size <= blockDim.x; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            __syncthreads();
            int j = i ^ step;
            if (j > i) { bool up = !(i & size); short p = keys[i], q = keys[j]; if ((p > q) == up) { keys[i] = q; keys[j] = p; } }
        }
    __syncthreads();
    data[i] = keys[i];
}
