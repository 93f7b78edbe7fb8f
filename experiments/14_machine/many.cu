// For reading.py: many kernels in one text, with functions that are called, tables, local arrays.
template <int N>
__device__ __noinline__ float sum(const float* x, int i) {
  float total = 0;
  for (int j = 0; j < N; j++) total += sinf(x[(i + j) % 1024]) * powf(x[j], 1.5f);
  return total;
}
template <int N>
__global__ void kernel(const float* x, float* y) {
  int i = threadIdx.x;
  float own[8];
  for (int j = 0; j < 8; j++) own[j] = x[i + j];
  y[i] = sum<N>(x, i) + own[i % 8] + tanf(x[i]) + erff(x[i]);
}
__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
extern "C" __global__ void recursive(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 10); }
