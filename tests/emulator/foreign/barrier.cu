// cuda::barrier and memcpy_async: a round at a time of 256 numbers, each turned around.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>

extern "C" __global__ void barrier(const int *x, int *y) {
  __shared__ alignas(16) int s[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  auto block = cooperative_groups::this_thread_block();
  if (block.thread_rank() == 0) init(&bar, block.size());
  block.sync();
  for (int i = 0; i < 3; i++) {
    cuda::memcpy_async(block, s, x + 256 * i, cuda::aligned_size_t<16>(sizeof(s)), bar);
    bar.arrive_and_wait();
    y[256 * i + threadIdx.x] = s[255 - threadIdx.x];
    block.sync();
  }
}
