// A block brings a tile by cuda::memcpy_async, which cuda::barrier counts.
#include <cuda/barrier>

extern "C" __global__ void tile(const int *from, int *to) {
    __shared__ cuda::barrier<cuda::thread_scope_block> arrived;
    __shared__ alignas(16) int tile[128];
    if (threadIdx.x == 0) {
        init(&arrived, blockDim.x);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::memcpy_async(tile, from + 128 * blockIdx.x, cuda::aligned_size_t<16>(sizeof(tile)),
                           arrived);
    }
    arrived.arrive_and_wait();
    to[128 * blockIdx.x + threadIdx.x] = tile[threadIdx.x ^ 1] + 1;
}
